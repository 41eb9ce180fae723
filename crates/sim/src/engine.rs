//! The simulated machine: state that all processes share, and CUDA in one process.
//!
//! ```text
//! context ──► work ──► module ──► memory ──► process ──► objects ──► machine ──► time, mig
//! ```
//! Each room's header says what it may use; an arrow leads to the right alone. Locks are taken in this order: a
//! partition's `issue`, the process's `objects`, the state's lock. No call waits for simulated work while it holds one
//! of the latter two.

pub mod context;
pub mod machine;
pub mod memory;
pub mod mig;
pub mod module;
pub mod objects;
pub mod process;
pub mod time;
pub mod work;
