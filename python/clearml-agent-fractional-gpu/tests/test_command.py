"""What becomes of the agent's `docker run`."""

import os
from unittest import mock

from clearml_agent_fractional_gpu import FractionError, patch_docker_cmd_gpu_fraction

from .machine import Machine

SCRIPT = "cp a b ; NVIDIA_VISIBLE_DEVICES=all $LOCAL_PYTHON -u -m clearml_agent execute --full-monitoring  --id 7f3a"
LINE = ["docker", "run", "-t", "--gpus", '"device=2"', "-e", "A=b c", "--rm", "u22", "bash", "-c", SCRIPT]


class Patched(Machine):
    def test_the_agents_line_runs_in_a_slice_of_the_gpu_that_it_chose(self) -> None:
        command = patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.25)
        own = [
            str(self.folder / "divvy"),
            "docker",
            "slice",
            "-g",
            "0.25",
            "--gpus-on",
            "2",
            "--name",
            "clearml-7f3a",
            "--",
        ]
        self.assertEqual(command, own + LINE[:3] + LINE[5:])

    def test_the_first_run_is_dockers_where_a_later_agent_adds_a_variable_behind_it(self) -> None:
        command = patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5)
        self.assertEqual(command[command.index("run") - 1], "docker")

    def test_a_gpus_flag_that_a_task_brings_along_stays_and_is_divvys_to_refuse(self) -> None:
        line = LINE[:5] + ["--gpus", "all"] + LINE[5:]
        command = patch_docker_cmd_gpu_fraction(line, gpu_fraction=0.5)
        self.assertEqual(command[command.index("--gpus") + 1], "all")

    def test_without_the_flag_the_agents_environment_says_which_gpu(self) -> None:
        line = LINE[:3] + LINE[5:]
        with mock.patch.dict(os.environ, {"NVIDIA_VISIBLE_DEVICES": "0"}):
            command = patch_docker_cmd_gpu_fraction(line, gpu_fraction=0.5)
        self.assertEqual(command[command.index("--gpus-on") + 1], "0")

    def test_without_a_daemon_the_slice_is_taken_by_the_line_itself(self) -> None:
        self.answers(code=7)
        self.assertIn("--no-daemon", patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5))

    def test_more_flags_of_the_slice_come_from_the_environment(self) -> None:
        with mock.patch.dict(os.environ, {"CLEARML_FRACTIONAL_GPU_ARGS": "-q clearml --compute 'strict'"}):
            command = patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5)
        self.assertEqual(
            command[command.index("--") - 4 : command.index("--")], ["-q", "clearml", "--compute", "strict"]
        )

    def test_the_agent_finds_the_run_of_docker_first(self) -> None:
        """The agent at commit ac65a93 puts `-e NAME=VALUE` behind the first word `run` of what it gets back."""
        command = patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5)
        self.assertEqual(command.index("run"), command.index("--") + 2)
        with mock.patch.dict(os.environ, {"CLEARML_FRACTIONAL_GPU_ARGS": "--queue=run"}):
            command = patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5)
        self.assertEqual(command.index("run"), command.index("--") + 2)
        with mock.patch.dict(os.environ, {"CLEARML_FRACTIONAL_GPU_ARGS": "-q run"}):
            with self.assertRaisesRegex(FractionError, "the word run"):
                patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5)

    def test_every_eighth_is_a_fraction_and_nothing_else(self) -> None:
        for eighths in range(1, 9):
            command = patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=eighths / 8)
            self.assertEqual(float(command[command.index("-g") + 1]), eighths / 8)
        for wrong in (0, -0.25, 0.3, 1.125, 2, float("nan"), "x"):
            with self.assertRaises(FractionError, msg=str(wrong)) as refused:
                patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=wrong)
            self.assertIn("hint: ", str(refused.exception))

    def test_it_is_never_run_without_its_limit(self) -> None:
        all_gpus = LINE[:4] + ["all"] + LINE[5:]
        two = LINE[:4] + ['"device=0,1"'] + LINE[5:]
        mig = LINE[:4] + ['"device=0:1"'] + LINE[5:]
        for line, why in [(all_gpus, "chosen all"), (two, "one GPU"), (mig, "MIG"), (["sh", "-c", "x"], "docker run")]:
            with self.assertRaisesRegex(FractionError, why):
                patch_docker_cmd_gpu_fraction(line, gpu_fraction=0.5)
        self.answers(code=1)
        with self.assertRaisesRegex(FractionError, "of gpus"):
            patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5)
        (self.folder / "divvy").unlink()
        with self.assertRaisesRegex(FractionError, "no `divvy`"):
            patch_docker_cmd_gpu_fraction(LINE, gpu_fraction=0.5)
