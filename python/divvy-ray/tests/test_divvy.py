"""Calls of `divvy`."""

import os
import stat
from typing import Any

from divvy_ray import SliceError, _divvy

from .stand_in import Machine


class Called(Machine):
    def clock(self) -> tuple[list[float], dict[str, Any]]:
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        return now, {"now": lambda: now[0], "sleep": sleep}

    def test_divvy_and_its_limiter_are_found_where_divvy_looks(self) -> None:
        found = _divvy.find()
        self.assertEqual(found, str(self.folder / "divvy"))
        self.assertEqual(_divvy.limiter(found), str((self.folder / "libdivvy_preload.so").resolve()))
        installed = self.folder / "usr/lib/divvy"
        installed.mkdir(parents=True)
        program = self.folder / "usr/bin/divvy"
        program.parent.mkdir()
        program.touch()
        (self.folder / "divvy-link").symlink_to(program)
        with self.assertRaisesRegex(SliceError, "(?s)libdivvy_preload.so is neither in .*set DIVVY_LIB_DIR"):
            _divvy.limiter(str(program))
        library = installed / "libdivvy_preload.so"
        library.touch()
        self.assertEqual(_divvy.limiter(str(self.folder / "divvy-link")), str(library.resolve()))
        os.environ["DIVVY_LIB_DIR"] = str(installed)
        self.assertEqual(_divvy.limiter(found), str(library.resolve()))
        (self.folder / "divvy").unlink()
        with self.assertRaisesRegex(SliceError, "no `divvy` on the PATH of raylet"):
            _divvy.find()
        os.environ["DIVVY_RAY_DIVVY"] = "/nowhere/divvy"
        with self.assertRaisesRegex(SliceError, "DIVVY_RAY_DIVVY=/nowhere/divvy is not a program"):
            _divvy.find()

    def test_a_full_gpu_is_tried_again_until_the_wait_is_over(self) -> None:
        self.answers(create=f"[ $(grep -c create {self.folder}/asked) -gt 4 ] || fail 6")
        now, clock = self.clock()
        items = _divvy.insist([_divvy.find(), "slice", "create", "x"], 30, **clock)
        self.assertEqual((items[0]["job"], len(self.asked())), ("7", 5))
        self.answers(code=6)
        with self.assertRaisesRegex(SliceError, r"no room on GPU 0 \(waited 3. s\)\nhint: wait"):
            _divvy.insist([_divvy.find(), "slice", "create", "x"], 30, **clock)

    def test_no_wait_is_a_single_call_but_a_daemon_gets_time_to_restart(self) -> None:
        now, clock = self.clock()
        self.answers(code=6)
        with self.assertRaisesRegex(SliceError, "no room"):
            _divvy.insist([_divvy.find(), "slice", "create", "x"], 0, **clock)
        self.assertEqual((len(self.asked()), now[0]), (1, 0.0))
        self.answers(code=7)
        with self.assertRaisesRegex(SliceError, r"\(waited 1. s\)"):
            _divvy.insist([_divvy.find(), "slice", "create", "x"], 0, **clock)
        self.assertGreaterEqual(now[0], 15)

    def test_a_daemon_that_restarts_while_a_task_waits_for_room_gets_its_time_too(self) -> None:
        now, clock = self.clock()
        # No daemon, no room, no daemon, room.
        steps = [(1, 7), (25, 6), (35, 7)]
        tests = "; ".join(f"[ $n -gt {until} ] || fail {code}" for until, code in steps)
        lines = f"n=$(grep -c create {self.folder}/asked); {tests}"
        self.answers(create=lines)
        _divvy.insist([_divvy.find(), "slice", "create", "x"], 30, **clock)
        self.assertEqual(len(self.asked()), 36)

    def test_what_cannot_succeed_is_not_repeated(self) -> None:
        now, clock = self.clock()
        for code in (1, 2, 3, 4, 5):
            self.answers(code=code)
            with self.assertRaisesRegex(SliceError, "no room"):
                _divvy.insist([_divvy.find(), "slice", "create", "x"], 30, **clock)
        self.assertEqual((len(self.asked()), now[0]), (5, 0.0))

    def test_a_release_waits_for_a_daemon_that_restarts_and_for_nothing_else(self) -> None:
        now, clock = self.clock()
        self.answers(rm=f"[ $(grep -c rm {self.folder}/asked) -gt 3 ] || fail 7")
        self.assertTrue(_divvy.release(_divvy.find(), "x", clock["sleep"]))
        self.assertEqual(self.asked(), ["slice rm x"] * 4)
        self.answers(rm="fail 4")
        self.assertFalse(_divvy.release(_divvy.find(), "x", clock["sleep"]))
        self.answers(rm="fail 7")
        self.assertFalse(_divvy.release(_divvy.find(), "x", clock["sleep"]))
        self.assertLess(now[0], 6)

    def test_divvy_itself_runs_without_the_limiter(self) -> None:
        os.environ["LD_PRELOAD"] = ""
        _divvy.call([_divvy.find(), "gpus"])
        self.assertEqual((self.folder / "preloads").read_text(), "unset\n")

    def test_answers_that_are_no_answers(self) -> None:
        program = self.folder / "odd"
        program.write_text("#!/bin/sh\necho nonsense\n")
        program.chmod(stat.S_IRWXU)
        self.assertIn("cannot read the answer", _divvy.call([str(program), "gpus"])[1].message)
        program.write_text("#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x >&2\nexit 3\n")
        failure = _divvy.call([str(program), "gpus"])[1]
        self.assertEqual((failure.code, len(failure.message)), (3, 2000))
        program.write_text("#!/bin/sh\nsleep 5\n")
        failure = _divvy.call([str(program), "gpus"], timeout=0.1)[1]
        self.assertIn("did not end within 0.1 s", failure.message)
        self.assertTrue(failure.passes)
        self.assertIn("cannot run", _divvy.call([str(self.folder / "absent"), "gpus"])[1].message)
