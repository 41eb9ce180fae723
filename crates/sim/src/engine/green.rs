//! Green contexts: a part of a GPU's multiprocessors, in the primary context.
//!
//! A green context costs no memory of its own (inferred) and keeps the primary context, in which everything made under it lives; its handle is a
//! context that leads there. How many multiprocessors it has is told, and changes nothing about how long kernels take.

pub mod split;

use self::split::Rules;
use super::context::Context;
use super::handles::{Handle, Handles};
use super::process::{Done, Process};
use super::stream::Stream;
use super::{context, stream};
use divvy_driver::sys::cuda::CUresult;

pub struct GreenContexts {
    parts: Handles<SmResource>,
    greens: Handles<GreenContext>,
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

impl Process {
    pub fn rules(&self, gpu: usize) -> Rules {
        Rules::of(self.model(gpu).compute_capability)
    }

    pub fn whole(&self, gpu: usize) -> SmResource {
        SmResource {
            gpu,
            multiprocessors: self.model(gpu).multiprocessors as u32,
        }
    }

    pub fn create_green(
        &self,
        described: Handle<SmResource>,
        gpu: usize,
    ) -> Done<Handle<GreenContext>> {
        let part = self.objects().greens.parts.get(described).copied();
        let part = part.ok_or(CUresult::INVALID_VALUE)?;
        if part.gpu != gpu {
            return Err(CUresult::INVALID_DEVICE);
        }
        let primary = self.retain_primary(gpu)?;
        let mut objects = self.objects();
        let context = self.lead_to(&mut objects, primary);
        Ok(objects.greens.greens.insert(GreenContext { part, context }))
    }

    pub fn destroy_green(&self, handle: Handle<GreenContext>) -> Done {
        let mut objects = self.objects();
        let green = objects.greens.greens.remove(handle);
        let green = green.ok_or(CUresult::INVALID_CONTEXT)?;
        objects.contexts.remove(green.context);
        drop(objects);
        if context::top() == Some(green.context) {
            context::pop();
        }
        // Somebody may have reset it.
        let _ = self.release_primary(green.part.gpu);
        Ok(())
    }

    pub fn create_green_stream(
        &self,
        handle: Handle<GreenContext>,
        priority: i32,
    ) -> Done<Handle<Stream>> {
        let mut objects = self.objects();
        let context = objects.greens.green(handle)?.context;
        let home = objects.context(context)?.home;
        let home = home.filter(|home| objects.contexts.get(*home).is_some());
        let home = home.ok_or(CUresult::CONTEXT_IS_DESTROYED)?;
        let flags = stream::NON_BLOCKING;
        let made = self.new_stream(home, flags, priority, Some(handle));
        Ok(objects.streams.insert(made))
    }
}
