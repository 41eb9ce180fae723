//! Joining and leaving a slice: a process takes a free slot of the ledger and gives it back.

use std::os::fd::RawFd;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::{fmt, io};

use crate::account::Word;
use crate::compute;
use crate::fork::{Epoch, Opening};
use crate::integrity::FileWatch;
use crate::layout::{Cell, ControlFile, SHARED_WORDS, SLOTS, SlotsFile, state};
use crate::lock::{self, LockFile};
use crate::map::{self, Map, OpenError};
use crate::process::{ProcessIdentity, boot_time_ns, image};
use crate::reap::{Listed, SlotsAccess};
use crate::slice::Slice;
use crate::slot::{MarkedBy, ProcessSlot, set_live};

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
            Self::Full { processes } => {
                write!(
                    f,
                    "the slice already has {processes} processes, the maximum"
                )
            }
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

impl Slice {
    /// Takes a slot for this process. Some 40 µs; 300 processes at once do not wait for each other.
    ///
    /// # Errors
    /// The files are not sound any more, 1024 processes are in the slice, or a system call failed.
    pub fn join(&self) -> Result<ProcessSlot, JoinError> {
        self.join_as(ProcessIdentity::current())
    }

    /// As [`Slice::join`], under another name than this process's own: for a simulation, in which one process stands for many.
    /// The slot's lock is this process's all the same, and goes when the slot is dropped.
    ///
    /// # Errors
    /// As [`Slice::join`].
    pub fn join_as(&self, owner: ProcessIdentity) -> Result<ProcessSlot, JoinError> {
        let io = |operation| move |source| JoinError::Io { operation, source };
        let epoch = Epoch::now().map_err(io("mmap"))?;
        let (control, _) = self.open_file(map::CONTROL, false)?;
        let watch = FileWatch::new(&control.metadata().map_err(io("fstat of control"))?);
        let opening = Opening::begin();
        let file = self.open_slots(true)?;
        let control = Map::<ControlFile>::new(&control, false).map_err(io("mmap of control"))?;
        let slots = Map::<SlotsFile>::new(&file, true).map_err(io("mmap of slots"))?;
        // A mapping keeps its open file alive, in fork children too, and with it every lock on it: hence a second one.
        let lock = LockFile::new(self.open_slots(true)?, epoch).map_err(io("fstat of slots"))?;
        drop(opening);
        let mut claimed = claim_any(&slots, &lock, &owner).map_err(io("lock of a slot"))?;
        if claimed.is_none() {
            let access = SlotsAccess {
                file: &file,
                mapped: Some(&slots),
            };
            self.reap_slots(access, 0..SLOTS, boot_time_ns(), &|_| Listed::Unknown)?;
            claimed = claim_any(&slots, &lock, &owner).map_err(io("lock of a slot"))?;
        }
        let (index, claim) = claimed.ok_or(JoinError::Full { processes: SLOTS })?;
        let slot = ProcessSlot {
            slice: self.clone(),
            control,
            slots,
            index,
            claim,
            owner,
            lock,
            epoch,
            contended: Default::default(),
            context: Default::default(),
            sharing: Mutex::default(),
            let_in: Default::default(),
            reaped_at: AtomicU64::new(0),
            marked_by: MarkedBy::default(),
            watch,
        };
        // The two seconds of a predecessor that crashed begin now, not with the first reservation that does not fit.
        // Whether that works is no condition for joining.
        let _ = slot.reap_in(&file, boot_time_ns());
        Ok(slot)
    }
}

fn claim_any(
    slots: &SlotsFile,
    lock: &LockFile,
    owner: &ProcessIdentity,
) -> io::Result<Option<(usize, u64)>> {
    for index in 0..SLOTS {
        if state::of(slots.slots[index].state.load(SeqCst)) == state::FREE {
            let closed = || io::Error::from_raw_os_error(libc::EBADF);
            let file = lock.descriptor().ok_or_else(closed)?;
            if let Some(claim) = claim(slots, file, index, owner)? {
                return Ok(Some((index, claim)));
            }
        }
    }
    Ok(None)
}

/// Takes one slot if it is free. A process killed in here leaves it free or claimed, both locks open, nothing charged.
fn claim(
    slots: &SlotsFile,
    file: RawFd,
    index: usize,
    owner: &ProcessIdentity,
) -> io::Result<Option<u64>> {
    if !lock::try_lock(file, lock::change(index))? {
        return Ok(None);
    }
    let slot = &slots.slots[index];
    let free = slot.state.load(SeqCst);
    let claimed = state::claim(free);
    // A free slot can still have its life locked, by a fork child that kept the descriptor.
    let taken = state::of(free) == state::FREE
        && lock::try_lock(file, lock::life(index))?
        && slot
            .state
            .compare_exchange(free, claimed, SeqCst, SeqCst)
            .is_ok();
    let live = state::with(claimed, state::LIVE);
    if taken {
        slot.pid.store(owner.pid, SeqCst);
        slot.abilities.store(state::wakes(claimed), SeqCst);
        slot.start_time.store(owner.start_time, SeqCst);
        slot.pid_namespace.store(owner.pid_namespace, SeqCst);
        slot.dead_since.store(0, SeqCst);
        slot.image.store(image(), SeqCst);
        slot.mark.thread.store(0, SeqCst);
        slot.gpus.iter().for_each(clear);
        compute::forget(slot);
        hold_nothing(slots, index);
        set_live(slots, index, true);
        slot.state.store(live, SeqCst);
    } else {
        lock::unlock(file, lock::life(index));
    }
    lock::unlock(file, lock::change(index));
    Ok(taken.then_some(live))
}

/// Clears the last owner's shared allocations from a slot, before its next owner takes it. A line that is not live has
/// no holders: they are cleared when it is taken. So its pages need not be touched.
fn hold_nothing(slots: &SlotsFile, index: usize) {
    let live = (0..SHARED_WORDS).map(|word| {
        let on_gpu = |live: &[AtomicU64; SHARED_WORDS]| live[word].load(SeqCst);
        slots
            .shared_live
            .iter()
            .map(on_gpu)
            .fold(0, |any, live| any | live)
    });
    for line in map::bits(live) {
        let holders = &slots.shared[line].holders[index / 64];
        if holders.load(SeqCst) >> (index % 64) & 1 == 1 {
            holders.fetch_and(!(1 << (index % 64)), SeqCst);
        }
    }
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

impl Drop for ProcessSlot {
    fn drop(&mut self) {
        let slot = &self.slots.slots[self.index];
        let holds_nothing = |cell: &Cell| {
            let used = Word(cell.used.load(SeqCst));
            used.bytes() == 0 && used.undecided() == 0
        };
        if !self.is_mine() || !slot.gpus.iter().all(holds_nothing) || self.holds_shared() {
            return;
        }
        let Some(file) = self.lock.descriptor() else {
            return;
        };
        // A process that inspects this slot right now finds its life lock held and leaves it alone.
        if lock::try_lock(file, lock::change(self.index)).unwrap_or(false) {
            let free = state::with(self.claim, state::FREE);
            if slot
                .state
                .compare_exchange(self.claim, free, SeqCst, SeqCst)
                .is_ok()
            {
                set_live(&self.slots, self.index, false);
            }
            lock::unlock(file, lock::life(self.index));
            lock::unlock(file, lock::change(self.index));
        }
    }
}
