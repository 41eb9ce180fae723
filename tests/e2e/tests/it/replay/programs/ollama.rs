//! Ollama: short processes look for GPUs; runners are killed.

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuInit, cuDevicePrimaryCtxRetain, cuMemGetInfo, exit; five times",
        expects: "each process sees the limit, and leaves nothing behind",
        source: "discover/runner.go: bootstrapDevices",
        act: Act::Glances(5),
    },
    Step {
        calls: "nvmlDeviceGetHandleByUUID, nvmlDeviceGetMemoryInfo, cuMemGetInfo",
        expects: "NVML and CUDA agree on total and free, to the byte",
        source: "ml/backend/ggml/ggml/src/mem_nvml.cpp: ggml_nvml_get_device_memory",
        act: Act::Views,
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc for each layer",
        expects: "layers that fit the free memory but a margin are granted",
        source: "llm/server.go: assignLayers",
        act: Act::Layers {
            layer: 64 * MIB,
            margin: 512 * MIB,
        },
    },
    Step {
        calls: "cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemRelease, cuMemSetAccess",
        expects: "memory counts by its mapping, and is free when unmapped",
        source: "ml/backend/ggml/ggml/src/ggml-cuda/ggml-cuda.cu: ggml_cuda_pool_vmm",
        act: Act::GrowMappedOnly {
            piece: 32 * MIB,
            pieces: 8,
        },
    },
    Step {
        calls: "cuMemAlloc by a runner, SIGKILL",
        expects: "the memory of a killed runner is free for the next",
        source: "llm/server.go: Close; discover/runner.go: bootstrapDevices",
        act: Act::Killed,
    },
];
