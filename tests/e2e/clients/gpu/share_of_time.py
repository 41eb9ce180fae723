"""Does equal pieces of work for some seconds, and says how much device time they took.

A piece is a product of two matrices of 4096 x 4096 in bfloat16 where PyTorch is installed, and a kernel of fixed length
elsewhere. Events around each piece tell its device time, and NVML the clock of the multiprocessors and the power, so that
a share of device time can be told from a share of products: a GPU that rests clocks higher. A piece before which the
program waited for its lease counts twice the median at most.

Prints one JSON object: the whole time, its first and its last five seconds.
"""

import argparse
import ctypes
import json
import time

BATCH = 16
WINDOW = 5.0


class Product:
    """PyTorch's product, which cuBLAS runs on the tensor cores."""

    def __init__(self):
        import torch

        self.torch = torch
        self.a, self.b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.name = "product of 4096 x 4096, bfloat16"

    def batch(self):
        """Device time of each piece of a batch, in milliseconds."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(BATCH + 1)]
        events[0].record()
        for event in events[1:]:
            self.torch.mm(self.a, self.b)
            event.record()
        events[-1].synchronize()
        return [first.elapsed_time(second) for first, second in zip(events, events[1:])]


PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry sim_busy_us_206()
{
    .reg .pred %p; .reg .b32 %i; .reg .f32 %f;
    mov.u32 %i, 40000; mov.f32 %f, 0f3F800000;
again:
    fma.rn.f32 %f, %f, %f, %f;
    sub.u32 %i, %i, 1;
    setp.ne.u32 %p, %i, 0;
    @%p bra again;
    ret;
}
"""


class Kernel:
    """A kernel of fixed length; the simulated driver takes its length from the name."""

    def __init__(self):
        from cuda.bindings import driver

        self.driver = driver
        self.ask(driver.cuInit(0))
        context = self.ask(driver.cuDevicePrimaryCtxRetain(self.ask(driver.cuDeviceGet(0))))
        self.ask(driver.cuCtxSetCurrent(context))
        module = self.ask(driver.cuModuleLoadData(PTX))
        self.kernel = self.ask(driver.cuModuleGetFunction(module, b"sim_busy_us_206"))
        self.events = [self.ask(driver.cuEventCreate(0)) for _ in range(BATCH + 1)]
        self.name = "kernel of fixed length"

    def ask(self, answer):
        result, *values = answer
        if result != self.driver.CUresult.CUDA_SUCCESS:
            raise SystemExit(f"the driver answered {result.name}")
        return values[0] if values else None

    def batch(self):
        self.ask(self.driver.cuEventRecord(self.events[0], 0))
        for event in self.events[1:]:
            self.ask(self.driver.cuLaunchKernel(self.kernel, 1024, 1, 1, 256, 1, 1, 0, 0, 0, 0))
            self.ask(self.driver.cuEventRecord(event, 0))
        self.ask(self.driver.cuEventSynchronize(self.events[-1]))
        pairs = zip(self.events, self.events[1:])
        return [self.ask(self.driver.cuEventElapsedTime(first, second)) for first, second in pairs]


class Sensors:
    """Clock of the multiprocessors in MHz and power in W of the first GPU."""

    def __init__(self):
        self.nvml, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.nvml.nvmlInit_v2()
        self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))

    def read(self):
        clock, power = ctypes.c_uint(), ctypes.c_uint()
        sm = 1
        if self.nvml.nvmlDeviceGetClockInfo(self.device, sm, ctypes.byref(clock)):
            return None
        self.nvml.nvmlDeviceGetPowerUsage(self.device, ctypes.byref(power))
        return clock.value, power.value / 1000


def figures(rows, begin, end):
    """Of the batches that ended between two moments: (end, milliseconds of each piece, clock, power)."""
    inside = [row for row in rows if begin < row[0] <= end]
    pieces = [piece for row in inside for piece in row[1]]
    sensed = [row[2] for row in inside if row[2]]
    longest = 2 * sorted(pieces)[len(pieces) // 2] if pieces else 0
    spread = lambda values: [min(values), sorted(values)[len(values) // 2], max(values)] if values else None
    return {
        "seconds": round(end - begin, 3),
        "pieces": len(pieces),
        "pieces_per_s": len(pieces) / (end - begin),
        "piece_ms": spread(pieces),
        "device_time": sum(min(piece, longest) for piece in pieces) / 1000 / (end - begin),
        "sm_clock_mhz": spread([clock for clock, _ in sensed]),
        "power_w": spread([power for _, power in sensed]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    try:
        work = Product()
    except ImportError:
        work = Kernel()
    sensors = Sensors()
    work.batch()
    start, rows = time.monotonic(), []
    while time.monotonic() < start + seconds:
        pieces = work.batch()
        rows.append((time.monotonic(), pieces, sensors.read()))
    end, window = rows[-1][0], min(WINDOW, seconds)
    answer = {"work": work.name, "whole": figures(rows, start, end)}
    answer["first"] = figures(rows, start, start + window)
    answer["last"] = figures(rows, end - window, end)
    print(json.dumps(answer))


main()
