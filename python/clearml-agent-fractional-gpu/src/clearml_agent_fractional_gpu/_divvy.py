"""Finds Divvy on this machine, and checks what its daemon can allocate."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Optional

from ._errors import FractionError

#: The variable with the path of ``divvy``, if it is not on the agent's PATH.
PROGRAM = "CLEARML_FRACTIONAL_GPU_DIVVY"

#: ``divvy``'s exit code for "no daemon".
_NO_DAEMON = 7
#: ``divvy``'s exit code for "would have to wait": the GPU can be shared, but other jobs use the room now.
_WOULD_WAIT = 6

#: Timeout of a call in seconds. The first call creates a context on each GPU, which takes some seconds.
_PATIENCE = 60


def find() -> str:
    """Returns the path of ``divvy``.

    :raises FractionError: when it is not installed.
    """
    named = os.environ.get(PROGRAM)
    found = shutil.which(named or "divvy")
    if found is None:
        where = f"{PROGRAM}={named} is not a program" if named else "there is no `divvy` on the PATH of this agent"
        raise FractionError(
            f"{where}, so no limit would be enforced",
            f"install Divvy, or set {PROGRAM} to the path of `divvy`",
        )
    return os.path.abspath(found)


def daemon_answers(divvy: str) -> bool:
    """Returns whether a daemon allocates slices; without one, each task takes its slice by itself."""
    return _gpus(divvy) is not None


def check(gpus: Optional[Sequence[str]] = None) -> str:
    """Checks that Divvy can allocate fractions of these GPUs (default: all) on this machine.

    :return: a sentence about how slices are allocated.
    :raises FractionError: when it cannot, with the reason and a hint.
    """
    divvy = find()
    if shutil.which("docker") is None:
        raise FractionError("there is no `docker` on the PATH of this agent", "install Docker, or correct the PATH")
    wanted = [str(gpu) for gpu in gpus or ()]
    for gpu in wanted:
        if not gpu.isdigit():
            raise FractionError(
                f"GPU {gpu} is a MIG instance, which tasks cannot share", "name whole GPUs: --gpus 0-2"
            )
    served = _gpus(divvy)
    if served is None:
        for gpu in wanted or ["0"]:
            _try_alone(divvy, gpu)
        return f"{divvy} runs without a daemon: each task takes its own slice, and the driver shares the compute time"
    known = {str(gpu.get("index")): gpu for gpu in served}
    for gpu in wanted:
        if gpu not in known:
            there = ", ".join(sorted(known)) or "none"
            raise FractionError(
                f"Divvy's daemon does not serve GPU {gpu}; it serves {there}",
                "start `divvy daemon` with that GPU in --gpus",
            )
        mode = known[gpu].get("mode")
        if mode == "mig":
            raise FractionError(
                f"GPU {gpu} is in MIG mode, which allows no fractions",
                "remove it from --gpus, or turn MIG off",
            )
    return f"{divvy} has a daemon that serves {len(known)} GPUs"


def _gpus(divvy: str) -> Optional[list[dict[str, Any]]]:
    """Returns the daemon's GPUs, or None without a daemon."""
    answer = _run([divvy, "gpus", "--output", "json"])
    if answer.returncode == _NO_DAEMON:
        return None
    if answer.returncode != 0:
        raise FractionError(
            f"cannot list the GPUs of Divvy's daemon: {_said(answer)}", "run `divvy doctor` to find the cause"
        )
    items = json.loads(answer.stdout).get("items", [])
    return [item for item in items if isinstance(item, dict)]


def _try_alone(divvy: str, gpu: str) -> None:
    """Allocates a slice of the smallest size, and releases it."""
    answer = _run([divvy, "run", "--no-daemon", "-g", "0.125", "--gpus-on", gpu, "--", "/bin/true"])
    if answer.returncode not in (0, _WOULD_WAIT):
        raise FractionError(
            f"Divvy cannot allocate a slice of GPU {gpu}: {_said(answer)}", "run `divvy doctor` to find the cause"
        )


def _run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FractionError(f"cannot run {words[0]}: {error}", "run `divvy doctor` to find the cause") from error


def _said(answer: "subprocess.CompletedProcess[str]") -> str:
    return answer.stderr.strip() or f"exit code {answer.returncode}"
