//! The objects room: tables of what the handles and addresses of one process refer to.
//!
//! ```text
//! contexts ─ streams, events, modules ─ allocations, pools, physical memory, arrays ─ graphs, captures
//! ```
//! Bookkeeping alone: a table changes in memory, and no function here takes the machine's lock, charges a GPU or waits.
//! It may use `mig` (numbers of partitions), `time` (queues) and `machine` (positions in queues). `process` keeps the
//! tables behind one lock, and the rooms above act on them.
//!
//! May use: `machine`, `mig`, `time`.
//! Used by: `process`, `memory`, `module`, `work`, `context`.

pub mod addresses;
pub mod array;
pub mod capture;
pub mod context;
pub mod external;
pub mod graph;
pub mod green;
pub mod handles;
pub mod host_call;
pub mod image;
pub mod kernel;
pub mod launch;
pub mod limit;
pub mod memory;
pub mod module;
pub mod multicast;
pub mod pool;
pub mod result;
pub mod sharing;
pub mod stream;
pub mod texture;
pub mod transfer;
pub mod vmm;

use crate::engine::mig::partition::MAX_PARTITIONS;
use crate::engine::objects::array::Arrays;
use crate::engine::objects::context::{Context, Primary};
use crate::engine::objects::external::Externals;
use crate::engine::objects::graph::Graphs;
use crate::engine::objects::green::GreenContexts;
use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::memory::Memory;
use crate::engine::objects::module::{Function, Library, Module};
use crate::engine::objects::pool::Pools;
use crate::engine::objects::result::Done;
use crate::engine::objects::sharing::Sharing;
use crate::engine::objects::stream::{Event, Stream};
use crate::engine::objects::texture::Textures;
use crate::engine::objects::vmm::VirtualMemory;
use divvy_driver::sys::cuda::CUresult;

/// Everything handles and addresses refer to.
pub struct Objects {
    pub contexts: Handles<Context>,
    pub primary: [Primary; MAX_PARTITIONS],
    pub memory: Memory,
    pub virtual_memory: VirtualMemory,
    pub pools: Pools,
    pub streams: Handles<Stream>,
    pub events: Handles<Event>,
    pub modules: Handles<Module>,
    pub libraries: Handles<Library>,
    pub functions: Handles<Function>,
    pub graphs: Graphs,
    pub arrays: Arrays,
    pub textures: Textures,
    pub sharing: Sharing,
    pub externals: Externals,
    pub greens: GreenContexts,
}

impl Objects {
    pub fn new() -> Objects {
        Objects {
            contexts: Handles::new(0x51),
            primary: std::array::from_fn(|_| Primary::default()),
            memory: Memory::default(),
            virtual_memory: VirtualMemory::default(),
            pools: Pools::default(),
            streams: Handles::new(0x52),
            events: Handles::new(0x53),
            modules: Handles::new(0x54),
            libraries: Handles::new(0x55),
            functions: Handles::new(0x56),
            graphs: Graphs::default(),
            arrays: Arrays::default(),
            textures: Textures::default(),
            sharing: Sharing::default(),
            externals: Externals::default(),
            greens: GreenContexts::default(),
        }
    }

    pub fn context(&self, handle: Handle<Context>) -> Done<&Context> {
        self.contexts.get(handle).ok_or(CUresult::INVALID_CONTEXT)
    }
}
