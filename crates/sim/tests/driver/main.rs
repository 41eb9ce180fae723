//! The built library under programs in processes of their own.

mod fault;
mod fork;
mod launch;
mod lookup;
mod machine;
mod memory;
mod nvml;
mod time;
mod visible;
mod vmm;
mod walk;
