"""Turns the agent's ``docker run`` into the command that runs the container in a slice."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Optional

from . import _divvy
from ._errors import FractionError

__all__ = ["FractionError", "fraction", "patch_docker_cmd_gpu_fraction"]

#: More flags of ``divvy docker slice`` for every task, in the syntax of a shell: ``-q clearml --compute strict``.
SLICE_ARGS = "CLEARML_FRACTIONAL_GPU_ARGS"

#: The variables that name a task's GPUs when the agent gives ``docker run`` no ``--gpus``.
_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def patch_docker_cmd_gpu_fraction(docker_cmd: Sequence[str], gpu_fraction: float) -> list[str]:
    """Returns the command that runs the same container in a fraction of its GPU.

    :param docker_cmd: the agent's whole command: ``docker run … --gpus '"device=2"' … IMAGE bash -c SCRIPT``.
    :param gpu_fraction: fraction of that GPU, in steps of 0.125; 1 means the whole GPU.
    :return: the command to run instead.
    :raises FractionError: when such a slice is impossible, with the reason and a hint. Nothing was started.
    """
    words = [str(word) for word in docker_cmd]
    share = fraction(gpu_fraction)
    gpu, line = _gpu(words, os.environ)
    divvy = _divvy.find()
    command = [divvy, "docker", "slice", "-g", _text(share), "--gpus-on", gpu]
    task = _task(line)
    if task:
        command += ["--name", f"clearml-{task}"]
    if not _divvy.daemon_answers(divvy):
        command.append("--no-daemon")
    command += _slice_args(os.environ.get(SLICE_ARGS, ""))
    return [*command, "--", *line]


def _slice_args(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise FractionError(f"cannot parse {SLICE_ARGS}: {error}", "close the quote") from error
    if "run" in words:
        # Newer agents put their `-e NAME=VALUE` behind the first word `run` of the whole command.
        raise FractionError(
            f"{SLICE_ARGS} contains the word run, behind which the agent puts flags of docker",
            "join it to its flag: --queue=run",
        )
    return words


def fraction(value: float) -> Fraction:
    """Converts a fraction of a GPU to exact eighths.

    :raises FractionError: for other values; ClearML documents 0.125 as the smallest step.
    """
    try:
        eighths = Fraction(str(value)) * 8
    except (ValueError, ZeroDivisionError) as error:
        raise FractionError(f"{value!r} is not a fraction of a GPU", "write a number such as 0.25") from error
    if eighths.denominator != 1 or not 0 < eighths <= 8:
        raise FractionError(
            f"{value} of a GPU requested, but a fraction is a multiple of 0.125 up to 1",
            "set the queue's amount to 0.125, 0.25, 0.375, 0.5, 0.625, 0.75 or 0.875",
        )
    return eighths / 8


def _text(share: Fraction) -> str:
    return f"{float(share):.3f}".rstrip("0").rstrip(".")


def _gpu(words: list[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns the GPU that the agent has chosen, and the command without that choice."""
    if len(words) < 3 or os.path.basename(words[0]) not in ("docker", "podman") or words[1] != "run":
        raise FractionError(
            f"`{' '.join(words[:2])}` is not the `docker run` of a ClearML agent",
            "start the agent with --docker",
        )
    # The agent's own --gpus stands before the task's arguments; Divvy refuses a second one.
    at = next((at for at, word in enumerate(words) if word == "--gpus"), None)
    if at is not None and at + 1 < len(words):
        chosen: Optional[str] = words[at + 1]
        line = words[:at] + words[at + 2 :]
    else:
        chosen = next((environment[name] for name in _VISIBLE if environment.get(name)), None)
        line = words
    text = (chosen or "").strip().strip("\"'")
    if text.startswith("device="):
        text = text[len("device=") :]
    if re.fullmatch(r"\d+", text):
        return text, line
    if re.fullmatch(r"\d+[:.]\d+", text):
        raise FractionError(
            f"GPU {text} is a MIG instance, which tasks cannot share",
            "name whole GPUs: --gpus 0-2",
        )
    raise FractionError(
        f"a fraction needs exactly one GPU, but the agent has chosen {chosen or 'none'}",
        "start the agent with --dynamic-gpus and whole GPUs: --gpus 0-2",
    )


def _task(line: list[str]) -> Optional[str]:
    """Returns the task's ID, from the last words of the script in the container."""
    found = re.search(r"--id ([0-9A-Za-z_-]{1,64})\W*$", line[-1])
    return found.group(1) if found else None
