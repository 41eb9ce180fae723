//! What each family of functions that takes or returns GPU memory is charged. A family is a module; `pointers` and
//! `mappings` remember what was charged for what, `holding` what ends with the last of several.

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
