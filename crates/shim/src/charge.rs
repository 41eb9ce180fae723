//! What each family of functions that takes or returns GPU memory is charged. A family is a module; `pointers` and
//! `mappings` remember what was charged for what, `holding` what ends with the last of several.

pub mod arrays;
pub mod awaited;
pub mod binding;
pub mod extent;
pub mod external;
pub mod graph;
pub mod holding;
pub mod host;
pub mod limits;
pub mod mappings;
pub mod mark;
pub mod memory;
pub mod oversize;
pub mod pointers;
pub mod pool;
pub mod sharing;
pub mod stock;
pub mod stream;
pub mod stream_ordered;
pub mod tally;
pub mod vmm;
