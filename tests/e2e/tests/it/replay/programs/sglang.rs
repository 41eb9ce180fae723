//! SGLang: asks `nvidia-smi` for the total, and compares the GPUs of a group.

use crate::replay::stage::MIB;
use crate::replay::step::{Act, Amount, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "nvidia-smi --query-gpu=memory.total",
        expects: "the limit, in MiB",
        source: "python/sglang/srt/utils/common.py: get_nvgpu_memory_capacity",
        act: Act::NvidiaSmi,
    },
    Step {
        calls: "cuMemGetInfo, nvmlDeviceGetMemoryInfo",
        expects: "the limit as every total; equal free memory, to the byte",
        source: "python/sglang/srt/utils/common.py: get_available_gpu_memory",
        act: Act::Views,
    },
    Step {
        calls: "cuMemGetInfo on each GPU of one job",
        expects: "slices of one job on several GPUs are equal, to the byte",
        source: "python/sglang/srt/model_executor/model_runner.py: init_torch_distributed",
        act: Act::EqualGpus,
    },
    Step {
        calls: "cuMemGetInfo, cuMemAlloc of 85 % of it",
        expects: "mem_fraction_static of the free memory is granted",
        source: "python/sglang/srt/server_args.py: mem_fraction_static",
        act: Act::Take {
            way: "cuMemAlloc_v2",
            amount: Amount::OfFree(850),
        },
    },
    Step {
        calls: "cuStreamBeginCapture, cuMemAlloc, cuStreamEndCapture, cuGraphLaunch",
        expects: "out of memory during a capture leaves the capture as it is",
        source: "python/sglang/srt/model_executor/cuda_graph_runner.py: capture",
        act: Act::Capture,
    },
    Step {
        calls: "cuMemUnmap, cuMemRelease, cuMemCreate, cuMemMap, cuMemSetAccess",
        expects: "release_memory_occupation gives the bytes back at once",
        source: "torch_memory_saver: csrc/core.cpp: pause, resume",
        act: Act::Sleep {
            piece: 128 * MIB,
            pieces: 6,
        },
    },
];
