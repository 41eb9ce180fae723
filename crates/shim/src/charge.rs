//! The charge handlers: the accounting of every driver function that takes or returns GPU memory. One module covers one
//! family of functions; `pointers` and `mappings` record what was charged for which allocation, `memory_charge` the
//! bytes that have several holders.

pub mod arrays;
pub mod binding;
pub mod breakdown;
pub mod descriptor_tag;
pub mod driver_cache;
pub mod extent;
pub mod external;
pub mod graph;
pub mod host;
pub mod limits;
pub mod mappings;
pub mod memory;
pub mod memory_charge;
pub mod oversize;
pub mod pointers;
pub mod pool;
pub mod retry;
pub mod sharing;
pub mod stream;
pub mod stream_ordered;
pub mod vmm;
