"""Turns of the workers of one GPU.

Two locks of files, which the kernel releases when a worker ends:

```text
turn   a worker holds it while it waits for room, so the first that waits gets the room first
busy   shared while a test uses memory; alone by a worker whose test needs all of the GPU
```
While a worker waits, its slice holds no more than what the worker uses, so the others can go on.
"""

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Callable


class Turns:
    def __init__(self, folder: Path, gpu: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._turn = _open(folder / f"turn-{gpu}")
        self._busy = _open(folder / f"busy-{gpu}")
        self._sleep = sleep

    def begin(self, shrink: Callable[[], None]) -> None:
        """Takes the turn; calls `shrink` before it waits for another worker's."""
        if not _lock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shrink()
            _lock(self._turn, fcntl.LOCK_EX)

    def end(self) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def is_awaited(self) -> bool:
        """Whether another worker waits for room now."""
        if _lock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB):
            self.end()
            return False
        return True

    def use(self, alone: bool) -> None:
        """Begins the use of memory. The turn is held, so no other worker begins meanwhile."""
        _lock(self._busy, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)

    def is_alone(self) -> bool:
        """Whether no other worker's test uses memory. The turn is held."""
        # A change of the kind of a lock may lose it, and no other worker can take it while the turn is held.
        alone = _lock(self._busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _lock(self._busy, fcntl.LOCK_SH)
        return alone

    def rest(self) -> None:
        """Ends the use of memory."""
        fcntl.flock(self._busy, fcntl.LOCK_UN)


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how)
        return True
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        raise
