"""cuda-bindings takes memory until it is refused, by cuMemAlloc, cuMemCreate or cuMemAllocAsync.

Prints one JSON object: what was seen before, how much there was, what the refusal was called.
"""

import argparse
import json
import os

from cuda.bindings import driver

GRANULE = 2 << 20
# Outside of a slice it would take the whole GPU.
AT_MOST = int(os.environ.get("FILL_AT_MOST", 1 << 62))


def ask(answer):
    """The values of a driver call that has to succeed."""
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"the driver answered {result.name}")
    return values[0] if len(values) == 1 else values


def take_linear(size, _device):
    return driver.cuMemAlloc(size)


def take_async(size, _device):
    return driver.cuMemAllocAsync(size, 0)


def take_vmm(size, device):
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = int(device)
    return driver.cuMemCreate(size, properties, 0)


def main():
    routes = {"linear": take_linear, "async": take_async, "vmm": take_vmm}
    parser = argparse.ArgumentParser()
    parser.add_argument("--route", choices=routes, default="linear")
    route = parser.parse_args().route

    ask(driver.cuInit(0))
    device = ask(driver.cuDeviceGet(0))
    context = ask(driver.cuDevicePrimaryCtxRetain(device))
    ask(driver.cuCtxSetCurrent(context))
    free, total = ask(driver.cuMemGetInfo())
    device_total = ask(driver.cuDeviceTotalMem(device))

    got, first_refused_at, error, step = 0, None, None, 64 << 20
    while got < AT_MOST:
        result, *_ = routes[route](step, device)
        if result == driver.CUresult.CUDA_SUCCESS:
            got += step
            continue
        error = result.name
        first_refused_at = got if first_refused_at is None else first_refused_at
        if error != "CUDA_ERROR_OUT_OF_MEMORY" or step == GRANULE:
            break
        step //= 2
    free_after, _ = ask(driver.cuMemGetInfo())
    print(
        json.dumps(
            {
                "route": route,
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
