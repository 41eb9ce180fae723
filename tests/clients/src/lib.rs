//! GPU programs over third-party crates (`cudarc`, `nvml-wrapper`) that the tests and the demo run.
//!
//! They know nothing of Divvy and use none of its crates: what they meet is what a stranger's program meets. Each prints
//! JSON, one object a line, on stdout. The programs are in `src/bin`; here is what they share.

pub mod device;
pub mod say;
pub mod size;
