//! The denial log: records of refused allocations, kept in the slice so that they outlive the process.
//!
//! ```text
//! Slot::record ──► a line of 64 words, the last of them a checksum ──► Slice::denials
//! ```
//! The first half of the lines keeps the first refusals of the slice, the second half the last ones. No process waits:
//! a line written by two processes at once, or by one that was killed half way, has a wrong checksum, and readers skip
//! it. The caller decides whether a refusal deserves a record; every refusal is counted ([`ProcessSlot::count_denial`]).

mod line;

use std::fmt;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::layout::{DENIALS, DenialLine, DenialLog, SlotsFile};
use crate::map::{self, OpenError, word};
use crate::process::{ProcessIdentity, boot_time_ns};
use crate::slice::Slice;
use crate::slot::ProcessSlot;
use line::{Words, at, decode, encode, line_of};

/// Most allocations, and most other processes, that a record names. A report of a screen: the eight largest are most of
/// the memory. Each further one takes a word or more of a line of 512 bytes.
pub const NAMED: usize = 8;

/// Why a process did not get memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DenialCause {
    /// It would have taken the slice beyond its limit.
    #[default]
    SliceFull,
    /// The slice had room and the driver had none.
    GpuFull,
    /// The GPU is not one of the slice's.
    NotInSlice,
    /// The driver had none of something else: the call asked for no memory that is counted.
    Other,
}

/// The kind of call that made an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum AllocationKind {
    /// `cuMemAlloc` and its kin.
    #[default]
    Linear,
    Managed,
    /// The reserved memory of a memory pool, with all allocations from it.
    Pool,
    /// `cuMemCreate`.
    Handle,
    Array,
    Graph,
    /// Of another slice, or shared with another process.
    Imported,
    /// A context, and what comes with it.
    Context,
    Other,
}

/// Allocations of one size and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocationGroup {
    /// Bytes of each.
    pub bytes: u64,
    pub count: u32,
    pub kind: AllocationKind,
}

/// Another process of the slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peer {
    /// As seen in its own PID namespace.
    pub pid: u32,
    pub used: u64,
}

/// Text of a fixed length; what is not a printable ASCII character is shown as `?`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Default for Text<BYTES> {
    fn default() -> Self {
        Self([0; BYTES])
    }
}

impl<const BYTES: usize> Text<BYTES> {
    /// As much of `text` as there is room for.
    pub fn new(text: &[u8]) -> Self {
        let mut bytes = [0; BYTES];
        for (to, from) in bytes
            .iter_mut()
            .zip(text.iter().take_while(|byte| **byte != 0))
        {
            let shown = from.is_ascii_graphic() || *from == b' ';
            *to = if shown { *from } else { b'?' };
        }
        Self(bytes)
    }

    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(BYTES);
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }
}

impl<const BYTES: usize> fmt::Debug for Text<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A process's report of its refusal.
#[derive(Debug, Clone, Copy, Default)]
pub struct DenialReport<'a> {
    /// The function that the program called.
    pub api: &'a [u8],
    /// The GPU's place in the slice; `None` for a GPU that is not in it.
    pub gpu: Option<usize>,
    /// Bytes asked for.
    pub requested: u64,
    pub cause: DenialCause,
    /// The GPU's free and total memory by the driver, in bytes; 0 means unknown.
    pub gpu_free: u64,
    pub gpu_total: u64,
    /// This process's largest allocations on the GPU, largest first.
    pub largest: &'a [AllocationGroup],
    /// How many allocations it has there.
    pub allocations: u64,
    /// Refusals of this process since its last record, without this one.
    pub skipped: u64,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Denial {
    /// Which record of the slice it is, counted from 0.
    pub number: u64,
    /// CLOCK_BOOTTIME, nanoseconds.
    pub at: u64,
    pub owner: ProcessIdentity,
    /// The program's name as the kernel has it.
    pub program: Text<16>,
    pub api: Text<40>,
    pub gpu: Option<usize>,
    pub cause: DenialCause,
    pub requested: u64,
    /// Of the slice on that GPU.
    pub limit: u64,
    /// The slice's usage of it, and this process's part.
    pub used: u64,
    pub own: u64,
    /// Part of `used` that no process was charged ([`crate::Usage::unseen`]).
    pub unseen: u64,
    pub gpu_free: u64,
    pub gpu_total: u64,
    pub skipped: u64,
    pub allocations: u64,
    pub largest: Vec<AllocationGroup>,
    /// Other processes of the slice with memory on that GPU, largest first.
    pub peers: Vec<Peer>,
    /// How many there were; the smallest are not named.
    pub peer_count: u64,
}

