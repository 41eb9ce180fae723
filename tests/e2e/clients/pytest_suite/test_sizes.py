"""Tests that take GPU memory for a moment, as the tests of a library do: with cuda-bindings, and with numba-cuda.

DIVVY_SUITE_TESTS is their number, and DIVVY_SUITE_MS how long each holds its memory. The sizes come from a seed.
"""

import os
import random
import time

import pytest

GIB = 1 << 30
MIB = 1 << 20

COUNT = int(os.environ.get("DIVVY_SUITE_TESTS", "12"))
HOLD_S = int(os.environ.get("DIVVY_SUITE_MS", "50")) / 1000


def sizes() -> "list[int]":
    """Most tests take some hundred MiB, some several GiB, and a few most of a GPU of 80 GiB."""
    draw = random.Random(57)
    kinds = [(64, 1024)] * 5 + [(2 * 1024, 12 * 1024)] * 4 + [(20 * 1024, 60 * 1024)]
    return [draw.randrange(*draw.choice(kinds)) for _ in range(COUNT)]


SIZES = sizes()


@pytest.mark.parametrize("number", range(0, COUNT, 2))
def test_bindings(number: int) -> None:
    from cuda.bindings import driver

    def ok(answer):
        error, *values = answer
        assert error == driver.CUresult.CUDA_SUCCESS, error
        return values[0] if len(values) == 1 else values

    ok(driver.cuInit(0))
    # Kept to the end of the process, as libraries keep it.
    context = ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))
    ok(driver.cuCtxSetCurrent(context))
    # In two steps, so that the peak is no single allocation.
    half, blocks = SIZES[number] * MIB // 2, []
    try:
        for _ in range(2):
            blocks.append(ok(driver.cuMemAlloc(half)))
        ok(driver.cuMemsetD8(blocks[0], 1, min(half, MIB)))
        time.sleep(HOLD_S)
    finally:
        for block in blocks:
            ok(driver.cuMemFree(block))


@pytest.mark.parametrize("number", range(1, COUNT, 2))
def test_numba(number: int) -> None:
    import numpy
    from numba import cuda

    array = cuda.device_array(SIZES[number] * MIB, dtype=numpy.uint8)
    time.sleep(HOLD_S)
    assert array.nbytes == SIZES[number] * MIB
    del array
