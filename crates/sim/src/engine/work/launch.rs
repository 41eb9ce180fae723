//! Launches: whether a kernel may run, and running the few that do something.

use crate::engine::objects::Objects;
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::kernel::Reader;
use crate::engine::objects::launch::{Launch, Shape};
use crate::engine::objects::module::{CodeOrigin, Function};
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use crate::engine::time::Work;
use crate::engine::work::kernel;
use divvy_driver::sys::cuda::CUresult;

/// Where a function's parameters lie: from its code, or, of a kernel the simulator carries out, from what it is.
pub fn layout(function: &Function) -> Option<Vec<(usize, usize)>> {
    let told = function.kernel.parameters.clone();
    told.or_else(|| kernel::layout(&function.kernel.name))
}

/// The context a function belongs to; None for a library's, which belongs to whichever it is launched in.
pub fn home(objects: &Objects, function: &Function) -> Option<Handle<Context>> {
    match function.home {
        CodeOrigin::Module(module) => objects.modules.get(module).map(|module| module.context),
        CodeOrigin::Library(_) => None,
    }
}

impl Process {
    /// How long the launch takes, if it can be made.
    pub fn check_launch(&self, objects: &Objects, gpu: usize, shape: &Shape) -> Done<Work> {
        let function = objects.functions.get(shape.function);
        let function = function.ok_or(CUresult::INVALID_HANDLE)?;
        if !shape.geometry.is_valid() {
            return Err(CUresult::INVALID_VALUE);
        }
        let model = self.model(gpu);
        if shape.cooperative {
            let threads = shape.geometry.block.iter().product::<u32>();
            let at_once = kernel::blocks_at_once(model, threads, shape.shared as usize);
            let room = u64::from(at_once) * model.multiprocessors as u64;
            if shape.geometry.blocks() > room {
                return Err(CUresult::COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        let name = &function.kernel.name;
        let config = &self.machine.config;
        Ok(kernel::duration(config, model, name, &shape.geometry))
    }

    /// Carries a known kernel out. As on a GPU a wild one breaks its context, and its launch succeeds.
    ///
    /// # Safety
    /// The parameters are those of the function.
    pub unsafe fn run(
        &self,
        shape: &Shape,
        context: Handle<Context>,
        parameters: &mut Reader,
    ) -> Done {
        let mut objects = self.objects();
        let function = objects.functions.get(shape.function);
        let Some(effect) = function.and_then(|function| kernel::effect(&function.kernel.name))
        else {
            return Ok(());
        };
        // SAFETY: by contract.
        match unsafe { effect(self, &objects, &shape.geometry, parameters) } {
            Err(CUresult::ILLEGAL_ADDRESS) => {
                break_context(&mut objects, context);
                Ok(())
            }
            other => other,
        }
    }

    /// The same for a launch that was kept.
    pub fn run_kept(&self, launch: &Launch, context: Handle<Context>) {
        // SAFETY: the arguments were copied by the function's own layout. Where there are too few, the effect finds out
        // and nothing happens.
        let _ = unsafe { self.run(&launch.shape, context, &mut launch.arguments.reader()) };
    }
}

/// Every later call in this context fails.
pub fn break_context(objects: &mut Objects, context: Handle<Context>) {
    if let Some(context) = objects.contexts.get_mut(context) {
        context.broken = Some(CUresult::ILLEGAL_ADDRESS);
    }
}
