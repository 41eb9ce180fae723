//! The denial log: what a refused process looked like, kept in the slice so that it outlives the process.
//!
//! ```text
//! Slot::record ──► a line of 64 words, the last of them a checksum ──► Slice::denials
//! ```
//! The first half of the lines keeps the first refusals of the slice, the second half the last ones. Nobody waits: a line
//! written by two processes at once, or by one that was killed half way, has a wrong checksum and is left out by
//! its readers. When a refusal is worth a record is for the caller to say; every refusal is counted
//! ([`Slot::count_denial`]).

use std::fmt;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, Release};

use crate::layout::{DENIAL_WORDS, DENIALS, DenialLine, DenialLog, GPUS, SlotsFile};
use crate::map::{self, OpenError, word};
use crate::process::{Owner, boot_time_ns};
use crate::slice::Slice;
use crate::slot::Slot;

/// Most allocations, and most other processes, that a record names.
pub const NAMED: usize = 8;

/// Why a process did not get memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cause {
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

/// What kind of call made an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Kind {
    /// `cuMemAlloc` and its kin.
    #[default]
    Linear,
    Managed,
    /// What a memory pool has reserved, with all allocations from it.
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
pub struct Live {
    /// Bytes of each.
    pub bytes: u64,
    pub count: u32,
    pub kind: Kind,
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

/// What a process says of its refusal.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refusal<'a> {
    /// The function that the program called.
    pub api: &'a [u8],
    /// The GPU's place in the slice; `None` for a GPU that is not in it.
    pub gpu: Option<usize>,
    /// Bytes asked for.
    pub asked: u64,
    pub cause: Cause,
    /// What the driver says is free on the GPU, and what it has, in bytes; 0 of a GPU that has 0: not known.
    pub gpu_free: u64,
    pub gpu_total: u64,
    /// This process's largest allocations on the GPU, largest first.
    pub largest: &'a [Live],
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
    pub owner: Owner,
    /// The program's name as the kernel has it.
    pub program: Text<16>,
    pub api: Text<40>,
    pub gpu: Option<usize>,
    pub cause: Cause,
    pub asked: u64,
    /// Of the slice on that GPU.
    pub limit: u64,
    /// What the slice used of it, and how much of that this process.
    pub used: u64,
    pub own: u64,
    /// Part of `used` that no process was charged ([`crate::Usage::unseen`]).
    pub unseen: u64,
    pub gpu_free: u64,
    pub gpu_total: u64,
    pub skipped: u64,
    pub allocations: u64,
    pub largest: Vec<Live>,
    /// Other processes of the slice with memory on that GPU, largest first.
    pub peers: Vec<Peer>,
    /// How many there were; the smallest are not named.
    pub peer_count: u64,
}

/// Where in a line things are, in words.
mod at {
    pub const NUMBER: usize = 0;
    pub const TIME: usize = 1;
    pub const PID_AND_PLACE: usize = 2;
    pub const START_TIME: usize = 3;
    pub const PID_NAMESPACE: usize = 4;
    pub const ASKED: usize = 5;
    pub const LIMIT: usize = 6;
    pub const USED: usize = 7;
    pub const OWN: usize = 8;
    pub const UNSEEN: usize = 9;
    pub const GPU_FREE: usize = 10;
    pub const GPU_TOTAL: usize = 11;
    pub const SKIPPED: usize = 12;
    pub const ALLOCATIONS: usize = 13;
    pub const PEER_COUNT: usize = 14;
    pub const PROGRAM: usize = 15;
    pub const API: usize = 17;
    pub const LARGEST: usize = 22;
    pub const PEERS: usize = 38;
    pub const CHECK: usize = super::DENIAL_WORDS - 1;
}

type Words = [u64; DENIAL_WORDS];

