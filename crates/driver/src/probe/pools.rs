//! A pool of stream-ordered memory that keeps what was freed, as allocators of frameworks set it up.

use std::ffi::c_void;

use super::{Session, Taken, stream_ordered};
use crate::Error;
use crate::sys::cuda::*;

/// A pool of this process, destroyed when dropped. The device's own pool outlives it.
pub struct Pool<'s> {
    session: &'s Session,
    pool: CUmemoryPool,
    is_own: bool,
}

impl<'s> Pool<'s> {
    /// A new pool on the session's GPU that keeps everything that was freed.
    ///
    /// # Errors
    /// The driver's.
    pub fn create(session: &'s Session) -> Result<Self, Error> {
        let pool = Self {
            session,
            pool: stream_ordered::new_pool(session)?,
            is_own: true,
        };
        pool.keep_all()?;
        Ok(pool)
    }

    /// The device's default pool, of which `cuMemAllocAsync` takes; from then on it keeps what was freed.
    ///
    /// # Errors
    /// The driver's.
    pub fn of_device(session: &'s Session) -> Result<Self, Error> {
        let mut pool = std::ptr::null_mut();
        let get = &session.functions.cuDeviceGetDefaultMemPool;
        // SAFETY: our own device; writes one handle.
        session.call(get, |get| unsafe { get(&raw mut pool, session.device) })?;
        let pool = Self {
            session,
            pool,
            is_own: false,
        };
        pool.keep_all()?;
        Ok(pool)
    }

    /// Sets the release threshold to its maximum.
    fn keep_all(&self) -> Result<(), Error> {
        let mut threshold = cuuint64_t::MAX;
        let value: *mut c_void = (&raw mut threshold).cast();
        let set = &self.session.functions.cuMemPoolSetAttribute;
        // SAFETY: reads a number of the type that this attribute has.
        self.session.call(set, |set| unsafe {
            set(self.pool, CUmemPool_attribute::RELEASE_THRESHOLD, value)
        })
    }

    /// Bytes that the pool holds of the GPU, in use or not.
    ///
    /// # Errors
    /// The driver's.
    pub fn reserved(&self) -> Result<u64, Error> {
        let mut bytes: cuuint64_t = 0;
        let value: *mut c_void = (&raw mut bytes).cast();
        let get = &self.session.functions.cuMemPoolGetAttribute;
        // SAFETY: writes a number of the type that this attribute has.
        self.session.call(get, |get| unsafe {
            get(self.pool, CUmemPool_attribute::RESERVED_MEM_CURRENT, value)
        })?;
        Ok(bytes)
    }

    /// `cuMemAllocFromPoolAsync`
    ///
    /// # Errors
    /// The driver's.
    pub fn alloc(&self, bytes: u64) -> Result<Taken<'s>, Error> {
        stream_ordered::alloc_of(self.session, self.pool, bytes)
    }

    /// Gives everything that is not in use back to the GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn trim(&self) -> Result<(), Error> {
        // SAFETY: our own pool.
        self.session
            .call(&self.session.functions.cuMemPoolTrimTo, |trim| unsafe {
                trim(self.pool, 0)
            })
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: made by `create`, destroyed once. The process ends soon and takes the pool along.
            let _ = self
                .session
                .call(&self.session.functions.cuMemPoolDestroy, |destroy| unsafe {
                    destroy(self.pool)
                });
        }
    }
}
