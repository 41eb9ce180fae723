//! Triton Inference Server: an arena for each back end, and back ends with processes of their own.

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Amount, By, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuDeviceTotalMem, cuMemGetInfo, nvmlDeviceGetMemoryInfo",
        expects: "the limit as every total; equal free memory, to the byte",
        source: "core: src/metrics.cc",
        act: Act::Views,
    },
    Step {
        calls: "cuMemAlloc",
        expects: "the pool for inputs and outputs is granted, and counts",
        source: "core: src/cuda_memory_manager.cc: CudaMemoryManager::Create",
        act: Act::Take {
            way: "cuMemAlloc_v2",
            amount: Amount::Bytes(128 * MIB),
        },
    },
    Step {
        calls: "cuMemHostAlloc of 256 MiB",
        expects: "the pool of pinned memory takes nothing of the limit",
        source: "core: src/pinned_memory_manager.cc: PinnedMemoryManager::Create",
        act: Act::Pinned(256 * MIB),
    },
    Step {
        calls: "cuMemPoolCreate, cuMemAllocFromPoolAsync, cuMemFreeAsync, cuMemPoolTrimTo",
        expects: "freed memory stays in the pool and counts; trimmed, it is free",
        source: "tensorrt_backend: src/tensorrt_utils.cc; TensorRT on cudaMallocAsync",
        act: Act::Pool {
            own: true,
            amount: Amount::OfFree(300),
        },
    },
    Step {
        calls: "cuMemAllocAsync until refused",
        expects: "out of memory at the limit, from the pool of the device",
        source: "onnxruntime: core/providers/cuda/cuda_allocator.cc; arena of each instance",
        act: Act::Fill {
            way: "cuMemAllocAsync",
            block: 128 * MIB,
        },
    },
    Step {
        calls: "cuDevicePrimaryCtxRetain, cuMemAlloc, in two processes",
        expects: "processes of one slice sum up, and the next is refused",
        source: "python_backend: src/stub_launcher.cc: StubLauncher::Launch",
        act: Act::Processes {
            count: 2,
            part: 200,
        },
    },
    Step {
        calls: "cuIpcOpenMemHandle by another process",
        expects: "a region that client and server share counts once",
        source: "server: src/shared_memory_manager.cc: RegisterCUDASharedMemory",
        act: Act::SharedOnce(By::Ipc),
    },
];
