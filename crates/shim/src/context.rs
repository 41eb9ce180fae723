//! Charges for CUDA contexts, which take device memory without an allocation call. A context is charged the measured
//! overhead before it is made; its charge ends with it, and so do the charges of the allocations in it.
//!
//! Not every context is made through a hooked function: the CUDA runtime retains primary contexts through a private
//! table. The limiter notices such a context at its first allocation and then charges it, even beyond the limit, for it
//! exists.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_driver::sys::cuda::{
    CUcontext, CUctxCreateParams, CUdevResourceDesc, CUdevice, CUexecAffinityParam, CUgreenCtx,
    CUresult,
};
use divvy_ledger::{AllocationKind, Denied, ProcessSlot};

use crate::account::{GpuAccount, ProcessAccount};
use crate::charge::breakdown::Breakdown;
use crate::charge::pointers::NO_CONTEXT;
use crate::device::{self, DeviceMembership};
use crate::oom_report;
use crate::process;
use crate::route::function::driver;
use crate::route::hook::Real;

/// The contexts whose making was seen. The driver itself is asked whether a primary one is there.
#[derive(Default)]
pub struct Contexts {
    known: Mutex<Known>,
    /// Whether the program has ever asked for a context besides primary ones. While it has not, an allocation belongs to a primary
    /// context, and the driver need not be asked to which.
    any_created: AtomicBool,
}

/// Stands for the primary context of an allocation's GPU.
const PRIMARY: usize = 1;

#[derive(Default)]
struct Known {
    primary: HashMap<CUdevice, Charge>,
    /// Made by `cuCtxCreate`.
    created: HashMap<usize, (CUdevice, Charge)>,
    /// How often `cuCtxAttach` was called for them.
    attached: HashMap<usize, u32>,
    /// Green contexts, each of which retains its device's primary one (CUDA driver API, `cuGreenCtxCreate`).
    green: HashMap<usize, CUdevice>,
}

/// How a context is charged: the ledger knows of one overhead a process and GPU, further ones are plain bytes.
#[derive(Clone, Copy)]
enum Charge {
    Overhead,
    Bytes(u64),
}

