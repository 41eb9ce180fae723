"""The hooks in a worker."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import divvy_ray
from divvy_ray import SliceError, _hooks
from divvy_ray._config import Settings

from .stand_in import IN_GROUP, NO_GPU, QUARTER, Machine, fake_ray, run


class Working(Machine):
    def setUp(self) -> None:
        super().setUp()
        self.ray = fake_ray()
        self.mapped = True
        self.loaded = False
        for name, what in (("is_mapped", "mapped"), ("is_loaded", "loaded")):
            around = mock.patch.object(_hooks, name, lambda _, what=what: getattr(self, what))
            around.start()
            self.addCleanup(around.stop)
        self.hired()

    def hired(self, **settings: Any) -> None:
        self.ray = fake_ray()
        given = Settings(divvy=str(self.folder / "divvy"), **{"wait_s": 0.0, **settings})
        self.worker = _hooks.Worker(self.ray, given, has_namespace=False)
        _hooks.attach(self.ray, self.worker)
        os.environ["DIVVY_SLICE"] = "/none"
        os.environ["LD_PRELOAD"] = "/lib/libdivvy_preload.so:/mine.so"

    def test_a_task_begins_in_the_slice_of_its_assignment_and_ends_the_worker(self) -> None:
        saw: dict[str, str] = {}
        text, end = run(self.ray, QUARTER, lambda: saw.update(os.environ))
        assert end is not None
        self.assertEqual((text, end.code), ("", 0))
        self.assertIn("slice", end.ray_terminate_msg)  # type: ignore[attr-defined]
        name = "ray-Model-0123456789abcdef"
        self.assertEqual(
            self.asked(),
            [
                f"slice create {name} --gpus-on 0 -g 0.25 --pid {os.getpid()} --cancel-on-exit -o json",
                f"slice env {name} -o json",
            ],
        )
        self.assertEqual((saw["DIVVY_SLICE"], saw["DIVVY_JOB_ID"]), ("/slices/7", "7"))
        self.assertEqual(saw["CUDA_VISIBLE_DEVICES"], "0", "ray.train compares it with ray.get_gpu_ids()")
        self.assertEqual(saw["DIVVY_NUMBERING"], "driver", "the limiter leaves Ray's numbers to the driver")
        self.assertEqual(saw["CUDA_DEVICE_ORDER"], "PCI_BUS_ID")
        self.assertEqual(saw["LD_PRELOAD"], "/lib/libdivvy_preload.so:/mine.so")

    def test_an_actor_keeps_its_slice(self) -> None:
        self.assertEqual(run(self.ray, IN_GROUP, lambda: None, is_actor=True), ("", None))
        self.assertIn("--gpus-on 1 -g 0.5", self.asked()[0])
        self.assertEqual(os.environ["DIVVY_SLICE"], "/slices/7")

    def test_the_end_of_the_worker_releases_the_slice_and_a_copy_of_the_process_does_not(self) -> None:
        self.worker.release()
        self.assertEqual(self.asked(), [], "no slice was asked for")
        run(self.ray, QUARTER, lambda: None, is_actor=True)
        self.worker.pid += 1
        self.worker.release()
        self.assertEqual(len(self.asked()), 2)
        self.worker.pid -= 1
        self.worker.release()
        self.assertEqual(self.asked()[2:], ["slice rm ray-Model-0123456789abcdef"])

    def test_a_task_without_gpus_takes_none_and_keeps_the_worker_unless_it_used_cuda(self) -> None:
        self.assertEqual(run(self.ray, NO_GPU, lambda: None), ("", None))
        self.assertEqual((self.asked(), os.environ["DIVVY_SLICE"]), ([], "/none"))
        self.assertIsNotNone(run(self.ray, NO_GPU, lambda: setattr(self, "loaded", True))[1])

    def test_a_failure_is_the_tasks_own_and_its_function_does_not_run(self) -> None:
        begun: list[int] = []
        self.answers(code=6)
        text, end = run(self.ray, QUARTER, lambda: begun.append(1))
        self.assertIn("SliceError: divvy: no slice with 0.25 of GPU 0 for this task: no room on GPU 0", text)
        self.assertEqual((begun, os.environ["DIVVY_SLICE"]), ([], "/none"))
        self.assertIsNotNone(end)
        self.hired(gpu=0.5)
        text, end = run(self.ray, QUARTER, lambda: begun.append(2))
        self.assertIn("divvy.gpu=0.5", text)
        self.assertIsNone(end, "nothing was held")
        # The next task is not blamed for it.
        self.assertEqual(run(self.ray, NO_GPU, lambda: begun.append(3)), ("", None))
        self.hired()
        self.mapped = False
        text, _ = run(self.ray, QUARTER, lambda: begun.append(4))
        self.assertIn("libdivvy_preload.so is not in this worker", text)
        self.assertEqual(begun, [3])

    def test_a_worker_that_holds_a_slice_and_cannot_enter_it_ends(self) -> None:
        (self.folder / "access.json").write_text('{"items":[]}')
        text, end = run(self.ray, QUARTER, lambda: self.fail("the task ran"))
        self.assertIn("cannot enter a slice", text)
        self.assertIsNotNone(end, "the slice ends with this process")

    def test_a_refusal_is_added_to_the_failure_once(self) -> None:
        record = {
            "number": 0,
            "api": "cuMemAlloc_v2",
            "gpu_index": 0,
            "asked_bytes": 3 << 30,
            "used_bytes": 2 << 30,
            "limit_bytes": 4 << 30,
        }

        def fails() -> None:
            (self.folder / "oom.json").write_text(json.dumps({"items": [{"job": "7", "records": [record]}]}))
            raise MemoryError("out of memory")

        text, _ = run(self.ray, QUARTER, fails, is_actor=True)
        self.assertEqual(
            text.splitlines()[-1],
            "divvy: refused: cuMemAlloc_v2 requested 3.00 GiB on GPU 0; 2.00 GiB of its limit of 4.00 GiB are in use "
            "(divvy oom 7 has more)",
        )
        explained = self.ray._private.utils.format_error_message("again")
        self.assertEqual(explained, "again")

    def test_an_unreadable_report_does_not_hide_the_failure(self) -> None:
        run(self.ray, QUARTER, lambda: None, is_actor=True)
        for text in ("nonsense", "{}", '{"items":[{"records":[{}]}]}', '{"items":[{"records":null}]}'):
            (self.folder / "oom.json").write_text(text)
            self.assertTrue(self.ray._private.utils.format_error_message("mine").startswith("mine"))

    def test_an_unknown_ray_is_refused_before_it_starts(self) -> None:
        _hooks.check_ray(self.ray)
        del self.ray._private.utils.format_error_message
        before = self.ray._private.utils.set_visible_accelerator_ids
        for step in (_hooks.check_ray, lambda ray: _hooks.attach(ray, self.worker)):
            with self.assertRaisesRegex(SliceError, "has no format_error_message, so its tasks cannot enter"):
                step(self.ray)
        self.assertIs(self.ray._private.utils.set_visible_accelerator_ids, before)


class Started(Machine):
    def test_the_start_file_needs_no_installed_package_and_becomes_the_worker(self) -> None:
        packages = self.folder / "packages/ray/_private"
        packages.mkdir(parents=True)
        (packages.parent / "__init__.py").write_text("")
        (packages / "__init__.py").write_text("")
        (packages / "utils.py").write_text(
            "def set_visible_accelerator_ids(): return {}\n"
            "def reset_visible_accelerator_env_vars(before): pass\n"
            "def format_error_message(text, task_exception=False): return text\n"
        )
        (packages / "worker.py").write_text("class Worker:\n    def record_task_log_start(self, task, attempt): pass\n")
        worker = self.folder / "default_worker.py"
        worker.write_text(
            "import sys, ray._private.utils as utils\n"
            "print(__name__, sys.argv, sys.path[0], utils.set_visible_accelerator_ids.__module__)\n"
            "print(sys.modules['divvy_ray'].__name__, '_divvy' in sys.modules)\n"
        )
        start = Path(divvy_ray.__file__).with_name("_worker.py")
        around = {**os.environ, "PYTHONPATH": str(packages.parent.parent), "DIVVY_RAY": Settings().to_text()}
        words = [sys.executable, str(start), str(worker), "--node-id=1"]
        done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            done.stdout.splitlines()[0], f"__main__ ['{worker}', '--node-id=1'] {self.folder} ray._private.utils"
        )
        self.assertEqual(done.stdout.splitlines()[1], "divvy_ray False")
