"""The plugin in Ray's agent, and the import hook that brings it there."""

import asyncio
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import divvy_ray
from divvy_ray import SliceError

from . import stand_in
from .stand_in import Context, Machine

NAME = "ray._private.runtime_env.plugin"


class Planned(Machine):
    def setUp(self) -> None:
        super().setUp()
        module: Any = types.ModuleType(NAME)
        module.RuntimeEnvPlugin = stand_in.RuntimeEnvPlugin
        module.RuntimeEnvPluginManager = type("RuntimeEnvPluginManager", (stand_in.RuntimeEnvPluginManager,), {})
        self.module = module
        names = ["ray", "ray._private", "ray._private.runtime_env"]
        modules: dict[str, Any] = {name: types.ModuleType(name) for name in names}
        self.ray = stand_in.fake_ray()
        modules.update(
            {
                "ray": self.ray,
                "ray._private": self.ray._private,
                "ray._private.utils": self.ray._private.utils,
                "ray._private.worker": self.ray._private.worker,
            }
        )
        around = mock.patch.dict(sys.modules, {**modules, NAME: module})
        around.start()
        self.addCleanup(around.stop)
        sys.modules.pop("divvy_ray.plugin", None)
        self.addCleanup(sys.modules.pop, "divvy_ray.plugin", None)
        from divvy_ray.plugin import DivvyPlugin

        self.plugin = DivvyPlugin()

    def started(self, runtime_env: dict[str, Any], variables: dict[str, str], python: str) -> dict[str, str]:
        """The variables that the worker has, as the agent starts it."""
        context = Context(variables, python)
        self.plugin.modify_context([], runtime_env, context)
        show = "import json, os, sys; print(json.dumps({**os.environ, 'argv': ' '.join(sys.argv[1:])}))"
        command = context.command(["default_worker.py", "--node-id=1"])
        # The worker's file is an argument of `-c` here.
        around = {**os.environ, **context.env_vars}
        words = ["bash", "-c", command.replace("PYTHON", f"{sys.executable} -c \"{show}\"")]
        done = subprocess.run(words, env=around, capture_output=True, text=True, check=True)
        answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def test_a_manager_gets_the_plugin_once(self) -> None:
        from divvy_ray._register import prepare

        prepare(self.module)
        manager = self.module.RuntimeEnvPluginManager()
        self.assertEqual(list(manager.plugins), ["divvy"])
        self.assertEqual(manager.plugins["divvy"].priority, 100, "after the plugins that choose the command")
        with self.assertRaises(AttributeError):
            prepare(types.ModuleType("unknown"))

    def test_a_worker_starts_with_the_limiter_and_without_a_slice_whatever_the_user_sets(self) -> None:
        mine = {"DIVVY_SLICE": "/mine", "LD_PRELOAD": "", "DIVVY_RAY": "{}", "OTHER": "1"}
        saw = self.started({"divvy": {"gpu_memory": "8G"}}, mine, "PYTHON")
        self.assertEqual(saw["DIVVY_SLICE"], "/run/divvy-ray/task-without-num_gpus")
        self.assertEqual(saw["LD_PRELOAD"], str((self.folder / "libdivvy_preload.so").resolve()))
        settings = json.loads(saw["DIVVY_RAY"])
        self.assertEqual((settings["gpu_memory"], settings["divvy"]), ("8G", str(self.folder / "divvy")))
        self.assertEqual(saw["OTHER"], "1")
        program, rest = saw["argv"].split(" ", 1)
        self.assertEqual(Path(program), Path(divvy_ray.__file__).with_name("_worker.py").resolve())
        self.assertEqual(rest, "default_worker.py --node-id=1")

    def test_a_users_preload_stays_after_the_limiter(self) -> None:
        saw = self.started({"divvy": {}}, {"LD_PRELOAD": "/usr/lib/none.so"}, "env A=1 PYTHON")
        self.assertTrue(saw["LD_PRELOAD"].endswith("libdivvy_preload.so:/usr/lib/none.so"))
        self.assertEqual(saw["A"], "1", "the command of another plugin stays")

    def test_a_node_that_cannot_hold_limits_fails_before_a_worker_starts(self) -> None:
        context = Context({})
        self.assertEqual(asyncio.run(self.plugin.create(None, {"divvy": {}}, context)), 0)
        self.answers(gpus=7)
        with self.assertRaisesRegex(SliceError, "divvy: no room on GPU 0\nhint: wait"):
            asyncio.run(self.plugin.create(None, {"divvy": {}}, context))
        del self.ray._private.worker.Worker.record_task_log_start
        with self.assertRaisesRegex(SliceError, "has no record_task_log_start"):
            asyncio.run(self.plugin.create(None, {"divvy": {}}, context))
        self.ray._private.worker.Worker.record_task_log_start = print
        (self.folder / "libdivvy_preload.so").unlink()
        with self.assertRaisesRegex(SliceError, "libdivvy_preload.so is neither"):
            asyncio.run(self.plugin.create(None, {"divvy": {}}, context))

    def test_containers_of_ray_and_wrong_fields_are_refused(self) -> None:
        self.plugin.validate({"divvy": {}})
        with self.assertRaisesRegex(ValueError, "divvy and image_uri exclude each other"):
            self.plugin.validate({"divvy": {}, "image_uri": "rayproject/ray"})
        with self.assertRaisesRegex(ValueError, "no key 'gpus'"):
            self.plugin.validate({"divvy": {"gpus": 1}})

    def test_the_hook_acts_on_rays_module_alone(self) -> None:
        folder = self.folder / "packages/ray/_private/runtime_env"
        folder.mkdir(parents=True)
        for package in (folder, folder.parent, folder.parent.parent):
            (package / "__init__.py").touch()
        (folder / "plugin.py").write_text(
            "class RuntimeEnvPlugin: pass\n"
            "class RuntimeEnvPluginManager:\n"
            "    def __init__(self): self.plugins = {}\n"
            "    def add_plugin(self, plugin): self.plugins[plugin.name] = plugin\n"
        )
        source = Path(__file__).parent.parent / "src"
        around = {**os.environ, "PYTHONPATH": f"{self.folder}/packages:{source}"}

        def said(code: str) -> "subprocess.CompletedProcess[str]":
            words = [sys.executable, "-W", "error", "-c", f"import _divvy_ray, sys\n{code}"]
            return subprocess.run(words, env=around, capture_output=True, text=True, check=True)

        done = said(f"import {NAME} as p; print(list(p.RuntimeEnvPluginManager().plugins))")
        self.assertEqual((done.stdout, done.stderr), ("['divvy']\n", ""))
        done = said("import json, ray; print([name for name in sys.modules if 'divvy' in name])")
        self.assertEqual(done.stdout, "['_divvy_ray']\n")
        (folder / "plugin.py").write_text("x = 1\n")
        done = said(f"import {NAME} as p; print(p.x)")
        self.assertEqual(done.stdout, "1\n")
        self.assertIn("divvy-ray: Divvy does not work with this version of Ray", done.stderr)
