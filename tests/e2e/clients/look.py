"""Looks at the GPUs with every NVML client there is, and prints what each saw as one JSON object.

`look.py HOLDER ARGUMENTS…` first starts HOLDER, a program that takes GPU memory, says so in one line on stdout and stays
until its stdin is closed or it is killed; it is looked at and then killed. Without a HOLDER it only looks.
"""

import json
import subprocess
import sys

import pynvml
from nvitop import Device


def run(*words):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def nvidia_ml_py():
    """Memory by both versions of the call and processes by nvidia-ml-py's own choice and by the first version."""
    pynvml.nvmlInit()
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        device = pynvml.nvmlDeviceGetHandleByIndex(index)
        first = pynvml.nvmlDeviceGetMemoryInfo(device)
        second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
        gpus.append(
            {
                "uuid": pynvml.nvmlDeviceGetUUID(device),
                "v1": {"total": first.total, "free": first.free, "used": first.used},
                "v2": {"total": second.total, "free": second.free, "used": second.used, "reserved": second.reserved},
                "processes": [
                    {"pid": process.pid, "used": process.usedGpuMemory}
                    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)
                ],
                "processes_v2": [
                    {"pid": process.pid, "used": process.usedGpuMemory}
                    for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v2(device)
                ],
            }
        )
    pynvml.nvmlShutdown()
    return gpus


def gpustat():
    return json.loads(run("-m", "gpustat", "--json"))["gpus"]


def nvitop():
    """The library's figures, and the text that the program draws."""
    gpus = [
        {"total": device.memory_total(), "used": device.memory_used(), "pids": sorted(device.processes())}
        for device in Device.all()
    ]
    return {"gpus": gpus, "text": run("-m", "nvitop", "-1", "--ascii", "--no-unicode")}


def py3nvml():
    program = (
        "import json, py3nvml.py3nvml as n; n.nvmlInit();"
        "d = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())];"
        "print(json.dumps([{'total': n.nvmlDeviceGetMemoryInfo(g).total,"
        " 'pids': [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(g)]} for g in d]))"
    )
    return json.loads(run("-c", program))


def main():
    holder, held = None, None
    if len(sys.argv) > 1:
        holder = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
        held = json.loads(holder.stdout.readline())
    try:
        seen = {"nvidia_ml_py": nvidia_ml_py(), "gpustat": gpustat(), "nvitop": nvitop(), "py3nvml": py3nvml()}
    finally:
        if holder:
            holder.kill()
            holder.wait()
    print(json.dumps({"holder": held, **seen}))


main()
