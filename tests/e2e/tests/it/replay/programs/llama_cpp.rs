//! llama.cpp: chooses layers from free memory, and has a pool of physical memory.

use divvy_driver::probe::Place;

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Amount, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuDeviceTotalMem, cuMemGetInfo",
        expects: "the limit as every total; equal free memory, to the byte",
        source: "ggml/src/ggml-cuda/ggml-cuda.cu: ggml_backend_cuda_device_get_memory",
        act: Act::Views,
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc for each group of layers",
        expects: "layers that fit the free memory but a margin are granted",
        source: "src/llama-model.cpp: load_tensors; --fit",
        act: Act::Layers {
            layer: 96 * MIB,
            margin: 1024 * MIB,
        },
    },
    Step {
        calls: "cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemRelease, cuMemSetAccess",
        expects: "memory counts by its mapping, and is free when unmapped",
        source: "ggml/src/ggml-cuda/ggml-cuda.cu: ggml_cuda_pool_vmm",
        act: Act::GrowMappedOnly {
            piece: 32 * MIB,
            pieces: 8,
        },
    },
    Step {
        calls: "cuMemCreate on the host, cuMemMap, cuMemSetAccess",
        expects: "physical memory of the host takes nothing of the limit",
        source: "ggml-cuda, as reported in Project-HAMi/HAMi-core#187",
        act: Act::HostPhysical(Place::Host),
    },
    Step {
        calls: "cuMemHostAlloc",
        expects: "buffers of the host take nothing of the limit",
        source: "ggml/src/ggml-cuda/ggml-cuda.cu: ggml_cuda_host_malloc",
        act: Act::Pinned(128 * MIB),
    },
    Step {
        calls: "cuMemAllocManaged",
        expects: "GGML_CUDA_ENABLE_UNIFIED_MEMORY: managed memory counts when it is allocated",
        source: "ggml/src/ggml-cuda/ggml-cuda.cu: ggml_cuda_device_malloc",
        act: Act::Take {
            way: "cuMemAllocManaged",
            amount: Amount::OfFree(500),
        },
    },
    Step {
        calls: "cuMemAlloc until refused",
        expects: "out of memory at the limit: the model is not loaded, and nothing stays",
        source: "ggml/src/ggml-cuda/ggml-cuda.cu: ggml_backend_cuda_buffer_type_alloc_buffer",
        act: Act::Fill {
            way: "cuMemAlloc_v2",
            block: 96 * MIB,
        },
    },
];
