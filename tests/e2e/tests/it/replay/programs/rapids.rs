//! RAPIDS: RMM's resources, and the pools of CuPy and cuDF on top of them.

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Amount, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuDeviceTotalMem, cuMemGetInfo",
        expects: "the limit as every total; equal free memory, to the byte",
        source: "cpp/src/cuda_device.cpp: available_device_memory",
        act: Act::Views,
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc of half of what is free",
        expects: "the first block of a pool is granted, and counts",
        source: "rmm/pylibrmm/memory_resource: PoolMemoryResource; percent_of_free_device_memory",
        act: Act::Take {
            way: "cuMemAlloc_v2",
            amount: Amount::OfFree(500),
        },
    },
    Step {
        calls: "cuMemAlloc of the total, then of half of it, and so on",
        expects: "a pool that grows is refused until the block fits",
        source: "cpp/src/mr/detail/pool_memory_resource_impl.cpp: try_to_expand",
        act: Act::BackOff {
            way: "cuMemAlloc_v2",
            from: Amount::OfTotal(1000),
            keeps: 500,
        },
    },
    Step {
        calls: "cuMemPoolCreate, cuMemPoolSetAttribute, cuMemAllocFromPoolAsync",
        expects: "freed memory stays in the pool and counts; trimmed, it is free",
        source: "cpp/src/mr/detail/cuda_async_memory_resource_impl.cpp",
        act: Act::Pool {
            own: true,
            amount: Amount::OfFree(500),
        },
    },
    Step {
        calls: "cuMemAllocManaged of 80 % of what is free",
        expects: "managed memory counts when it is allocated",
        source: "cpp/src/mr/managed_memory_resource.cpp: allocate; cudf.pandas",
        act: Act::Take {
            way: "cuMemAllocManaged",
            amount: Amount::OfFree(800),
        },
    },
    Step {
        calls: "cuMemAllocManaged of twice the total, then of half of it, and so on",
        expects: "oversubscription is refused: a slice has no more than its limit",
        source: "cpp/src/mr/managed_memory_resource.cpp: allocate",
        act: Act::BackOff {
            way: "cuMemAllocManaged",
            from: Amount::OfTotal(2000),
            keeps: 500,
        },
    },
    Step {
        calls: "cuMemAlloc until refused, cuMemFree, cuMemAlloc",
        expects: "out of memory at the limit; after free_all_blocks a retry succeeds",
        source: "cupy/cuda/memory.pyx: SingleDeviceMemoryPool",
        act: Act::Fill {
            way: "cuMemAlloc_v2",
            block: 32 * MIB,
        },
    },
];
