//! Bindings of NVIDIA's driver libraries, real or simulated.
//!
//! ```text
//! sys    C's types, constants and signatures as tables, checked against NVIDIA's headers   (shim and sim use these)
//! load   a library by path or by its usual name, and its functions                         unsafe, tiny
//! nvml   GPUs, their memory and processes        cuda   what a context costs               safe, what the agent uses
//! checkpoint  saves a process's GPU memory to the host, restores it                       safe, for the agent's helper
//! probe  tries to take more memory than a limit allows, in every way there is               safe, what `selftest` uses
//! ```
//! The crate only reports figures; the daemon and the limiter interpret them.

pub mod checkpoint;
pub mod cuda;
mod error;
pub mod load;
pub mod nvml;
pub mod pattern;
pub mod probe;
pub mod sys;
mod uuid;
mod version;

pub use error::Error;
pub use uuid::{BadUuid, Uuid};
pub use version::CudaVersion;
