//! Calls on green contexts: splitting rules of a device, creating and destroying, streams of one.

use crate::engine::objects::context::Context;
use crate::engine::objects::green::split::Rules;
use crate::engine::objects::green::{GreenContext, SmResource};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::NON_BLOCKING;
use crate::engine::objects::stream::Stream;
use crate::engine::process::{Process, current};
use divvy_driver::sys::cuda::CUresult;

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

    /// What a context has: its part for a green one, everything for another.
    pub fn part_of(&self, context: Handle<Context>) -> Done<SmResource> {
        let objects = self.objects();
        let gpu = objects.context(context)?.gpu;
        match objects.greens.of(context) {
            Some(green) => Ok(objects.greens.green(green)?.part),
            None => Ok(self.whole(gpu)),
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
        if current::top() == Some(green.context) {
            current::pop();
        }
        // It may have been reset.
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
        let flags = NON_BLOCKING;
        let made = self.new_stream(home, flags, priority, Some(handle));
        Ok(objects.streams.insert(made))
    }
}
