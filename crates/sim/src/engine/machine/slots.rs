//! Process slots: what each process of the machine holds on each GPU or GPU instance, and whether it lives.
//!
//! A slot is live while its process holds an OFD byte-range lock on the state file. The kernel drops it at death,
//! whatever kills the process and in whatever PID namespace it runs; dead slots are collected before every reading of
//! memory, processes or utilisation.

use crate::engine::machine::accounting::wall_clock_us;
use crate::engine::machine::checkpoint_state::CheckpointState;
use crate::engine::machine::group::GroupCharges;
use crate::engine::machine::pids::Own;
use crate::engine::machine::settings::ComputeMode;
use crate::engine::machine::state::{Locked, State};
use crate::engine::mig::MigInstanceId;
use crate::engine::mig::partition::{MAX_PARTITIONS, gpu_of, instance_of};
use crate::model::MAX_GPUS;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Processes of the machine: as many as a slice's ledger has, so that tests can fill that.
pub const SLOTS: usize = 1024;

/// A place in the queue of a process on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueuePosition {
    pub slot: usize,
    pub gpu: usize,
    pub ticket: u64,
}

/// The GPU's compute mode forbids a context.
#[derive(Debug, PartialEq, Eq)]
pub struct NotAllowed;

/// First byte of the range the slots' locks are taken on; far beyond the end of the file, which does not matter to
/// them.
const LOCK_BASE: i64 = 1 << 40;

#[repr(C)]
pub struct ProcessSlot {
    live: AtomicU32,
    pid: AtomicU32,
    start_time: AtomicU64,
    pid_namespace: AtomicU64,
    /// What the process waits for on a virtual clock: ticket (0 is nothing), GPU and slot.
    awaited: AtomicU64,
    awaited_gpu: AtomicU64,
    awaited_slot: AtomicU64,
    /// Whether it has entered GPU instances at all.
    in_instances: AtomicU64,
    pub checkpoint_state: CheckpointState,
    /// By partition.
    gpus: [Holding; MAX_PARTITIONS],
    /// By whole GPU: the driver limits no group in GPU instances.
    groups: [GroupCharges; MAX_GPUS],
}

/// What a process holds on one partition.
#[repr(C)]
struct Holding {
    /// Its compute instance there plus one (1 on a whole GPU); 0 is a partition it has not entered.
    entered: AtomicU64,
    used: AtomicU64,
    /// The part of it that NVML lists for no process.
    unlisted: AtomicU64,
    contexts: AtomicU64,
    /// The most it has been.
    peak: AtomicU64,
    /// When the first context was made: microseconds of the wall clock (0 is not yet), simulated nanoseconds.
    began_us: AtomicU64,
    began_ns: AtomicU64,
}

impl ProcessSlot {
    pub fn is_live(&self) -> bool {
        self.live.load(SeqCst) != 0
    }

    /// The process's id as the process that asks has it; `None` when it cannot be seen from there.
    pub fn pid_here(&self) -> Option<u32> {
        let own = Own {
            pid: self.pid.load(SeqCst),
            start_time: self.start_time.load(SeqCst),
            namespace: self.pid_namespace.load(SeqCst),
        };
        own.pid_here()
    }

    /// Bytes that it takes alone.
    pub fn used(&self, gpu: usize) -> u64 {
        if self.checkpoint_state.is_checkpointed() {
            0
        } else {
            self.checkpointed_bytes(gpu)
        }
    }

    /// Bytes that it takes, or would take if it were not checkpointed.
    pub fn checkpointed_bytes(&self, gpu: usize) -> u64 {
        self.gpus[gpu].used.load(SeqCst)
    }

    /// Bytes that NVML lists for it.
    pub fn listed(&self, gpu: usize) -> u64 {
        let unlisted = self.gpus[gpu].unlisted.load(SeqCst);
        self.used(gpu).saturating_sub(unlisted)
    }

    pub fn group_charges(&self, gpu: usize) -> &GroupCharges {
        &self.groups[gpu]
    }

    pub fn change_unlisted(&self, gpu: usize, more: u64, less: u64) {
        let unlisted = &self.gpus[gpu].unlisted;
        let now = (unlisted.load(SeqCst) + more).saturating_sub(less);
        unlisted.store(now, SeqCst);
    }

    /// Whether it has anything on a GPU, or would have.
    pub fn has_checkpointed(&self, gpu: usize) -> bool {
        self.checkpointed_bytes(gpu) != 0 || self.gpus[gpu].contexts.load(SeqCst) != 0
    }

    pub fn change_used(&self, gpu: usize, more: u64, less: u64) {
        let used = &self.gpus[gpu].used;
        // A process that lost its slot returns what is no longer counted.
        let now = (used.load(SeqCst) + more).saturating_sub(less);
        used.store(now, SeqCst);
        self.gpus[gpu].peak.fetch_max(now, SeqCst);
    }

