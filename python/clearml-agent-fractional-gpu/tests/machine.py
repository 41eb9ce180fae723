"""A machine whose `divvy` is a small script: what it was asked, and what it answers."""

import json
import os
import tempfile
import textwrap
import unittest
from pathlib import Path
from typing import Any, Optional
from unittest import mock

GPUS = [{"index": 0, "mode": "shared"}, {"index": 1, "mode": "mig"}, {"index": 2, "mode": "shared"}]


class Machine(unittest.TestCase):
    """With `divvy` and `docker` on the PATH, and a daemon that serves GPUs 0 to 2, of which 1 is in MIG mode."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program("docker", "exit 0")
        self.answers(gpus=GPUS)
        names = (
            "CLEARML_FRACTIONAL_GPU_ARGS",
            "CLEARML_FRACTIONAL_GPU_DIVVY",
            "NVIDIA_VISIBLE_DEVICES",
            "CUDA_VISIBLE_DEVICES",
        )
        kept = {name: value for name, value in os.environ.items() if name not in names}
        around = mock.patch.dict(os.environ, {**kept, "PATH": f"{self.folder}:/usr/bin:/bin"}, clear=True)
        around.start()
        self.addCleanup(around.stop)

    def program(self, name: str, script: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}\n")
        file.chmod(0o755)

    def answers(self, gpus: Optional[list[dict[str, Any]]] = None, code: int = 0, alone: int = 0) -> None:
        """`code`: what `divvy gpus` ends with; `alone`: what a run without a daemon does."""
        (self.folder / "gpus.json").write_text(json.dumps({"items": gpus or []}))
        self.program(
            "divvy",
            f"""
            echo "$*" >> {self.folder}/asked
            case $1 in
                gpus) cat {self.folder}/gpus.json; echo 'error: of gpus' >&2; exit {code};;
                run) echo 'error: of run' >&2; exit {alone};;
            esac
            """,
        )

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()
