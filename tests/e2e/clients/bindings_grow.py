"""cuda-bindings takes blocks until it has as much as it was told to, and tries again where it is refused.

Prints a line of JSON when it is refused for the first time, one when it has all, and one when it has given back all but
one block, which it does once the file GIVE_BACK is there. It ends once the file END is there.
"""

import argparse
import json
import os
import time

from cuda.bindings import driver

BLOCK = 256 << 20


def ask(answer):
    """The values of a driver call that has to succeed."""
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"the driver answered {result.name}")
    return values[0] if len(values) == 1 else values


def say(what, got):
    free, total = ask(driver.cuMemGetInfo())
    line = {"what": what, "pid": os.getpid(), "got_bytes": got, "total_bytes": total, "free_bytes": free}
    print(json.dumps(line), flush=True)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.005)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--give-back", required=True)
    parser.add_argument("--end", required=True)
    args = parser.parse_args()

    ask(driver.cuInit(0))
    context = ask(driver.cuDevicePrimaryCtxRetain(ask(driver.cuDeviceGet(0))))
    ask(driver.cuCtxSetCurrent(context))
    blocks, refused = [], False
    while len(blocks) * BLOCK < args.bytes:
        result, *address = driver.cuMemAlloc(BLOCK)
        if result == driver.CUresult.CUDA_SUCCESS:
            blocks += address
        elif result != driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise SystemExit(f"the driver answered {result.name}")
        else:
            if not refused:
                say("refused", len(blocks) * BLOCK)
            refused = True
            time.sleep(0.005)
    say("full", len(blocks) * BLOCK)
    wait_for(args.give_back)
    for address in blocks[1:]:
        ask(driver.cuMemFree(address))
    say("given back", BLOCK)
    wait_for(args.end)


main()