    /// Whether it has a context there that is not put aside.
    pub fn has_context(&self, gpu: usize) -> bool {
        !self.checkpoint_state.is_checkpointed() && self.gpus[gpu].contexts.load(SeqCst) != 0
    }

    fn has_any_context(&self) -> bool {
        self.partitions()
            .any(|partition| self.has_context(partition))
    }

    /// All whole GPUs, and GPU instances where it has entered any.
    pub fn partitions(&self) -> Range<usize> {
        0..if self.is_in_instances() {
            MAX_PARTITIONS
        } else {
            MAX_GPUS
        }
    }

    pub fn is_in_instances(&self) -> bool {
        self.in_instances.load(SeqCst) != 0
    }

    /// The compute instance it uses on a partition (0 on a whole GPU), once it has initialised CUDA there.
    pub fn entered(&self, partition: usize) -> Option<u32> {
        let entered = self.gpus[partition].entered.load(SeqCst);
        entered.checked_sub(1).map(|compute| compute as u32)
    }

    /// When it began, in clock ticks after boot.
    pub fn start_time(&self) -> u64 {
        self.start_time.load(SeqCst)
    }

    /// The process's id as it has it itself.
    pub fn own_pid(&self) -> u32 {
        self.pid.load(SeqCst)
    }

    /// The most bytes that it held since its account began.
    pub fn peak(&self, gpu: usize) -> u64 {
        self.gpus[gpu].peak.load(SeqCst)
    }

    /// When its account on a GPU began: microseconds of the wall clock, simulated nanoseconds.
    pub fn began(&self, gpu: usize) -> Option<(u64, u64)> {
        let holding = &self.gpus[gpu];
        let began = holding.began_us.load(SeqCst);
        (began != 0).then(|| (began, holding.began_ns.load(SeqCst)))
    }

    /// The compute instance it uses on a partition; None on a whole GPU, and where it has not initialised CUDA.
    pub fn mig_instance(&self, partition: usize) -> Option<MigInstanceId> {
        Some(MigInstanceId {
            gpu_instance: instance_of(partition)?,
            compute_instance: self.entered(partition)?,
        })
    }

    pub fn end(&self, gpu: usize) {
        let holding = &self.gpus[gpu];
        holding.began_us.store(0, SeqCst);
        holding.peak.store(holding.used.load(SeqCst), SeqCst);
    }

    pub fn set_awaited(&self, awaited: Option<QueuePosition>) {
        let QueuePosition { slot, gpu, ticket } = awaited.unwrap_or_default();
        self.awaited_slot.store(slot as u64, SeqCst);
        self.awaited_gpu.store(gpu as u64, SeqCst);
        self.awaited.store(ticket, SeqCst);
    }

    fn awaited(&self) -> Option<QueuePosition> {
        let ticket = self.awaited.load(SeqCst);
        (ticket != 0).then(|| QueuePosition {
            slot: self.awaited_slot.load(SeqCst) as usize,
            gpu: self.awaited_gpu.load(SeqCst) as usize,
            ticket,
        })
    }

    fn empty(&self) {
        for holding in &self.gpus[self.partitions()] {
            holding.entered.store(0, SeqCst);
            holding.used.store(0, SeqCst);
            holding.unlisted.store(0, SeqCst);
            holding.contexts.store(0, SeqCst);
            holding.peak.store(0, SeqCst);
            holding.began_us.store(0, SeqCst);
        }
        self.groups.iter().for_each(GroupCharges::clear);
        self.in_instances.store(0, SeqCst);
        self.checkpoint_state.clear();
        self.set_awaited(None);
    }
}

impl State {
    /// Gives this process a slot of its own.
    pub fn claim_slot(&self) -> io::Result<usize> {
        let own = Own::of_this_process();
        let locked = self.lock();
        locked.reap();
        let descriptor = self.descriptor()?;
        let free = locked
            .all_slots()
            .iter()
            .enumerate()
            .filter(|(_, slot)| !slot.is_live());
        for (index, slot) in free {
            if !try_lock(descriptor, index)? {
                continue;
            }
            slot.empty();
            for gpu in 0..self.gpu_count() {
                self.queue(index, gpu).clear();
            }
            slot.pid.store(own.pid, SeqCst);
            slot.start_time.store(own.start_time, SeqCst);
            slot.pid_namespace.store(own.namespace, SeqCst);
            self.raise_high_water(index);
            slot.live.store(1, SeqCst);
            self.set_own_slot(Some(index));
            return Ok(index);
        }
        Err(io::Error::other(
            "too many processes: all process slots are in use",
        ))
    }
}

impl State {
    /// Takes the lock of the own slot through a new descriptor, unless the slot was taken for dead meanwhile.
    pub fn lock_again(&self, descriptor: RawFd, slot: usize) {
        let kept = self
            .slots()
            .get(slot)
            .is_some_and(|kept| kept.is_live() && kept.pid.load(SeqCst) == std::process::id());
        if kept {
            // If another process holds the lock, it has the slot, and this process has none any more.
            let _ = try_lock(descriptor, slot);
        }
    }
}

