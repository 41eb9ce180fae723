"""The plugin ``divvy`` of Ray's runtime environments. It runs in the runtime environment agent of each node.

The agent knows neither the task's ``num_gpus`` nor its GPU: one worker serves whichever task Ray gives it. So the
plugin prepares a worker that gets no GPU memory, and ``_worker`` takes the slice once Ray has assigned the task.
"""

import asyncio
import logging
import os
import shlex
from typing import Any, Optional

from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from . import _config, _divvy, _hooks
from ._errors import SliceError

#: A slice that does not exist: the limiter refuses all memory until the task has its own.
NO_SLICE = "/run/divvy-ray/task-without-num_gpus"

_WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_worker.py")

#: Fields whose workers run in a container of Ray's own, which lacks this package and the limiter.
_CONTAINERS = ("image_uri", "container")


class DivvyPlugin(RuntimeEnvPlugin):
    """Starts workers that get GPU memory only in a slice."""

    name = "divvy"
    #: The last: it adds to the commands of the others.
    priority = 100

    @staticmethod
    def validate(runtime_env_dict: Any) -> None:
        """Checks the field ``divvy``.

        :raises ValueError: with the key and the value.
        """
        _config.parse(runtime_env_dict["divvy"])
        for field in _CONTAINERS:
            if runtime_env_dict.get(field):
                raise ValueError(
                    f"runtime_env: divvy and {field} exclude each other: the container would lack the limiter"
                )

    async def create(
        self, uri: Optional[str], runtime_env: Any, context: Any, logger: logging.Logger = logging.getLogger(__name__)
    ) -> int:
        """Checks that the hooks fit this Ray, that Divvy is installed, and that its daemon answers.

        :raises SliceError: with the reason; Ray raises it in the caller as ``RuntimeEnvSetupError``.
        """
        import ray
        import ray._private.utils
        import ray._private.worker

        _hooks.check_ray(ray)
        divvy = _divvy.find()
        _divvy.limiter(divvy)
        loop = asyncio.get_running_loop()
        _, failure = await loop.run_in_executor(None, _divvy.call, [divvy, "gpus"])
        if failure is not None:
            raise SliceError.of(failure.message, failure.hint)
        return 0

    def modify_context(
        self,
        uris: list[str],
        runtime_env: Any,
        context: Any,
        logger: Optional[logging.Logger] = None,
    ) -> None:
        """Puts the limiter in front of the worker, whatever its language, and the hook into Python workers."""
        divvy = _divvy.find()
        settings = _config.parse(runtime_env["divvy"])
        settings = _config.Settings(**{**settings.__dict__, "divvy": divvy})
        preload = shlex.quote(_divvy.limiter(divvy))
        # After the variables of the user, which `env_vars` sets before this command.
        context.command_prefix += [
            "export",
            f"LD_PRELOAD={preload}${{LD_PRELOAD:+:$LD_PRELOAD}}",
            f"DIVVY_SLICE={NO_SLICE}",
            f"{_config.VARIABLE}={shlex.quote(settings.to_text())}",
            "&&",
        ]
        context.py_executable = f"{context.py_executable} {shlex.quote(_WORKER)}"
