"""The mounts of a slice, where the worker is root: the limiter in the driver's place.

The worker leaves the mount namespace of raylet before it has threads. Mounts that it makes later are seen by all its
threads and children, whatever variables they have.
"""

import ctypes
import os
from typing import Any

_CLONE_NEWNS = 0x0002_0000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
_MS_NOSUID, _MS_NODEV = 2, 4


def _check(done: int, what: str) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def leave() -> bool:
    """Gives this process a mount namespace of its own; False where it has no right to."""
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False
    # Mounts of the node still arrive here, and none of these leaves.
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount --make-rslave /")
    return True


def lay(mounts: list[dict[str, Any]]) -> None:
    """Makes the mounts of a slice in this namespace, in order.

    :raises OSError: with the target that cannot be mounted.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    folders: list[str] = []
    for entry in mounts:
        source, target = entry.get("source"), str(entry["target"])
        if source is None:
            os.makedirs(target, exist_ok=True)
            flags = _MS_NOSUID | _MS_NODEV
            done = libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, b"mode=755,size=1m")
            _check(done, f"tmpfs on {target}")
            folders.append(target)
            continue
        if any(target.startswith(f"{folder}/") for folder in folders):
            _create(str(source), target)
        done = libc.mount(os.fsencode(str(source)), os.fsencode(target), None, _MS_BIND | _MS_REC, None)
        _check(done, f"bind {source} on {target}")
        if entry.get("read_only"):
            _seal(libc, target)
    for folder in reversed(folders):
        flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV
        _check(libc.mount(None, os.fsencode(folder), None, flags, None), f"read-only {folder}")


def _seal(libc: Any, target: str) -> None:
    # A remount has to repeat the flags that the file system has.
    has = os.statvfs(target).f_flag
    kept = has & (_MS_NOSUID | _MS_NODEV | 8 | 1024 | 2048)
    flags = _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept
    _check(libc.mount(None, os.fsencode(target), None, flags, None), f"read-only {target}")


def _create(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "a", encoding="ascii"):
        pass
