"""From the agent's ``docker run`` to the line that runs it in a slice."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Optional

from . import _divvy
from ._errors import FractionError

__all__ = ["FractionError", "fraction", "patch_docker_cmd_gpu_fraction"]

#: More flags of ``divvy docker slice`` for every task, as a shell would write them: ``-q clearml --compute strict``.
SLICE_ARGS = "CLEARML_FRACTIONAL_GPU_ARGS"

#: Where the agent says which GPUs a task has, when it gives ``docker run`` no ``--gpus``.
_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def patch_docker_cmd_gpu_fraction(docker_cmd: Sequence[str], gpu_fraction: float) -> list[str]:
    """The same container in a part of its GPU.

    :param docker_cmd: the agent's whole command: ``docker run … --gpus '"device=2"' … IMAGE bash -c SCRIPT``.
    :param gpu_fraction: part of that GPU, in steps of 0.125, or 1 for all of it.
    :return: the command to run instead.
    :raises FractionError: when there can be no such slice, with the reason and what to do. Nothing was started.
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
    try:
        command += shlex.split(os.environ.get(SLICE_ARGS, ""))
    except ValueError as error:
        raise FractionError(f"{SLICE_ARGS} cannot be read: {error}", "close the quote") from error
    return [*command, "--", *line]


def fraction(value: float) -> Fraction:
    """A part of a GPU in eighths, exactly.

    :raises FractionError: for anything else; the docs of ClearML name 0.125 as the smallest step.
    """
    try:
        eighths = Fraction(str(value)) * 8
    except (ValueError, ZeroDivisionError) as error:
        raise FractionError(f"{value!r} is no part of a GPU", "write a number: 0.25") from error
    if eighths.denominator != 1 or not 0 < eighths <= 8:
        raise FractionError(
            f"{value} of a GPU is no multiple of 0.125 up to 1",
            "give the queue 0.125, 0.25, 0.375, 0.5, 0.625, 0.75 or 0.875",
        )
    return eighths / 8


def _text(share: Fraction) -> str:
    return f"{float(share):.3f}".rstrip("0").rstrip(".")


def _gpu(words: list[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The one GPU that the agent has chosen, and the line without that choice."""
    if len(words) < 3 or os.path.basename(words[0]) not in ("docker", "podman") or words[1] != "run":
        raise FractionError(
            f"`{' '.join(words[:2])}` is not the `docker run` of a ClearML agent",
            "start the agent with --docker",
        )
    # The agent writes its own before anything that a task brings along; a second one is refused by Divvy.
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
            f"GPU {text} is a MIG instance, and an instance is not shared",
            "name whole GPUs: --gpus 0-2",
        )
    raise FractionError(
        f"a fraction is of one GPU, and the agent has chosen {chosen or 'none'}",
        "start the agent with --dynamic-gpus and --gpus: --gpus 0-2",
    )


def _task(line: list[str]) -> Optional[str]:
    """The task's id, from the last words of the script in the container."""
    found = re.search(r"--id ([0-9A-Za-z_-]{1,64})\W*$", line[-1])
    return found.group(1) if found else None
