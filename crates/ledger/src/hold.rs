//! Reservations of memory: a process reserves, commits and releases bytes of its own slot.

use std::cell::Cell as Local;
use std::fmt;
use std::hint;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::account::{Attempt, MOST_BYTES, Memory, Outcome, Word, order};
use crate::layout::{Cell, LIVE_WORDS, SHARED_WORDS, SLOTS};
use crate::process::boot_time_ns;
use crate::slot::ProcessSlot;
use crate::syscall::{clock, nap};

/// A reservation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    pub requested: u64,
    pub limit: u64,
    /// Bytes in use by all processes of the slice, without `asked`.
    pub used: u64,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            requested: asked,
            limit,
            used,
        } = self;
        write!(
            f,
            "{asked} bytes requested, but {used} of {limit} bytes are in use"
        )
    }
}

impl std::error::Error for Denied {}

/// Whether this process's context on a GPU is charged.
mod context {
    pub const NONE: u8 = 0;
    pub const BEING_CHARGED: u8 = 1;
    pub const CHARGED: u8 = 2;
}

/// Least nanoseconds between two looks for dead processes from within refused reservations. A program may try again in
/// a loop, and each look reads every slot. Memory of a killed process took up to 72 ms to return (docs/hardware.md), so
/// 5 ms add little.
const REAP_INTERVAL_NS: u64 = 5_000_000;

