//! The memory room: calls that take, give back and share memory.
//!
//! It may use `process` and `objects`, and below them `machine` and `mig`. `module` takes the variables of code from
//! it, `work` the memory of graphs and the trimming of pools; `context` frees what a context had.
//!
//! May use: `machine`, `mig`, `objects`, `process`.

pub mod allocation;
pub mod array;
pub mod array_binding;
pub mod external;
pub mod graph;
pub mod ipc;
pub mod multicast;
pub mod pool;
pub mod pool_sharing;
pub mod sharing;
pub mod texture;
pub mod vmm;
