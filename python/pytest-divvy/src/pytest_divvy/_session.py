"""The folder of a session, and what a killed session has left.

```text
/dev/shm/divvy-pytest-UID-XXXX/     one session
    alive                           locked while the session, or the keeper of its daemon, lives
    turn-N, busy-N                  the turns of the workers on GPU N
    home/                           DIVVY_HOME of a private daemon
```
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Optional

_NAME = "divvy-pytest"

#: The variable with the folder in which sessions have theirs.
FOLDER = "PYTEST_DIVVY_FOLDER"
_ALIVE = "alive"

#: A folder without its lock file is being made, which takes microseconds. A minute later its maker is dead.
_YOUNG_S = 60

#: The memory that a daemon's home may take: 26 MiB at its start, and more with its history.
_HOME_BYTES = 64 << 20


def base() -> Path:
    """In memory, where there is room: the daemon syncs its journal at each change of a slice."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named)
    memory = Path("/dev/shm")
    try:
        room = os.statvfs(memory)
        if os.access(memory, os.W_OK | os.X_OK) and room.f_bavail * room.f_frsize > _HOME_BYTES:
            return memory
    except OSError:
        pass
    return Path(tempfile.gettempdir())


class SessionFolder:
    """A new folder, locked until :meth:`remove` and by each process that inherits :attr:`lock`."""

    def __init__(self, place: Optional[Path] = None) -> None:
        place = place or base()
        sweep(place)
        self.path = Path(tempfile.mkdtemp(prefix=_prefix(), dir=place))
        self.lock = os.open(self.path / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def sweep(place: Path) -> list[Path]:
    """Removes the folders of this user's sessions that have ended without doing so; their paths."""
    swept = []
    for folder in place.glob(_prefix() + "*"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
            swept.append(folder)
    return swept


def _is_left(folder: Path) -> bool:
    try:
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return False
        try:
            lock = os.open(folder / _ALIVE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return time.time() - about.st_mtime > _YOUNG_S
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def _prefix() -> str:
    return f"{_NAME}-{os.geteuid()}-"
