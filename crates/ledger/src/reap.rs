//! Reaping: returns to the slice the bytes that dead processes held.
//!
//! A free life lock alone is not death: a program may have closed the descriptor that carried it. So one of these must
//! hold too:
//! - The process is gone by pid and start time.
//! - The process itself finds that it runs another program now.
//! - The caller says that the process has ended, or runs another program ([`Listed::Ended`]). The daemon sees all PID
//!   namespaces, and what the driver lists.
//!
//! Bytes of the dead stay charged until the driver no longer lists the process, or for two seconds from when its death
//! was first seen: until then the driver may not have given them back, and the next process would meet a real
//! out-of-memory.
//!
//! A process with a free lock is *doubtful* for two seconds if it lives in another PID namespace, or maps the slots file
//! no more. Meanwhile the daemon looks. Views show a doubtful process as ended, and an allocation that needs its bytes
//! waits. After that it counts as alive again, unless the daemon has released its slot.
//!
//! Every change of a slot's state happens under its change lock and after reading the state again, so reapers, joiners
//! and leavers may run at once. All access is to bytes that no living process writes; a word that is read half way
//! through being zeroed is between its old value and 0, which is as good as either.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU64};

use crate::account::Word;
use crate::layout::{Cell, GPUS, SLOTS_SIZE, SlotLines, SlotsFile, state};
use crate::lock;
use crate::map::word;
use crate::process::{self, Liveness, ProcessIdentity, boot_time_ns};
use crate::shared;

/// Nanoseconds for which a dead process's bytes stay charged when it is unknown whether the driver returned them. A
/// killed process's memory returned within 72 ms for 17 GB (H200, driver 580: docs/hardware.md). Two seconds leave room
/// for eight GPUs and a busy host; longer would delay honest allocations (012).
pub const DRIVER_RELEASE_TIMEOUT_NS: u64 = 2_000_000_000;

/// Whether the driver still lists a process, as far as the caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    Yes,
    No,
    /// It does not, and what joined has ended: the process, or the program that it ran.
    Ended,
    Unknown,
}

/// The result of a pass over the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reaped {
    /// Slots given back.
    pub freed: usize,
    /// Slots of dead or doubtful processes, and shared allocations without a holder, whose bytes are still charged.
    pub waiting: usize,
    /// Slots that another process was changing, so that nothing is known of them.
    pub contended: usize,
}

/// Looks at the given slots and gives back what dead owners held.
pub(crate) fn reap(
    file: SlotsAccess<'_>,
    slots: impl Iterator<Item = usize>,
    now: u64,
    listed: &dyn Fn(&ProcessIdentity) -> Listed,
) -> io::Result<Reaped> {
    let mut reaped = Reaped::default();
    if file.file.metadata()?.len() != SLOTS_SIZE as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    for slot in slots {
        match (SlotFile { file, slot }).reap(now, listed)? {
            ReapOutcome::Nothing => {}
            ReapOutcome::Freed => reaped.freed += 1,
            ReapOutcome::Waiting => reaped.waiting += 1,
            ReapOutcome::Contended => reaped.contended += 1,
        }
    }
    Ok(reaped)
}

/// Turns the slots of processes that have ended from live to dead.
pub(crate) fn note_ended(
    file: SlotsAccess<'_>,
    slots: impl Iterator<Item = usize>,
) -> io::Result<()> {
    let mut ended = Vec::new();
    for slot in slots {
        if !lock::is_locked(file.descriptor(), lock::life(slot))? {
            ended.push(slot);
        }
    }
    if !ended.is_empty() {
        reap(file, ended.into_iter(), boot_time_ns(), &|_| {
            Listed::Unknown
        })?;
    }
    Ok(())
}

/// The slots file of a reaper: read by `pread`, written through a mapping where the reaper has one.
///
/// The kernel holds `pwrite` to the process's file size limit, by the offset and also within the file: `ulimit -f 0` ends
/// the program by SIGXFSZ. Stores into a mapping have no such limit. The daemon has no mapping, because a job may cut
/// the file short.
#[derive(Clone, Copy)]
pub(crate) struct SlotsAccess<'a> {
    pub file: &'a File,
    pub mapped: Option<&'a SlotsFile>,
}

impl<'a> SlotsAccess<'a> {
    /// The access of a process that has not joined the slice.
    pub fn unmapped(file: &'a File) -> Self {
        Self { file, mapped: None }
    }

    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub fn read(&self, bytes: &mut [u8], at: usize) -> io::Result<()> {
        self.file.read_exact_at(bytes, at as u64)
    }

