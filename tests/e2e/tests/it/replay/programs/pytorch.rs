//! PyTorch: a caching allocator over `cudaMalloc`, over physical memory, or over a pool of the driver.

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Amount, By, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuDeviceTotalMem, cuMemGetInfo, nvmlDeviceGetMemoryInfo",
        expects: "the limit as every total; equal free memory, to the byte",
        source: "torch/cuda/memory.py: mem_get_info, device_memory_used",
        act: Act::Views,
    },
    Step {
        calls: "cuMemAlloc until refused, cuMemFree, cuMemAlloc",
        expects: "out of memory at the limit; after the cache is freed, a retry succeeds",
        source: "c10/cuda/CUDACachingAllocator.cpp: alloc_block, release_cached_blocks",
        act: Act::Fill {
            way: "cuMemAlloc_v2",
            block: 20 * MIB,
        },
    },
    Step {
        calls: "nvmlDeviceGetComputeRunningProcesses",
        expects: "this process, with its memory, for the message of the refusal",
        source: "c10/cuda/CUDACachingAllocator.cpp: reportProcessMemoryInfo",
        act: Act::Listed,
    },
    Step {
        calls: "cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess",
        expects: "memory of the named device, from a thread without a context",
        source: "c10/cuda/CUDACachingAllocator.cpp: ExpandableSegment::map",
        act: Act::GrowWithoutContext {
            piece: 20 * MIB,
            pieces: 12,
        },
    },
    Step {
        calls: "cuMemCreate until refused, cuMemUnmap, cuMemRelease",
        expects: "out of memory at the limit; mapped pieces stay, and unmapped ones are free",
        source: "c10/cuda/CUDACachingAllocator.cpp: ExpandableSegment::map, unmapHandles",
        act: Act::GrowUntilRefused { piece: 20 * MIB },
    },
    Step {
        calls: "cuMemPoolSetAttribute, cuMemAllocFromPoolAsync, cuMemPoolTrimTo",
        expects: "freed memory stays in the pool and counts; trimmed, it is free",
        source: "c10/cuda/CUDAMallocAsyncAllocator.cpp: lazy_init_device, emptyCache",
        act: Act::Pool {
            own: false,
            amount: Amount::OfFree(400),
        },
    },
    Step {
        calls: "cuStreamBeginCapture, cuMemAlloc, cuStreamEndCapture, cuGraphLaunch",
        expects: "out of memory during a capture leaves the capture as it is",
        source: "c10/cuda/CUDACachingAllocator.cpp: cudaMallocMaybeCapturing",
        act: Act::Capture,
    },
    Step {
        calls: "cuIpcGetMemHandle, cuIpcOpenMemHandle by another process",
        expects: "a tensor that two processes share counts once",
        source: "torch/multiprocessing/reductions.py: reduce_tensor",
        act: Act::SharedOnce(By::Ipc),
    },
];
