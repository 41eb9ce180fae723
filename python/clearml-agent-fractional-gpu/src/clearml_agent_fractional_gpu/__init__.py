"""Fractions of a GPU for the ClearML agent, held by Divvy.

The agent imports :func:`patch_docker_cmd_gpu_fraction` when it starts a task of a queue that gives less than one GPU, and runs the
command that it answers. That command is ``divvy docker slice … -- docker run …``: it waits for the slice, brings the container
into it, and is ``docker run`` from there on.
"""

from ._command import FractionError, patch_docker_cmd_gpu_fraction
from ._divvy import check

__all__ = ["FractionError", "check", "patch_docker_cmd_gpu_fraction"]
