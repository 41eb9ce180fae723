"""Ties a child to its parent: the kernel signals it when the parent has ended, also by SIGKILL."""

import ctypes
import os
import signal

#: `PR_SET_PDEATHSIG` of prctl(2). It is kept over `exec`.
_PR_SET_PDEATHSIG = 1


def tie(parent: int, number: int = signal.SIGTERM) -> None:
    """Makes the end of `parent` a signal to this process. It was started by `parent`, which may have ended since."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
