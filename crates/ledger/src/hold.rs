//! A process's own slot, and what it holds.

use std::cell::Cell as Local;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::{fmt, hint};

use crate::account::{Attempt, MOST_BYTES, Memory, Outcome, Word};
use crate::fork::Epoch;
use crate::layout::{Cell, ControlFile, GPUS, LIVE_WORDS, SLOTS, SlotsFile, state};
use crate::lock::{self, LockFile};
use crate::map::{self, Map, OpenError};
use crate::process::{Owner, boot_time_ns, clock};
use crate::recover::{self, Listed, Reaped};
use crate::slice::{ProcessGpu, ProcessState, ProcessUsage, Slice, Usage};

/// A reservation was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denied {
    pub asked: u64,
    pub limit: u64,
    /// Bytes in use by all processes of the slice, without `asked`.
    pub used: u64,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, limit, used } = self;
        write!(
            f,
            "{asked} bytes do not fit: {used} of {limit} bytes are in use"
        )
    }
}

impl std::error::Error for Denied {}

/// Why a process could not join its slice.
#[derive(Debug)]
pub enum JoinError {
    /// The slice's files are not sound.
    Open(OpenError),
    /// All slots are taken.
    Full { processes: usize },
    /// The system refused an operation.
    Io {
        operation: &'static str,
        source: io::Error,
    },
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => error.fmt(f),
            Self::Full { processes } => write!(
                f,
                "the slice has {processes} processes already, the most it can have"
            ),
            Self::Io { operation, source } => {
                write!(f, "joining the slice failed at {operation}: {source}")
            }
        }
    }
}

impl std::error::Error for JoinError {}

impl From<OpenError> for JoinError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// This process's place in its slice. Shared by all threads; worthless in a fork child, which must join itself.
pub struct Slot {
    slice: Slice,
    control: Map<ControlFile>,
    slots: Map<SlotsFile>,
    index: usize,
    /// The state word of this claim while it is live.
    claim: u64,
    owner: Owner,
    lock: LockFile,
    epoch: Epoch,
    contended: [AtomicBool; GPUS],
    overhead: [AtomicU8; GPUS],
    /// When this process last looked for dead ones.
    reaped_at: AtomicU64,
}

/// Whether this process's context on a GPU is charged.
mod overhead {
    pub const NONE: u8 = 0;
    pub const BEING_CHARGED: u8 = 1;
    pub const CHARGED: u8 = 2;
}

/// Least nanoseconds between two looks for dead processes from within reservations.
const REAP_INTERVAL_NS: u64 = 5_000_000;
/// Longest that a reservation waits for rivals to be decided, in nanoseconds.
const PATIENCE_NS: u64 = 20_000_000;

impl Slice {
    /// Takes a slot for this process.
    ///
    /// # Errors
    /// The files are not sound any more, 1024 processes are in the slice, or a system call failed.
    pub fn join(&self) -> Result<Slot, JoinError> {
        let io = |operation| move |source| JoinError::Io { operation, source };
        let epoch = Epoch::now().map_err(io("mmap"))?;
        let (control, _) = map::open(&self.control, map::CONTROL, false)?;
        let slots = self.open_slots(true)?;
        let control = Map::new(&control, false).map_err(io("mmap of control"))?;
        let map = Map::<SlotsFile>::new(&slots, true).map_err(io("mmap of slots"))?;
        let lock = LockFile::new(slots, epoch).map_err(io("fstat of slots"))?;
        let owner = Owner::me();
        let claim = |slot| claim(&map, &lock, slot, &owner).map_err(io("lock of a slot"));
        let mut claimed = None;
        for pass in 0..2 {
            for slot in 0..SLOTS {
                if let Some(word) = claim(slot)? {
                    claimed = Some((slot, word));
                    break;
                }
            }
            if claimed.is_some() || pass == 1 {
                break;
            }
            self.reap(boot_time_ns(), &|_| Listed::Unknown)?;
        }
        let (index, claim) = claimed.ok_or(JoinError::Full { processes: SLOTS })?;
        Ok(Slot {
            slice: self.clone(),
            control,
            slots: map,
            index,
            claim,
            owner,
            lock,
            epoch,
            contended: Default::default(),
            overhead: Default::default(),
            reaped_at: AtomicU64::new(0),
        })
    }
}

