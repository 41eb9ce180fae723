//! The slot of one process in the ledger, and its view of the slice's limit and usage without system calls.

mod life_mark;

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use crate::account::{Word, order};
use crate::fork::Epoch;
use crate::integrity::FileWatch;
use crate::layout::{Cell, ControlFile, GPUS, LIVE_WORDS, SharedLine, SlotsFile, state};
use crate::lock::{self, LockFile};
use crate::map::{Map, OpenError};
use crate::process::{ProcessIdentity, boot_time_ns};
use crate::reap::{DRIVER_RELEASE_TIMEOUT_NS, Listed, Reaped, SlotsAccess};
use crate::slice::{ProcessGpu, ProcessState, ProcessUsage, Slice, Usage};

/// This process's place in its slice, shared by all its threads.
///
/// It is worthless in a fork child: there every reservation is refused, nothing can be released, and the child must
/// join for itself ([`ProcessSlot::is_inherited`]). Dropped with nothing charged, the slot is free at once; otherwise it
/// stays until the process is gone, because the driver still holds what was never released.
pub struct ProcessSlot {
    pub(crate) slice: Slice,
    pub(crate) control: Map<ControlFile>,
    pub(crate) slots: Map<SlotsFile>,
    pub(crate) index: usize,
    /// The slot's state word for as long as this claim lives.
    pub(crate) claim: u64,
    pub(crate) owner: ProcessIdentity,
    pub(crate) lock: LockFile,
    pub(crate) epoch: Epoch,
    /// Per GPU: whether one of this process's threads contends for it (`account::Memory::enter`).
    pub(crate) contended: [AtomicBool; GPUS],
    /// Per GPU: whether this process's context is charged (`hold::context`).
    pub(crate) context: [AtomicU8; GPUS],
    /// Per GPU: the word of the last grant that found this process at the gate with nothing there (`compute::gate`).
    pub(crate) let_in: [AtomicU64; GPUS],
    /// One of this process's threads at a time changes the table of shared allocations.
    pub(crate) sharing: Mutex<()>,
    /// When this process last looked for dead ones.
    pub(crate) reaped_at: AtomicU64,
    pub(crate) marked_by: MarkedBy,
    pub(crate) watch: FileWatch,
}

/// What a process knows of its own life mark (`life_mark`).
#[derive(Default)]
pub(crate) struct MarkedBy {
    /// Its threads have no robust lists, or one of them is just marking.
    pub is_off: AtomicBool,
    /// The number of the thread that marked last.
    pub thread: AtomicU64,
    /// The address of the head of that thread's list.
    pub head: AtomicU64,
}

