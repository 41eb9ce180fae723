"""Calls of ``divvy``."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from ._errors import SliceError

#: The variable with the path of ``divvy``, if it is not on the PATH of raylet.
PROGRAM = "DIVVY_RAY_DIVVY"

LIMITER = "libdivvy_preload.so"

#: Exit codes of ``divvy``.
WOULD_WAIT = 6
NO_DAEMON = 7
CONFLICT = 8

#: Timeout of a call in seconds.
_PATIENCE = 60

#: Seconds that a call waits for a daemon that does not answer: a restart takes about one.
_RESTART_S = 15.0

#: Timeout of a release in seconds. An ending worker keeps its memory until then.
_RELEASE_TIMEOUT_S = 5

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)


def find() -> str:
    """Returns the path of ``divvy``.

    :raises SliceError: when it is not installed.
    """
    named = os.environ.get(PROGRAM)
    found = shutil.which(named or "divvy")
    if found is None:
        where = f"{PROGRAM}={named} is not a program" if named else "there is no `divvy` on the PATH of raylet"
        raise SliceError.of(where, f"install Divvy on this node, or set {PROGRAM} before `ray start`")
    return os.path.abspath(found)


def limiter(divvy: str) -> str:
    """Returns the path of the limiter's library, from the places where ``divvy`` itself looks.

    :raises SliceError: when it is in none of them.
    """
    beside = Path(os.path.realpath(divvy)).parent
    given = os.environ.get("DIVVY_LIB_DIR")
    for folder in [*([Path(given)] if given else []), beside, beside / "../lib/divvy"]:
        file = folder / LIMITER
        if file.is_file():
            return str(file.resolve())
    raise SliceError.of(
        f"{LIMITER} is neither in {beside} nor in {beside.parent}/lib/divvy", "set DIVVY_LIB_DIR to its folder"
    )


@dataclass(frozen=True)
class Failure:
    code: int
    message: str
    hint: str

    @property
    def passes(self) -> bool:
        """Whether the same call may succeed in a moment."""
        return self.code in (WOULD_WAIT, NO_DAEMON, CONFLICT)


def call(words: list[str], timeout: float = _PATIENCE) -> "tuple[list[dict[str, Any]], Optional[Failure]]":
    """Runs ``divvy … -o json``, and returns the items of its answer, or its error."""
    program = os.path.basename(words[0])
    try:
        done = _run([*words, "-o", "json"], timeout)
    except subprocess.TimeoutExpired:
        shown = " ".join([program, *words[1:]])
        return [], Failure(NO_DAEMON, f"`{shown}` did not end within {timeout:g} s", "run `divvy doctor`")
    except OSError as error:
        return [], Failure(1, f"cannot run {words[0]}: {error}", f"install Divvy, or set {PROGRAM}")
    if done.returncode != 0:
        return [], _failure(done.returncode, done.stderr)
    try:
        items = json.loads(done.stdout).get("items", [])
    except ValueError as error:
        return [], Failure(1, f"cannot read the answer of `{program} {words[1]}`: {error}", "run `divvy doctor`")
    return [item for item in items if isinstance(item, dict)], None


def _run(words: list[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    # Without the limiter: `divvy` is not a program of the task.
    around = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "DIVVY_SLICE")}
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=around,
    )


def release(divvy: str, name: str, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Runs ``divvy slice rm``, again while a daemon restarts; whether it succeeded."""
    for pause in (*_PAUSES_S, *[_PAUSES_S[-1]] * 3):
        try:
            code = _run([divvy, "slice", "rm", name], _RELEASE_TIMEOUT_S).returncode
        except (OSError, subprocess.TimeoutExpired):
            return False
        if code != NO_DAEMON:
            return code == 0
        sleep(pause)
    return False


def _failure(code: int, stderr: str) -> Failure:
    """Reads the error in the last line of stderr, which is JSON; of another program, all of stderr."""
    text = stderr.strip()
    try:
        error = json.loads(text.splitlines()[-1])["error"]
        return Failure(code, str(error["message"]), str(error.get("hint") or ""))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return Failure(code, text[-2000:] or f"exit code {code}", "")


def insist(
    words: list[str],
    wait_s: float,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[dict[str, Any]]:
    """Repeats a call while it may still succeed: for room up to `wait_s`, for a daemon some seconds.

    :raises SliceError: with the last reason and the time that was waited.
    """
    begin = now()
    unanswered: Optional[float] = None
    for attempt in range(1_000_000):
        items, failure = call(words)
        if failure is None:
            return items
        if failure.code == NO_DAEMON:
            unanswered = now() if unanswered is None else unanswered
            since, limit = unanswered, _RESTART_S
        else:
            unanswered, since, limit = None, begin, wait_s
        waited = now() - since
        if not failure.passes or waited >= limit:
            after = f" (waited {waited:.0f} s)" if failure.passes and waited >= 1 else ""
            raise SliceError.of(failure.message + after, failure.hint)
        sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
    raise SliceError.of("the clock of this node stands still")
