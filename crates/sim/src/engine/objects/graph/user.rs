//! User objects: reference-counted resources of a program that its graphs keep, each with a destructor.

use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::host_call::HostCall;
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::CUresult;

pub struct UserObject {
    destroy: HostCall,
    references: u32,
}

impl UserObject {
    pub fn new(destroy: HostCall, references: u32) -> Self {
        UserObject {
            destroy,
            references,
        }
    }
}

/// References that a graph or an executable graph owns.
#[derive(Clone, Default)]
pub struct References(Vec<(Handle<UserObject>, u32)>);

impl References {
    pub fn add(&mut self, object: Handle<UserObject>, count: u32) {
        match self.0.iter_mut().find(|(other, _)| *other == object) {
            Some((_, have)) => *have += count,
            None => self.0.push((object, count)),
        }
    }

    /// # Errors
    /// `INVALID_VALUE` when there are not so many.
    pub fn take(&mut self, object: Handle<UserObject>, count: u32) -> Done {
        let mut own = self.0.iter_mut();
        let found = own.find(|(other, have)| *other == object && *have >= count);
        let (_, have) = found.ok_or(CUresult::INVALID_VALUE)?;
        *have -= count;
        self.0.retain(|(_, have)| *have > 0);
        Ok(())
    }

    /// As many further references to each: for a copy of their owner.
    pub fn retain_all(&self, objects: &mut Handles<UserObject>) {
        for (object, count) in &self.0 {
            // An owned reference keeps its object alive.
            let _ = retain(objects, *object, *count);
        }
    }

    pub fn release_all(self, objects: &mut Handles<UserObject>) {
        for (object, count) in self.0 {
            let _ = release(objects, object, count);
        }
    }
}

pub fn retain(objects: &mut Handles<UserObject>, object: Handle<UserObject>, count: u32) -> Done {
    let object = objects.get_mut(object).ok_or(CUresult::INVALID_VALUE)?;
    let sum = object.references.checked_add(count);
    object.references = sum.ok_or(CUresult::INVALID_VALUE)?;
    Ok(())
}

/// The last reference ends the object, on a thread of its own.
pub fn release(objects: &mut Handles<UserObject>, handle: Handle<UserObject>, count: u32) -> Done {
    let object = objects.get_mut(handle).ok_or(CUresult::INVALID_VALUE)?;
    let left = object.references.checked_sub(count);
    object.references = left.ok_or(CUresult::INVALID_VALUE)?;
    if object.references > 0 {
        return Ok(());
    }
    let Some(UserObject { destroy, .. }) = objects.remove(handle) else {
        return Ok(());
    };
    std::thread::Builder::new()
        .name("divvy-sim-user".into())
        .spawn(move || destroy.call())
        .map(drop)
        .map_err(|_| CUresult::OPERATING_SYSTEM)
}
