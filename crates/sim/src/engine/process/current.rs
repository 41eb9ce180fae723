//! The current context: each thread's stack of contexts, and the check that most calls begin with.

use crate::engine::objects::Objects;
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::CUresult;
use std::cell::RefCell;
use std::mem::ManuallyDrop;

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
}