impl Locked<'_> {
    /// A process has a partition among its devices from now on: its queue there is empty.
    pub fn enter(&self, slot: usize, partition: usize, compute_instance: u32) {
        self.queue(slot, partition).clear();
        let entered = &self.slots()[slot];
        if instance_of(partition).is_some() {
            entered.in_instances.store(1, SeqCst);
        }
        let compute = u64::from(compute_instance) + 1;
        entered.gpus[partition].entered.store(compute, SeqCst);
    }

    /// Counts a further context of a slot on a GPU, if the GPU's mode allows one.
    pub fn add_context(&self, slot: usize, gpu: usize) -> Result<(), NotAllowed> {
        let mode = self.gpus()[gpu_of(gpu)].settings.compute_mode();
        if mode == ComputeMode::ExclusiveProcess {
            self.reap();
        }
        match mode {
            ComputeMode::Prohibited => return Err(NotAllowed),
            ComputeMode::ExclusiveProcess if self.has_others(slot, gpu) => return Err(NotAllowed),
            _ => {}
        }
        let holding = &self.slots()[slot].gpus[gpu];
        if holding.contexts.fetch_add(1, SeqCst) == 0 {
            holding.began_ns.store(self.now(), SeqCst);
            holding.began_us.store(wall_clock_us(), SeqCst);
        }
        Ok(())
    }

    /// Whether a process other than the slot's has a context there.
    pub fn has_others(&self, slot: usize, gpu: usize) -> bool {
        let mut slots = self.slots().iter().enumerate();
        slots.any(|(other, held)| other != slot && held.is_live() && held.has_context(gpu))
    }

    pub fn remove_context(&self, slot: usize, gpu: usize) {
        let contexts = &self.slots()[slot].gpus[gpu].contexts;
        let left = contexts.load(SeqCst).saturating_sub(1);
        contexts.store(left, SeqCst);
        if left == 0 {
            self.close_account(slot, gpu);
        }
    }

    /// Takes back everything that dead processes hold.
    pub fn reap(&self) {
        let own = self.own_slot();
        let mut others = self
            .slots()
            .iter()
            .enumerate()
            .filter(|(index, slot)| slot.is_live() && Some(*index) != own)
            .peekable();
        if others.peek().is_none() {
            return;
        }
        let Ok(descriptor) = self.descriptor() else {
            return;
        };
        let dead: Vec<usize> = others
            .map(|(index, _)| index)
            .filter(|index| !is_locked(descriptor, *index))
            .collect();
        if dead.is_empty() {
            return;
        }
        self.advance_all();
        for index in dead {
            let slot = &self.slots()[index];
            for gpu in 0..self.gpu_count() {
                self.close_account(index, gpu);
            }
            for partition in slot
                .partitions()
                .filter(|partition| slot.entered(*partition).is_some())
            {
                self.queue(index, partition).clear();
            }
            slot.empty();
            self.drop_shares_of(index);
            self.drop_marks_of(index);
            self.slots()[index].live.store(0, SeqCst);
        }
        self.sum_up();
    }

    /// Whether every process with a context waits for work that is not done, or can do nothing as it is locked: then a
    /// virtual clock may jump.
    pub fn all_wait(&self) -> bool {
        let live = self
            .slots()
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_live() && slot.has_any_context());
        live.into_iter().all(|(_, slot)| {
            slot.checkpoint_state.is_still()
                || slot
                    .awaited()
                    .is_some_and(|at| !self.queue(at.slot, at.gpu).is_done(at.ticket))
        })
    }
}

fn range(slot: usize, kind: libc::c_int) -> libc::flock {
    // SAFETY: plain data; the fields that matter are set below, and OFD locks want l_pid to be 0.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = LOCK_BASE + slot as i64;
    range.l_len = 1;
    range
}

fn try_lock(descriptor: RawFd, slot: usize) -> io::Result<bool> {
    let range = range(slot, libc::F_WRLCK);
    // SAFETY: a valid descriptor and a range that outlives the call.
    if unsafe { libc::fcntl(descriptor, libc::F_OFD_SETLK, &raw const range) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EAGAIN) {
        Ok(false)
    } else {
        Err(error)
    }
}

/// Whether another open file description holds the slot's lock. An error counts as held, so no process loses memory by
/// mistake.
fn is_locked(descriptor: RawFd, slot: usize) -> bool {
    let mut probe = range(slot, libc::F_WRLCK);
    // SAFETY: a valid descriptor; the kernel writes the holder into `probe`.
    let result = unsafe { libc::fcntl(descriptor, libc::F_OFD_GETLK, &raw mut probe) };
    result != 0 || probe.l_type != libc::F_UNLCK as libc::c_short
}
