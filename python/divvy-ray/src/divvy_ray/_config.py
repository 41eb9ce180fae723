"""The field ``divvy`` of a runtime environment, and how it travels to the worker."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Optional

from ._errors import SliceError

#: The variable that brings the settings to the worker.
VARIABLE = "DIVVY_RAY"

#: Seconds that a task waits for room by default. Ray assigns a GPU anew when a task has ended, while its worker still
#: ends: within a second, or a minute on a busy machine.
WAIT_S = 60.0

#: Seconds at most, so that a typo does not block an actor without end.
LONGEST_WAIT_S = 3600.0

_SIZE = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?[MGT](i?B)?")
_COMPUTE = re.compile(r"(fair|strict)(=[0-9.]{1,6})?|none")


@dataclass(frozen=True)
class Settings:
    """The settings of a user, and the path of ``divvy``."""

    divvy: str = "divvy"
    #: The GPUs that the user expects, to be compared with ``num_gpus``.
    gpu: Optional[float] = None
    #: Memory on each GPU, as ``divvy`` reads it, in place of the part that ``num_gpus`` gives.
    gpu_memory: Optional[str] = None
    #: Division of compute time.
    compute: Optional[str] = None
    wait_s: float = WAIT_S

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_environment(cls) -> "Settings":
        """Reads the settings in a worker.

        :raises SliceError: when the variable is missing or damaged.
        """
        try:
            return cls(**json.loads(os.environ[VARIABLE]))
        except (KeyError, TypeError, ValueError) as error:
            raise SliceError.of(
                f"this worker lacks a valid {VARIABLE}: {error!r}", "start it by the runtime_env field `divvy`"
            ) from error


def parse(value: Any) -> Settings:
    """Reads the field ``divvy`` of a runtime environment.

    :raises ValueError: for anything but an object with known keys and values; the text names the key.
    """
    if value is True:
        return Settings()
    if not isinstance(value, Mapping):
        raise ValueError(f'runtime_env: divvy={_shown(value)} is not an object; use {{"divvy": {{}}}}')
    known = {"gpu": _gpu, "gpu_memory": _memory, "compute": _compute, "wait_s": _wait}
    for key in value:
        if key not in known:
            there = ", ".join(sorted(known))
            raise ValueError(f"runtime_env: divvy has no key {_shown(key)}; its keys are {there}")
    return Settings(**{key: known[key](value[key]) for key in known if value.get(key) is not None})


def _gpu(value: Any) -> float:
    number = _number("gpu", value)
    if not 0 < number <= 1024:
        raise ValueError(f"runtime_env: divvy.gpu={_shown(value)} is not an amount of GPUs, such as 0.25")
    return number


def _wait(value: Any) -> float:
    number = _number("wait_s", value)
    if not 0 <= number <= LONGEST_WAIT_S:
        raise ValueError(f"runtime_env: divvy.wait_s={_shown(value)} is not between 0 and {LONGEST_WAIT_S:g} seconds")
    return number


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"runtime_env: divvy.{key}={_shown(value)} is not a number")
    return float(value)


def _memory(value: Any) -> str:
    if not isinstance(value, str) or not _SIZE.fullmatch(value):
        raise ValueError(f"runtime_env: divvy.gpu_memory={_shown(value)} is not a size, such as '8G' or '512M'")
    return value


def _compute(value: Any) -> str:
    if not isinstance(value, str) or not _COMPUTE.fullmatch(value):
        raise ValueError(f"runtime_env: divvy.compute={_shown(value)} is not fair, strict, strict=0.25 or none")
    return value


def _shown(value: Any) -> str:
    """A value of a user in an error: short, without control characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
