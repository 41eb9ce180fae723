"""GPU fractions for the ClearML agent, enforced by Divvy.

The agent calls :func:`patch_docker_cmd_gpu_fraction` before it starts a task of a queue with less than one GPU,
and runs the command that the function returns. That command is ``divvy docker slice … -- docker run …``: it waits
for the slice, adds the slice's mounts and limits, and then replaces itself with ``docker run``.
"""

from ._command import FractionError, patch_docker_cmd_gpu_fraction
from ._divvy import check

__all__ = ["FractionError", "check", "patch_docker_cmd_gpu_fraction"]