    /// Writes whole words, or less than one.
    pub fn write(&self, bytes: &[u8], at: usize) -> io::Result<()> {
        let Some(mapped) = self.mapped else {
            return self.file.write_all_at(bytes, at as u64);
        };
        let (words, rest) = bytes.as_chunks::<8>();
        let is_aligned = words.is_empty() || at.is_multiple_of(8);
        if at + bytes.len() > SLOTS_SIZE || !is_aligned {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = std::ptr::from_ref(mapped).cast::<AtomicU8>();
        for (index, word) in words.iter().enumerate() {
            // SAFETY: within the file, of which all is atomics (`SharedMemory`) and which is mapped at the start of a
            // page; a multiple of eight, as was asked above.
            let place = unsafe { &*start.add(at + index * 8).cast::<AtomicU64>() };
            place.store(u64::from_ne_bytes(*word), SeqCst);
        }
        for (index, byte) in rest.iter().enumerate() {
            // SAFETY: within the file.
            let place = unsafe { &*start.add(at + words.len() * 8 + index) };
            place.store(*byte, SeqCst);
        }
        Ok(())
    }
}

enum ReapOutcome {
    Nothing,
    Freed,
    Waiting,
    Contended,
}

/// One slot of the file.
struct SlotFile<'a> {
    file: SlotsAccess<'a>,
    slot: usize,
}

struct SlotIdentity {
    state: u64,
    owner: ProcessIdentity,
    dead_since: u64,
    image: u64,
}

/// What is known of the owner of a live slot.
enum Verdict {
    Lives,
    Doubtful,
    Died,
}

/// Whether an owner that was first found doubtful at `since` still is.
pub(crate) fn is_doubtful(since: u64, now: u64) -> bool {
    since != 0 && now.saturating_sub(since) < DRIVER_RELEASE_TIMEOUT_NS
}

/// Whether this process ran that image once and runs another one now.
fn was_replaced(image: u64) -> bool {
    let now = process::image();
    image != 0 && now != 0 && image != now
}

