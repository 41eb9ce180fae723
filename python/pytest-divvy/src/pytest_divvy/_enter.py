"""``_enter SPEC -- PROGRAM…``: becomes a worker in a slice of its own.

On the user's own daemon, ``divvy run`` starts the program as its child, with these streams. The system's daemon starts
programs without input, so there a small job holds the slice, and ``divvy exec`` runs the worker in it.

```text
pytest ─► divvy run ─► worker                                 a daemon of this user
pytest ─► this ─┬► divvy run ─► (the daemon) ─► holder        the system's daemon
                └► divvy exec ─► (the daemon) ─► worker
```
Each arrow is tied: the end of the left process ends the right one, also after SIGKILL. Divvy ties a job to its
``divvy run``, and a session of ``divvy exec`` to its connection.
"""

import json
import os
import signal
import subprocess
import sys
from typing import Any, Optional

from ._tie import tie

#: Stands before the number of the job in the holder's output, so that no message of a login shell passes for it.
_MARK = "pytest-divvy-job="

#: Ends once the daemon cancels its job.
_HOLDER = ["sh", "-c", f'echo "{_MARK}$DIVVY_JOB_ID"; exec sleep infinity']

#: As `divvy run` where it could not start the program.
_LAUNCH_FAILED = 125


def words(spec: dict[str, Any], program: list[str]) -> list[str]:
    """The command line of ``divvy run``."""
    amount = ["--gpu-memory", f"{spec['start_mib']}M", "--gpus-on", str(spec["gpu"])]
    return [spec["divvy"], "run", *amount, "--name", spec["name"], "--", *program]


def main(arguments: list[str]) -> int:
    spec: dict[str, Any] = json.loads(arguments[0])
    program = arguments[arguments.index("--") + 1 :]
    tie(spec["parent"])
    if spec.get("home"):
        os.environ["DIVVY_HOME"] = spec["home"]
    if not spec["system"]:
        os.execv(spec["divvy"], words(spec, program))
    return _beside_holder(spec, program)


def _beside_holder(spec: dict[str, Any], program: list[str]) -> int:
    own = os.getpid()
    held = subprocess.Popen(
        words(spec, _HOLDER),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: tie(own),
    )
    try:
        job = _job_of(held)
        if job is None:
            return held.wait() or _LAUNCH_FAILED
        worker = subprocess.Popen([spec["divvy"], "exec", job, "--", *program], preexec_fn=lambda: tie(own))
        signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
        return worker.wait()
    finally:
        held.terminate()
        held.wait()


def _job_of(held: "subprocess.Popen[str]") -> Optional[str]:
    """The number of the job, once it has its slice; `None` if it ended before."""
    assert held.stdout is not None
    for line in held.stdout:
        if line.startswith(_MARK):
            return line[len(_MARK) :].strip()
        sys.stderr.write(line)
    return None
