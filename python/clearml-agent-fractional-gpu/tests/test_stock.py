"""What is put around the stock agent's own steps: around a stand-in, and around the real one where it is installed."""

import importlib
import importlib.util
import subprocess
import sys
import unittest
from types import SimpleNamespace
from typing import Any

from clearml_agent_fractional_gpu import FractionError
from clearml_agent_fractional_gpu._stock import prepare

from .machine import Machine


def stand_in(server_has_properties: bool = False) -> Any:
    """A module with a worker as far as it is prepared."""

    class Worker:
        _dynamic_gpus: Any = None

        def __init__(self) -> None:
            self.log: list[tuple[Any, ...]] = []

        def _parse_dynamic_gpus(self, kwargs: Any, queues: Any) -> Any:
            # Of the last queue alone, as the agent does.
            self._dynamic_gpus = "fractional" if queues[-1][1][0] < 1 else True
            return queues, kwargs["gpus"], [name for name, _ in queues]

        def get_runtime_properties(self) -> Any:
            return [] if server_has_properties else None

        def set_runtime_properties(self, key: str, value: Any) -> bool:
            return server_has_properties

        def run_one_task(self, queue: str, task_id: str, worker_args: Any, task_session: Any = None) -> Any:
            if task_id == "bad":
                raise FractionError("no room for it", "wait")
            return 0

        def send_logs(self, task_id: str, lines: list[str], level: str = "DEBUG", session: Any = None) -> None:
            self.log.append((task_id, level, "".join(lines)))

        def handle_task_termination(self, task_id: str, code: int, reason: Any, session: Any = None) -> None:
            self.log.append((task_id, code, reason))

    return SimpleNamespace(Worker=Worker, TaskStopReason=SimpleNamespace(no_stop="by itself"))


class Prepared(Machine):
    def worker(self, **kwargs: Any) -> Any:
        module = stand_in(**kwargs)
        prepare(module)
        return module.Worker()

    def test_a_fraction_in_any_queue_counts_and_not_in_the_last_alone(self) -> None:
        worker = self.worker()
        worker._parse_dynamic_gpus({"gpus": ["0"]}, [("half", (0.5, 0.5)), ("single", (1.0, 1.0))])
        self.assertEqual(worker._dynamic_gpus, "fractional")

    def test_whole_gpus_need_no_divvy(self) -> None:
        (self.folder / "divvy").unlink()
        worker = self.worker()
        worker._parse_dynamic_gpus({"gpus": ["0"]}, [("single", (1.0, 1.0)), ("more", (1.0, 4.0))])
        self.assertIs(worker._dynamic_gpus, True)

    def test_what_cannot_be_given_is_said_before_anything_is_taken(self) -> None:
        half = ("half", (0.5, 0.5))
        for gpus, queues, why in [
            (["0"], [("odd", (0.3, 0.3)), half], "a multiple of 0.125"),
            (["0"], [("some", (0.25, 0.5))], "0.25-0.5 GPUs"),
            (["1"], [half], "in MIG mode"),
            (["7"], [half], "does not serve GPU 7"),
        ]:
            with self.assertRaisesRegex(FractionError, why):
                self.worker()._parse_dynamic_gpus({"gpus": gpus}, queues)

    def test_a_daemon_that_is_to_be_stopped_is_not_asked_for_its_gpus(self) -> None:
        self.worker()._parse_dynamic_gpus({"gpus": ["7"], "stop": []}, [("half", (0.5, 0.5))])
        self.worker()._parse_dynamic_gpus({"gpus": ["7"], "status": True}, [("half", (0.5, 0.5))])

    def test_an_open_server_has_no_runtime_properties_and_the_agents_note_is_kept(self) -> None:
        worker = self.worker()
        self.assertIsNone(worker.get_runtime_properties())
        self.assertFalse(worker.set_runtime_properties(key="max_num_instances", value=3))
        self.assertTrue(worker.set_runtime_properties(key="available_gpus", value="0_,1_"))
        self.assertEqual(worker.get_runtime_properties(), [{"key": "available_gpus", "value": "0_,1_"}])
        other = self.worker(server_has_properties=True)
        self.assertTrue(other.set_runtime_properties("available_gpus", "0_"))
        self.assertEqual(other.get_runtime_properties(), [], "a server that has them keeps them")

    def test_a_fraction_that_fails_late_ends_its_task_and_not_the_agent(self) -> None:
        worker = self.worker()
        self.assertEqual(worker.run_one_task("q", "good", None), 0)
        self.assertEqual(worker.log, [])
        self.assertEqual(worker.run_one_task("q", "bad", None), 1)
        said, ended = worker.log
        self.assertEqual(said[:2], ("bad", "ERROR"))
        self.assertIn("no room for it\nhint: wait", said[2])
        self.assertEqual(ended, ("bad", 1, "by itself"))

    def test_a_fraction_that_fails_late_leaves_no_reservation_of_its_gpus(self) -> None:
        """As `_reserve_dynamic_gpus` of the agent at commit ac65a93 writes them: suffix, and GPU, share and time."""
        for slot, task, left in [
            ("node1:gpu0.5a", "bad", {"1": ("1", 1.0, 0.0), "2.25b": ("2", 0.25, 0.0)}),
            ("node1:gpu1", "bad", {"0.5a": ("0", 0.5, 0.0), "2.25b": ("2", 0.25, 0.0)}),
            ("node:gpu1:gpu0.5a,1", "bad", {"2.25b": ("2", 0.25, 0.0)}),
        ]:
            worker = self.worker()
            worker.worker_id = slot
            reserved = {"0.5a": ("0", 0.5, 0.0), "1": ("1", 1.0, 0.0), "2.25b": ("2", 0.25, 0.0)}
            worker._dynamic_gpus_reservations = dict(reserved)
            worker.run_one_task("q", "good", None)
            self.assertEqual(worker._dynamic_gpus_reservations, reserved)
            worker.run_one_task("q", task, None)
            self.assertEqual(worker._dynamic_gpus_reservations, left, slot)


class Installed(unittest.TestCase):
    """Only with both packages in one environment, as `cargo xtask dist` installs them."""

    def setUp(self) -> None:
        if (
            importlib.util.find_spec("clearml_agent") is None
            or importlib.util.find_spec("_clearml_agent_fractional_gpu") is None
        ):
            self.skipTest("clearml-agent, or the wheel, is not installed here")

    def test_the_agents_worker_is_prepared_when_it_is_imported_and_python_starts_as_before(self) -> None:
        program = (
            "import sys\n"
            "assert 'clearml_agent_fractional_gpu' not in sys.modules, 'nothing of it is loaded before it is needed'\n"
            "from clearml_agent.commands.worker import Worker\n"
            "for name in ('_parse_dynamic_gpus', 'get_runtime_properties', 'set_runtime_properties', 'run_one_task'):\n"
            "    assert hasattr(getattr(Worker, name), '__wrapped__'), name\n"
            "import inspect\n"
            "assert 'def run_tasks_loop' in inspect.getsource(sys.modules['clearml_agent.commands.worker'])\n"
        )
        ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
