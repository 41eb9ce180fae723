"""Dask in slices, as docs/engines.md shows it: dask_scene.py FOLDER DIVVY. Prints what the tasks saw, as JSON."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

GIB = 1 << 30


def gpu(step=GIB // 4, hold=0.0):
    """Total memory in bytes that this process sees, and the bytes that it gets before one more step is refused."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    device, total, context = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_void_p()
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    blocks = []
    while True:
        block = ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(step)) != 0:
            break
        blocks.append(block)
    time.sleep(hold)
    for block in blocks:
        cuda.cuMemFree_v2(block)
    cuda.cuCtxDestroy_v2(context)
    return {"total": total.value, "got": len(blocks) * step, "job": os.environ["DIVVY_JOB_ID"], "pid": os.getpid()}


def both_at_once():
    """Two processes of one LocalCluster, which share the limit of the program."""
    from dask.distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        workers = list(client.scheduler_info()["workers"])
        seen = [client.submit(gpu, hold=3.0, workers=[one], pure=False) for one in workers]
        print(json.dumps(client.gather(seen)))


def until(what, condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.1)
    return found


def main():
    from dask.distributed import Client

    folder, divvy = sys.argv[1:]
    file = os.path.join(folder, "dask.json")
    dask = os.path.join(os.path.dirname(sys.executable), "dask")
    base = [dask, "scheduler", "--scheduler-file", file, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    programs = [subprocess.Popen(base, stderr=subprocess.DEVNULL)]
    options = ["--nworkers", "1", "--nthreads", "1", "--resources", "GPU=1", "--no-dashboard"]
    worker = [dask, "worker", "--scheduler-file", file, "--host", "127.0.0.1", *options]
    for _ in range(2):
        slice = [divvy, "run", "--no-wait", "-g", "0.25", "--"]
        programs.append(subprocess.Popen([*slice, *worker], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    said = {}
    try:
        until("the scheduler writes its file", lambda: os.path.exists(file))
        with Client(scheduler_file=file) as client:
            client.upload_file(__file__)
            client.wait_for_workers(2, timeout=120)
            workers = list(client.scheduler_info()["workers"])

            def look():
                tasks = [client.submit(gpu, workers=[one], pure=False, resources={"GPU": 1}) for one in workers]
                return client.gather(tasks)

            said["workers"] = look()
            # The worker's nanny starts it again, in the same slice.
            os.kill(said["workers"][0]["pid"], signal.SIGKILL)
            until("the worker is back", lambda: len(client.scheduler_info()["workers"]) < 2, 30)
            client.wait_for_workers(2, timeout=120)
            workers = list(client.scheduler_info()["workers"])
            client.upload_file(__file__)
            said["again"] = look()
            client.shutdown()
        for program in programs:
            program.wait(60)
    finally:
        for program in programs:
            program.kill()
    whole = [divvy, "run", "--no-wait", "-g", "0.5", "--", sys.executable, __file__, "--local"]
    done = subprocess.run(whole, stdout=subprocess.PIPE, check=True, timeout=180)
    said["local"] = json.loads(done.stdout)
    print(json.dumps(said))


if __name__ == "__main__":
    both_at_once() if sys.argv[1:] == ["--local"] else main()
