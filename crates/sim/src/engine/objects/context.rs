//! Contexts as objects: what a context is made of, and each device's primary context.

use crate::engine::objects::handles::Handle;
use crate::engine::objects::limit::Limits;
use crate::engine::objects::memory::Charges;
use divvy_driver::sys::cuda::CUresult;

pub struct Context {
    pub gpu: usize,
    pub flags: u32,
    pub is_primary: bool,
    /// Where everything made under it lives, if that is another context.
    pub home: Option<Handle<Context>>,
    /// How often it was attached beyond its making.
    pub attached: u32,
    pub cache_config: u32,
    pub limits: Limits,
    /// Contexts with memory that it may use.
    pub peers: Vec<Handle<Context>>,
    /// Bytes of device memory that its limits add.
    pub limit_bytes: u64,
    /// An error of the GPU's work that every later call repeats.
    pub broken: Option<CUresult>,
    /// The device memory it costs, with what its limits add.
    pub charges: Charges,
}

/// The one context per device that libraries share.
#[derive(Default)]
pub struct Primary {
    pub context: Option<Handle<Context>>,
    pub retained: u32,
    pub flags: u32,
}

/// The current context and its GPU, checked.
#[derive(Clone, Copy)]
pub struct Current {
    pub context: Handle<Context>,
    pub gpu: usize,
}
