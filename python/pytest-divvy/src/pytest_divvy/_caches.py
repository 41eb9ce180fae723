"""Caches of known frameworks: memory that an allocator keeps after a test has freed it."""

import gc
import sys
from typing import Any, Callable


def _torch(torch: Any) -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _cupy(cupy: Any) -> None:
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def _numba(cuda: Any) -> None:
    # Numba frees in groups; the memory of the last few arrays waits for the next ones.
    context = cuda.cudadrv.devices._runtime._get_attached_context()
    if context is not None:
        context.deallocations.clear()


#: By module: how to give back what it keeps. JAX and TensorFlow have no such function.
FRAMEWORKS: dict[str, Callable[[Any], None]] = {"torch": _torch, "cupy": _cupy, "numba.cuda": _numba}


def free() -> None:
    """Collects garbage, and frees the caches of the frameworks that this process has imported."""
    gc.collect()
    for name, release in FRAMEWORKS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            release(module)
        except Exception:  # noqa: BLE001, S112
            # A framework of another version, or a broken context: the memory then counts for the next test.
            continue
