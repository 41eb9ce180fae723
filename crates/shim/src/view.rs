//! What the program is shown: the slice wherever it looks at the GPU's memory and processes.

pub mod denied;
pub mod info;
pub mod nvml;