impl GpuAccount {
    fn charge_context(&self) -> Result<Charge, Denied> {
        let charge = || self.slot.charge_overhead(self.gpu);
        let first = || {
            charge().or_else(
                |denied| match denied.limit == 0 && self.has_waited_for_wake() {
                    true => charge(),
                    false => Err(denied),
                },
            )
        };
        oom_report::record_request(self, self.slot.context_cost(self.gpu));
        let charged = first().or_else(|denied| self.retry_after_reap(denied, first));
        if charged.inspect_err(|denied| oom_report::record_denial(self, denied))? {
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
    pub fn note(&self, place: &GpuAccount) {
        if place.slot.force_overhead(place.gpu) {
            place.slot.note_context(place.gpu);
        }
    }

    /// Says what this process's contexts on a GPU are charged.
    pub fn add_to_breakdown(&self, gpu: usize, slot: Option<&ProcessSlot>, tally: &mut Breakdown) {
        let Some(slot) = slot else { return };
        let process = slot.process(std::process::id());
        tally.add(
            AllocationKind::Context,
            process.map_or(0, |process| process.gpus[gpu].overhead),
        );
    }

    /// The context in which the current thread allocates, as [`crate::charge::pointers::Allocation::context`] has it.
    #[inline]
    pub fn of_allocation(&self) -> usize {
        if self.any_created.load(Acquire) {
            device::current_context() as usize
        } else {
            PRIMARY
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context on that device has ended, charged so. Returns what to give back: the overhead stays with the process for as long as it
    /// has a context there, so one that was charged as bytes takes it over and gives those back instead.
    fn hand_over(&self, dev: CUdevice, charge: Charge) -> Charge {
        let Charge::Overhead = charge else {
            return charge;
        };
        let mut known = self.known();
        let Known {
            primary, created, ..
        } = &mut *known;
        let created = created
            .values_mut()
            .filter(|(on, _)| *on == dev)
            .map(|(_, charge)| charge);
        let mut others = primary.get_mut(&dev).into_iter().chain(created);
        let heir = others.find(|other| matches!(other, Charge::Bytes(_)));
        heir.map_or(charge, |heir| std::mem::replace(heir, charge))
    }

    fn any_on(&self, device: CUdevice) -> bool {
        primary_is_active(device) || self.known().created.values().any(|(on, _)| *on == device)
    }
}

pub fn primary_retain<F>(real: Real<'_, F>, _pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    match device::belongs(dev) {
        Some(DeviceMembership::InSlice(place)) => retain(&real, &place, dev),
        _ => real.call(),
    }
}

/// A call that makes the primary context if there is none.
fn retain<F>(real: &Real<'_, F>, place: &GpuAccount, dev: CUdevice) -> CUresult {
    let known = || place.account.contexts.known();
    if primary_is_active(dev) || known().primary.contains_key(&dev) {
        return real.call();
    }
    make(real, place, |charge| {
        let mut known = known();
        match known.primary.entry(dev) {
            // Another thread's call made it.
            Entry::Occupied(_) => place.give_back_context(charge),
            Entry::Vacant(place) => drop(place.insert(charge)),
        }
    })
}

pub fn create_green<F>(
    real: Real<'_, F>,
    context: *mut CUgreenCtx,
    _of: CUdevResourceDesc,
    dev: CUdevice,
    _flags: c_uint,
) -> CUresult {
    let Some(DeviceMembership::InSlice(place)) =
        device::belongs(dev).filter(|_| !context.is_null())
    else {
        return real.call();
    };
    let result = retain(&real, &place, dev);
    if result == CUresult::SUCCESS {
        // SAFETY: not null, and the driver has just written the handle.
        let context = unsafe { context.read() } as usize;
        place.account.contexts.known().green.insert(context, dev);
    }
    result
}

pub fn destroy_green<F>(real: Real<'_, F>, context: CUgreenCtx) -> CUresult {
    let context = context as usize;
    // Taken out first: the driver may give the handle to another thread's new context at once.
    let taken = process::account()
        .and_then(|account| Some((account, account.contexts.known().green.remove(&context)?)));
    let Some((account, dev)) = taken else {
        return real.call();
    };
    let result = release(&real, account, dev);
    if result != CUresult::SUCCESS {
        account.contexts.known().green.insert(context, dev);
    }
    result
}

pub fn attach<F>(real: Real<'_, F>, pctx: *mut CUcontext, _flags: c_uint) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
    {
        // SAFETY: the driver has just written the context.
        let context = unsafe { pctx.read() } as usize;
        let mut known = account.contexts.known();
        if known.created.contains_key(&context) {
            *known.attached.entry(context).or_default() += 1;
        }
    }
    result
}

/// Ends one use of a context, and with the last one the context.
pub fn detach<F>(real: Real<'_, F>, ctx: CUcontext) -> CUresult {
    let context = ctx as usize;
    let used_besides = |account: &'static ProcessAccount| {
        let mut known = account.contexts.known();
        let times = known
            .attached
            .get_mut(&context)
            .filter(|times| **times > 0)?;
        *times -= 1;
        Some(account)
    };
    let Some(account) = process::account().and_then(used_besides) else {
        return destroy(real, ctx);
    };
    let result = real.call();
    if result != CUresult::SUCCESS {
        *account
            .contexts
            .known()
            .attached
            .entry(context)
            .or_default() += 1;
    }
    result
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
    let Some(DeviceMembership::InSlice(place)) = device::belongs(dev).filter(|_| !pctx.is_null())
    else {
        return real.call();
    };
    // Before the program has the context: a thread that allocates in it finds this set.
    place.account.contexts.any_created.store(true, Release);
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
fn make<F>(real: &Real<'_, F>, place: &GpuAccount, made: impl FnOnce(Charge)) -> CUresult {
    let Ok(charge) = place.charge_context() else {
        return CUresult::OUT_OF_MEMORY;
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        place.slot.note_context(place.gpu);
        made(charge);
    } else {
        // A process that has a context there knows the GPU to work. What fails later may be its own error, which stays.
        if matches!(charge, Charge::Overhead) {
            place.slot.note_context_failure(place.gpu, result.0);
        }
        place.give_back_context(charge);
    }
    result
}

/// `cuDevicePrimaryCtxRelease` and `cuDevicePrimaryCtxReset`.
pub fn primary_end<F>(real: Real<'_, F>, dev: CUdevice) -> CUresult {
    match process::account() {
        Some(account) => release(&real, account, dev),
        None => real.call(),
    }
}

/// A call after which the primary context may be gone, or not.
fn release<F>(real: &Real<'_, F>, account: &'static ProcessAccount, dev: CUdevice) -> CUresult {
    let era = account.pointers.end_era();
    let result = real.call();
    if result == CUresult::SUCCESS
        && !primary_is_active(dev)
        && let DeviceMembership::InSlice(place) = account.belongs(dev)
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
    } else if let DeviceMembership::InSlice(place) = account.belongs(dev) {
        account.contexts.known().attached.remove(&context);
        ended(&place, dev, era, Some(charge), |of| of == context);
    }
    result
}

/// Gives back what died with a context that was asked to end in `era`.
fn ended(
    place: &GpuAccount,
    dev: CUdevice,
    era: u64,
    charge: Option<Charge>,
    in_it: impl Fn(usize) -> bool,
) {
    let account = place.account;
    account.compute.forget(&in_it);
    account.free_context_allocations(account.pointers.take_all(|allocation| {
        allocation.gpu == place.gpu
            && allocation.era <= era
            && allocation.context != NO_CONTEXT
            && in_it(allocation.context)
    }));
    if let Some(charge) = charge {
        place.give_back_context(account.contexts.hand_over(dev, charge));
    }
    // Memory cached by pools and graphs may have gone with it, and the choice of a pool.
    account.pools.forget_current();
    account.reconcile(place.gpu);
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
