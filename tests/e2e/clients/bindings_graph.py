"""cuda-bindings captures a stream into a graph, with memory that is allocated in it, and launches it.

The argument is a file of PTX with the kernels sim_fill_u32 and sim_vector_add_f32. Prints one JSON object: what the
graph computed at each launch, its nodes, what its memory took.
"""

import ctypes
import json
import sys

from cuda.bindings import driver

COUNT = 1024
BYTES = 4 * COUNT
SCRATCH = 64 << 20


def ask(answer):
    """The values of a driver call that has to succeed."""
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"the driver answered {result.name}")
    return values[0] if len(values) == 1 else values


def launch(kernel, stream, *arguments):
    """Launches one thread per element; arguments are (value, ctypes type)."""
    values, types = zip(*arguments, strict=True)
    ask(driver.cuLaunchKernel(kernel, 1, 1, 1, COUNT, 1, 1, 0, stream, (values, types), 0))


def graph_memory(device):
    """Reserved bytes of the device's graph memory."""
    attribute = driver.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
    return int(ask(driver.cuDeviceGetGraphMemAttribute(device, attribute)))


def main():
    ask(driver.cuInit(0))
    device = ask(driver.cuDeviceGet(0))
    context = ask(driver.cuDevicePrimaryCtxRetain(device))
    ask(driver.cuCtxSetCurrent(context))
    with open(sys.argv[1], "rb") as ptx:
        module = ask(driver.cuModuleLoadData(ptx.read() + b"\0"))
    fill = ask(driver.cuModuleGetFunction(module, b"sim_fill_u32"))
    add = ask(driver.cuModuleGetFunction(module, b"sim_vector_add_f32"))
    stream = ask(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    other = ask(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    forked, joined = ask(driver.cuEventCreate(0)), ask(driver.cuEventCreate(0))
    total = ask(driver.cuMemAlloc(BYTES))
    ask(driver.cuMemsetD32(total, 0, COUNT))
    result = (ctypes.c_float * COUNT)()
    free_before, _ = ask(driver.cuMemGetInfo())

    # total += scratch, where scratch is 1.0 everywhere; the fill runs in a stream of its own.
    ask(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    scratch = ask(driver.cuMemAllocAsync(SCRATCH, stream))
    ask(driver.cuEventRecord(forked, stream))
    ask(driver.cuStreamWaitEvent(other, forked, 0))
    one = 0x3F800000
    launch(fill, other, (scratch, None), (one, ctypes.c_uint), (COUNT, ctypes.c_uint))
    ask(driver.cuEventRecord(joined, other))
    ask(driver.cuStreamWaitEvent(stream, joined, 0))
    launch(add, stream, (total, None), (scratch, None), (total, None), (COUNT, ctypes.c_uint))
    ask(driver.cuMemFreeAsync(scratch, stream))
    ask(driver.cuMemcpyDtoHAsync(ctypes.addressof(result), total, BYTES, stream))
    graph = ask(driver.cuStreamEndCapture(stream))

    nodes, _ = ask(driver.cuGraphGetNodes(graph, 16))
    kinds = [ask(driver.cuGraphNodeGetType(node)).name for node in nodes if int(node)]
    executable = ask(driver.cuGraphInstantiate(graph, 0))
    free_instantiated, _ = ask(driver.cuMemGetInfo())
    seen = []
    for _ in range(3):
        ask(driver.cuGraphLaunch(executable, stream))
        ask(driver.cuStreamSynchronize(stream))
        seen.append([result[0], result[COUNT - 1]])
    free_launched, _ = ask(driver.cuMemGetInfo())
    reserved = graph_memory(device)
    ask(driver.cuGraphExecDestroy(executable))
    ask(driver.cuGraphDestroy(graph))
    ask(driver.cuDeviceGraphMemTrim(device))
    free_trimmed, _ = ask(driver.cuMemGetInfo())
    print(
        json.dumps(
            {
                "seen": seen,
                "kinds": kinds,
                "scratch_bytes": SCRATCH,
                "reserved_bytes": reserved,
                "taken_bytes": {
                    "instantiated": free_before - free_instantiated,
                    "launched": free_before - free_launched,
                    "trimmed": free_before - free_trimmed,
                },
            }
        )
    )


main()
