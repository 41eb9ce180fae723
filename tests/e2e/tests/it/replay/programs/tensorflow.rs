//! TensorFlow: takes nearly all of what is free, or managed memory beyond it.

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Amount, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuDeviceTotalMem, cuMemGetInfo",
        expects: "the limit as every total; equal free memory, to the byte",
        source: "tensorflow/core/common_runtime/gpu/gpu_device.cc: CreateDevices",
        act: Act::Views,
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc of what is free without a reserve",
        expects: "granted in one block, counted, and free again",
        source: "tensorflow/core/common_runtime/gpu/gpu_device.cc: MinSystemMemory",
        act: Act::Take {
            way: "cuMemAlloc_v2",
            amount: Amount::FreeWithout(225 * MIB, 1536 * MIB),
        },
    },
    Step {
        calls: "cuMemAlloc until refused",
        expects: "allow_growth: out of memory at the limit, not before",
        source: "tensorflow/core/common_runtime/bfc_allocator.cc: Extend",
        act: Act::Fill {
            way: "cuMemAlloc_v2",
            block: 64 * MIB,
        },
    },
    Step {
        calls: "cuMemAllocManaged of a quarter of the total",
        expects: "managed memory counts when it is allocated",
        source: "tensorflow/core/common_runtime/gpu/gpu_device.cc: SingleVirtualDeviceMemoryLimit",
        act: Act::Take {
            way: "cuMemAllocManaged",
            amount: Amount::OfTotal(250),
        },
    },
    Step {
        calls: "cuMemAllocManaged of twice the total, then of 90 % of it, and so on",
        expects: "per_process_gpu_memory_fraction=2: refused until the block fits the limit",
        source: "tensorflow/core/common_runtime/bfc_allocator.cc: Extend",
        act: Act::BackOff {
            way: "cuMemAllocManaged",
            from: Amount::OfTotal(2000),
            keeps: 900,
        },
    },
    Step {
        calls: "cuMemHostAlloc",
        expects: "staging memory of the host takes nothing of the limit",
        source: "tensorflow/core/common_runtime/gpu/gpu_process_state.cc: GetGpuHostAllocator",
        act: Act::Pinned(64 * MIB),
    },
];
