"""Keeps GPU memory with a pattern in it, and does what files in a folder ask for: `park_hold.py FOLDER MIB`.

A file `ask-N` has one word: `check` compares all memory, and another word is the first call after a wake. The answer is
one JSON object in `answer-N`: seconds, and whether all is as it was. It ends with the word `end`.
"""

import ctypes
import json
import os
import sys
import time

folder, mib = sys.argv[1], int(sys.argv[2])
PIECE = 64 << 20
PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none() { ret; }\n\0"
cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def ok(result):
    if result:
        raise SystemExit(f"the driver answered {result}")


def pattern(at):
    """A piece of memory that no other has."""
    word = at.to_bytes(8, "little")
    return ctypes.create_string_buffer(bytes(byte ^ 0xA5 for byte in word) * (PIECE // 8), PIECE)


context, event, host = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(PIECE)
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuEventCreate(ctypes.byref(event), 0))
pieces = []
for at in range((mib << 20) // PIECE):
    pieces.append(ctypes.c_uint64())
    ok(cuda.cuMemAlloc_v2(ctypes.byref(pieces[-1]), ctypes.c_size_t(PIECE)))
    ok(cuda.cuMemcpyHtoD_v2(pieces[-1], pattern(at), ctypes.c_size_t(PIECE)))


def piece(at):
    ok(cuda.cuMemcpyDtoH_v2(host, pieces[at], ctypes.c_size_t(PIECE)))
    return libc.memcmp(host, pattern(at), PIECE) == 0


def module():
    loaded, function = ctypes.c_void_p(), ctypes.c_void_p()
    ok(cuda.cuModuleLoadData(ctypes.byref(loaded), PTX))
    ok(cuda.cuModuleGetFunction(ctypes.byref(function), loaded, b"none"))
    ok(cuda.cuLaunchKernel(function, *[ctypes.c_uint(1)] * 6, ctypes.c_uint(0), None, None, None))
    ok(cuda.cuCtxSynchronize())
    return True


ACTS = {
    "check": lambda: all(piece(at) for at in range(len(pieces))),
    "synchronise": lambda: cuda.cuCtxSynchronize() == 0,
    "item": lambda: piece(0),
    "query": lambda: cuda.cuEventQuery(event) == 0,
    "module": module,
}


def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)


number = 0
open(os.path.join(folder, "ready"), "w").close()
while True:
    try:
        word = open(os.path.join(folder, f"ask-{number}")).read()
    except FileNotFoundError:
        word = ""
    if not word:
        time.sleep(0.002)
        continue
    if word == "end":
        break
    # In KiB: what is pinned and swapped of this process while its memory is in host memory.
    pinned = {name: memory(name) for name in ("VmRSS", "VmLck", "VmPin", "VmSwap")}
    began = time.monotonic()
    whole = ACTS[word]()
    answer = {"act": word, "seconds": time.monotonic() - began, "whole": whole, "before_kib": pinned}
    draft = os.path.join(folder, "draft")
    with open(draft, "w") as file:
        json.dump(answer, file)
    os.rename(draft, os.path.join(folder, f"answer-{number}"))
    number += 1
