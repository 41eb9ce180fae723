"""``_keeper DIVVY HOME [--sim MODEL:N]``: keeps a private daemon for one session.

It reads its standard input, which the session holds open. At the end of the input the session is over, however it ended:
the keeper cancels what still runs, stops the daemon and removes the session's folder. A daemon that ends before is started
again, so that the session goes on in its slices.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ._api import ApiError, Daemon
from ._tie import tie

#: Starts of the daemon in a session. A daemon that ends that often has a reason that another start does not change.
_MOST_STARTS = 20

#: Seconds for the jobs of workers to end: a worker ends within the grace of a job, which is 10 s.
_JOBS_END_S = 20.0

#: Seconds for the daemon to stop: it writes its journal and leaves.
_STOPS_S = 10.0

#: Four times a second, as the daemon looks at its jobs.
_LOOK_S = 0.25


def main(arguments: list[str]) -> int:
    divvy, home, options = arguments[0], Path(arguments[1]), arguments[2:]
    # A signal to the terminal's group means the session, which then closes the input.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ["DIVVY_HOME"] = str(home)
    home.mkdir(exist_ok=True)
    daemon = _start(divvy, options)
    starts = 1
    while not _is_over():
        if daemon.poll() is not None:
            if starts == _MOST_STARTS:
                break
            starts += 1
            daemon = _start(divvy, options)
    if daemon.poll() is not None:
        daemon = _start(divvy, options)
    _end_jobs(Daemon(str(home / "divvy.sock"), away_s=_STOPS_S))
    daemon.terminate()
    try:
        daemon.wait(_STOPS_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    shutil.rmtree(home.parent, ignore_errors=True)
    return 0


def _start(divvy: str, options: list[str]) -> "subprocess.Popen[bytes]":
    own = os.getpid()

    def prepare() -> None:
        # The daemon must not outlive its keeper: nothing else would end it. Jobs are tied to their own clients.
        tie(own, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        [divvy, "daemon", "--foreground", *options], stdin=subprocess.DEVNULL, preexec_fn=prepare
    )


def _is_over() -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], _LOOK_S)
    return bool(ready) and not os.read(sys.stdin.fileno(), 1)


def _end_jobs(daemon: Daemon) -> None:
    """Waits until no job is left; cancels those that are."""
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < _JOBS_END_S:
            jobs = [str(job["id"]) for job in daemon.call("GET", "/v1/jobs")]
            if not jobs:
                return
            for job in jobs:
                _cancel(daemon, job)
            time.sleep(_LOOK_S)
    except ApiError as error:
        print(f"pytest-divvy: the private daemon does not end its jobs: {error}", file=sys.stderr)


def _cancel(daemon: Daemon, job: str) -> None:
    try:
        daemon.call("POST", f"/v1/jobs/{job}/cancel", {})
    except ApiError as error:
        # It has ended meanwhile, or is being stopped already.
        if error.code not in ("conflict", "not_found"):
            raise
