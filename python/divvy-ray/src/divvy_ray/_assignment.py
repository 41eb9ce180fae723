"""The GPUs that Ray has assigned to a task, and the words of ``divvy slice create`` for it."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ._config import Settings
from ._errors import SliceError

#: Ray's name of GPUs within a placement group, without the index of a bundle.
_IN_GROUP = re.compile(r"GPU_group_[0-9A-Za-z]+")

#: Ray counts in ten-thousandths, Divvy in thousandths.
_THOUSANDTHS = 1000


@dataclass(frozen=True)
class Assignment:
    """GPUs of a task: names for ``divvy`` (index or UUID), and the amount on each in thousandths, at most 1000."""

    gpus: tuple[str, ...]
    thousandths: int

    def shown(self) -> str:
        whole = self.thousandths == _THOUSANDTHS
        plural = "s" if len(self.gpus) > 1 else ""
        amount = "" if whole else f"{self.thousandths / _THOUSANDTHS:g} of "
        return f"{amount}GPU{plural} {', '.join(self.gpus)}"


def read(
    resources: Mapping[str, Sequence[tuple[int, float]]], visible: Optional[Sequence[str]]
) -> Optional[Assignment]:
    """Reads the GPUs in a worker's resources, as Ray's core has them.

    :param resources: for each resource the (index, amount) pairs, such as ``{"GPU": [(0, 0.25)]}``.
    :param visible: the node's GPUs as raylet's ``CUDA_VISIBLE_DEVICES`` has them, or None without that variable.
    :return: None for a task without GPUs.
    :raises SliceError: for an amount or a GPU that Divvy cannot allocate.
    """
    amounts: dict[int, float] = {}
    for name, pairs in resources.items():
        if name == "GPU" or _IN_GROUP.fullmatch(name):
            for index, amount in pairs:
                if amount > 0:
                    amounts[int(index)] = amounts.get(int(index), 0.0) + float(amount)
    if not amounts:
        return None
    gpus = tuple(_name(index, visible) for index in sorted(amounts))
    parts = {_thousandths(amount) for amount in amounts.values()}
    if len(parts) > 1:
        shown = ", ".join(f"{amount:g} of GPU {index}" for index, amount in sorted(amounts.items()))
        raise SliceError.of(f"Ray assigned {shown}: a slice has the same amount on each GPU", "use whole GPUs, or one")
    return Assignment(gpus, parts.pop())


def _name(index: int, visible: Optional[Sequence[str]]) -> str:
    if visible is None:
        return str(index)
    if index >= len(visible):
        raise SliceError.of(
            f"Ray assigned GPU {index}, but raylet's CUDA_VISIBLE_DEVICES has only {len(visible)} GPUs",
            "start Ray with `--num-gpus` of that number, and do not set the variable in `env_vars`",
        )
    name = visible[index].strip()
    if name.startswith("MIG-"):
        raise SliceError.of(
            f"Ray assigned the MIG instance {name}, which its hardware already limits",
            "leave `divvy` out of the runtime_env of tasks on MIG instances",
        )
    return name


def _thousandths(amount: float) -> int:
    # Down, so that tasks that share a GPU in Ray share it here too: 3 × 0.3333 → 3 × 333.
    part = int(amount * _THOUSANDTHS + 1e-6)
    if part < 1:
        raise SliceError.of(f"num_gpus={amount:g} is less than 0.001 of a GPU", "use num_gpus=0.001 or more")
    return min(part, _THOUSANDTHS)


def check(assignment: Assignment, settings: Settings) -> None:
    """Compares Ray's amount with the one that the user wrote in ``runtime_env``.

    :raises SliceError: when they differ.
    """
    if settings.gpu is None:
        return
    assigned = assignment.thousandths * len(assignment.gpus)
    if abs(assigned - settings.gpu * _THOUSANDTHS) >= 1:
        raise SliceError.of(
            f"Ray assigned num_gpus={assigned / _THOUSANDTHS:g}, but the runtime_env has divvy.gpu={settings.gpu:g}",
            "use one amount, or leave `gpu` out of the runtime_env",
        )


def words(assignment: Assignment, settings: Settings, name: str) -> list[str]:
    """The words of the call that takes the slice for this process."""
    if settings.gpu_memory is not None:
        amount = ["--gpu-memory", settings.gpu_memory]
    else:
        amount = ["-g", f"{assignment.thousandths / _THOUSANDTHS:g}"]
    compute = ["--compute", settings.compute] if settings.compute is not None else []
    on = ["--gpus-on", ",".join(assignment.gpus)]
    # A worker that ends by itself releases the slice before (`_hooks`).
    end = ["--pid", str(os.getpid()), "--cancel-on-exit"]
    return [settings.divvy, "slice", "create", name, *on, *amount, *compute, *end]


def slice_name(task: str, worker: str) -> str:
    """A name for ``divvy ps``: the class or function, and the worker, which has one slice at most.

    >>> slice_name("Model.__init__", "0123456789abcdef0123")
    'ray-Model-0123456789abcdef'
    """
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", task.split(".")[0]).strip("-_")[:24]
    return "-".join(part for part in ("ray", plain, worker[:16]) if part)
