"""Takes memory up to a limit, and asks the driver what it limits.

take KIND STEP_MIB FILE [GROUP]   moves to the control group GROUP, takes all it gets, says so in JSON, waits for FILE
limits GPU GROUP...               prints the limits of control groups on a GPU, in JSON
"""

import ctypes
import json
import os
import sys
import time

MIB = 1 << 20
ALL_ONES = (1 << 64) - 1


class GetLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def checked(result, what):
    if result != 0:
        sys.exit(f"{what}: {result}")


def take(kind, step, until, group=None):
    if group:
        with open(os.path.join(group, "cgroup.procs"), "w") as procs:
            procs.write("0")
    cuda = ctypes.CDLL("libcuda.so.1")
    checked(cuda.cuInit(0), "cuInit")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    checked(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    checked(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    checked(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    pointer, taken, bytes_ = ctypes.c_uint64(), 0, step * MIB

    def more():
        if kind == "managed":
            return cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(bytes_), 1)
        return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(bytes_))

    while (answer := more()) == 0:
        taken += step
    said = {"taken_mib": taken, "answer": answer, "free_mib": free.value // MIB, "total_mib": total.value // MIB}
    print(json.dumps(said), flush=True)
    while not os.path.exists(until):
        time.sleep(0.01)


def limits(gpu, *groups):
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    checked(nvml.nvmlInit_v2(), "nvmlInit")
    device = ctypes.c_void_p()
    checked(nvml.nvmlDeviceGetHandleByIndex_v2(int(gpu), ctypes.byref(device)), "a GPU")
    found = {}
    for group in groups:
        get = GetLimits(name=group.encode())
        answer = nvml.nvmlDeviceGetMemoryLimits_v1(device, ctypes.byref(get))
        hard = None if get.hard == ALL_ONES else get.hard
        found[group] = {"answer": answer, "soft": get.soft, "hard": hard, "used": get.used}
    print(json.dumps(found))


if __name__ == "__main__":
    words = sys.argv[2:]
    if sys.argv[1] == "take":
        take(words[0], int(words[1]), *words[2:])
    else:
        limits(*words)
