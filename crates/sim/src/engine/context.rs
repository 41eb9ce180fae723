//! Contexts: primary ones, counted per device, and those a program makes; each thread's stack of current ones.

use super::handles::Handle;
use super::limit::Limits;
use super::process::{Done, Objects, Process};
use divvy_driver::sys::cuda::CUresult;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

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
    /// Contexts whose memory it may use.
    pub peers: Vec<Handle<Context>>,
    /// Bytes of device memory that its limits add.
    pub(super) limit_bytes: u64,
    /// An error of the GPU's work that every later call repeats.
    pub broken: Option<CUresult>,
    /// Bytes of device memory it costs.
    overhead: u64,
}

/// The one context per device that libraries share.
#[derive(Default)]
pub struct Primary {
    pub context: Option<Handle<Context>>,
    pub retained: u32,
    pub flags: u32,
}

thread_local! {
    /// Never dropped: destructors of the program's own, which run after ours would, still use the driver.
    static STACK: RefCell<ManuallyDrop<Vec<Handle<Context>>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// The calling thread's current context, valid or not.
pub fn top() -> Option<Handle<Context>> {
    STACK.with_borrow(|stack| stack.last().copied())
}

pub fn push(context: Handle<Context>) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

pub fn pop() -> Option<Handle<Context>> {
    STACK.with_borrow_mut(|stack| stack.pop())
}

/// Replaces the top of the stack; None empties its top.
pub fn set_top(context: Option<Handle<Context>>) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

/// The current context and its GPU, checked.
#[derive(Clone, Copy)]
pub struct Current {
    pub context: Handle<Context>,
    pub gpu: usize,
}

impl Process {
    /// What most calls need: a current context that lives, on a GPU that answers.
    pub fn current(&self, objects: &Objects) -> Done<Current> {
        let context = top().ok_or(CUresult::INVALID_CONTEXT)?;
        let gone = CUresult::CONTEXT_IS_DESTROYED;
        let named = objects.contexts.get(context).ok_or(gone)?;
        let context = named.home.unwrap_or(context);
        let found = objects.contexts.get(context).ok_or(gone)?;
        if let Some(error) = found.broken {
            return Err(error);
        }
        self.check_gpu(found.gpu)?;
        Ok(Current {
            context,
            gpu: found.gpu,
        })
    }

    pub fn create_context(
        &self,
        objects: &mut Objects,
        gpu: usize,
        flags: u32,
        is_primary: bool,
    ) -> Done<Handle<Context>> {
        self.check_gpu(gpu)?;
        let overhead = self
            .machine
            .config
            .context_mib
            .map_or_else(|| self.model(gpu).context_bytes(), |mib| mib << 20);
        let admitted = self.state().lock().add_context(self.slot, gpu);
        admitted.map_err(|_| CUresult::DEVICE_UNAVAILABLE)?;
        self.take_bytes(gpu, overhead)
            .inspect_err(|_| self.state().lock().remove_context(self.slot, gpu))?;
        Ok(objects.contexts.insert(Context {
            gpu,
            flags,
            is_primary,
            home: None,
            attached: 0,
            cache_config: 0,
            limits: Limits::default(),
            peers: Vec::new(),
            limit_bytes: 0,
            broken: None,
            overhead,
        }))
    }

    /// A context that costs nothing and leads to another one.
    pub fn lead_to(&self, objects: &mut Objects, home: Handle<Context>) -> Handle<Context> {
        let gpu = objects.contexts.get(home).map_or(0, |home| home.gpu);
        objects.contexts.insert(Context {
            gpu,
            flags: 0,
            is_primary: true,
            home: Some(home),
            attached: 0,
            cache_config: 0,
            limits: Limits::default(),
            limit_bytes: 0,
            peers: Vec::new(),
            broken: None,
            overhead: 0,
        })
    }

    /// Ends a context and everything that lives in it.
    pub fn destroy_context(&self, objects: &mut Objects, handle: Handle<Context>) -> Done {
        let gpu = objects.context(handle)?.gpu;
        self.destroy_textures_of(objects, handle);
        self.destroy_arrays_of(objects, handle);
        self.destroy_externals_of(objects, handle);
        self.free_memory_of(objects, handle);
        for stream in objects.streams.find(|stream| stream.context == handle) {
            self.leave_capture(objects, stream);
            objects.streams.remove(stream);
        }
        for event in objects.events.find(|event| event.context == handle) {
            // Just found.
            let _ = self.end_event(objects, event);
        }
        self.unload_modules_of(objects, handle);
        if let Some(context) = objects.contexts.remove(handle) {
            self.return_bytes(gpu, context.overhead + context.limit_bytes);
            self.state().lock().remove_context(self.slot, gpu);
        }
        Ok(())
    }

    pub fn retain_primary(&self, gpu: usize) -> Done<Handle<Context>> {
        let mut objects = self.objects();
        let context = match objects.primary[gpu].context {
            Some(context) => context,
            None => {
                let flags = objects.primary[gpu].flags;
                self.create_context(&mut objects, gpu, flags, true)?
            }
        };
        let primary = &mut objects.primary[gpu];
        primary.context = Some(context);
        primary.retained += 1;
        Ok(context)
    }

    /// One reference less; the last one ends the context.
    pub fn release_primary(&self, gpu: usize) -> Done {
        let mut objects = self.objects();
        let primary = &mut objects.primary[gpu];
        primary.retained = primary
            .retained
            .checked_sub(1)
            .ok_or(CUresult::INVALID_CONTEXT)?;
        if primary.retained > 0 {
            return Ok(());
        }
        self.end_primary(&mut objects, gpu)
    }

    /// Ends the primary context whoever still holds it.
    pub fn reset_primary(&self, gpu: usize) -> Done {
        let mut objects = self.objects();
        objects.primary[gpu].retained = 0;
        self.end_primary(&mut objects, gpu)
    }

    fn end_primary(&self, objects: &mut Objects, gpu: usize) -> Done {
        match objects.primary[gpu].context.take() {
            Some(context) => self.destroy_context(objects, context),
            None => Ok(()),
        }
    }
}