/// Takes one slot if it is free. Killed in between, both locks drop and the slot is free or claimed, never charged.
fn claim(
    slots: &SlotsFile,
    lock: &LockFile,
    index: usize,
    owner: &Owner,
) -> io::Result<Option<u64>> {
    let slot = &slots.slots[index];
    let free = slot.state.load(SeqCst);
    if state::of(free) != state::FREE {
        return Ok(None);
    }
    let file = lock
        .descriptor()
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    if !lock::try_lock(file, lock::change(index))? {
        return Ok(None);
    }
    let claimed = state::claim(free);
    // A free slot can still have its life locked, by a fork child that inherited the descriptor.
    let taken = lock::try_lock(file, lock::life(index))?
        && slot
            .state
            .compare_exchange(free, claimed, SeqCst, SeqCst)
            .is_ok();
    if !taken {
        lock::unlock(file, lock::life(index));
        lock::unlock(file, lock::change(index));
        return Ok(None);
    }
    slot.pid.store(owner.pid, SeqCst);
    slot.start_time.store(owner.start_time, SeqCst);
    slot.pid_namespace.store(owner.pid_namespace, SeqCst);
    slot.dead_since.store(0, SeqCst);
    for cell in &slot.gpus {
        clear(cell);
    }
    slots.live[index / 64].fetch_or(1 << (index % 64), SeqCst);
    let live = state::with(claimed, state::LIVE);
    slot.state.store(live, SeqCst);
    lock::unlock(file, lock::change(index));
    Ok(Some(live))
}

fn clear(cell: &Cell) {
    let Cell {
        used,
        overhead,
        managed,
        host,
        peak,
        denied,
        last_denied_size,
        last_denied_at,
    } = cell;
    for word in [
        used,
        overhead,
        managed,
        host,
        peak,
        denied,
        last_denied_size,
        last_denied_at,
    ] {
        word.store(0, SeqCst);
    }
}