impl ProcessSlot {
    /// Reserves bytes of a GPU before the driver is asked for them. 0 bytes are always granted.
    ///
    /// # Errors
    /// They do not fit the slice's limit, the slice does not have that GPU, or the slot is not this process's own
    /// (then `limit` is 0).
    #[inline]
    pub fn reserve(&self, gpu: usize, bytes: u64) -> Result<Hold<'_>, Denied> {
        let total = match self.attempt(gpu, bytes) {
            Ok(total) => total,
            Err(denied) => self.refuse(gpu, denied)?,
        };
        Ok(Hold {
            slot: self,
            gpu,
            bytes,
            total,
        })
    }

    /// Gives back bytes that were committed.
    #[inline]
    pub fn release(&self, gpu: usize, bytes: u64) {
        let Some(cell) = self.cell(gpu) else { return };
        if Word(cell.used.load(Relaxed)).bytes() < bytes {
            self.alarm();
        }
        update(&cell.used, |word| Some(word.release(bytes)));
    }

    /// Charges bytes that exist already, even beyond the limit.
    pub fn force(&self, gpu: usize, bytes: u64) {
        let Some(cell) = self.cell(gpu) else { return };
        update(&cell.used, |word| Some(word.force(bytes)));
        self.note_peak(gpu, self.used(gpu));
    }

    /// Charges this process's context on a GPU before it is made. `false` when it is charged already.
    ///
    /// # Errors
    /// As [`ProcessSlot::reserve`].
    pub fn charge_overhead(&self, gpu: usize) -> Result<bool, Denied> {
        self.charge_context(gpu, |bytes| self.reserve(gpu, bytes).map(Hold::commit))
    }

    /// Charges this process's existing context on a GPU, even beyond the limit. `false` if it is charged already, or
    /// cannot be: the slice does not have the GPU, or the slot is not this process's own.
    pub fn force_overhead(&self, gpu: usize) -> bool {
        // Asked at every allocation, and true from the first one on.
        if self.has_overhead(gpu) {
            return false;
        }
        let charge = |bytes| {
            self.force(gpu, bytes);
            Ok(())
        };
        self.charge_context(gpu, charge).unwrap_or(false)
    }

    /// Whether this process's context on a GPU is charged.
    #[inline]
    pub fn has_overhead(&self, gpu: usize) -> bool {
        let context = self.context.get(gpu);
        context.is_some_and(|context| context.load(SeqCst) == context::CHARGED)
    }

    /// Gives back the charge of this process's context on a GPU, if there is one.
    pub fn release_overhead(&self, gpu: usize) {
        let Some(cell) = self.cell(gpu) else { return };
        let context = &self.context[gpu];
        let turn =
            context.compare_exchange(context::CHARGED, context::BEING_CHARGED, SeqCst, SeqCst);
        if turn.is_ok() {
            self.release(gpu, cell.overhead.swap(0, SeqCst));
            context.store(context::NONE, SeqCst);
        }
    }

    fn charge_context(
        &self,
        gpu: usize,
        charge: impl FnOnce(u64) -> Result<(), Denied>,
    ) -> Result<bool, Denied> {
        let asked = self.context_cost(gpu);
        let Some(cell) = self.cell(gpu) else {
            return Err(Denied {
                requested: asked,
                limit: 0,
                used: 0,
            });
        };
        let context = &self.context[gpu];
        let patience = BoundedWait::default();
        loop {
            let turn =
                context.compare_exchange(context::NONE, context::BEING_CHARGED, SeqCst, SeqCst);
            match turn {
                Ok(_) => break,
                Err(context::CHARGED) => return Ok(false),
                // Another thread is at it and will be done at once; if it is not, that is one more context not charged.
                Err(_) if patience.pause(|| {}) => {}
                Err(_) => {
                    return Err(Denied {
                        requested: asked,
                        limit: self.limit(gpu),
                        used: self.used(gpu),
                    });
                }
            }
        }
        let result = charge(asked);
        if result.is_ok() {
            cell.overhead.store(asked, SeqCst);
        }
        context.store(
            if result.is_ok() {
                context::CHARGED
            } else {
                context::NONE
            },
            SeqCst,
        );
        result.map(|()| true)
    }

    /// Notes that this many of the charged bytes are managed memory (negative: no longer).
    pub fn note_managed(&self, gpu: usize, bytes: i64) {
        if let Some(cell) = self.cell(gpu) {
            note(&cell.managed, bytes);
        }
    }

    /// Notes pinned host memory taken (negative: given back). It does not count against the limit.
    pub fn note_host(&self, gpu: usize, bytes: i64) {
        if let Some(cell) = self.cell(gpu) {
            note(&cell.host, bytes);
        }
    }

    /// Bytes in use by all with these, once granted.
    #[inline]
    fn attempt(&self, gpu: usize, bytes: u64) -> Result<u64, Denied> {
        let Some(cell) = self.cell(gpu) else {
            return Err(Denied {
                requested: bytes,
                limit: 0,
                used: 0,
            });
        };
        if bytes == 0 {
            return Ok(0);
        }
        // Never published: what cannot fit an empty slice would only keep others waiting.
        if bytes > self.limit_of_charges(gpu).min(MOST_BYTES) {
            return Err(Denied {
                requested: bytes,
                limit: self.limit(gpu),
                used: self.used(gpu),
            });
        }
        let words = Words {
            slot: self,
            gpu,
            cell,
            patience: BoundedWait::default(),
        };
        match Attempt::run(self.index, bytes, &words) {
            Outcome::Granted { total } => Ok(total),
            Outcome::Denied { limit, used } => {
                let unseen = self.unseen(gpu);
                Err(Denied {
                    requested: bytes,
                    limit: limit.saturating_add(unseen),
                    used: used.saturating_add(unseen),
                })
            }
        }
    }

    /// Tries once more if dead processes were in the way.
    #[cold]
    fn refuse(&self, gpu: usize, denied: Denied) -> Result<u64, Denied> {
        if !self.is_mine() {
            return Err(denied);
        }
        let now = boot_time_ns();
        let last = self.reaped_at.load(Relaxed);
        let due = now.saturating_sub(last) >= REAP_INTERVAL_NS
            && self
                .reaped_at
                .compare_exchange(last, now, Relaxed, Relaxed)
                .is_ok();
        let freed = due && self.reap(now).is_ok_and(|reaped| reaped.freed > 0);
        if freed && let Ok(total) = self.attempt(gpu, denied.requested) {
            return Ok(total);
        }
        Err(denied)
    }

    /// A call has taken bytes of its claim ([`Hold::claim`]).
    pub fn note_use(&self, gpu: usize) {
        self.note_peak(gpu, self.used(gpu));
    }

    #[inline]
    fn note_peak(&self, gpu: usize, total: u64) {
        let Some(cell) = self.cell(gpu) else { return };
        let own = Word(cell.used.load(Relaxed)).bytes();
        let (ever, recent) = (&self.slots.gpus[gpu].peak, &self.slots.recent_peaks[gpu]);
        for (peak, value) in [(&cell.peak, own), (ever, total), (recent, total)] {
            if peak.load(Relaxed) < value {
                peak.fetch_max(value, Relaxed);
            }
        }
    }
}

/// Bytes reserved and not yet committed. Dropped, it gives them back.
#[derive(Debug)]
#[must_use = "dropping a hold gives its bytes back"]
pub struct Hold<'a> {
    slot: &'a ProcessSlot,
    gpu: usize,
    bytes: u64,
    total: u64,
}

impl Hold<'_> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The driver has given the bytes: they stay charged until [`ProcessSlot::release`].
    #[inline]
    pub fn commit(self) {
        self.slot.note_peak(self.gpu, self.total);
        std::mem::forget(self);
    }

    /// Keeps the bytes charged for a call that takes as many at most. They are no use yet:
    /// [`ProcessSlot::note_use`] says what the call has taken.
    #[inline]
    pub fn claim(self) {
        std::mem::forget(self);
    }

    /// The driver has given another size than was asked for: charges exactly that, even beyond the limit.
    pub fn commit_as(mut self, bytes: u64) {
        if bytes > self.bytes {
            self.slot.force(self.gpu, bytes - self.bytes);
        } else {
            self.slot.release(self.gpu, self.bytes - bytes);
            self.total = self.total.saturating_sub(self.bytes - bytes);
        }
        self.commit();
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.slot.release(self.gpu, self.bytes);
    }
}

