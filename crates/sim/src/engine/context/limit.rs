//! Setting a limit of a context, with the device memory that it needs.

use crate::engine::objects::Objects;
use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::limit::index;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::{CUlimit, CUresult};

impl Process {
    /// Sets a limit of a context, with the memory it needs. Nothing changes when that is not there.
    pub fn set_limit(&self, context: Handle<Context>, limit: CUlimit, value: usize) -> Done {
        let gpu = self.objects().context(context)?.gpu;
        let model = self.model(gpu);
        index(model, limit)?;
        if limit == CUlimit::STACK_SIZE {
            self.synchronize(gpu)?;
        }
        let mut objects = self.objects();
        let limits = objects.context(context)?.limits.with(model, limit, value)?;
        let cost = limits.cost(model).ok_or(CUresult::OUT_OF_MEMORY)?;
        self.change_limit_bytes(&mut objects, context, cost)?;
        let context = objects.contexts.get_mut(context);
        context.ok_or(CUresult::INVALID_CONTEXT)?.limits = limits;
        Ok(())
    }

    fn change_limit_bytes(
        &self,
        objects: &mut Objects,
        context: Handle<Context>,
        bytes: u64,
    ) -> Done {
        let found = objects.contexts.get_mut(context);
        let found = found.ok_or(CUresult::INVALID_CONTEXT)?;
        match bytes.checked_sub(found.limit_bytes) {
            Some(more) => self.grow_charges(found.gpu, &mut found.charges, more)?,
            None => {
                let less = found.limit_bytes - bytes;
                self.shrink_charges(found.gpu, &mut found.charges, less);
            }
        }
        found.limit_bytes = bytes;
        Ok(())
    }
}
