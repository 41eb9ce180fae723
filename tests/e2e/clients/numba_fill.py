"""numba-cuda takes device arrays until it is refused, and compiles and launches a kernel.

Prints one JSON object of the same shape as bindings_fill.py.
"""

import json
import os
import warnings

import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

warnings.simplefilter("ignore")  # it finds our small grid slow
GRANULE = 2 << 20
# Outside of a slice it would take the whole GPU.
AT_MOST = int(os.environ.get("FILL_AT_MOST", 1 << 62))


@cuda.jit
def add_one(values):
    place = cuda.grid(1)
    if place < values.size:
        values[place] += 1


def main():
    context = cuda.current_context()
    free, total = context.get_memory_info()
    device_total = total

    values = cuda.to_device(numpy.zeros(1024, dtype=numpy.int32))
    add_one[8, 128](values)
    cuda.synchronize()
    del values
    context.deallocations.clear()

    arrays, got, first_refused_at, error, step = [], 0, None, None, 64 << 20
    while got < AT_MOST:
        try:
            arrays.append(cuda.device_array(step, dtype=numpy.uint8))
            got += step
            continue
        except CudaAPIError as refusal:
            error = "CUDA_ERROR_OUT_OF_MEMORY" if refusal.code == 2 else str(refusal)
        first_refused_at = got if first_refused_at is None else first_refused_at
        if error != "CUDA_ERROR_OUT_OF_MEMORY" or step == GRANULE:
            break
        step //= 2
    free_after, _ = context.get_memory_info()
    print(
        json.dumps(
            {
                "route": "numba",
                "before": {"device_total_bytes": device_total, "total_bytes": total, "free_bytes": free},
                "got_bytes": got,
                "first_refused_at_bytes": first_refused_at,
                "granule_bytes": GRANULE,
                "error": error,
                "free_after_bytes": free_after,
            }
        )
    )


main()
