"""The program ``divvy``, its daemons, and the choice of one for a session."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ._amounts import MIB, STEP, down, up
from ._api import ApiError, Daemon
from ._session import SessionFolder

#: The variable with the path of ``divvy``, if it is not on the PATH.
PROGRAM = "PYTEST_DIVVY_PROGRAM"

SYSTEM_SOCKET = "/run/divvy/divvy.sock"

#: The version of the API that this package speaks; later versions of the daemon only add to it.
API = 1

#: Seconds that a private daemon may take to answer: it measures a context on each GPU, and waits for a cold driver.
_START_S = 120.0

#: Seconds for `divvy gpus` without a daemon: it loads the driver.
_LOOK_S = 60.0

#: Seconds for a keeper to end: it waits up to 20 s for jobs, 10 s for its daemon, and starts one before if there is none.
_ENDS_S = 60.0

#: Runs a module of this package in a process of its own, wherever the package lies: `-m` would look in the tests' folder first.
RUN_MODULE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import importlib; "
    "sys.exit(importlib.import_module('pytest_divvy.' + sys.argv[2]).main(sys.argv[3:]))"
)

#: The cost of a context where the daemon could not measure it, as it assumes it itself.
_CONTEXT_BYTES = 600 * MIB


class NoSlices(Exception):
    """The tests run without slices, as they would without this package. The text says why."""


class SetupError(Exception):
    """The session cannot begin: the user asked for slices, and there are none."""


@dataclass
class Gpu:
    index: int
    #: The memory that jobs of the session can hold together now.
    room: int
    #: The memory of a context.
    context: int
    name: str

    @property
    def floor(self) -> int:
        """The size of a slice between tests: Divvy refuses one that is smaller than a context."""
        return up(self.context, STEP)


@dataclass
class Service:
    """The daemon of a session, and the GPUs that it serves."""

    divvy: str
    socket: str
    node: dict[str, Any]
    gpus: list[Gpu] = field(default_factory=list)
    #: `DIVVY_HOME` of a private daemon, and its keeper.
    home: Optional[str] = None
    keeper: "Optional[Keeper]" = None

    @property
    def system(self) -> bool:
        return bool(self.node.get("system"))

    def shown(self) -> str:
        gpus = ", ".join(sorted({gpu.name for gpu in self.gpus}))
        kind = "a private daemon" if self.home else "the system's daemon" if self.system else "your daemon"
        return f"{len(self.gpus)} x {gpus}, {kind} (divvy {self.node.get('version')})"


def choose(folder: SessionFolder, sim: Optional[str]) -> Service:
    """The daemon for a session: the one that runs, else a private one.

    :raises NoSlices: on a machine without Divvy or without a GPU.
    :raises SetupError: when a daemon is there and cannot be used, or a private one does not start.
    """
    if os.environ.get("DIVVY_SLICE"):
        job = os.environ.get("DIVVY_JOB_ID", "?")
        raise NoSlices(f"this session runs in the slice of job {job}, and its tests share that slice")
    divvy = find()
    if divvy is None:
        if sim:
            raise SetupError("--divvy-sim needs `divvy` on the PATH: pip install divvy-gpu")
        raise NoSlices("there is no `divvy` on the PATH")
    service = _private(divvy, folder, sim) if sim else _running(divvy) or _private_for_gpus(divvy, folder)
    try:
        service.gpus = _gpus(Daemon(service.socket))
    except BaseException:
        stop(service)
        raise
    return service


def find() -> Optional[str]:
    named = os.environ.get(PROGRAM)
    found = shutil.which(named or "divvy")
    if named and found is None:
        raise SetupError(f"{PROGRAM}={named} is not a program")
    return os.path.abspath(found) if found else None


def sockets() -> list[str]:
    """Where a daemon may listen for this user, in the order in which ``divvy`` looks."""
    home = os.environ.get("DIVVY_HOME")
    if home:
        return [os.path.join(home, "divvy.sock")]
    user = os.getuid()
    folders = [os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}"]
    own = [os.path.join(folder, "divvy/divvy.sock") for folder in folders if folder]
    return [*own, f"/tmp/divvy-{user}/divvy.sock", SYSTEM_SOCKET]


def _running(divvy: str) -> Optional[Service]:
    """The daemon that answers; `None` without one."""
    for socket in dict.fromkeys(sockets()):
        if not os.path.exists(socket):
            continue
        try:
            node = Daemon(socket, away_s=0).node()
        except ApiError as error:
            if error.code == "no_daemon":
                continue
            raise SetupError(f"the daemon on {socket}: {error}") from None
        spoken = (node.get("protocols") or {}).get("api")
        if spoken != API:
            raise SetupError(
                f"the daemon on {socket} has version {spoken} of its API, and pytest-divvy speaks {API}: "
                "install the pytest-divvy of the daemon's release, or use --no-divvy"
            )
        return Service(divvy, socket, node)
    return None


def _private_for_gpus(divvy: str, folder: SessionFolder) -> Service:
    """A private daemon for the GPUs of the machine.

    :raises NoSlices: when it has none.
    """
    try:
        seen = subprocess.run(
            [divvy, "gpus", "-o", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LOOK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"`divvy gpus` failed: {error}") from None
    if seen.returncode != 0:
        reason, code = _error(seen.stderr)
        if code == "no_daemon":
            raise NoSlices(reason)
        raise SetupError(f"`divvy gpus`: {reason}")
    return _private(divvy, folder, None)


def _error(stderr: str) -> tuple[str, str]:
    try:
        error = json.loads(stderr.strip().splitlines()[-1])["error"]
        return str(error["message"]), str(error["code"])
    except (IndexError, KeyError, TypeError, ValueError):
        return stderr.strip()[-1000:], ""


class Keeper:
    """The process that keeps a private daemon (`_keeper`). It is started again if it ends before the session."""

    #: A keeper that ends that often has a reason that another start does not change.
    MOST_STARTS = 5

    def __init__(self, words: list[str], folder: SessionFolder) -> None:
        self.words = words
        self.folder = folder
        self.log = folder.path / "keeper.log"
        self.is_over = False
        self.starts = 0
        self.process = self._start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self.starts += 1
        with open(self.log, "ab") as output:
            return subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # It outlives the terminal's Ctrl-C, and the lock tells other sessions that this folder is in use.
                start_new_session=True,
                pass_fds=[self.folder.lock],
            )

    def _watch(self) -> None:
        # A worker that starts waits for its daemon without end, so a session without one would hang.
        while True:
            self.process.wait()
            if self.is_over or self.starts == self.MOST_STARTS:
                return
            self.process = self._start()

    def stop(self) -> None:
        self.is_over = True
        process = self.process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _private(divvy: str, folder: SessionFolder, sim: Optional[str]) -> Service:
    home = folder.path / "home"
    module = [sys.executable, "-c", RUN_MODULE, str(Path(__file__).parent.parent), "_keeper"]
    keeper = Keeper([*module, divvy, str(home), *(["--sim", sim] if sim else [])], folder)
    socket = home / "divvy.sock"
    service = Service(divvy, str(socket), {}, home=str(home), keeper=keeper)
    begin = time.monotonic()
    while True:
        try:
            service.node = Daemon(str(socket), away_s=0).node()
            return service
        except ApiError as error:
            refusal, late = _is_refused(keeper.log), time.monotonic() - begin > _START_S
            if refusal or late or keeper.starts == keeper.MOST_STARTS:
                stop(service)
                raise SetupError(f"the private daemon does not start: {refusal or error}") from None
        time.sleep(0.05)


def _is_refused(log: Path) -> str:
    """The daemon's reason not to start, once it has given one."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line[len("error: ") :] for line in lines if line.startswith("error: ")), "")


def stop(service: Service) -> None:
    """Ends a private daemon; another one stays."""
    if service.keeper is not None:
        service.keeper.stop()


def _gpus(daemon: Daemon) -> list[Gpu]:
    """The GPUs on which workers can have slices.

    :raises SetupError: when there is none.
    """
    found, reasons = [], []
    for gpu in daemon.gpus():
        index, mode = int(gpu["index"]), str(gpu["mode"])
        if mode != "shared":
            reasons.append(f"GPU {index} has the mode {mode}")
        elif gpu.get("lost") or gpu.get("out_of_service") or gpu.get("problem"):
            reasons.append(f"GPU {index} is lost or out of service")
        else:
            room = int((gpu.get("available") or {}).get("memory_bytes") or 0)
            context = int(gpu.get("context_overhead_bytes") or _CONTEXT_BYTES)
            found.append(Gpu(index, down(room, MIB), context, str(gpu["model"])))
    if not found:
        raise SetupError(f"no GPU has room for slices: {'; '.join(reasons) or 'the daemon serves no GPU'}")
    return found
