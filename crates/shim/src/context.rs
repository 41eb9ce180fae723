//! Contexts: each costs device memory that no allocation call shows. One is charged what the agent measured, before it is
//! made; when it is gone the charge goes with it, and so does what was allocated in it.
//!
//! Not every context is made through a hooked function: the CUDA runtime retains primary contexts through a private table.
//! Such a one is noticed at the first allocation in it, and charged then whatever the limit says, for it exists.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_uint};
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_driver::sys::cuda::{
    CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUresult,
};
use divvy_ledger::{Denied, Kind, Slot};

use crate::account::Place;
use crate::charge::tally::Tally;
use crate::device::{self, Belongs};
use crate::forensics;
use crate::process;
use crate::route::function::driver;
use crate::route::hook::Real;

/// The contexts whose making was seen. The driver itself is asked whether a primary one is there.
#[derive(Default)]
pub struct Contexts(Mutex<Known>);

#[derive(Default)]
struct Known {
    primary: HashMap<CUdevice, Charge>,
    /// Made by `cuCtxCreate`.
    created: HashMap<usize, (CUdevice, Charge)>,
}

/// How a context is charged: the ledger knows of one overhead a process and GPU, further ones are plain bytes.
#[derive(Clone, Copy)]
enum Charge {
    Overhead,
    Bytes(u64),
}

impl Place {
    fn charge_context(&self) -> Result<Charge, Denied> {
        let first = || self.slot.charge_overhead(self.gpu);
        forensics::asked(self, self.slot.context_cost(self.gpu));
        let charged = first().or_else(|denied| self.after_the_dead(denied, first));
        if charged.inspect_err(|denied| forensics::refused(self, denied))? {
            return Ok(Charge::Overhead);
        }
        let bytes = self.slot.context_cost(self.gpu);
        self.reserve(bytes)?.commit();
        Ok(Charge::Bytes(bytes))
    }

    fn give_back_context(&self, charge: Charge) {
        match charge {
            Charge::Overhead => self.slot.release_overhead(self.gpu),
            Charge::Bytes(bytes) => self.slot.release(self.gpu, bytes),
        }
    }
}

impl Contexts {
    /// A context exists on that GPU, however it came to be.
    pub fn note(&self, place: &Place) {
        place.slot.force_overhead(place.gpu);
    }

    /// Says what this process's contexts on a GPU are charged.
    pub fn tell(&self, gpu: usize, slot: Option<&Slot>, tally: &mut Tally) {
        let Some(slot) = slot else { return };
        let process = slot.process(std::process::id());
        tally.add(
            Kind::Context,
            process.map_or(0, |process| process.gpus[gpu].overhead),
        );
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any_on(&self, device: CUdevice) -> bool {
        primary_is_active(device) || self.known().created.values().any(|(on, _)| *on == device)
    }
}

pub fn primary_retain<F>(real: Real<'_, F>, _pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    let Some(Belongs::Here(place)) = device::belongs(dev) else {
        return real.call();
    };
    let known = || place.account.contexts.known();
    if primary_is_active(dev) || known().primary.contains_key(&dev) {
        return real.call();
    }
    make(&real, &place, |charge| match known().primary.entry(dev) {
        // Another thread's call made it.
        Entry::Occupied(_) => place.give_back_context(charge),
        Entry::Vacant(place) => drop(place.insert(charge)),
    })
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
    let Some(Belongs::Here(place)) = device::belongs(dev).filter(|_| !pctx.is_null()) else {
        return real.call();
    };
    make(real, &place, |charge| {
        // SAFETY: not null, and the driver has just written the context.
        let context = unsafe { pctx.read() } as usize;
        place
            .account
            .contexts
            .known()
            .created
            .insert(context, (dev, charge));
    })
}

/// Charges a context and has the driver make it.
fn make<F>(real: &Real<'_, F>, place: &Place, made: impl FnOnce(Charge)) -> CUresult {
    let Ok(charge) = place.charge_context() else {
        return CUresult::OUT_OF_MEMORY;
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        made(charge);
    } else {
        place.give_back_context(charge);
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
        let (charge, created) = {
            let mut known = account.contexts.known();
            let created: Vec<usize> = known.created.keys().copied().collect();
            (known.primary.remove(&dev), created)
        };
        ended(&place, dev, era, charge, |context| {
            !created.contains(&context)
        });
    }
    result
}

pub fn destroy<F>(real: Real<'_, F>, ctx: CUcontext) -> CUresult {
    let context = ctx as usize;
    // Taken out first: the driver may give the address to another thread's new context at once.
    let taken = process::account()
        .and_then(|account| Some((account, account.contexts.known().created.remove(&context)?)));
    let Some((account, (dev, charge))) = taken else {
        return real.call();
    };
    let era = account.pointers.end_era();
    let result = real.call();
    if result != CUresult::SUCCESS {
        account
            .contexts
            .known()
            .created
            .insert(context, (dev, charge));
    } else if let Belongs::Here(place) = account.belongs(dev) {
        ended(&place, dev, era, Some(charge), |of| of == context);
    }
    result
}

/// Gives back what died with a context that was asked to end in `era`.
fn ended(
    place: &Place,
    dev: CUdevice,
    era: u64,
    charge: Option<Charge>,
    in_it: impl Fn(usize) -> bool,
) {
    let account = place.account;
    account.compute.forget(&in_it);
    account.bury(account.pointers.take_all(|allocation| {
        allocation.gpu == place.gpu
            && allocation.era <= era
            && allocation.pool.is_none()
            && in_it(allocation.context)
    }));
    if let Some(charge) = charge {
        place.give_back_context(charge);
    }
    // What pools and graphs kept may have gone with it.
    account.settle(place.gpu);
    // One that was only noticed has no charge of its own on the books.
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
