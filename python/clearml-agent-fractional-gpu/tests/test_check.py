"""What is said before a task is taken."""

import contextlib
import io
import os
from unittest import mock

from clearml_agent_fractional_gpu import FractionError, check
from clearml_agent_fractional_gpu.__main__ import main

from .machine import Machine


class Checked(Machine):
    def test_gpus_that_a_daemon_serves_are_fine(self) -> None:
        self.assertIn("has a daemon", check(["0", "2"]))

    def test_a_gpu_that_cannot_be_cut_is_named_with_the_reason(self) -> None:
        for gpus, why in [
            (["3"], "does not serve GPU 3; it serves 0, 1, 2"),
            (["1"], "in MIG mode"),
            (["0.0"], "MIG instance"),
        ]:
            with self.assertRaisesRegex(FractionError, why):
                check(gpus)

    def test_without_a_daemon_a_slice_is_tried_on_each_gpu(self) -> None:
        self.answers(code=7)
        self.assertIn("runs without a daemon", check(["0", "2"]))
        tried = [line for line in self.asked() if line.startswith("run --no-daemon")]
        self.assertEqual([line.split("--gpus-on ")[1][0] for line in tried], ["0", "2"])
        self.answers(code=7, alone=6)
        self.assertIn("runs without a daemon", check(["0"]), "others have it now, so it can be cut")
        self.answers(code=7, alone=1)
        with self.assertRaisesRegex(FractionError, "of run"):
            check(["0"])

    def test_docker_has_to_be_there(self) -> None:
        (self.folder / "docker").unlink()
        only_divvy = mock.patch.dict(os.environ, {"PATH": str(self.folder)})
        with only_divvy, self.assertRaisesRegex(FractionError, "no `docker`"):
            check()

    def test_the_command_says_the_same_and_its_code_stops_a_unit(self) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            self.assertEqual(main(["0", "2"]), 0)
            self.assertEqual(main(["1"]), 1)
            self.assertEqual(main(["--help"]), 0)
            self.assertEqual(main(["--nonsense"]), 2)
        self.assertIn("error: GPU 1 is in MIG mode", said.getvalue())
