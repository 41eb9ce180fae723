//! Contexts: each costs device memory that no allocation call shows. The first of a process on a GPU is charged what the
//! agent measured, before it is made; when the last is gone the charge goes with it, and so does what was allocated in it.
//!
//! Not every context is made through a hooked function: the CUDA runtime retains primary contexts through a private table.
//! Such a one is noticed at the first allocation in it, and charged then whatever the limit says, for it exists.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_driver::sys::cuda::{
    CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUresult,
};
use std::ffi::{c_int, c_uint};

use crate::account::{Account, Place};
use crate::device::{self, Belongs};
use crate::function::driver;
use crate::hook::Real;
use crate::process;

/// Contexts made by `cuCtxCreate`, and their devices. The driver itself is asked about primary ones.
#[derive(Default)]
pub struct Contexts {
    created: Mutex<HashMap<usize, CUdevice>>,
}

impl Contexts {
    /// A context exists on that GPU.
    pub fn note(&self, place: &Place) {
        place.slot.force_overhead(place.gpu);
    }

    fn created(&self) -> MutexGuard<'_, HashMap<usize, CUdevice>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any_on(&self, device: CUdevice) -> bool {
        primary_is_active(device) || self.created().values().any(|on| *on == device)
    }
}

pub fn primary_retain<F>(real: Real<'_, F>, _pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    make(&real, dev, || {})
}

pub fn create<F>(
    real: Real<'_, F>,
    pctx: *mut CUcontext,
    _flags: c_uint,
    dev: CUdevice,
) -> CUresult {
    create_at(&real, pctx, dev)
}

pub fn create_v3<F>(
    real: Real<'_, F>,
    pctx: *mut CUcontext,
    _params: *mut CUexecAffinityParam,
    _count: c_int,
    _flags: c_uint,
    dev: CUdevice,
) -> CUresult {
    create_at(&real, pctx, dev)
}

pub fn create_v4<F>(
    real: Real<'_, F>,
    pctx: *mut CUcontext,
    _params: *mut CUctxCreateParams,
    _flags: c_uint,
    dev: CUdevice,
) -> CUresult {
    create_at(&real, pctx, dev)
}

fn create_at<F>(real: &Real<'_, F>, pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    make(real, dev, || {
        // SAFETY: the driver accepts no null here and has just written the context.
        let context = unsafe { pctx.read() } as usize;
        if let Some(account) = process::account() {
            account.contexts.created().insert(context, dev);
        }
    })
}

/// Charges the process's overhead on that GPU if it is not charged yet, and has the driver make the context.
fn make<F>(real: &Real<'_, F>, dev: CUdevice, made: impl FnOnce()) -> CUresult {
    let Some(Belongs::Here(place)) = device::belongs(dev) else {
        return real.call();
    };
    let charge = || place.slot.charge_overhead(place.gpu);
    let Ok(first) = charge().or_else(|denied| place.after_the_dead(denied, charge)) else {
        return CUresult::OUT_OF_MEMORY;
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        made();
    } else if first && !place.account.contexts.any_on(dev) {
        place.slot.release_overhead(place.gpu);
    }
    result
}

/// `cuDevicePrimaryCtxRelease` and `cuDevicePrimaryCtxReset`: the context may be gone afterwards, or not.
pub fn primary_end<F>(real: Real<'_, F>, dev: CUdevice) -> CUresult {
    let Some(account) = process::account() else {
        return real.call();
    };
    let era = account.pointers.end_era();
    let result = real.call();
    if result == CUresult::SUCCESS
        && !primary_is_active(dev)
        && let Belongs::Here(place) = account.belongs(dev)
    {
        let created: Vec<usize> = account.contexts.created().keys().copied().collect();
        ended(account, &place, dev, era, |context| {
            !created.contains(&context)
        });
    }
    result
}

pub fn destroy<F>(real: Real<'_, F>, ctx: CUcontext) -> CUresult {
    let context = ctx as usize;
    // Taken out first: the driver may give the address to another thread's new context at once.
    let Some((account, dev)) = process::account()
        .and_then(|account| Some((account, account.contexts.created().remove(&context)?)))
    else {
        return real.call();
    };
    let era = account.pointers.end_era();
    let result = real.call();
    if result != CUresult::SUCCESS {
        account.contexts.created().insert(context, dev);
    } else if let Belongs::Here(place) = account.belongs(dev) {
        ended(account, &place, dev, era, |of| of == context);
    }
    result
}

/// Gives back what died with a context that was asked to end in `era`.
fn ended(account: &Account, place: &Place, dev: CUdevice, era: u64, in_it: impl Fn(usize) -> bool) {
    let dead = account.pointers.take_all(|allocation| {
        allocation.gpu == place.gpu
            && allocation.era <= era
            && allocation.pool.is_none()
            && in_it(allocation.context)
    });
    account.bury(dead);
    if !account.contexts.any_on(dev) {
        place.slot.release_overhead(place.gpu);
    }
}

fn primary_is_active(device: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    let Some(ask) = driver::cuDevicePrimaryCtxGetState.get() else {
        return true;
    };
    // SAFETY: the driver's function, with places for its answers.
    let result = unsafe { ask(device, &mut flags, &mut active) };
    result == CUresult::SUCCESS && active != 0
}
