"""Hard limits for Ray's ``num_gpus``, enforced by Divvy.

A task or an actor with ``runtime_env={"divvy": {}}`` runs in a slice of the GPU that Ray has assigned, with the amount
of ``num_gpus``. The package needs no import: Ray finds its plugin by a ``.pth`` file.
"""

from ._errors import SliceError

__all__ = ["SliceError"]