impl SlotFile<'_> {
    fn reap(
        &self,
        now: u64,
        listed: &dyn Fn(&ProcessIdentity) -> Listed,
    ) -> io::Result<ReapOutcome> {
        let seen = self.identity()?;
        match state::of(seen.state) {
            state::CLAIMED => {}
            state::LIVE => match self.judge(&seen, listed)? {
                Verdict::Died => {}
                Verdict::Doubtful => return self.doubt(&seen, now),
                Verdict::Lives => return Ok(ReapOutcome::Nothing),
            },
            state::DEAD => {}
            _ => return Ok(ReapOutcome::Nothing),
        }
        if !lock::try_lock(self.file.descriptor(), lock::change(self.slot))? {
            return Ok(ReapOutcome::Contended);
        }
        let found = self.advance(&seen, now, listed);
        lock::unlock(self.file.descriptor(), lock::change(self.slot));
        found
    }

    fn judge(
        &self,
        seen: &SlotIdentity,
        listed: &dyn Fn(&ProcessIdentity) -> Listed,
    ) -> io::Result<Verdict> {
        if lock::is_locked(self.file.descriptor(), lock::life(self.slot))? {
            return Ok(Verdict::Lives);
        }
        let owner = &seen.owner;
        Ok(match owner.liveness() {
            Liveness::Gone => Verdict::Died,
            // The process itself knows what it was before it ran another program.
            Liveness::Alive | Liveness::Stopped if *owner == ProcessIdentity::current() => {
                if was_replaced(seen.image) {
                    Verdict::Died
                } else {
                    Verdict::Lives
                }
            }
            liveness => match listed(owner) {
                Listed::Ended => Verdict::Died,
                Listed::Yes => Verdict::Lives,
                Listed::No | Listed::Unknown
                    if liveness == Liveness::Unknown || self.is_unmapped_by(owner.pid) =>
                {
                    Verdict::Doubtful
                }
                Listed::No | Listed::Unknown => Verdict::Lives,
            },
        })
    }

    /// Whether a process of this PID namespace is known not to map the slots file.
    fn is_unmapped_by(&self, pid: u32) -> bool {
        let mapped = self.file.mapped.map(std::ptr::from_ref);
        mapped.is_some_and(|mapped| process::maps_other_files(pid, mapped.cast()))
    }

    /// Begins the time in which the owner is doubtful.
    fn doubt(&self, seen: &SlotIdentity, now: u64) -> io::Result<ReapOutcome> {
        if seen.dead_since == 0 {
            if !lock::try_lock(self.file.descriptor(), lock::change(self.slot))? {
                return Ok(ReapOutcome::Contended);
            }
            let current = self.identity();
            let result = match current {
                Ok(current) if current.state == seen.state && current.dead_since == 0 => {
                    self.write(offset_of!(SlotLines, dead_since), &now.to_ne_bytes())
                }
                current => current.map(drop),
            };
            lock::unlock(self.file.descriptor(), lock::change(self.slot));
            result?;
        }
        let waits = seen.dead_since == 0 || is_doubtful(seen.dead_since, now);
        if waits && !self.holds_nothing()? {
            Ok(ReapOutcome::Waiting)
        } else {
            Ok(ReapOutcome::Nothing)
        }
    }

    /// Moves a slot without a living owner on towards free. The change lock is held.
    fn advance(
        &self,
        seen: &SlotIdentity,
        now: u64,
        listed: &dyn Fn(&ProcessIdentity) -> Listed,
    ) -> io::Result<ReapOutcome> {
        let current = self.identity()?;
        if current.state != seen.state {
            return Ok(ReapOutcome::Contended);
        }
        let mut dead_since = current.dead_since;
        match state::of(current.state) {
            // Its claimer held the change lock until live, so it died before it could charge anything.
            state::CLAIMED => return self.free(),
            state::LIVE => {
                self.finalize_undecided()?;
                dead_since = now;
                self.write(offset_of!(SlotLines, dead_since), &now.to_ne_bytes())?;
                // A mark that the kernel did not change, because the program had replaced its robust list.
                self.write(offset_of!(SlotLines, mark.thread), &[0; 8])?;
                self.write_state(state::DEAD)?;
            }
            _ => {}
        }
        if dead_since > now {
            dead_since = now;
            self.write(offset_of!(SlotLines, dead_since), &now.to_ne_bytes())?;
        }
        let returned = now - dead_since >= DRIVER_RELEASE_TIMEOUT_NS
            || self.holds_nothing()?
            || matches!(listed(&current.owner), Listed::No | Listed::Ended);
        if returned {
            self.free()
        } else {
            Ok(ReapOutcome::Waiting)
        }
    }

    fn holds_nothing(&self) -> io::Result<bool> {
        for gpu in 0..GPUS {
            if self.used(gpu)?.bytes() > 0 {
                return Ok(false);
            }
        }
        Ok(!shared::holds_any(self.file, self.slot)?)
    }

    /// Makes the undecided bytes of a dead owner firm, so that no other process waits for them.
    fn finalize_undecided(&self) -> io::Result<()> {
        for gpu in 0..GPUS {
            let used = self.used(gpu)?;
            if used.undecided() > 0 {
                self.write(used_at(gpu), &used.firm().0.to_ne_bytes())?;
            }
        }
        Ok(())
    }

    fn used(&self, gpu: usize) -> io::Result<Word> {
        let mut used = [0; 8];
        self.file.read(&mut used, self.offset(used_at(gpu)))?;
        Ok(Word(u64::from_ne_bytes(used)))
    }

    fn free(&self) -> io::Result<ReapOutcome> {
        const CELLS: usize = GPUS * size_of::<Cell>();
        self.write(offset_of!(SlotLines, gpus), &[0; CELLS])?;
        self.write_state(state::FREE)?;
        Ok(ReapOutcome::Freed)
    }

    fn identity(&self) -> io::Result<SlotIdentity> {
        let mut line = [0; 64];
        self.file.read(&mut line, self.offset(0))?;
        Ok(SlotIdentity {
            state: word(&line, offset_of!(SlotLines, state)),
            owner: ProcessIdentity {
                pid: word(&line, offset_of!(SlotLines, pid)) as u32,
                start_time: word(&line, offset_of!(SlotLines, start_time)),
                pid_namespace: word(&line, offset_of!(SlotLines, pid_namespace)),
            },
            dead_since: word(&line, offset_of!(SlotLines, dead_since)),
            image: word(&line, offset_of!(SlotLines, image)),
        })
    }

    /// One byte, so that it changes at once; the number of claims above it stays.
    fn write_state(&self, state: u8) -> io::Result<()> {
        let lowest = if cfg!(target_endian = "little") { 0 } else { 7 };
        self.write(offset_of!(SlotLines, state) + lowest, &[state])
    }

    fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.write(bytes, self.offset(at))
    }

    fn offset(&self, at: usize) -> usize {
        offset_of!(SlotsFile, slots) + self.slot * size_of::<SlotLines>() + at
    }
}

/// Where in a slot the word of a GPU is.
fn used_at(gpu: usize) -> usize {
    offset_of!(SlotLines, gpus) + gpu * size_of::<Cell>() + offset_of!(Cell, used)
}
