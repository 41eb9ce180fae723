"""Known frameworks: memory that an allocator keeps after a test has freed it, and the total that it has read once."""

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
    for pending in _numba_pending(cuda):
        pending.clear()


def _numba_pending(cuda: Any) -> "list[Any]":
    """The pending frees of each context that numba has, without making one."""
    devices = cuda.cudadrv.driver.driver.devices.values()
    contexts = [device.primary_context for device in devices if device.primary_context is not None]
    return [context.memory_manager.deallocations for context in contexts]


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


def show_total(size: int) -> None:
    """Tells numba the memory of the slice, which it reads once and then takes for a constant."""
    cuda = sys.modules.get("numba.cuda")
    try:
        for pending in [] if cuda is None else _numba_pending(cuda):
            pending.memory_capacity = size
    except Exception:  # noqa: BLE001
        # Another version of numba: its garbage is then freed earlier or later.
        return
