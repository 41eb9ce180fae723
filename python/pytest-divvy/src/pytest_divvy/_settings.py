"""Settings that the controller sends to its workers, in a form that pytest-xdist carries."""

from dataclasses import asdict, dataclass
from typing import Any, Optional


@dataclass
class WorkerSettings:
    """The settings of one worker."""

    socket: str
    #: The session's folder, with the locks of the turns.
    folder: str
    #: The file of peaks, as it was at the start.
    peaks: str
    #: The beginning of the names of the session's jobs.
    session: str
    gpu: int
    #: Bytes of the slice between tests, and for a test that was never measured.
    floor: int
    share: int
    #: Whether a test that was never measured has all of the GPU instead.
    alone: bool
    #: Bytes of a context on this GPU.
    context: int
    #: Seconds that a test waits for memory that other programs hold.
    wait_s: float
    #: Whether `DIVVY_HOME` is that of a private daemon, which tests need not know.
    private: bool

    def carried(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, workerinput: dict[str, Any]) -> "Optional[WorkerSettings]":
        carried = workerinput.get("divvy")
        return None if carried is None else cls(**carried)