impl ProcessSlot {
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// Position of the slot in the slice.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether this process was forked from the one that joined; then it must join itself.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        !self.epoch.is_now()
    }

    /// Whether this slot is this process's own: not inherited by fork, not taken for a dead one's.
    #[inline]
    pub fn is_mine(&self) -> bool {
        !self.is_inherited() && self.slots.slots[self.index].state.load(Acquire) == self.claim
    }

    /// The limit of a GPU in bytes, as of now; 0 for a GPU the slice does not have.
    #[inline]
    pub fn limit(&self, gpu: usize) -> u64 {
        if self.has(gpu) {
            self.control.gpus[gpu].limit.load(order::LOAD_LIMIT)
        } else {
            0
        }
    }

    /// The limit that a parked job gets back, in bytes; 0 unless the job is parked.
    pub fn parked_limit(&self, gpu: usize) -> u64 {
        if self.has(gpu) {
            self.control.gpus[gpu].parked_limit.load(SeqCst)
        } else {
            0
        }
    }

    /// The limit that views show, in bytes: that of a parked job as it was.
    pub fn shown_limit(&self, gpu: usize) -> u64 {
        match self.parked_limit(gpu) {
            0 => self.limit(gpu),
            parked => parked,
        }
    }

    /// The assumed context overhead on a GPU, in bytes, as of now; 0 for a GPU the slice does not have.
    pub fn context_cost(&self, gpu: usize) -> u64 {
        if self.has(gpu) {
            self.control.gpus[gpu].overhead.load(SeqCst)
        } else {
            0
        }
    }

    /// Bytes that the driver holds beyond all charges, by the daemon's samples; 0 for a GPU the slice does not have.
    pub(crate) fn unseen(&self, gpu: usize) -> u64 {
        if self.has(gpu) {
            self.control.gpus[gpu].unseen.load(SeqCst)
        } else {
            0
        }
    }

    /// The most that all charges together may reach.
    #[inline]
    pub(crate) fn limit_of_charges(&self, gpu: usize) -> u64 {
        self.limit(gpu).saturating_sub(self.unseen(gpu))
    }

    /// The largest allocation that would be granted now, in bytes: [`Usage::free`] without the rest of it.
    pub fn free(&self, gpu: usize) -> u64 {
        self.limit(gpu).saturating_sub(self.used(gpu))
    }

    /// The slice's usage of one GPU; zero for a GPU it does not have.
    pub fn usage(&self, gpu: usize) -> Usage {
        if !self.has(gpu) {
            return Usage::default();
        }
        let kept = &self.slots.gpus[gpu];
        let start = Usage {
            limit: self.limit(gpu),
            parked_limit: self.parked_limit(gpu),
            unseen: self.unseen(gpu),
            peak: kept.peak.load(Relaxed),
            recent_peak: self.slots.recent_peaks[gpu].load(Relaxed),
            denied: kept.denied.load(Relaxed),
            last_denied_size: kept.last_denied_size.load(Relaxed),
            last_denied_at: kept.last_denied_at.load(Relaxed),
            ..Usage::default()
        };
        let processes = self.live_slots().fold(start, |sum, slot| {
            sum.with(
                &read(&self.slots.slots[slot].gpus[gpu]),
                self.state_of(slot),
            )
        });
        self.shared_lines(gpu)
            .fold(processes, |sum, line| {
                let bytes = Word(line.used.load(SeqCst)).bytes();
                sum.with_shared(bytes, self.is_held_by_living(line))
            })
            .finish()
    }

    /// Usage of a GPU by living processes, in bytes: [`Usage::used_by_living`] without the rest of it. 0 for a GPU the
    /// slice does not have.
    ///
    /// The marks of the other processes say whether they live ([`ProcessSlot::mark_life`]). Where one does not, and now
    /// and then, one system call for each other process of this PID namespace finds those that have ended.
    pub fn used_by_living(&self, gpu: usize) -> u64 {
        if self.watch.locks_seen.load(Relaxed) && self.are_others_alive() {
            return self.used(gpu);
        }
        self.note_ended();
        self.usage(gpu).used_by_living()
    }

    /// Finds processes of this PID namespace that have ended, so that [`Usage::ended`] counts what they held.
    pub fn note_ended(&self) {
        let Some(file) = self.lock.descriptor() else {
            return;
        };
        // Before it asks for the locks: the next look finds a process that ends meanwhile.
        self.watch.locks_seen.store(true, Relaxed);
        let is_due = |slot: usize| {
            let line = &self.slots.slots[slot];
            match self.state_of(slot) {
                Some(ProcessState::Live | ProcessState::Doubtful) => {
                    matches!(lock::is_locked(file, lock::life(slot)), Ok(false))
                }
                // Its slot may be given back by now.
                Some(ProcessState::Dead) => {
                    let since = line.dead_since.load(Relaxed);
                    boot_time_ns().saturating_sub(since) >= DRIVER_RELEASE_TIMEOUT_NS
                }
                // The bit of a free slot is in the way of each look; that of one just being claimed is not.
                None => state::of(line.state.load(SeqCst)) == state::FREE,
            }
        };
        let mut others = self.live_slots().filter(|slot| *slot != self.index);
        if others.any(is_due) {
            // An unknown figure stays as it is.
            let _ = self.reap(boot_time_ns());
        }
    }

    /// The living process of this PID namespace with this pid, if it has a slot.
    pub fn process(&self, pid: u32) -> Option<ProcessUsage> {
        let here = |found: &ProcessUsage| {
            found.state == ProcessState::Live
                && found.owner.pid_namespace == self.owner.pid_namespace
        };
        self.live_slots().find_map(|slot| {
            self.process_in(slot)
                .filter(|found| found.owner.pid == pid && here(found))
        })
    }

    /// Whether a process of this PID namespace has a slot and is not known to be dead.
    pub fn is_member(&self, pid: u32) -> bool {
        self.process(pid).is_some()
    }

    /// Counts something that only a bug can cause; the agent reports the count.
    pub fn alarm(&self) {
        self.slots.alarms.fetch_add(1, Relaxed);
    }

    /// Counts a context that this process has made on a GPU.
    pub fn note_context(&self, gpu: usize) {
        if self.has(gpu) {
            self.slots.gpus[gpu].contexts.fetch_add(1, Relaxed);
        }
    }

    /// Counts a first context of this process that the driver has refused with this code (CUresult).
    pub fn note_context_failure(&self, gpu: usize, code: u32) {
        if !self.has(gpu) {
            return;
        }
        let next = |word: u64| {
            let count = (word >> 32).saturating_add(1).min(u64::from(u32::MAX));
            Some(count << 32 | u64::from(code))
        };
        let failures = &self.slots.gpus[gpu].context_failures;
        // `next` never gives up.
        let _ = failures.fetch_update(Relaxed, Relaxed, next);
    }

    /// Gives back what dead processes of this PID namespace held, two seconds after they were first seen dead.
    /// `now`: [`crate::boot_time_ns`]. Reservations that do not fit do this by themselves.
    ///
    /// # Errors
    /// The slots file cannot be opened or locked any more.
    pub fn reap(&self, now: u64) -> Result<Reaped, OpenError> {
        self.reap_in(&self.slice.open_slots(true)?, now)
    }

    /// The same, in the slots file that is open for writing.
    pub(crate) fn reap_in(&self, file: &File, now: u64) -> Result<Reaped, OpenError> {
        let others = self.live_slots().filter(|slot| *slot != self.index);
        let access = SlotsAccess {
            file,
            mapped: Some(&self.slots),
        };
        let reaped = (self.slice).reap_slots(access, others, now, &|_| Listed::Unknown)?;
        self.tidy(file.as_raw_fd());
        Ok(reaped)
    }

    /// Clears the bits of slots that are free, so that counting does not touch them.
    fn tidy(&self, file: i32) {
        for index in self.live_slots() {
            let is_free = || state::of(self.slots.slots[index].state.load(SeqCst)) == state::FREE;
            if is_free() && lock::try_lock(file, lock::change(index)).unwrap_or(false) {
                if is_free() {
                    set_live(&self.slots, index, false);
                }
                lock::unlock(file, lock::change(index));
            }
        }
    }

    /// All processes of the slice, the dead ones too whose memory has not come back yet.
    pub(crate) fn processes(&self) -> impl Iterator<Item = ProcessUsage> {
        self.live_slots().filter_map(|slot| self.process_in(slot))
    }

    /// The state of a slot's process; `None` for a slot without one.
    pub(crate) fn state_of(&self, index: usize) -> Option<ProcessState> {
        let slot = &self.slots.slots[index];
        ProcessState::of(slot.state.load(SeqCst), slot.dead_since.load(SeqCst))
    }

    fn process_in(&self, index: usize) -> Option<ProcessUsage> {
        let slot = &self.slots.slots[index];
        let owner = ProcessIdentity {
            pid: slot.pid.load(Relaxed),
            start_time: slot.start_time.load(Relaxed),
            pid_namespace: slot.pid_namespace.load(Relaxed),
        };
        let state = self.state_of(index)?;
        let mut gpus = [ProcessGpu::default(); GPUS];
        let cells = slot.gpus.iter().take(self.slice.gpus().len());
        for (at, (gpu, cell)) in gpus.iter_mut().zip(cells).enumerate() {
            let shown_here = |line: &&SharedLine| self.holder(line) == Some(index);
            let shared = self.shared_lines(at).filter(shown_here);
            *gpu = shared.fold(read(cell), |sum, line| {
                sum.with_shared(Word(line.used.load(SeqCst)).bytes())
            });
        }
        let word = slot.state.load(Relaxed);
        Some(ProcessUsage {
            slot: index,
            owner,
            state,
            wakes: slot.abilities.load(Relaxed) == state::wakes(word),
            gpus,
        })
    }

    /// Bytes of a GPU that are taken: [`Usage::used`] without the rest of it, at a third of the cost. 0 for a GPU the slice
    /// does not have.
    pub fn used(&self, gpu: usize) -> u64 {
        if !self.has(gpu) {
            return 0;
        }
        self.charged(gpu).saturating_add(self.unseen(gpu))
    }

    /// The sum of all words of a GPU that the slice has, of processes and of shared allocations. Every reservation runs through
    /// this. A slice rarely has more than 64 processes or shares anything, so the words of the bitmaps that are mostly empty are
    /// read together first, without a branch for each.
    #[inline]
    pub(crate) fn charged(&self, gpu: usize) -> u64 {
        let SlotsFile {
            live,
            slots,
            shared_live,
            shared,
            ..
        } = &*self.slots;
        let used = |slot: usize| Word(slots[slot].gpus[gpu].used.load(order::LOAD_WORD)).bytes();
        let any = |words: &[AtomicU64]| {
            words
                .iter()
                .fold(0, |any, word| any | word.load(order::LOAD_LIVE))
                != 0
        };
        let [first, rest @ ..] = live;
        let mut sum = added(first.load(order::LOAD_LIVE), 0, 0, used);
        if any(rest) {
            for (index, word) in rest.iter().enumerate() {
                sum = added(word.load(order::LOAD_LIVE), (index + 1) * 64, sum, used);
            }
        }
        // After the slots: bytes that become shared are in the line before they leave the slot.
        if any(&shared_live[gpu]) {
            let used = |line: usize| Word(shared[line].used.load(order::LOAD_WORD)).bytes();
            for (index, word) in shared_live[gpu].iter().enumerate() {
                sum = added(word.load(order::LOAD_LIVE), index * 64, sum, used);
            }
        }
        sum
    }

    /// This process's line of a GPU; `None` when the slice does not have it or the slot is not ours.
    #[inline]
    pub(crate) fn cell(&self, gpu: usize) -> Option<&Cell> {
        (self.has(gpu) && self.is_mine()).then(|| &self.slots.slots[self.index].gpus[gpu])
    }

    #[inline]
    fn has(&self, gpu: usize) -> bool {
        gpu < self.slice.gpus().len().min(GPUS)
    }

    fn live_slots(&self) -> impl Iterator<Item = usize> {
        (0..LIVE_WORDS).flat_map(|index| {
            let mut bits = self.slots.live[index].load(SeqCst);
            std::iter::from_fn(move || {
                let slot = (bits != 0).then(|| index * 64 + bits.trailing_zeros() as usize);
                bits &= bits.wrapping_sub(1);
                slot
            })
        })
    }
}

