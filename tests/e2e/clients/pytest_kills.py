"""Sessions of pytest-divvy that are killed at random: what is left of each.

    pytest_kills.py ROUNDS SEED PROGRAM FOLDER

Each round starts a session of three workers, half of them on the daemon of DIVVY_HOME and half on a private one, and kills
one of its processes with SIGKILL: a worker, a `divvy run`, pytest itself, the runner that has started it, the keeper of the
private daemon, or a daemon. Then the session ends, by itself or because it is killed, and nothing of it may be left: no job
of a daemon, no process, and no folder after the next session. Prints JSON.
"""

import collections
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

SUITE = Path(__file__).parent / "pytest_suite"

#: A worker that has lost its pytest ends within execnet's 15 s, and a job within its grace of 10 s.
END_S = 90

#: The plug-in, where it is not installed and its folder is on PYTHONPATH.
INSTALLED = any(entry.value == "pytest_divvy.plugin" for entry in importlib.metadata.entry_points(group="pytest11"))
PLUGIN = [] if INSTALLED else ["-p", "pytest_divvy.plugin"]

VICTIMS = ("worker", "run", "pytest", "runner", "daemon", "keeper")


def processes() -> "dict[int, tuple[int, list[str]]]":
    """Parent and command line of each process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found[int(folder.name)] = (int(fields[1]), words)
    return found


def marked(mark: str) -> "list[int]":
    """Processes of a round, by a variable that each of them has inherited."""
    found = []
    for pid in processes():
        try:
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def kind(words: "list[str]") -> str:
    line = " ".join(words)
    if " _keeper " in line:
        return "keeper"
    if " daemon --foreground" in line:
        return "daemon"
    if " run --gpu-memory" in line:
        return "run"
    if "sys.stdin.readline" in line and " _enter " not in line:
        return "worker"
    if "pytest-round" in line and words[0].endswith("sh"):
        return "runner"
    if "-m pytest" in line:
        return "pytest"
    return ""


def until(condition, what: str, seconds: float = END_S):
    begin = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() - begin > seconds:
            raise AssertionError(f"waited {seconds} s: {what}")
        time.sleep(0.02)


class Rounds:
    def __init__(self, seed: int, divvy: str, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.divvy = divvy
        self.folder = folder
        self.home = Path(os.environ["DIVVY_HOME"])
        self.counts: "collections.Counter[str]" = collections.Counter()
        self.start_daemon()

    def start_daemon(self) -> None:
        words = [self.divvy, "daemon", "--detached", "--sim", "a100-80gb:1"]

        def answers() -> bool:
            # 8: a `divvy run` of a worker was faster to start it, or the killed one has not ended yet.
            code = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
            if code not in (0, 8):
                raise AssertionError(f"the daemon does not start: exit code {code}")
            try:
                return bool(self.daemon())
            except OSError:
                return False

        until(answers, "the daemon answers")

    def daemon(self) -> int:
        return int(json.loads(self.ask("/v1/node"))["items"][0]["pid"])

    def ask(self, path: str) -> str:
        import http.client
        import socket

        connection = http.client.HTTPConnection("divvy", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.home / "divvy.sock"))
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def one(self, number: int) -> None:
        private = number % 2 == 1
        mark = f"PYTEST_KILLS_ROUND=round-{os.getpid()}-{number}-"
        around = {**os.environ, **dict([mark.split("=")])}
        around.update(
            PYTEST_DIVVY_FOLDER=str(self.folder), PYTEST_DIVVY_PROGRAM=self.divvy, DIVVY_SUITE_TESTS="24", DIVVY_SUITE_MS="100"
        )
        words = [sys.executable, "-m", "pytest", "-q", "-n", "3", "-p", "no:cacheprovider", str(SUITE)]
        words += ["-o", f"divvy_peaks={self.folder / 'peaks.txt'}", *PLUGIN]
        if private:
            words += ["--divvy-sim", "a100-80gb:1"]
        # The runner: a shell that has started the session as a CI job does.
        script = " ".join(words) + "; : pytest-round"
        log = open(self.folder / "log", "wb")
        runner = subprocess.Popen(["sh", "-c", script], env=around, stdout=log, stderr=log, start_new_session=True)
        wanted = self.draw.choice(VICTIMS if private else VICTIMS[:-1])
        delay = self.draw.uniform(0, 3)
        victims = until(
            lambda: [pid for pid in marked(mark) if kind(processes().get(pid, (0, []))[1]) == wanted]
            if private or wanted != "daemon"
            else [self.daemon()],
            f"a {wanted} starts",
        )
        time.sleep(delay)
        victim = self.draw.choice(victims)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            self.counts["ended before"] += 1
        self.counts[f"{wanted}, {'private' if private else 'shared'} daemon"] += 1
        if wanted == "daemon" and not private:
            self.start_daemon()
        if wanted == "runner":
            # As the service of a runner does: its whole session ends with it.
            for pid in marked(mark):
                if kind(processes().get(pid, (0, []))[1]) == "pytest":
                    os.kill(pid, signal.SIGKILL)
        try:
            runner.wait(END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the session does not end after the end of a {wanted}") from None
        until(lambda: not json.loads(self.ask("/v1/jobs"))["items"], f"no job is left after the end of a {wanted}")
        until(lambda: not marked(mark), f"no process is left after the end of a {wanted}: {marked(mark)}")
        log.close()

    def left(self) -> "dict[str, int]":
        """What is left after all rounds; the folders of killed sessions are swept by the next one."""
        from pytest_divvy._session import sweep

        swept = len(sweep(self.folder))
        slices = list((self.home / "slices").iterdir()) if (self.home / "slices").exists() else []
        folders = [entry for entry in self.folder.iterdir() if entry.is_dir()]
        return {"jobs": len(json.loads(self.ask("/v1/jobs"))["items"]), "slices": len(slices), "folders": len(folders), "swept": swept}


def main() -> None:
    rounds, seed, divvy, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    folder.mkdir(exist_ok=True)
    all_ = Rounds(seed, divvy, folder)
    for number in range(rounds):
        try:
            all_.one(number)
            print(f"round {number} left nothing", file=sys.stderr, flush=True)
        except AssertionError as error:
            log = (folder / "log").read_text(errors="replace")[-3000:]
            sys.exit(f"round {number} of seed {seed}: {error}\n{log}")
    print(json.dumps({"rounds": rounds, "kills": all_.counts, "left": all_.left()}))


if __name__ == "__main__":
    main()
