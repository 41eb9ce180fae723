"""Looks at a divided GPU 0 with every NVML client there is, and prints what each saw as one JSON object.

`mig.py divide` then makes a 2g at memory slice 2 through nvidia-ml-py, and destroys it again.
"""

import ctypes
import json
import subprocess
import sys

import pynvml as n
from nvitop import Device


def run(*words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def mig_devices(gpu):
    """By index; the holes are left out."""
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            yield n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except n.NVMLError_NotFound:
            pass


def refused(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return str(error)


def described(device):
    memory = n.nvmlDeviceGetMemoryInfo(device, version=n.nvmlMemory_v2)
    attributes = n.nvmlDeviceGetAttributes(device)
    return {
        "name": n.nvmlDeviceGetName(device),
        "uuid": n.nvmlDeviceGetUUID(device),
        "ids": [n.nvmlDeviceGetGpuInstanceId(device), n.nvmlDeviceGetComputeInstanceId(device)],
        "memory": [memory.total, memory.used, memory.free],
        "multiprocessors": attributes.multiprocessorCount,
        "slices": [attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount],
        "found": n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(device))),
        "processes": processes(device),
    }


def processes(device):
    listed = n.nvmlDeviceGetComputeRunningProcesses(device)
    return [[p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId] for p in listed]


def profiles(gpu):
    """Name, id, memory in MiB and how many more there could be."""
    found = []
    for number in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = n.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, number)
        except n.NVMLError_NotSupported:
            continue
        left = n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile.id)
        found.append([profile.id, profile.memorySizeMB, left])
    return found


def divide(gpu):
    at = n.c_nvmlGpuInstancePlacement_t()
    at.start, at.size = 2, 2
    instance = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 14, ctypes.byref(at))
    whole = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, n.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE, 0)
    compute = n.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
    names = [n.nvmlDeviceGetName(device) for device in mig_devices(gpu)]
    busy = refused(n.nvmlGpuInstanceDestroy, instance)
    n.nvmlComputeInstanceDestroy(compute)
    n.nvmlGpuInstanceDestroy(instance)
    return {"names": names, "busy": busy, "after": len(list(mig_devices(gpu)))}


def main():
    n.nvmlInit()
    gpu = n.nvmlDeviceGetHandleByIndex(0)
    seen = {
        "mode": n.nvmlDeviceGetMigMode(gpu),
        "gpu": {
            "used": n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2).used,
            "processes": processes(gpu),
            "utilization": refused(n.nvmlDeviceGetUtilizationRates, gpu),
        },
        "devices": [described(device) for device in mig_devices(gpu)],
        "profiles": profiles(gpu),
    }
    if sys.argv[1:] == ["divide"]:
        seen["divided"] = divide(gpu)
    n.nvmlShutdown()
    devices = Device.all()[0].mig_devices()
    seen["nvitop"] = [
        {"name": device.name(), "total": device.memory_total(), "pids": sorted(device.processes())} for device in devices
    ]
    seen["nvitop_text"] = run("-m", "nvitop", "-1", "--ascii", "--no-unicode")
    seen["gpustat"] = [gpu["uuid"] for gpu in json.loads(run("-m", "gpustat", "--json"))["gpus"]]
    print(json.dumps(seen))


main()
