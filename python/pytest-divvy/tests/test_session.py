import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

from pytest_divvy import _session
from pytest_divvy._enter import words
from pytest_divvy._session import SessionFolder, sweep
from pytest_divvy._turns import Turns

from .stand_in import WithFolder

SOURCE = str(Path(_session.__file__).parent.parent)


def bounded(condition: object, what: str) -> None:
    begin = time.monotonic()
    while not condition():  # type: ignore[operator]
        if time.monotonic() - begin > 60:
            raise AssertionError(f"waited 60 s: {what}")
        time.sleep(0.005)


class Folders(WithFolder):
    def test_a_session_sweeps_what_killed_ones_have_left_and_nothing_else(self) -> None:
        living = SessionFolder(self.folder)
        code = (
            "import sys, os, pathlib; from pytest_divvy._session import SessionFolder; "
            "print(SessionFolder(pathlib.Path(sys.argv[1])).path, flush=True); os.kill(os.getpid(), 9)"
        )
        around = {**os.environ, "PYTHONPATH": SOURCE}
        killed = subprocess.run([sys.executable, "-c", code, str(self.folder)], capture_output=True, text=True, env=around)
        left = Path(killed.stdout.strip())
        self.assertTrue(left.is_dir(), killed.stderr)
        young, other, file = (self.folder / name for name in (_session._prefix() + "young", "other", _session._prefix() + "f"))
        young.mkdir()
        other.mkdir()
        file.touch()
        old = self.folder / (_session._prefix() + "old")
        old.mkdir()
        os.utime(old, (0, 0))
        self.assertEqual(sorted(sweep(self.folder)), sorted([left, old]))
        self.assertEqual(sorted(self.folder.iterdir()), sorted([living.path, young, other, file]))
        living.remove()
        self.assertFalse(living.path.exists())


class Locks(WithFolder):
    def worker(self, lines: str) -> "subprocess.Popen[str]":
        code = (
            "import sys, pathlib; from pytest_divvy._turns import Turns; "
            f"t = Turns(pathlib.Path({str(self.folder)!r}), 0); shrink = lambda: print('shrinks', flush=True)\n{lines}"
        )
        around = {**os.environ, "PYTHONPATH": SOURCE}
        worker = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=around
        )
        self.addCleanup(worker.wait)
        self.addCleanup(worker.stdin.close)  # type: ignore[union-attr]
        self.addCleanup(worker.stdout.close)  # type: ignore[union-attr]
        self.addCleanup(worker.kill)
        return worker

    def test_a_worker_shrinks_before_it_waits_and_a_killed_one_gives_its_turn_away(self) -> None:
        turns = Turns(self.folder, 0)
        turns.begin(lambda: self.fail("the turn is free"))
        turns.use(alone=False)
        other = self.worker("t.begin(shrink); t.use(True); print('alone', flush=True); sys.stdin.read()")
        assert other.stdout is not None
        self.assertEqual(other.stdout.readline(), "shrinks\n")
        self.assertTrue(turns.is_alone())
        turns.rest()
        turns.end()
        self.assertEqual(other.stdout.readline(), "alone\n")
        self.assertTrue(turns.is_awaited())
        other.kill()
        turns.begin(lambda: None)
        turns.use(alone=True)
        turns.rest()
        turns.end()
        self.assertFalse(turns.is_awaited())

    def test_a_test_that_needs_all_memory_waits_for_those_that_use_some(self) -> None:
        turns = Turns(self.folder, 0)
        user = self.worker(
            "t.begin(shrink); t.use(False); t.end(); print('uses', flush=True); sys.stdin.readline(); t.rest(); sys.stdin.read()"
        )
        assert user.stdout is not None and user.stdin is not None
        self.assertEqual(user.stdout.readline(), "uses\n")
        turns.begin(lambda: self.fail("the turn is free"))
        turns.use(alone=False)
        self.assertFalse(turns.is_alone())
        user.stdin.write("\n")
        user.stdin.flush()
        bounded(turns.is_alone, "the other test ends")


class Entries(unittest.TestCase):
    def test_a_worker_starts_as_a_job_with_a_slice_of_its_gpu(self) -> None:
        spec = {"divvy": "/bin/divvy", "start_mib": 416, "gpu": 1, "name": "pytest-1a-gw3"}
        self.assertEqual(
            words(spec, ["python", "-u", "-c", "x"]),
            "/bin/divvy run --gpu-memory 416M --gpus-on 1 --name pytest-1a-gw3 -- python -u -c x".split(),
        )

    def test_a_process_ends_with_the_one_that_started_it(self) -> None:
        child = "import os, time; from pytest_divvy._tie import tie; tie(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)"
        parent = (
            "import os, subprocess, sys; "
            f"c = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
            "print(int(c.stdout.readline()), flush=True); os.kill(os.getpid(), 9)"
        )
        around = {**os.environ, "PYTHONPATH": SOURCE}
        done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, env=around)
        pid = int(done.stdout)

        def is_gone() -> bool:
            try:
                return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            except OSError:
                return True

        bounded(is_gone, "the child ends")
        orphan = "from pytest_divvy._tie import tie; tie(1 << 22)"
        done = subprocess.run([sys.executable, "-c", orphan], env=around)
        self.assertEqual(done.returncode, -15)


if __name__ == "__main__":
    unittest.main()
