//! Multicast objects: addresses through which several GPUs' memory is written at once.
//!
//! An object takes no memory of its own (inferred) and keeps what is bound to it. What a kernel would write through it
//! is not simulated, and copies to its addresses reach nothing that is bound. Where cuda.h has a call block until all
//! GPUs of the team were added it is refused here: no other process could add them, since objects of this kind do not
//! travel to other processes.

use crate::engine::objects::vmm::PhysicalId;

/// What makes physical memory a multicast object.
pub struct MulticastObject {
    pub size: usize,
    pub gpus: Vec<usize>,
    pub bound: Vec<Bound>,
}

pub struct Bound {
    pub gpu: usize,
    pub offset: u64,
    pub size: u64,
    pub physical: PhysicalId,
}

impl MulticastObject {
    pub fn is_complete(&self) -> bool {
        self.gpus.len() == self.size
    }

    /// Memory that it keeps.
    pub fn keeps(&self) -> Vec<PhysicalId> {
        self.bound.iter().map(|bound| bound.physical).collect()
    }
}
