//! NCCL: buffers of physical memory that ranks export to each other.

use divvy_driver::probe::Place;

use crate::replay::stage::MIB;
use crate::replay::step::{Act, By, Step};

pub const STEPS: &[Step] = &[
    Step {
        calls: "cuMemCreate, cuMemAddressReserve, cuMemMap, cuMemSetAccess",
        expects: "a buffer of the named device, from the proxy's thread without a context",
        source: "src/include/alloc.h: ncclCuMemAlloc",
        act: Act::GrowWithoutContext {
            piece: 32 * MIB,
            pieces: 8,
        },
    },
    Step {
        calls: "cuMemExportToShareableHandle, cuMemImportFromShareableHandle, cuMemMap",
        expects: "a buffer that two ranks of a slice share counts once",
        source: "src/transport/p2p.cc: ncclP2pImportShareableBuffer",
        act: Act::SharedOnce(By::Descriptor),
    },
    Step {
        calls: "cuMemCreate beyond the limit",
        expects: "out of memory, and no wait",
        source: "src/include/alloc.h: ncclCuMemAlloc",
        act: Act::RefusedSoon,
    },
    Step {
        calls: "cuIpcGetMemHandle, cuIpcOpenMemHandle by another process",
        expects: "NCCL_CUMEM_ENABLE=0: a buffer that two ranks share counts once",
        source: "src/transport/p2p.cc: ncclP2pAllocateShareableBuffer",
        act: Act::SharedOnce(By::Ipc),
    },
    Step {
        calls: "cuMemCreate on a NUMA node of the host, cuMemMap, cuMemSetAccess",
        expects: "NCCL_CUMEM_HOST_ENABLE=1: buffers of the host take nothing of the limit",
        source: "src/include/alloc.h: ncclCuMemHostAlloc",
        act: Act::HostPhysical(Place::HostNode),
    },
    Step {
        calls: "cuMemHostAlloc",
        expects: "buffers of the host take nothing of the limit",
        source: "src/include/alloc.h: ncclCudaHostCalloc",
        act: Act::Pinned(32 * MIB),
    },
    Step {
        calls: "cuDevicePrimaryCtxRetain, cuMemAlloc, in two processes",
        expects: "ranks of one slice on one GPU sum up, and the next is refused",
        source: "src/include/alloc.h: ncclCudaMalloc",
        act: Act::Processes {
            count: 2,
            part: 150,
        },
    },
];
