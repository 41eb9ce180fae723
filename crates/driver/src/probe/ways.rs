//! The table of functions that take device memory. Each is a way past a limit unless the limiter hooks it.

use super::{
    Session, Taken, arrays, contexts, graphs, limits, linear, stream_ordered, virtual_memory,
};
use crate::Error;

/// The sizes that a call accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// At most so many bytes; calls add up.
    UpTo(u64),
    /// Likewise, but what one call takes the next may use as well, so that they do not add up.
    Shared(u64),
    /// Nothing: it takes what it takes.
    Nothing,
}

/// One way of taking memory.
#[derive(Clone, Copy)]
pub struct Way {
    /// The function, or what is done with it: `cuMemAlloc_v2`, `cuMemAllocAsync (captured)`.
    pub name: &'static str,
    pub asks: Asks,
    take: for<'s> fn(&'s Session, u64) -> Result<Taken<'s>, Error>,
}

impl Way {
    /// Asks for `bytes`, a multiple of 2 MiB.
    ///
    /// # Errors
    /// The driver's; out of memory is how a limit shows.
    pub fn take<'s>(&self, session: &'s Session, bytes: u64) -> Result<Taken<'s>, Error> {
        (self.take)(session, bytes)
    }
}

macro_rules! ways {
    ($($name:literal, $asks:expr => $take:path;)*) => {
        /// Every way, in the order in which they are tried; the last ones' memory may stay with the context that took it.
        pub const WAYS: &[Way] = &[$(Way { name: $name, asks: $asks, take: $take },)*];
    };
}

const ANY: Asks = Asks::UpTo(u64::MAX);
const OF_32_BITS: Asks = Asks::UpTo(u32::MAX as u64);

ways! {
    "cuMemAlloc_v2", ANY => linear::alloc;
    "cuMemAlloc", OF_32_BITS => linear::alloc_v1;
    "cuMemAllocPitch_v2", ANY => linear::alloc_pitch;
    "cuMemAllocPitch", OF_32_BITS => linear::alloc_pitch_v1;
    "cuMemAllocManaged", ANY => linear::alloc_managed;
    "cuMemCreate", ANY => virtual_memory::create;
    "cuMemMap (handle released)", ANY => virtual_memory::map;
    "cuMemAllocAsync", ANY => stream_ordered::alloc;
    "cuMemAllocAsync_ptsz", ANY => stream_ordered::alloc_ptsz;
    "cuMemAllocFromPoolAsync", ANY => stream_ordered::alloc_from_pool;
    "cuMemAllocFromPoolAsync_ptsz", ANY => stream_ordered::alloc_from_pool_ptsz;
    "cuArrayCreate_v2", Asks::UpTo(arrays::MOST) => arrays::create;
    "cuArrayCreate", Asks::UpTo(arrays::MOST) => arrays::create_v1;
    "cuArray3DCreate_v2", Asks::UpTo(arrays::MOST_3D) => arrays::create_3d;
    "cuArray3DCreate", Asks::UpTo(arrays::MOST_3D) => arrays::create_3d_v1;
    "cuMipmappedArrayCreate", Asks::UpTo(arrays::MOST_MIPMAPPED) => arrays::create_mipmapped;
    "cuGraphLaunch (allocation node)", ANY => graphs::node;
    "cuGraphUpload (allocation node)", Asks::Shared(u64::MAX) => graphs::uploaded;
    "cuMemAllocAsync (captured)", ANY => graphs::captured;
    "cuCtxCreate_v2", Asks::Nothing => contexts::create_v2;
    "cuCtxCreate", Asks::Nothing => contexts::create_v1;
    "cuCtxCreate_v3", Asks::Nothing => contexts::create_v3;
    "cuCtxCreate_v4", Asks::Nothing => contexts::create_v4;
    "cuCtxSetLimit (heap)", ANY => limits::heap;
    "cuCtxSetLimit (stack)", ANY => limits::stack;
}

/// The way of that name.
pub fn way(name: &str) -> Option<&'static Way> {
    WAYS.iter().find(|way| way.name == name)
}
