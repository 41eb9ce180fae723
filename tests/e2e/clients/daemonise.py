"""A program that closes every descriptor, as one does that becomes a daemon, uses the numbers for files of its own and forks.

Prints one JSON object: which of those files the child found closed, and how much memory the parent got after all that.
"""

import json
import os

from cuda.bindings import driver

STEP = 64 << 20


def ask(answer):
    """The values of a driver call that has to succeed."""
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"the driver answered {result.name}")
    return values[0] if len(values) == 1 else values


def is_closed(file):
    try:
        os.fstat(file)
    except OSError:
        return True
    return False


def main():
    ask(driver.cuInit(0))
    context = ask(driver.cuDevicePrimaryCtxRetain(ask(driver.cuDeviceGet(0))))
    ask(driver.cuCtxSetCurrent(context))
    ask(driver.cuMemAlloc(STEP))

    os.closerange(3, 512)
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(300)]
    child = os.fork()
    if child == 0:
        os._exit(min(sum(map(is_closed, files)), 255))
    lost = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    got = STEP
    while driver.cuMemAlloc(STEP)[0] == driver.CUresult.CUDA_SUCCESS:
        got += STEP
    print(json.dumps({"files_lost": lost, "got_bytes": got}), flush=True)


main()
