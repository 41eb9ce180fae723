"""CuPy takes memory until it is refused, by its own pool and by the driver's, and computes.

Prints one JSON object of the same shape as bindings_fill.py, with what was computed afterwards.
"""

import json
import os

import cupy

AT_MOST = int(os.environ.get("FILL_AT_MOST", 1 << 62))
STEP = 64 << 20


def fill():
    blocks, got, error = [], 0, None
    while got < AT_MOST:
        try:
            blocks.append(cupy.cuda.alloc(STEP))
            got += STEP
        except cupy.cuda.memory.OutOfMemoryError as refusal:
            error = str(refusal)
            break
        except cupy.cuda.runtime.CUDARuntimeError as refusal:
            error = str(refusal)
            break
    blocks.clear()
    cupy.get_default_memory_pool().free_all_blocks()
    return got, error


def main():
    free, total = cupy.cuda.runtime.memGetInfo()
    got, error = fill()
    cupy.cuda.set_allocator(cupy.cuda.malloc_async)
    got_async, error_async = fill()
    x = cupy.arange(1024, dtype=cupy.float64)
    print(
        json.dumps(
            {
                "route": "cupy",
                "version": cupy.__version__,
                "before": {"total_bytes": total, "free_bytes": free},
                "got_bytes": got,
                "error": error,
                "got_bytes_async": got_async,
                "error_async": error_async,
                "product_is_right": float(x @ x) == float(sum(i * i for i in range(1024))),
            }
        )
    )


main()