impl Slot {
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
    pub fn record(&self, refusal: &Refusal<'_>) {
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

    fn describe(&self, number: u64, refusal: &Refusal<'_>) -> Denial {
        let mut denial = Denial {
            number,
            at: boot_time_ns(),
            owner: self.owner,
            program: Text::new(&program()),
            api: Text::new(refusal.api),
            gpu: refusal.gpu,
            cause: refusal.cause,
            asked: refusal.asked,
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

/// The first refusals keep their lines; later ones go round in the others.
fn line_of(number: u64) -> usize {
    const FIRST: u64 = DENIALS as u64 / 2;
    let line = match number.checked_sub(FIRST) {
        None => number,
        Some(later) => FIRST + later % (DENIALS as u64 - FIRST),
    };
    line as usize
}

fn encode(denial: &Denial) -> Words {
    let mut words = [0; DENIAL_WORDS];
    let gpu = denial.gpu.map_or(0xffff, |gpu| gpu as u64 & 0xffff);
    words[at::NUMBER] = denial.number;
    words[at::TIME] = denial.at;
    words[at::PID_AND_PLACE] =
        u64::from(denial.owner.pid) | gpu << 32 | u64::from(cause_code(denial.cause)) << 48;
    words[at::START_TIME] = denial.owner.start_time;
    words[at::PID_NAMESPACE] = denial.owner.pid_namespace;
    words[at::ASKED] = denial.asked;
    words[at::LIMIT] = denial.limit;
    words[at::USED] = denial.used;
    words[at::OWN] = denial.own;
    words[at::UNSEEN] = denial.unseen;
    words[at::GPU_FREE] = denial.gpu_free;
    words[at::GPU_TOTAL] = denial.gpu_total;
    words[at::SKIPPED] = denial.skipped;
    words[at::ALLOCATIONS] = denial.allocations;
    words[at::PEER_COUNT] = denial.peer_count;
    put_text(&mut words[at::PROGRAM..at::API], &denial.program.0);
    put_text(&mut words[at::API..at::LARGEST], &denial.api.0);
    for (index, live) in denial.largest.iter().take(NAMED).enumerate() {
        words[at::LARGEST + 2 * index] = live.bytes;
        words[at::LARGEST + 2 * index + 1] =
            u64::from(live.count) | u64::from(kind_code(live.kind)) << 32;
    }
    for (index, peer) in denial.peers.iter().take(NAMED).enumerate() {
        words[at::PEERS + 2 * index] = peer.pid.into();
        words[at::PEERS + 2 * index + 1] = peer.used;
    }
    words[at::CHECK] = check(&words);
    words
}

/// What a line says; `None` when nobody has written it whole.
fn decode(words: &Words) -> Option<Denial> {
    if words[at::CHECK] != check(words) {
        return None;
    }
    let place = words[at::PID_AND_PLACE];
    let gpu = (place >> 32 & 0xffff) as usize;
    let pair =
        |start: usize, index: usize| (words[start + 2 * index], words[start + 2 * index + 1]);
    let live = |index| match pair(at::LARGEST, index) {
        (_, 0) => None,
        (bytes, rest) => Some(Live {
            bytes,
            count: rest as u32,
            kind: KINDS
                .get((rest >> 32) as usize)
                .copied()
                .unwrap_or(Kind::Other),
        }),
    };
    let peer = |index| match pair(at::PEERS, index) {
        (_, 0) => None,
        (pid, used) => Some(Peer {
            pid: pid as u32,
            used,
        }),
    };
    Some(Denial {
        number: words[at::NUMBER],
        at: words[at::TIME],
        owner: Owner {
            pid: place as u32,
            start_time: words[at::START_TIME],
            pid_namespace: words[at::PID_NAMESPACE],
        },
        program: Text::new(&text::<16>(&words[at::PROGRAM..at::API])),
        api: Text::new(&text::<40>(&words[at::API..at::LARGEST])),
        gpu: (gpu < GPUS).then_some(gpu),
        cause: CAUSES
            .get((place >> 48) as usize)
            .copied()
            .unwrap_or(Cause::Other),
        asked: words[at::ASKED],
        limit: words[at::LIMIT],
        used: words[at::USED],
        own: words[at::OWN],
        unseen: words[at::UNSEEN],
        gpu_free: words[at::GPU_FREE],
        gpu_total: words[at::GPU_TOTAL],
        skipped: words[at::SKIPPED],
        allocations: words[at::ALLOCATIONS],
        largest: (0..NAMED).filter_map(live).collect(),
        peers: (0..NAMED).filter_map(peer).collect(),
        peer_count: words[at::PEER_COUNT],
    })
}

/// Their position is their code.
const CAUSES: [Cause; 4] = [
    Cause::SliceFull,
    Cause::GpuFull,
    Cause::NotInSlice,
    Cause::Other,
];
const KINDS: [Kind; 9] = [
    Kind::Linear,
    Kind::Managed,
    Kind::Pool,
    Kind::Handle,
    Kind::Array,
    Kind::Graph,
    Kind::Imported,
    Kind::Context,
    Kind::Other,
];

fn cause_code(cause: Cause) -> u16 {
    CAUSES.iter().position(|other| *other == cause).unwrap_or(0) as u16
}

fn kind_code(kind: Kind) -> u32 {
    KINDS.iter().position(|other| *other == kind).unwrap_or(0) as u32
}

fn put_text(words: &mut [u64], text: &[u8]) {
    for (word, eight) in words.iter_mut().zip(text.chunks_exact(8)) {
        *word = u64::from_ne_bytes(eight.try_into().unwrap_or_default());
    }
}

fn text<const BYTES: usize>(words: &[u64]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(words) {
        eight.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Never 0 by construction for a line of zeros, so an unused line has a wrong one.
fn check(words: &Words) -> u64 {
    let mix =
        |sum: u64, word: &u64| (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    words[..at::CHECK]
        .iter()
        .fold(u64::from_ne_bytes(*b"DIVVYden"), mix)
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
    use super::*;

    fn full() -> Denial {
        Denial {
            number: u64::MAX,
            at: 1,
            owner: Owner {
                pid: u32::MAX,
                start_time: 2,
                pid_namespace: 3,
            },
            program: Text::new(b"python3"),
            api: Text::new(b"cuMemPoolImportFromShareableHandle"),
            gpu: Some(15),
            cause: Cause::GpuFull,
            asked: 4,
            limit: 5,
            used: 6,
            own: 7,
            unseen: 8,
            gpu_free: 9,
            gpu_total: 10,
            skipped: 11,
            allocations: 12,
            largest: (1..=NAMED as u64)
                .map(|at| Live {
                    bytes: 100 - at,
                    count: at as u32,
                    kind: KINDS[at as usize],
                })
                .collect(),
            peers: (1..=NAMED as u32)
                .map(|at| Peer {
                    pid: at,
                    used: 50 - u64::from(at),
                })
                .collect(),
            peer_count: 13,
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        assert_eq!(decode(&encode(&full())), Some(full()));
        let outside = Denial {
            gpu: None,
            cause: Cause::NotInSlice,
            largest: vec![],
            peers: vec![],
            ..full()
        };
        assert_eq!(decode(&encode(&outside)), Some(outside));
    }

    #[test]
    fn a_line_of_two_writers_or_of_none_is_left_out() {
        assert_eq!(decode(&[0; DENIAL_WORDS]), None);
        let whole = encode(&full());
        for at in 0..DENIAL_WORDS {
            let mut torn = whole;
            torn[at] ^= 1;
            assert_eq!(decode(&torn), None, "word {at}");
        }
    }

    #[test]
    fn the_first_half_of_the_lines_keeps_the_first_refusals() {
        let lines: Vec<usize> = (0..26).map(line_of).collect();
        assert_eq!(lines[..16], (0..16).collect::<Vec<_>>());
        assert_eq!(lines[16..], [8, 9, 10, 11, 12, 13, 14, 15, 8, 9]);
        assert!(line_of(u64::MAX) < DENIALS);
    }

    #[test]
    fn text_of_any_bytes_is_printable() {
        assert_eq!(Text::<4>::new(b"a\n\xffbcd").as_str(), "a??b");
        assert_eq!(Text::<4>::new(b"a\0b").as_str(), "a");
        assert_eq!(Text::<4>::default().as_str(), "");
    }
}
