"""JAX takes arrays until it is refused, frees them, and computes.

Prints one JSON object of the same shape as bindings_fill.py, with what was computed afterwards.
"""

import json
import os

import jax
import jax.numpy as jnp

AT_MOST = int(os.environ.get("FILL_AT_MOST", 1 << 62))
STEP = 64 << 20


def main():
    device = jax.devices("gpu")[0]
    stats = device.memory_stats() or {}
    arrays, got, error = [], 0, None
    while got < AT_MOST:
        try:
            array = jax.device_put(jnp.zeros(STEP, dtype=jnp.uint8), device)
            array.block_until_ready()
            arrays.append(array)
            got += STEP
        except Exception as refusal:  # its own type differs between versions
            error = f"{type(refusal).__name__}: {str(refusal).splitlines()[0]}"
            break
    arrays.clear()
    x = jnp.arange(1024.0)
    right = float((x @ x)) == float(sum(i * i for i in range(1024)))
    print(
        json.dumps(
            {
                "route": "jax",
                "version": jax.__version__,
                "limit_it_saw": stats.get("bytes_limit"),
                "got_bytes": got,
                "error": error,
                "product_is_right": right,
            }
        )
    )


main()
