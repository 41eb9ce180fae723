//! Green contexts: a part of a GPU's multiprocessors, in the primary context.
//!
//! A green context costs no memory of its own (inferred) and keeps the primary context, in which everything made under
//! it lives; its handle is a context that leads there. Queries report its multiprocessors, which do
//! not change how long kernels take.

pub mod split;

use crate::engine::objects::context::Context;
use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::CUresult;

pub struct GreenContexts {
    pub parts: Handles<SmResource>,
    pub greens: Handles<GreenContext>,
}

impl Default for GreenContexts {
    fn default() -> Self {
        GreenContexts {
            parts: Handles::new(0x7b),
            greens: Handles::new(0x7c),
        }
    }
}

/// Multiprocessors of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmResource {
    pub gpu: usize,
    pub multiprocessors: u32,
}

pub struct GreenContext {
    pub part: SmResource,
    /// The context that stands for it.
    pub context: Handle<Context>,
}

impl GreenContexts {
    pub fn green(&self, handle: Handle<GreenContext>) -> Done<&GreenContext> {
        self.greens.get(handle).ok_or(CUresult::INVALID_CONTEXT)
    }

    /// The green context that a context stands for.
    pub fn of(&self, context: Handle<Context>) -> Option<Handle<GreenContext>> {
        let mut greens = self.greens.iter();
        let found = greens.find(|(_, green)| green.context == context);
        found.map(|(handle, _)| handle)
    }

    /// A description that green contexts can be made from, as often as one likes.
    pub fn describe(&mut self, part: SmResource) -> Handle<SmResource> {
        self.parts.insert(part)
    }
}