/// `sum` and the bytes of all positions from `first` on that `bits` names.
#[inline(always)]
fn added(mut bits: u64, first: usize, mut sum: u64, used: impl Fn(usize) -> u64) -> u64 {
    while bits != 0 {
        sum = sum.saturating_add(used(first + bits.trailing_zeros() as usize));
        bits &= bits - 1;
    }
    sum
}

/// Says whether counting must look at a slot.
pub(crate) fn set_live(slots: &SlotsFile, index: usize, live: bool) {
    let (word, bit) = (&slots.live[index / 64], 1 << (index % 64));
    if live {
        word.fetch_or(bit, order::JOIN);
    } else {
        word.fetch_and(!bit, SeqCst);
    }
}

fn read(cell: &Cell) -> ProcessGpu {
    ProcessGpu {
        charged: 0,
        overhead: cell.overhead.load(Relaxed),
        managed: cell.managed.load(Relaxed),
        host: cell.host.load(Relaxed),
        peak: cell.peak.load(Relaxed),
        denied: cell.denied.load(Relaxed),
        last_denied_size: cell.last_denied_size.load(Relaxed),
        last_denied_at: cell.last_denied_at.load(Relaxed),
    }
    .using(Word(cell.used.load(SeqCst)))
}

impl fmt::Debug for ProcessSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, owner, .. } = self;
        f.debug_struct("Slot")
            .field("index", index)
            .field("owner", owner)
            .finish_non_exhaustive()
    }
}
