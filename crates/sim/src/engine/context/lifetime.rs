//! The lifetime of contexts: creating them, and destroying them with everything that lives in them; retaining and
//! releasing primary ones.

use crate::engine::objects::Objects;
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::limit::Limits;
use crate::engine::objects::memory::Charges;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::CUresult;

impl Process {
    pub fn create_context(
        &self,
        objects: &mut Objects,
        gpu: usize,
        flags: u32,
        is_primary: bool,
    ) -> Done<Handle<Context>> {
        self.check_gpu(gpu)?;
        if let Some(error) = self.state().gpu(gpu).health.context_error() {
            return Err(error);
        }
        let overhead = self
            .machine
            .config
            .context_mib
            .map_or_else(|| self.model(gpu).context_bytes(), |mib| mib << 20);
        let admitted = self.state().lock().add_context(self.slot, gpu);
        admitted.map_err(|_| CUresult::DEVICE_UNAVAILABLE)?;
        let mut charges = Charges::default();
        self.grow_charges(gpu, &mut charges, overhead)
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
            charges,
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
            charges: Charges::default(),
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
        if let Some(mut context) = objects.contexts.remove(handle) {
            self.shrink_charges(gpu, &mut context.charges, u64::MAX);
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

    /// Ends the primary context, even if it is retained.
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
