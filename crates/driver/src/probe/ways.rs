//! The functions that take device memory. Each is a way past a limit unless it is held to it.

use super::{Session, Taken, contexts, graphs, linear, stream_ordered, virtual_memory};
use crate::Error;

/// One way of taking memory.
#[derive(Clone, Copy)]
pub struct Way {
    /// The function, or what is done with it: `cuMemAlloc_v2`, `cuMemAllocAsync (captured)`.
    pub name: &'static str,
    /// The most that one call can be asked for, in bytes; 0 where no size is asked for.
    pub at_most: u64,
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
    ($($name:literal, $at_most:expr => $take:path;)*) => {
        /// Every way, in the order in which they are tried.
        pub const WAYS: &[Way] = &[$(Way { name: $name, at_most: $at_most, take: $take },)*];
    };
}

ways! {
    "cuMemAlloc_v2", u64::MAX => linear::alloc;
    "cuMemAlloc", u32::MAX as u64 => linear::alloc_v1;
    "cuMemAllocPitch_v2", u64::MAX => linear::alloc_pitch;
    "cuMemAllocManaged", u64::MAX => linear::alloc_managed;
    "cuMemCreate", u64::MAX => virtual_memory::create;
    "cuMemMap (handle released)", u64::MAX => virtual_memory::map;
    "cuMemAllocAsync", u64::MAX => stream_ordered::alloc;
    "cuMemAllocAsync_ptsz", u64::MAX => stream_ordered::alloc_ptsz;
    "cuMemAllocFromPoolAsync", u64::MAX => stream_ordered::alloc_from_pool;
    "cuMemAllocFromPoolAsync_ptsz", u64::MAX => stream_ordered::alloc_from_pool_ptsz;
    "cuGraphAddMemAllocNode", u64::MAX => graphs::node;
    "cuMemAllocAsync (captured)", u64::MAX => graphs::captured;
    "cuCtxCreate_v2", 0 => contexts::create;
}

/// The way of that name.
pub fn way(name: &str) -> Option<&'static Way> {
    WAYS.iter().find(|way| way.name == name)
}
