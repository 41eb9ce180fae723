"""RMM takes buffers until it is refused, from the driver, from a pool of its own and from the driver's pool.

Prints one JSON object of the same shape as bindings_fill.py.
"""

import json
import os

import rmm

AT_MOST = int(os.environ.get("FILL_AT_MOST", 1 << 62))
STEP = 64 << 20


def fill(resource):
    buffers, got, error = [], 0, None
    while got < AT_MOST:
        try:
            buffers.append(rmm.DeviceBuffer(size=STEP, mr=resource))
            got += STEP
        except MemoryError as refusal:
            error = str(refusal).splitlines()[0]
            break
    buffers.clear()
    return got, error


def main():
    got, error = fill(rmm.mr.CudaMemoryResource())
    got_managed, error_managed = fill(rmm.mr.ManagedMemoryResource())
    got_pool, error_pool = fill(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource()))
    print(
        json.dumps(
            {
                "route": "rmm",
                "version": rmm.__version__,
                "got_bytes": got,
                "error": error,
                "got_bytes_managed": got_managed,
                "error_managed": error_managed,
                "got_bytes_pool": got_pool,
                "error_pool": error_pool,
            }
        )
    )


main()
