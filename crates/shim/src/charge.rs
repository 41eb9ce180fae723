//! What each family of functions that takes or returns GPU memory is charged. A family is a module; `pointers` and
//! `mappings` remember what was charged for what.

pub mod graph;
pub mod mappings;
pub mod memory;
pub mod pointers;
pub mod pool;
pub mod stock;
pub mod stream;
pub mod stream_ordered;
pub mod tally;
pub mod vmm;
