//! Accounting of one limited process: its slice, its slot, and its charges.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use divvy_driver::sys::cuda::CUdeviceptr;
use divvy_ledger::{
    AllocationKind, DRIVER_RELEASE_TIMEOUT_NS, Denied, Hold, ProcessSlot, Slice, UNNAMED_CALL,
    Usage, boot_time_ns,
};

use crate::charge::breakdown::Breakdown;
use crate::charge::graph::Graphs;
use crate::charge::mappings::Mappings;
use crate::charge::memory_charge::{MemoryCharge, Shares};
use crate::charge::pointers::{Allocation, AllocationBacking, Pointers};
use crate::charge::pool::Pools;
use crate::charge::retry::retry_while;
use crate::compute::Compute;
use crate::context::Contexts;
use crate::device::Devices;
use crate::oom_report::{self, ReportLimiter};
use crate::park;
use crate::process;

/// Between two looks whether dead processes' memory has come back. As long as the ledger's own interval of looks:
/// shorter ones would find nothing new, and memory returned within 72 ms (docs/hardware.md).
const PATIENCE: Duration = Duration::from_millis(5);

pub struct ProcessAccount {
    slice: Slice,
    slot: OnceLock<Option<ProcessSlot>>,
    pub devices: Devices,
    pub contexts: Contexts,
    pub pointers: Pointers,
    pub pools: Pools,
    pub graphs: Graphs,
    pub refusals: ReportLimiter,
    pub compute: Compute,
    pub shares: Shares,
    mappings: Mutex<Mappings<Arc<MemoryCharge>>>,
}

impl ProcessAccount {
    pub fn new(slice: Slice) -> Self {
        ProcessAccount {
            slice,
            slot: OnceLock::new(),
            devices: Devices::new(),
            contexts: Contexts::default(),
            pointers: Pointers::new(),
            pools: Pools::default(),
            graphs: Graphs::default(),
            refusals: ReportLimiter::default(),
            compute: Compute::default(),
            shares: Shares::default(),
            mappings: Mutex::default(),
        }
    }

    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// This process's slot, taken now if it was not before; `None` (and one line said) when there is none to be had.
    pub fn slot(&'static self) -> Option<&'static ProcessSlot> {
        let join = || {
            self.slice
                .join()
                .inspect(|slot| {
                    process::count_early(slot);
                    process::log_ignored_switch();
                })
                .map_err(|error| process::log_refusal(&error.to_string()))
                .ok()
        };
        let slot = self.slot.get_or_init(join).as_ref()?;
        park::watch(slot);
        let is_whole = slot
            .check()
            .map_err(|damage| process::log_refusal(&damage.to_string()))
            .is_ok();
        is_whole.then(|| {
            slot.mark_life();
            slot
        })
    }

    /// This process's slot, as a launch sees it: without a look at its files, which may be long gone for all it matters.
    #[inline]
    pub fn slot_unchecked(&'static self) -> Option<&'static ProcessSlot> {
        match self.slot.get() {
            Some(slot) => slot.as_ref(),
            None => self.slot(),
        }
    }

    /// This process's slot, if it has taken one and its files are whole.
    pub fn joined(&self) -> Option<&ProcessSlot> {
        let slot = self.slot.get()?.as_ref()?;
        slot.check().is_ok().then_some(slot)
    }

    /// The slice's first GPU, for what is no GPU's.
    pub fn first_place(&'static self) -> Option<GpuAccount> {
        Some(GpuAccount {
            account: self,
            slot: self.slot()?,
            gpu: 0,
        })
    }

    pub fn mappings(&self) -> MutexGuard<'_, Mappings<Arc<MemoryCharge>>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Usage of a GPU by the whole slice. A process that only observes takes no slot.
    pub fn usage(&self, gpu: usize) -> Option<Usage> {
        match self.joined() {
            Some(slot) => Some(slot.usage(gpu)),
            None => self.slice.usage(gpu).ok(),
        }
    }

    /// Finds processes of the slice that have ended, for a view that does not show what they held.
    pub fn note_ended(&self) {
        match self.joined() {
            Some(slot) => slot.note_ended(),
            // A slice that cannot be asked shows what it showed before.
            None => self.slice.note_ended().unwrap_or_default(),
        }
    }

    /// Brings a GPU's charge up to date where the driver keeps memory for this process: in pools and for graphs.
    pub fn reconcile(&self, gpu: usize) {
        self.pools.reconcile(gpu);
        self.graphs.reconcile(gpu);
    }

    /// Says what this process has on a GPU of the slice.
    pub fn add_to_breakdown(&self, gpu: usize, tally: &mut Breakdown) {
        self.pointers.add_to_breakdown(gpu, tally);
        let mappings = self.mappings();
        let here = |holding: &&Arc<MemoryCharge>| holding.place().gpu == gpu;
        for holding in mappings.backings().filter(here) {
            tally.add(AllocationKind::Handle, holding.bytes());
        }
        drop(mappings);
        self.pools.add_to_breakdown(gpu, tally);
        self.graphs.add_to_breakdown(gpu, tally);
        self.contexts.add_to_breakdown(gpu, self.joined(), tally);
    }

    /// Has the driver give back what it keeps without need.
    pub fn trim_caches(&self, gpu: usize) {
        self.pools.trim_caches(gpu);
        self.graphs.trim_caches(gpu);
    }

    /// Forgets allocations that died with their context, and gives their bytes back.
    pub fn free_context_allocations(&self, dead: Vec<Allocation>) {
        for allocation in dead {
            self.release(&allocation);
        }
    }

    /// Gives back what one allocation was charged; what it holds together with others goes with it.
    pub fn release(&self, allocation: &Allocation) {
        let Some(slot) = self.joined() else { return };
        let Allocation { gpu, bytes, .. } = *allocation;
        if bytes > 0 {
            slot.release(gpu, bytes);
        }
        match &allocation.backing {
            AllocationBacking::Managed => slot.note_managed(gpu, -(bytes as i64)),
            AllocationBacking::Pinned(pinned) => slot.note_host(gpu, -(*pinned as i64)),
            AllocationBacking::Pooled(pool) if pool.freed() => pool.end(),
            AllocationBacking::Lent(pool, holding) if pool.freed_lent(holding.bytes()) => {
                pool.end()
            }
            _ => {}
        }
    }
}

/// A GPU of the slice, and the slot that is charged for what this process takes of it.
#[derive(Clone, Copy)]
pub struct GpuAccount {
    pub account: &'static ProcessAccount,
    pub slot: &'static ProcessSlot,
    pub gpu: usize,
}

impl GpuAccount {
    /// Reserves bytes. Before it gives up it takes back what this process's pools and graphs only cache, and waits for what dead
    /// processes of the slice held, so that a program may start where another has just ended.
    ///
    /// # Errors
    /// They do not fit.
    pub fn reserve(&self, bytes: u64) -> Result<Hold<'static>, Denied> {
        oom_report::record_request(self, bytes);
        self.reserve_unnoted(bytes)
    }

    /// The same for a caller that says what it has asked for (`oom_report::asked`) when the driver has failed.
    ///
    /// # Errors
    /// They do not fit.
    #[inline]
    pub fn reserve_unnoted(&self, bytes: u64) -> Result<Hold<'static>, Denied> {
        self.slot
            .reserve(self.gpu, bytes)
            .or_else(|denied| self.reserve_slow(bytes, denied))
            .inspect_err(|denied| oom_report::record_denial(self, denied))
    }

