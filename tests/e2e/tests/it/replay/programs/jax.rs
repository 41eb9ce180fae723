//! JAX: XLA takes three quarters of the total at its start.

use crate::replay::beside::PREALLOCATED;
use crate::replay::stage::MIB;
use crate::replay::step::{Act, Amount, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuDeviceTotalMem, cuMemGetInfo",
        expects: "the limit as every total; equal free memory, to the byte",
        source: "xla/stream_executor/cuda/cuda_executor.cc: DeviceMemoryUsage",
        act: Act::Views,
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc of 75 % of the total",
        expects: "granted in one block, counted, and free again",
        source: "xla/pjrt/gpu/gpu_helpers.cc: CreateBFCAllocator",
        act: Act::Take {
            way: "cuMemAlloc_v2",
            amount: Amount::OfTotal(PREALLOCATED),
        },
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc of 75 % of the total, in two slices",
        expects: "two that start at once get the same",
        source: "xla/pjrt/gpu/gpu_helpers.cc: CreateBFCAllocator; jax#4310",
        act: Act::AsNeighbour(PREALLOCATED),
    },
    Step {
        calls: "cuMemAlloc of the total, then of 90 % of it, and so on",
        expects: "XLA_CLIENT_MEM_FRACTION=1: refused until the block fits",
        source: "xla/tsl/framework/bfc_allocator.cc: Extend",
        act: Act::BackOff {
            way: "cuMemAlloc_v2",
            from: Amount::OfTotal(1000),
            keeps: 900,
        },
    },
    Step {
        calls: "cuMemAlloc until refused",
        expects: "XLA_PYTHON_CLIENT_ALLOCATOR=platform: out of memory at the limit",
        source: "xla/stream_executor/stream_executor_memory_allocator.cc: Allocate",
        act: Act::Fill {
            way: "cuMemAlloc_v2",
            block: 64 * MIB,
        },
    },
    Step {
        calls: "cuMemPoolCreate, cuMemAllocFromPoolAsync, cuMemPoolTrimTo",
        expects: "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async: a pool counts until it is trimmed",
        source: "xla/stream_executor/gpu/gpu_cudamallocasync_allocator.cc",
        act: Act::Pool {
            own: true,
            amount: Amount::OfFree(500),
        },
    },
    Step {
        calls: "cuMemHostAlloc",
        expects: "staging memory of the host takes nothing of the limit",
        source: "xla/pjrt/gpu/gpu_helpers.cc: GetGpuHostAllocator",
        act: Act::Pinned(64 * MIB),
    },
];
