//! The tenant's view: hooks that answer with the slice where a program asks for the GPU's memory or processes.

pub mod denied;
pub mod info;
pub mod nvml;