    /// Waits while the job has no limit because its memory is not on its GPUs: it is parked, or this process has a context
    /// from before. False for any other refusal.
    pub fn has_waited_for_wake(&self) -> bool {
        let is_away = || {
            let is_its = self.slot.is_parked() || self.slot.has_overhead(self.gpu);
            self.slot.limit(self.gpu) == 0 && is_its
        };
        let was_away = is_away();
        while is_away() {
            // The daemon may be gone; then the wish stays in the slice.
            self.slot.wait_for_wake(UNNAMED_CALL);
            divvy_ledger::nap(PATIENCE);
        }
        was_away
    }

    #[cold]
    fn reserve_slow(&self, bytes: u64, denied: Denied) -> Result<Hold<'static>, Denied> {
        if denied.limit == 0 && self.has_waited_for_wake() {
            let again = self.slot.reserve(self.gpu, bytes);
            return again.or_else(|denied| self.reserve_slow(bytes, denied));
        }
        if bytes > denied.limit {
            return Err(denied);
        }
        self.account.trim_caches(self.gpu);
        self.retry_after_reap(denied, || self.slot.reserve(self.gpu, bytes))
    }

    /// Tries again, and again while dead processes' memory comes back, which the ledger awaits for [`DRIVER_RELEASE_TIMEOUT_NS`] at most.
    pub fn retry_after_reap<T>(
        &self,
        denied: Denied,
        again: impl Fn() -> Result<T, Denied>,
    ) -> Result<T, Denied> {
        let start = boot_time_ns();
        let waits = || {
            let now = boot_time_ns();
            let reaped = self.slot.reap(now).unwrap_or_default();
            let may_come_back = || {
                reaped.contended > 0
                    || reaped.waiting > 0 && self.would_fit_after_reap(denied.requested)
            };
            now.saturating_sub(start) <= 2 * DRIVER_RELEASE_TIMEOUT_NS && may_come_back()
        };
        retry_while(PATIENCE, waits, again).map_err(|_| denied)
    }

    fn would_fit_after_reap(&self, bytes: u64) -> bool {
        let Ok(now) = self.account.slice.read() else {
            return false;
        };
        let usage = now.usage(self.gpu);
        usage.ended > 0 && usage.used_by_living().saturating_add(bytes) <= usage.limit
    }

    /// Remembers an allocation that was charged.
    pub fn track(&self, address: CUdeviceptr, bytes: u64, context: usize, managed: bool) {
        let era = self.account.pointers.era();
        let allocation = Allocation {
            gpu: self.gpu,
            bytes,
            context,
            era,
            backing: if managed {
                AllocationBacking::Managed
            } else {
                AllocationBacking::Linear
            },
        };
        self.account.pointers.insert(address, allocation);
        if managed {
            self.slot.note_managed(self.gpu, bytes as i64);
        }
    }
}
