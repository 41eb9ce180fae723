"""A machine whose `divvy` is a small script, and a Ray of stand-ins recorded from Ray 2.60.0.

Recorded: the module of plugins (``RuntimeEnvPlugin``, ``RuntimeEnvPluginManager.add_plugin``), the context that a
plugin changes, and the words that the agent then gives to ``bash -c``. Of a worker: the four functions that Ray's core
looks up by name, their order, and what ``resource_ids()`` has for tasks, actors and placement groups.
"""

import os
import sys
import tempfile
import textwrap
import types
import unittest
from pathlib import Path
from typing import Any, Optional
from unittest import mock

#: `resource_ids()` of Ray 2.60.0.
QUARTER = {"CPU": [(0, 1.0)], "GPU": [(0, 0.25)]}
TWO_WHOLE = {"CPU": [(0, 1.0)], "GPU": [(0, 1.0), (1, 1.0)]}
IN_GROUP = {
    "GPU_group_df64ca916de9a992f2930e2e4f3a01000000": [(1, 0.5)],
    "GPU_group_0_df64ca916de9a992f2930e2e4f3a01000000": [(1, 0.5)],
    "CPU_group_df64ca916de9a992f2930e2e4f3a01000000": [(0, 0.25)],
    "bundle_group_0_df64ca916de9a992f2930e2e4f3a01000000": [(0, 0.001)],
}
NO_GPU = {"CPU": [(0, 1.0)]}


class RuntimeEnvPlugin:
    name: Optional[str] = None
    priority = 10


class RuntimeEnvPluginManager:
    def __init__(self) -> None:
        self.plugins: dict[str, Any] = {}

    def add_plugin(self, plugin: Any) -> None:
        if not issubclass(type(plugin), RuntimeEnvPlugin) or not plugin.name or not 0 <= plugin.priority <= 100:
            raise RuntimeError(f"invalid plugin {plugin}")
        self.plugins[plugin.name] = plugin


class Context:
    def __init__(self, env_vars: dict[str, str], py_executable: str = sys.executable) -> None:
        self.command_prefix: list[str] = []
        self.env_vars = env_vars
        self.py_executable = py_executable

    def command(self, words: list[str]) -> str:
        """What the agent gives to ``bash -c``, after it has set `env_vars`."""
        return " ".join([*self.command_prefix, "exec", self.py_executable, *words])


class Core:
    """A worker's core, whose tasks run like Ray's: see :meth:`run`."""

    def __init__(self) -> None:
        self.resources: dict[str, Any] = NO_GPU
        self.mode = "worker"

    def resource_ids(self) -> dict[str, Any]:
        return self.resources


def fake_ray() -> Any:
    """A module ``ray`` with what the package touches."""
    ray: Any = types.ModuleType("ray")
    ray._private = types.ModuleType("ray._private")
    ray._private.utils = types.ModuleType("ray._private.utils")
    ray._private.worker = types.ModuleType("ray._private.worker")

    class Worker:
        core_worker = Core()
        original_visible_accelerator_ids: dict[str, Any] = {"GPU": None}

        def record_task_log_start(self, task_id: Any, attempt_number: int) -> None:
            pass

    worker = Worker()
    ray._private.worker.Worker = Worker
    ray._private.worker.global_worker = worker

    def set_visible_accelerator_ids() -> dict[str, Optional[str]]:
        gpus = [str(index) for index, _ in worker.core_worker.resources.get("GPU", [])]
        if not gpus:
            return {}
        before = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return before

    def reset_visible_accelerator_env_vars(before: dict[str, Optional[str]]) -> None:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def format_error_message(exception_message: str, task_exception: bool = False) -> str:
        return exception_message

    ray._private.utils.set_visible_accelerator_ids = set_visible_accelerator_ids
    ray._private.utils.reset_visible_accelerator_env_vars = reset_visible_accelerator_env_vars
    ray._private.utils.format_error_message = format_error_message
    ray.get_runtime_context = lambda: types.SimpleNamespace(
        get_task_name=lambda: "Model.__init__", get_worker_id=lambda: "0123456789abcdef" * 3
    )
    return ray


def run(
    ray: Any, resources: dict[str, Any], function: Any, is_actor: bool = False
) -> tuple[str, Optional[SystemExit]]:
    """Runs a task as Ray's core does; the text of its failure, and the exit if the worker ends after it."""
    utils, worker = ray._private.utils, ray._private.worker.global_worker
    worker.core_worker.resources = resources
    text = ""
    before = utils.set_visible_accelerator_ids()
    try:
        try:
            worker.record_task_log_start(b"task", 0)
            function()
        except Exception as error:
            text = utils.format_error_message(f"Traceback\n{type(error).__name__}: {error}", task_exception=True)
    finally:
        end = None
        if before and not is_actor:
            try:
                utils.reset_visible_accelerator_env_vars(before)
            except SystemExit as raised:
                end = raised
    return text, end


class Machine(unittest.TestCase):
    """With `divvy` on the PATH, whose answers are files."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "libdivvy_preload.so").touch()
        names = ("DIVVY_RAY_DIVVY", "DIVVY_LIB_DIR", "DIVVY_RAY", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "DIVVY_SLICE")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        around = mock.patch.dict(os.environ, {**kept, "PATH": f"{self.folder}:/usr/bin:/bin"}, clear=True)
        around.start()
        self.addCleanup(around.stop)
        self.answers()

    def answers(self, create: str = "", code: int = 0, gpus: int = 0, rm: str = "") -> None:
        """`code`: what `divvy slice create` ends with, and `create`: a command before that; `rm`: one of `slice rm`."""
        error = '{"error":{"code":"x","message":"no room on GPU 0","hint":"wait"}}'
        file = self.folder / "divvy"
        script = f"""
            echo "$*" >> {self.folder}/asked
            echo "${{LD_PRELOAD-unset}}" >> {self.folder}/preloads
            fail() {{ echo '{error}' >&2; exit $1; }}
            case "$1 $2" in
                "gpus -o") [ {gpus} = 0 ] || fail {gpus}; echo '{{"items":[]}}';;
                "slice create")
                    {create or ":"}
                    [ {code} = 0 ] || fail {code}
                    echo '{{"items":[{{"job":"7","uid":"x"}}]}}';;
                "slice env") cat {self.folder}/access.json;;
                "slice rm") {rm or ":"};;
                oom*) cat {self.folder}/oom.json;;
            esac
        """
        file.write_text(f"#!/bin/sh\n{textwrap.dedent(script)}\n")
        file.chmod(0o755)
        (self.folder / "access.json").write_text(
            '{"items":[{"environment":{"CUDA_VISIBLE_DEVICES":"GPU-1","DIVVY_SLICE":"/slices/7","DIVVY_JOB_ID":"7",'
            '"DIVVY_NUMBERING":"driver","LD_PRELOAD":"/lib/libdivvy_preload.so"},"mounts":[]}]}'
        )
        (self.folder / "oom.json").write_text('{"items":[{"job":"7","records":[]}]}')

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []
