"""A kernel that Triton compiles and launches through the driver API.

Prints one JSON object.
"""

import json

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


def main():
    n = 1 << 20
    x = torch.rand(n, device="cuda")
    y = torch.rand(n, device="cuda")
    out = torch.empty_like(x)
    add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    free, total = torch.cuda.mem_get_info()
    print(
        json.dumps(
            {
                "route": "triton",
                "version": triton.__version__,
                "before": {"total_bytes": total, "free_bytes": free},
                "sum_is_right": bool(torch.allclose(out, x + y)),
            }
        )
    )


main()