impl ProcessSlot {
    /// Counts a refusal that the program was told of.
    pub fn count_denial(&self, gpu: usize, asked: u64) {
        let Some(cell) = self.cell(gpu) else { return };
        let (kept, now) = (&self.slots.gpus[gpu], boot_time_ns());
        cell.denied.fetch_add(1, Relaxed);
        cell.last_denied_size.store(asked, Relaxed);
        cell.last_denied_at.store(now, Relaxed);
        kept.denied.fetch_add(1, Relaxed);
        kept.last_denied_size.store(asked, Relaxed);
        kept.last_denied_at.store(now, Relaxed);
    }

    /// Writes down a refusal, with what the slice looks like now. Some microseconds.
    pub fn record(&self, refusal: &DenialReport<'_>) {
        if !self.is_mine() {
            return;
        }
        let log = &self.slots.denials;
        let number = log.count.fetch_add(1, Relaxed);
        let words = encode(&self.describe(number, refusal));
        let line = &log.records[line_of(number)].0;
        line[at::CHECK].store(0, Release);
        for (to, from) in line.iter().zip(&words).take(at::CHECK) {
            to.store(*from, Relaxed);
        }
        line[at::CHECK].store(words[at::CHECK], Release);
    }

    fn describe(&self, number: u64, refusal: &DenialReport<'_>) -> Denial {
        let mut denial = Denial {
            number,
            at: boot_time_ns(),
            owner: self.owner,
            program: Text::new(&program()),
            api: Text::new(refusal.api),
            gpu: refusal.gpu,
            cause: refusal.cause,
            requested: refusal.requested,
            gpu_free: refusal.gpu_free,
            gpu_total: refusal.gpu_total,
            skipped: refusal.skipped,
            allocations: refusal.allocations,
            largest: refusal.largest.iter().take(NAMED).copied().collect(),
            ..Denial::default()
        };
        let Some(gpu) = refusal.gpu else {
            return denial;
        };
        let usage = self.usage(gpu);
        let mut peers = Vec::new();
        for process in self.processes() {
            let used = process.gpus[gpu].charged + process.gpus[gpu].overhead;
            if process.slot == self.index {
                denial.own = used;
            } else if used > 0 {
                let pid = process.owner.pid;
                peers.push(Peer { pid, used });
            }
        }
        peers.sort_by_key(|peer| (std::cmp::Reverse(peer.used), peer.pid));
        denial.peer_count = peers.len() as u64;
        peers.truncate(NAMED);
        Denial {
            limit: usage.limit,
            used: usage.used(),
            unseen: usage.unseen,
            peers,
            ..denial
        }
    }
}

impl Slice {
    /// The refusals that are kept, oldest first, and how many were recorded in all.
    ///
    /// # Errors
    /// As [`Slice::open`].
    pub fn denials(&self) -> Result<(Vec<Denial>, u64), OpenError> {
        let file = self.open_slots(false)?;
        let mut bytes = vec![0; size_of::<DenialLog>()];
        file.read_exact_at(&mut bytes, offset_of!(SlotsFile, denials) as u64)
            .map_err(|error| map::failed(&self.slots, "read", error))?;
        let line = |index: usize| -> Words {
            let start = offset_of!(DenialLog, records) + index * size_of::<DenialLine>();
            std::array::from_fn(|at| word(&bytes, start + at * 8))
        };
        let mut denials: Vec<Denial> = (0..DENIALS).filter_map(|at| decode(&line(at))).collect();
        denials.sort_by_key(|denial| denial.number);
        Ok((denials, word(&bytes, offset_of!(DenialLog, count))))
    }
}

/// This thread's program, as the kernel has it.
fn program() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn text_of_any_bytes_is_printable() {
        assert_eq!(Text::<4>::new(b"a\n\xffbcd").as_str(), "a??b");
        assert_eq!(Text::<4>::new(b"a\0b").as_str(), "a");
        assert_eq!(Text::<4>::default().as_str(), "");
    }
}