fn note(word: &AtomicU64, bytes: i64) {
    let add = |value: u64| Some(value.saturating_add_signed(bytes));
    let _ = word.fetch_update(Relaxed, Relaxed, add);
}

#[inline]
fn update(word: &AtomicU64, change: impl Fn(Word) -> Option<Word>) -> bool {
    word.fetch_update(order::CHANGE, order::LOAD_WORD, |value| {
        change(Word(value)).map(|word| word.0)
    })
    .is_ok()
}

/// The mapped words of one GPU.
struct Words<'a> {
    slot: &'a ProcessSlot,
    gpu: usize,
    cell: &'a Cell,
    patience: BoundedWait,
}

impl Memory for Words<'_> {
    const STEPWISE: bool = false;
    /// The lines of shared allocations follow the slots, and are counted after them.
    const LIVE_WORDS: usize = LIVE_WORDS + SHARED_WORDS;

    #[inline]
    fn limit(&self) -> u64 {
        self.slot.limit_of_charges(self.gpu)
    }
    #[inline]
    fn live(&self, index: usize) -> u64 {
        let slots = &self.slot.slots;
        match index.checked_sub(LIVE_WORDS) {
            None => slots.live[index].load(order::LOAD_LIVE),
            Some(index) => slots.shared_live[self.gpu][index].load(order::LOAD_LIVE),
        }
    }
    #[inline]
    fn load(&self, slot: usize) -> Word {
        let slots = &self.slot.slots;
        Word(match slot.checked_sub(SLOTS) {
            None => slots.slots[slot].gpus[self.gpu].used.load(order::LOAD_WORD),
            Some(line) => slots.shared[line].used.load(order::LOAD_WORD),
        })
    }
    #[inline]
    fn sum(&self) -> u64 {
        self.slot.charged(self.gpu)
    }
    #[inline]
    fn update(&self, slot: usize, change: impl Fn(Word) -> Option<Word>) -> bool {
        debug_assert_eq!(slot, self.slot.index, "a process changes its own word only");
        update(&self.cell.used, change)
    }
    fn enter(&self) -> bool {
        self.slot.contended[self.gpu]
            .compare_exchange(false, true, SeqCst, SeqCst)
            .is_ok()
    }
    fn leave(&self) {
        self.slot.contended[self.gpu].store(false, SeqCst);
    }
    fn pause(&self) -> bool {
        // A rival that was killed while undecided is found dead and its bytes become firm.
        self.patience.pause(|| {
            let _ = self.slot.reap(boot_time_ns());
        })
    }
}

/// How long one reservation has waited for others to be decided. Deciding takes them some hundred nanoseconds of
/// processor time, so a long wait means that they are not running: first spin, then let them run, then sleep.
#[derive(Default)]
pub(crate) struct BoundedWait {
    rounds: Local<u32>,
    since: Local<u64>,
    looked: Local<u64>,
    ended: Local<bool>,
}

impl BoundedWait {
    /// About as long as a decision takes: more spins would only take time from the thread that decides.
    const SPINS: u32 = 32;
    /// A millisecond is a scheduler's tick: yielding for longer is busy waiting.
    const YIELD_NS: u64 = 1_000_000;
    /// Short beside the second of the bound, and long enough that a waiting thread takes no processor.
    const SLEEP_NS: u64 = 100_000;
    /// A look costs system calls; twenty in a second find a death soon enough.
    const LOOK_NS: u64 = 50_000_000;
    /// After this much, a rival has been stopped in the very middle; its bytes count as taken. A process that runs
    /// decides within microseconds, so a whole second means a stop, as by SIGSTOP.
    const END_NS: u64 = 1_000_000_000;

    /// Waits a little. A long wait calls `look` now and then. Returns `false`, without waiting, once the wait has been
    /// long enough. The caller then tries once more: the awaited bytes may have come last, and on a suspended machine
    /// no other process ran.
    pub fn pause(&self, look: impl FnOnce()) -> bool {
        if self.ended.get() {
            return false;
        }
        let rounds = self.rounds.get();
        self.rounds.set(rounds.saturating_add(1));
        if rounds < Self::SPINS {
            hint::spin_loop();
            return true;
        }
        let now = clock(libc::CLOCK_MONOTONIC);
        if rounds == Self::SPINS {
            self.since.set(now);
        }
        let waited = now.saturating_sub(self.since.get());
        if waited < Self::YIELD_NS {
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
        } else {
            if now.saturating_sub(self.looked.get()) >= Self::LOOK_NS {
                self.looked.set(now);
                look();
            }
            nap(Duration::from_nanos(Self::SLEEP_NS));
        }
        self.ended.set(waited >= Self::END_NS);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_wait_looks_once_more_at_its_end() {
        let patience = BoundedWait::default();
        patience.rounds.set(BoundedWait::SPINS + 1);
        patience
            .since
            .set(clock(libc::CLOCK_MONOTONIC).saturating_sub(BoundedWait::END_NS));
        assert!(patience.pause(|| {}));
        assert!(!patience.pause(|| unreachable!("it does not wait")));
    }
}
