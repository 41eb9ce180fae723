"""Divvy on this machine: the program, and whether its daemon answers."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, Optional

from ._errors import FractionError

#: The program, where it is not on the agent's PATH.
PROGRAM = "CLEARML_FRACTIONAL_GPU_DIVVY"

#: ``divvy``'s exit code for "no daemon".
_NO_DAEMON = 7
#: ``divvy``'s exit code for "would have to wait": there is a slice, and others have it now.
_WOULD_WAIT = 6

#: Seconds for an answer. A first look at a machine's GPUs makes a context on each, which takes a few.
_PATIENCE = 60


def find() -> str:
    """The path of ``divvy``.

    :raises FractionError: where it is not installed.
    """
    named = os.environ.get(PROGRAM)
    found = shutil.which(named or "divvy")
    if found is None:
        where = f"{PROGRAM}={named} is no program" if named else "there is no `divvy` on the PATH of this agent"
        raise FractionError(
            f"{where}, so nothing would hold a fraction to its limit",
            f"install Divvy, or name its program in {PROGRAM}",
        )
    return os.path.abspath(found)


def daemon_answers(divvy: str) -> bool:
    """Whether slices come from a daemon; without one every task takes its slice by itself."""
    return _gpus(divvy) is not None


def check(gpus: Optional[Sequence[str]] = None) -> str:
    """Whether fractions of these GPUs (all, if none are named) can be given on this machine.

    :return: in words, how they would be held.
    :raises FractionError: when they cannot, with the reason and what to do.
    """
    divvy = find()
    if shutil.which("docker") is None:
        raise FractionError("there is no `docker` on the PATH of this agent", "install Docker, or mend the PATH")
    wanted = [str(gpu) for gpu in gpus or ()]
    for gpu in wanted:
        if not gpu.isdigit():
            raise FractionError(
                f"GPU {gpu} is a MIG instance, and an instance is not shared", "name whole GPUs: --gpus 0-2"
            )
    served = _gpus(divvy)
    if served is None:
        for gpu in wanted or ["0"]:
            _try_alone(divvy, gpu)
        return f"{divvy} works alone: tasks hold their slices by themselves, and share compute time as the driver does"
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
                f"GPU {gpu} is divided by MIG, so no fractions are cut from it",
                "leave it out of --gpus, or turn MIG off",
            )
    return f"{divvy} has a daemon, which serves {len(known)} GPUs"


def _gpus(divvy: str) -> Optional[list[dict[str, Any]]]:
    """The daemon's GPUs; none without a daemon."""
    answer = _run([divvy, "gpus", "--output", "json"])
    if answer.returncode == _NO_DAEMON:
        return None
    if answer.returncode != 0:
        raise FractionError(
            f"Divvy's daemon does not say which GPUs it has: {_said(answer)}", "`divvy doctor` looks for the cause"
        )
    items = json.loads(answer.stdout).get("items", [])
    return [item for item in items if isinstance(item, dict)]


def _try_alone(divvy: str, gpu: str) -> None:
    """Takes a slice of the smallest size, and gives it back."""
    answer = _run([divvy, "run", "--no-daemon", "-g", "0.125", "--gpus-on", gpu, "--", "/bin/true"])
    if answer.returncode not in (0, _WOULD_WAIT):
        raise FractionError(
            f"Divvy cannot cut a slice from GPU {gpu}: {_said(answer)}", "`divvy doctor` looks for the cause"
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
        raise FractionError(f"{words[0]} cannot be asked: {error}", "`divvy doctor` looks for the cause") from error


def _said(answer: "subprocess.CompletedProcess[str]") -> str:
    return answer.stderr.strip() or f"exit code {answer.returncode}"