impl Slot {
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// Position of the slot in the slice.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether this slot is still this process's own: not inherited by fork, not taken back.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.epoch.is_now() && self.slots.slots[self.index].state.load(Acquire) == self.claim
    }

    /// Whether this process was forked from the one that joined; it must join itself.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        !self.epoch.is_now()
    }

    /// The limit of a GPU in bytes, as of now; 0 for a GPU the slice does not have.
    #[inline]
    pub fn limit(&self, gpu: usize) -> u64 {
        if gpu >= self.slice.gpus().len() {
            return 0;
        }
        self.control
            .gpus
            .get(gpu)
            .map_or(0, |gpu| gpu.limit.load(SeqCst))
    }

    /// What a context on a GPU is taken to cost, in bytes, as of now.
    pub fn overhead(&self, gpu: usize) -> u64 {
        if gpu >= self.slice.gpus().len() {
            return 0;
        }
        self.control
            .gpus
            .get(gpu)
            .map_or(0, |gpu| gpu.overhead.load(SeqCst))
    }

    /// Reserves bytes of a GPU before the driver is asked for them. 0 bytes are always granted.
    ///
    /// # Errors
    /// They do not fit the slice's limit, the slice does not have that GPU, or the slot is not this process's own.
    #[inline]
    pub fn reserve(&self, gpu: usize, bytes: u64) -> Result<Hold<'_>, Denied> {
        match self.attempt(gpu, bytes) {
            Ok(total) => Ok(Hold {
                slot: self,
                gpu,
                bytes,
                total,
            }),
            Err(denied) => self.reserve_again(gpu, denied),
        }
    }

    /// Gives back bytes that were committed.
    #[inline]
    pub fn release(&self, gpu: usize, bytes: u64) {
        let Some(cell) = self.cell(gpu) else { return };
        let before = cell.used.load(Relaxed);
        if Word(before).bytes() < bytes {
            self.alarm();
        }
        update(&cell.used, |word| Some(word.release(bytes)));
    }

    /// Charges bytes that exist already, whatever the limit says.
    pub fn force(&self, gpu: usize, bytes: u64) {
        let Some(cell) = self.cell(gpu) else { return };
        update(&cell.used, |word| Some(word.force(bytes)));
        self.note_peak(gpu, self.used(gpu));
    }

    /// Charges this process's context on a GPU before it is made. `false` when it is charged already.
    ///
    /// # Errors
    /// As [`Slot::reserve`].
    pub fn charge_overhead(&self, gpu: usize) -> Result<bool, Denied> {
        self.add_overhead(gpu, |bytes| self.reserve(gpu, bytes).map(Hold::commit))
    }

    /// Charges this process's context on a GPU that exists already, whatever the limit says. `false` when it is
    /// charged already.
    pub fn force_overhead(&self, gpu: usize) -> bool {
        let charge = |bytes| {
            self.force(gpu, bytes);
            Ok(())
        };
        self.add_overhead(gpu, charge).unwrap_or(false)
    }

    /// Gives back the charge of this process's context on a GPU.
    pub fn release_overhead(&self, gpu: usize) {
        let (Some(cell), Some(charged)) = (self.cell(gpu), self.overhead.get(gpu)) else {
            return;
        };
        if charged
            .compare_exchange(overhead::CHARGED, overhead::BEING_CHARGED, SeqCst, SeqCst)
            .is_ok()
        {
            let bytes = cell.overhead.swap(0, SeqCst);
            self.release(gpu, bytes);
            charged.store(overhead::NONE, SeqCst);
        }
    }

    fn add_overhead(
        &self,
        gpu: usize,
        charge: impl FnOnce(u64) -> Result<(), Denied>,
    ) -> Result<bool, Denied> {
        let bytes = self.overhead(gpu);
        let (Some(cell), Some(charged)) = (self.cell(gpu), self.overhead.get(gpu)) else {
            return Err(Denied {
                asked: bytes,
                limit: 0,
                used: 0,
            });
        };
        let patience = Patience::default();
        loop {
            match charged.compare_exchange(overhead::NONE, overhead::BEING_CHARGED, SeqCst, SeqCst)
            {
                Ok(_) => break,
                Err(overhead::CHARGED) => return Ok(false),
                Err(_) if patience.pause() => {}
                Err(_) => {
                    return Err(Denied {
                        asked: bytes,
                        limit: self.limit(gpu),
                        used: 0,
                    });
                }
            }
        }
        let result = charge(bytes);
        if result.is_ok() {
            cell.overhead.store(bytes, SeqCst);
        }
        charged.store(
            if result.is_ok() {
                overhead::CHARGED
            } else {
                overhead::NONE
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

    /// What the slice uses of one GPU; zero for a GPU it does not have.
    pub fn usage(&self, gpu: usize) -> Usage {
        let limit = self.limit(gpu);
        let Some(kept) = self
            .slots
            .gpus
            .get(gpu)
            .filter(|_| gpu < self.slice.gpus().len())
        else {
            return Usage::default();
        };
        let start = Usage {
            limit,
            peak: kept.peak.load(Relaxed),
            denied: kept.denied.load(Relaxed),
            last_denied_size: kept.last_denied_size.load(Relaxed),
            last_denied_at: kept.last_denied_at.load(Relaxed),
            ..Usage::default()
        };
        self.live_slots()
            .fold(start, |sum, slot| {
                sum.with(&process_gpu(&self.slots.slots[slot].gpus[gpu]))
            })
            .finish()
    }

    /// The living process of this PID namespace with this pid, if it has a slot.
    pub fn process(&self, pid: u32) -> Option<ProcessUsage> {
        self.live_slots().find_map(|index| {
            let slot = &self.slots.slots[index];
            let owner = Owner {
                pid: slot.pid.load(Relaxed),
                start_time: slot.start_time.load(Relaxed),
                pid_namespace: slot.pid_namespace.load(Relaxed),
            };
            let mine = owner.pid == pid
                && owner.pid_namespace == self.owner.pid_namespace
                && state::of(slot.state.load(SeqCst)) == state::LIVE;
            mine.then(|| {
                let mut gpus = [ProcessGpu::default(); GPUS];
                for (gpu, cell) in gpus
                    .iter_mut()
                    .zip(&slot.gpus)
                    .take(self.slice.gpus().len())
                {
                    *gpu = process_gpu(cell);
                }
                ProcessUsage {
                    slot: index,
                    owner,
                    state: ProcessState::Live,
                    gpus,
                }
            })
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

    /// Gives back what dead processes of this PID namespace held, two seconds after they were first seen dead.
    /// `now`: [`boot_time_ns`].
    ///
    /// # Errors
    /// The slots file cannot be opened any more.
    pub fn reap(&self, now: u64) -> Result<Reaped, OpenError> {
        let file = self.slice.open_slots(true)?;
        let others = self.live_slots().filter(|slot| *slot != self.index);
        let reaped = recover::reap(&file, others, now, &|_| Listed::Unknown)
            .map_err(|error| map::failed(&self.slice.slots, "reap", error))?;
        self.tidy(file.as_raw_fd());
        Ok(reaped)
    }

    /// Clears the bits of slots that are free, so that counting does not touch them.
    fn tidy(&self, file: i32) {
        for index in self.live_slots() {
            let is_free = || state::of(self.slots.slots[index].state.load(SeqCst)) == state::FREE;
            if is_free() && lock::try_lock(file, lock::change(index)).unwrap_or(false) {
                if is_free() {
                    self.slots.live[index / 64].fetch_and(!(1 << (index % 64)), SeqCst);
                }
                lock::unlock(file, lock::change(index));
            }
        }
    }

    fn attempt(&self, gpu: usize, bytes: u64) -> Result<u64, Denied> {
        if bytes == 0 {
            return Ok(0);
        }
        let limit = self.limit(gpu);
        let Some(cell) = self.cell(gpu) else {
            return Err(Denied {
                asked: bytes,
                limit: 0,
                used: 0,
            });
        };
        if bytes > limit.min(MOST_BYTES) {
            return Err(Denied {
                asked: bytes,
                limit,
                used: self.used(gpu),
            });
        }
        let words = Words {
            slot: self,
            gpu,
            cell,
            patience: Patience::default(),
        };
        match Attempt::new(self.index, bytes).run(&words) {
            Outcome::Granted { total } => Ok(total),
            Outcome::Denied { limit, used } => Err(Denied {
                asked: bytes,
                limit,
                used,
            }),
        }
    }

    /// Perhaps what is in the way belongs to the dead.
    #[cold]
    fn reserve_again(&self, gpu: usize, denied: Denied) -> Result<Hold<'_>, Denied> {
        let bytes = denied.asked;
        let now = boot_time_ns();
        let last = self.reaped_at.load(Relaxed);
        let due = now.saturating_sub(last) >= REAP_INTERVAL_NS
            && self.is_mine()
            && self
                .reaped_at
                .compare_exchange(last, now, Relaxed, Relaxed)
                .is_ok();
        if due
            && self.reap(now).is_ok_and(|reaped| reaped.freed > 0)
            && let Ok(total) = self.attempt(gpu, bytes)
        {
            return Ok(Hold {
                slot: self,
                gpu,
                bytes,
                total,
            });
        }
        if let (Some(cell), Some(kept)) = (self.cell(gpu), self.slots.gpus.get(gpu)) {
            cell.denied.fetch_add(1, Relaxed);
            cell.last_denied_size.store(bytes, Relaxed);
            cell.last_denied_at.store(now, Relaxed);
            kept.denied.fetch_add(1, Relaxed);
            kept.last_denied_size.store(bytes, Relaxed);
            kept.last_denied_at.store(now, Relaxed);
        }
        Err(denied)
    }

    /// This process's words of a GPU; `None` when the slice does not have it or the slot is not ours.
    #[inline]
    fn cell(&self, gpu: usize) -> Option<&Cell> {
        if gpu >= self.slice.gpus().len() || !self.is_mine() {
            return None;
        }
        self.slots.slots[self.index].gpus.get(gpu)
    }

    /// Bytes of a GPU (one the slice has) that all processes use.
    fn used(&self, gpu: usize) -> u64 {
        let word = |slot: usize| Word(self.slots.slots[slot].gpus[gpu].used.load(SeqCst));
        let bytes = self.live_slots().map(|slot| word(slot).bytes());
        bytes.fold(0, u64::saturating_add)
    }

    fn note_peak(&self, gpu: usize, total: u64) {
        let (Some(cell), Some(kept)) = (self.cell(gpu), self.slots.gpus.get(gpu)) else {
            return;
        };
        let own = Word(cell.used.load(Relaxed)).bytes();
        for (peak, value) in [(&cell.peak, own), (&kept.peak, total)] {
            if peak.load(Relaxed) < value {
                peak.fetch_max(value, Relaxed);
            }
        }
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

impl Drop for Slot {
    /// Frees the slot when nothing is charged to it. Otherwise it stays until this process is gone: the driver still
    /// holds what was never released.
    fn drop(&mut self) {
        if !self.is_mine() {
            return;
        }
        let slot = &self.slots.slots[self.index];
        let empty = slot.gpus.iter().all(|cell| cell.used.load(SeqCst) == 0);
        let Some(file) = self.lock.descriptor().filter(|_| empty) else {
            return;
        };
        if lock::try_lock(file, lock::change(self.index)).unwrap_or(false) {
            for cell in &slot.gpus {
                clear(cell);
            }
            let free = state::with(self.claim, state::FREE);
            if slot
                .state
                .compare_exchange(self.claim, free, SeqCst, SeqCst)
                .is_ok()
            {
                self.slots.live[self.index / 64].fetch_and(!(1 << (self.index % 64)), SeqCst);
            }
            lock::unlock(file, lock::life(self.index));
            lock::unlock(file, lock::change(self.index));
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("index", &self.index)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// Bytes reserved and not yet committed. Dropped, it gives them back.
#[derive(Debug)]
#[must_use = "dropping a hold gives its bytes back"]
pub struct Hold<'a> {
    slot: &'a Slot,
    gpu: usize,
    bytes: u64,
    total: u64,
}

impl Hold<'_> {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The driver has given the bytes: they stay charged until [`Slot::release`].
    #[inline]
    pub fn commit(self) {
        self.slot.note_peak(self.gpu, self.total);
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

fn process_gpu(cell: &Cell) -> ProcessGpu {
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

fn note(word: &AtomicU64, bytes: i64) {
    let add = |value: u64| Some(value.saturating_add_signed(bytes));
    let _ = word.fetch_update(Relaxed, Relaxed, add);
}

#[inline]
fn update(word: &AtomicU64, change: impl Fn(Word) -> Option<Word>) -> bool {
    word.fetch_update(SeqCst, SeqCst, |value| {
        change(Word(value)).map(|word| word.0)
    })
    .is_ok()
}

/// The mapped words of one GPU.
struct Words<'a> {
    slot: &'a Slot,
    gpu: usize,
    cell: &'a Cell,
    patience: Patience,
}

impl Memory for Words<'_> {
    const STEPWISE: bool = false;
    const LIVE_WORDS: usize = LIVE_WORDS;

    #[inline]
    fn limit(&self) -> u64 {
        self.slot.limit(self.gpu)
    }
    #[inline]
    fn live(&self, index: usize) -> u64 {
        self.slot.slots.live[index].load(SeqCst)
    }
    #[inline]
    fn load(&self, slot: usize) -> Word {
        Word(self.slot.slots.slots[slot].gpus[self.gpu].used.load(SeqCst))
    }
    #[inline]
    fn update(&self, slot: usize, change: impl Fn(Word) -> Option<Word>) -> bool {
        debug_assert_eq!(slot, self.slot.index);
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
        self.patience.pause()
    }
}

/// How long one reservation has waited: first spinning, then letting others run.
#[derive(Default)]
struct Patience {
    rounds: Local<u32>,
    since: Local<u64>,
}

impl Patience {
    fn pause(&self) -> bool {
        let rounds = self.rounds.get();
        self.rounds.set(rounds.saturating_add(1));
        if rounds < 32 {
            hint::spin_loop();
            return true;
        }
        let now = clock(libc::CLOCK_MONOTONIC);
        if rounds == 32 {
            self.since.set(now);
        }
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
        now.saturating_sub(self.since.get()) < PATIENCE_NS
    }
}
