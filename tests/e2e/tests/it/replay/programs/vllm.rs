//! vLLM: sizes its cache from free and total memory, captures graphs, and sleeps.

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuMemGetInfo, nvmlDeviceGetMemoryInfo",
        expects: "total and free agree between CUDA and NVML, to the byte",
        source: "vllm/utils/mem_utils.py: MemorySnapshot; vllm/platforms/cuda.py",
        act: Act::Views,
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc",
        expects: "gpu_memory_utilization x total is granted, if that much is free",
        source: "vllm/v1/worker/utils.py: request_memory",
        act: Act::Utilisation { default: 92 },
    },
    Step {
        calls: "cuMemGetInfo before and after profiling",
        expects: "initial free == current free, while a neighbour allocates",
        source: "vllm/v1/worker/gpu_worker.py: determine_available_memory",
        act: Act::Steady,
    },
    Step {
        calls: "cuStreamBeginCapture, cuMemAlloc, cuStreamEndCapture, cuGraphLaunch",
        expects: "out of memory during a capture leaves the capture as it is",
        source: "vllm/compilation/cuda_graph.py: CUDAGraphWrapper",
        act: Act::Capture,
    },
    Step {
        calls: "cuMemUnmap, cuMemRelease, cuMemCreate, cuMemMap, cuMemSetAccess",
        expects: "/sleep gives the bytes back at once; /wake_up maps them again",
        source: "csrc/cumem_allocator.cpp: unmap_and_release, create_and_map",
        act: Act::Sleep {
            piece: 256 * MIB,
            pieces: 4,
        },
    },
    Step {
        calls: "cuMemAlloc until refused, cuMemFree, cuMemAlloc",
        expects: "out of memory at the limit; freed memory is granted again",
        source: "vllm/v1/worker/gpu_worker.py: initialize_from_config",
        act: Act::Fill {
            way: "cuMemAlloc_v2",
            block: 64 * MIB,
        },
    },
];
