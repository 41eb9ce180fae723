//! The built library under programs in processes of their own.

#![warn(clippy::disallowed_methods)]

mod array;
mod capture;
mod checkpoint;
mod copy;
mod external;
mod fault;
mod fork;
mod graph;
mod graph_memory;
mod green;
mod host;
mod launch;
mod limit;
mod lookup;
mod machine;
mod memory;
mod memory_limits;
mod mig;
mod mig_cuda;
mod nvml;
mod peer;
mod setting;
mod share;
mod sick;
mod slot;
mod time;
mod visible;
mod vmm;
mod walk;
