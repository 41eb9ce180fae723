"""PyTorch takes tensors until it is refused, frees them, and computes: in whichever allocator PYTORCH_CUDA_ALLOC_CONF names.

Prints one JSON object of the same shape as bindings_fill.py, with what was computed afterwards.
"""

import json
import os

import torch

GRANULE = 2 << 20
AT_MOST = int(os.environ.get("FILL_AT_MOST", 1 << 62))


def main():
    device = torch.device("cuda")
    torch.ones(1, device=device)
    free, total = torch.cuda.mem_get_info()
    tensors, got, first_refused_at, error, step = [], 0, None, None, 64 << 20
    while got < AT_MOST:
        try:
            tensors.append(torch.empty(step, dtype=torch.uint8, device=device))
            got += step
            continue
        except torch.cuda.OutOfMemoryError as refusal:
            error = str(refusal).splitlines()[0]
        first_refused_at = got if first_refused_at is None else first_refused_at
        if step == GRANULE:
            break
        step //= 2
    tensors.clear()
    torch.cuda.empty_cache()

    a = torch.randn(1024, 1024, device=device)
    b = torch.randn(1024, 1024, device=device)
    right = torch.allclose((a @ b).cpu(), a.cpu() @ b.cpu(), atol=1e-2, rtol=1e-2)
    graph = torch.cuda.CUDAGraph()
    x = torch.zeros(1024, device=device)
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    torch.cuda.synchronize()
    print(
        json.dumps(
            {
                "route": "torch " + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "native"),
                "version": torch.__version__,
                "cuda": torch.version.cuda,
                "before": {"total_bytes": total, "free_bytes": free},
                "device_total_bytes": torch.cuda.get_device_properties(device).total_memory,
                "got_bytes": got,
                "first_refused_at_bytes": first_refused_at,
                "error": error,
                "free_after_bytes": torch.cuda.mem_get_info()[0],
                "product_is_right": bool(right),
                "graph_is_right": float(y.sum()) == 1024.0,
            }
        )
    )


main()
