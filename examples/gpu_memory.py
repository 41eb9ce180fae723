#!/usr/bin/env python3
"""Shows the GPU memory that a program sees, takes it in blocks until the driver refuses one, and keeps it for a while.

    gpu_memory.py                     take all memory
    gpu_memory.py --take 2            take 2 GiB
    gpu_memory.py --take 2 --keep 60  take 2 GiB and keep it for a minute

It needs Python and NVIDIA's driver (or the simulated one), and no packages.
"""

import argparse
import ctypes
import sys
import time

GIB = 1 << 30
BLOCK = 256 << 20
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY in cuda.h


def call(cuda, name, *arguments):
    """Calls a function of the driver, and ends the program if it fails."""
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        sys.exit(f"{name} failed with CUDA error {code}")


def main():
    parser = argparse.ArgumentParser(description="Take GPU memory and show how far it goes.")
    parser.add_argument("--take", type=float, metavar="GIB", help="take this much and no more")
    parser.add_argument("--keep", type=float, metavar="SECONDS", default=0, help="keep it for this long")
    wanted = parser.parse_args()

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"no NVIDIA driver: {error}")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    name = ctypes.create_string_buffer(100)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call(cuda, "cuInit", 0)
    call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    call(cuda, "cuDeviceGetName", name, len(name), device)
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call(cuda, "cuCtxSetCurrent", context)
    call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    print(f"GPU    {name.value.decode()}")
    print(f"total  {total.value / GIB:.1f} GiB, free {free.value / GIB:.1f} GiB")

    taken = 0
    while wanted.take is None or taken + BLOCK <= wanted.take * GIB:
        block = ctypes.c_uint64()
        code = cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(BLOCK))
        if code == OUT_OF_MEMORY:
            print(f"taken  {taken / GIB:.1f} GiB, then the driver answered: out of memory", flush=True)
            break
        if code != 0:
            sys.exit(f"cuMemAlloc failed with CUDA error {code}")
        taken += BLOCK
    else:
        print(f"taken  {taken / GIB:.1f} GiB", flush=True)
    time.sleep(wanted.keep)


if __name__ == "__main__":
    main()
