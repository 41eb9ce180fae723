//! The binary layout of the two ledger files; every offset used anywhere comes from these types.
//!
//! ```text
//! control (4 KiB, read-only in jobs)          slots (1408 KiB, written by the slice's processes)
//! 0     Header                                0        Header
//! 64    id of the slice, zero padded          64       live: one bit a slot, a superset of the slots in use
//! 128   seqlock, heartbeat, mode, numbering   1024     what outlives a process: per GPU peak and denials
//! 256   16 × one line per GPU                 2048     per GPU, one bit a shared allocation that counts against it
//! 2048  launch gate (`gate_word`)              4096     1024 × slot: identity, compute demand, 16 × one line per GPU
//!                                             1380352  the denial log: 16 × what a refused process looked like
//!                                             1388608  256 × shared allocation: key, bytes, holders
//! ```
//! Everything is an atomic in native byte order, so any bytes at all are a valid value of these types. The first
//! `Header` line is frozen: every version, past and future, can be told apart by it.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Most GPUs in one slice. Machines have eight, and HGX boards up to 16. Each further one takes a cell in every slot,
/// so the files stay small.
pub const GPUS: usize = 16;
/// Names of the files of a slice.
pub(crate) const CONTROL_NAME: &str = "control";
pub(crate) const SLOTS_NAME: &str = "slots";
/// Most processes in one slice at one time. A training of 16 GPUs with 32 loader processes each has half of it. The
/// bitmap of slots is two cache lines.
pub const SLOTS: usize = 1024;
/// Longest id of a slice, in bytes. The id of a ClearML task has 32 and a UUID 36, so longer names are cut by no known
/// front end.
pub const ID_BYTES: usize = 64;
/// Most allocations that the processes of a slice can share at one time. Sharing by handles is for buffers of
/// communication: some in each pair of 16 processes. More are refused with a message. More than programs in use have:
/// sharing by handles is for buffers of communication. Twice as many would double a table that each look reads.
pub const SHARED: usize = 256;
/// Refusals of a slice that are kept: the first half of them, and the last half.
pub const DENIALS: usize = 16;
/// Words of the bitmap of slots in use. A word has 64 bits, so it fits 64 slots.
pub(crate) const LIVE_WORDS: usize = SLOTS / 64;
/// Words of a bitmap of shared allocations. A word has 64 bits, so it fits 64 allocations.
pub(crate) const SHARED_WORDS: usize = SHARED / 64;
/// Words of a record of the denial log. 512 bytes: room for eight allocations, eight processes and the names, as
/// [`crate::denial`] lays them out.
pub(crate) const DENIAL_WORDS: usize = 64;

/// Words of the name of the call that wakes a parked job: 56 bytes. The longest name of CUDA 13.5 has 52
/// (`cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`); a longer one is cut.
pub(crate) const WAKE_CALL_WORDS: usize = 7;

/// Version of both layouts; a file of another version is refused. A change of layout raises it by one; it has no other
/// bound. A change of the layout takes the next number.
pub const VERSION: u32 = 2;
pub(crate) const CONTROL_MAGIC: u64 = u64::from_ne_bytes(*b"DIVVYctl");
pub(crate) const SLOTS_MAGIC: u64 = u64::from_ne_bytes(*b"DIVVYslt");

/// A type that may be laid over bytes that another process writes.
///
/// # Safety
/// Every bit pattern is a valid value, and every field is atomic (or an array of such).
pub(crate) unsafe trait SharedMemory {}

// SAFETY: only atomic integers and arrays of them, all the way down.
unsafe impl SharedMemory for ControlFile {}
// SAFETY: as above.
unsafe impl SharedMemory for SlotsFile {}

#[repr(C, align(64))]
pub(crate) struct Header {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    _reserved: AtomicU32,
    /// Size of the whole file in bytes.
    pub size: AtomicU64,
    /// Generation of the slice; equal in both files.
    pub generation: AtomicU64,
    _room: [AtomicU64; 4],
}

#[repr(C, align(64))]
pub(crate) struct ControlFile {
    pub header: Header,
    pub id: [AtomicU8; ID_BYTES],
    /// Odd while the agent is writing.
    pub sequence: AtomicU64,
    /// CLOCK_BOOTTIME of the agent's last beat, nanoseconds.
    pub heartbeat: AtomicU64,
    pub mode: AtomicU32,
    pub gpu_count: AtomicU32,
    /// How programs number the slice's GPUs (`control::Numbering`).
    pub numbering: AtomicU64,
    /// Not zero once the slice is closed, before its release: it grants nothing more.
    pub ended: AtomicU64,
    _room: [AtomicU64; 11],
    pub gpus: [ControlGpu; GPUS],
    _later: [AtomicU64; 96],
    /// The grant of launches (`compute::Grant`).
    pub grant: AtomicU64,
    /// When the agent last said that the grant counts: CLOCK_BOOTTIME, nanoseconds.
    pub keeper: AtomicU64,
    /// Changes with every grant; jobs wait for it.
    pub told: AtomicU32,
    _padding: AtomicU32,
    /// How much work each process keeps on a GPU ahead while the gate is not open, nanoseconds; 0 for the limiter's own
    /// figure. Earlier limiters do not read it, and earlier daemons leave 0 here.
    pub ahead: AtomicU64,
    _compute: [AtomicU64; 252],
}

/// The grant of launches as a word: the kind in the upper two bits, below it a time. `compute::Grant` is what the words
/// mean; no other place knows the bits.
///
/// | kind | time | meaning |
/// |--:|---|---|
/// | 0 | 0 | open |
/// | 1 | an end | until then |
/// | 1 | [`TIME`] | bounded |
/// | 2 | an end | peers, until then |
/// | 3 | 0 | closed |
/// | 3 | 1 | parked: the memory is not on the GPUs, and a call asks for it |
/// | 3 | other | kinds of closed gates of later versions: every limiter reads them as closed |
pub(crate) mod gate_word {
    pub const TIME: u64 = (1 << KIND) - 1;
    /// The kind is above this bit. Times of 62 bits last for 146 years; with a bit less, four kinds would not fit.
    const KIND: u32 = 62;
    pub const OPEN: u64 = 0;
    /// Until a time that never comes.
    pub const BOUNDED: u64 = 1 << KIND | TIME;
    /// The highest kind, so that a word of a later version's closed gate is one of it.
    pub const CLOSED: u64 = 3 << KIND;
    /// Limiters of before read it as closed.
    pub const PARKED: u64 = CLOSED | 1;

    pub const fn until(end: u64) -> u64 {
        1 << KIND | if end < TIME { end } else { TIME - 1 }
    }
    pub const fn peers(end: u64) -> u64 {
        2 << KIND | if end < TIME { end } else { TIME }
    }
    /// The kind, and what is below it.
    pub const fn parts(word: u64) -> (u64, u64) {
        (word >> KIND, word & TIME)
    }
}

#[repr(C, align(64))]
pub(crate) struct ControlGpu {
    pub uuid: [AtomicU8; 16],
    pub limit: AtomicU64,
    pub overhead: AtomicU64,
    pub weight: AtomicU16,
    pub cap: AtomicU16,
    _reserved: AtomicU32,
    /// Bytes that the driver holds for the slice and that no process was charged: counted against the limit.
    pub unseen: AtomicU64,
    /// The limit that the slice gets back, while its job is parked; else 0.
    pub parked_limit: AtomicU64,
    _room: AtomicU64,
}

#[repr(C, align(4096))]
pub(crate) struct SlotsFile {
    pub header: Header,
    /// Set before a slot's first byte is charged, cleared only while the slot is free and empty.
    pub live: [AtomicU64; LIVE_WORDS],
    /// Things that only a bug, or a hostile process, can cause.
    pub alarms: AtomicU64,
    /// Changes when a process wants to launch and may not, or has drained; the agent waits for it.
    pub asked: AtomicU32,
    _padding: AtomicU32,
    /// Time that threads stood at the gate, all together, nanoseconds.
    pub throttled: AtomicU64,
    /// Whether a call of a parked job has asked for its memory since it was parked (`compute::park`), and its name.
    pub wake_wanted: AtomicU64,
    pub wake_call: [AtomicU64; WAKE_CALL_WORDS],
    _room: [AtomicU64; 77],
    /// Per GPU, the highest charge since the daemon last set it to 0 ([`crate::Slice::restart_peaks`]).
    pub recent_peaks: [AtomicU64; GPUS],
    pub gpus: [SliceGpu; GPUS],
    /// Per GPU, the shared allocations that count against its limit.
    pub shared_live: [[AtomicU64; SHARED_WORDS]; GPUS],
    _later: [AtomicU64; 192],
    pub slots: [SlotLines; SLOTS],
    pub denials: DenialLog,
    pub shared: [SharedLine; SHARED],
}

/// State of the slice as a whole, which outlives the process that wrote it.
#[repr(C, align(64))]
pub(crate) struct SliceGpu {
    pub peak: AtomicU64,
    pub denied: AtomicU64,
    pub last_denied_size: AtomicU64,
    pub last_denied_at: AtomicU64,
    /// When the work of all processes should be done: CLOCK_BOOTTIME, nanoseconds. Kept while the slice is gated.
    pub work_end: AtomicU64,
    /// Measured device time, nanoseconds.
    pub device_time: AtomicU64,
    /// Contexts that processes have made there.
    pub contexts: AtomicU64,
    /// First contexts of processes that the driver refused: their number in the upper half, in the lower half the code
    /// (CUresult) of the last one.
    pub context_failures: AtomicU64,
}

#[repr(C, align(64))]
pub(crate) struct SlotLines {
    /// State in the lowest byte, above it how often the slot has been claimed.
    pub state: AtomicU64,
    pub pid: AtomicU32,
    /// What the limiter of this claim can do ([`state::wakes`]). Earlier limiters leave what was there.
    pub abilities: AtomicU32,
    /// Field 22 of /proc/PID/stat: clock ticks since boot.
    pub start_time: AtomicU64,
    /// Inode of the PID namespace that `pid` belongs to; 0 when it could not be found out.
    pub pid_namespace: AtomicU64,
    /// CLOCK_BOOTTIME when the owner was first seen dead, nanoseconds.
    pub dead_since: AtomicU64,
    /// Threads that want to launch and may not, and threads that wait for work on a GPU.
    pub waiting: AtomicU32,
    pub watching: AtomicU32,
    /// How often it has asked to launch.
    pub asked: AtomicU64,
    /// Which program image of the process that is (`process::image`); 0 when it could not be found out.
    pub image: AtomicU64,
    /// Per GPU, when its work should be done (CLOCK_BOOTTIME, nanoseconds); 0 when nothing of its is known to be there.
    pub work_end: [AtomicU64; GPUS],
    pub mark: LifeMark,
    _compute: [AtomicU64; 8],
    pub gpus: [Cell; GPUS],
}

/// Whether the owner lives, as the kernel says (`life_mark`): an entry of a robust list.
#[repr(C, align(64))]
pub(crate) struct LifeMark {
    _before: AtomicU64,
    /// The number of the thread that made the mark, in the half where that thread's C library has a mutex's futex.
    pub thread: AtomicU64,
    _between: [AtomicU64; 2],
    /// The address of the `next` before this entry's in that thread's list.
    pub previous: AtomicU64,
    /// The address of the next entry's `next`.
    pub next: AtomicU64,
    _after: [AtomicU64; 2],
}

/// One process on one GPU: one cache line, written by its process alone.
#[repr(C, align(64))]
pub(crate) struct Cell {
    /// All that counts against the limit, and how many reservations are being decided (`account::Word`).
    pub used: AtomicU64,
    /// How much of `used` is context overhead.
    pub overhead: AtomicU64,
    /// How much of `used` is managed memory.
    pub managed: AtomicU64,
    /// Pinned host memory; not in `used`.
    pub host: AtomicU64,
    /// Highest `used` after a commit.
    pub peak: AtomicU64,
    pub denied: AtomicU64,
    pub last_denied_size: AtomicU64,
    /// CLOCK_BOOTTIME, nanoseconds.
    pub last_denied_at: AtomicU64,
}

/// The last refusals, and how many there were (`denial`).
#[repr(C, align(64))]
pub(crate) struct DenialLog {
    pub count: AtomicU64,
    _room: [AtomicU64; 7],
    pub records: [DenialLine; DENIALS],
}

/// One refusal; what each word means is said in `denial`.
#[repr(C, align(64))]
pub(crate) struct DenialLine(pub [AtomicU64; DENIAL_WORDS]);

/// One allocation that several processes may hold (`shared`).
#[repr(C, align(64))]
pub(crate) struct SharedLine {
    /// The hash of its handle's bytes; 0 for an unused line.
    pub key: AtomicU64,
    /// Its bytes (`account::Word`), undecided while they move here from the exporter's own.
    pub used: AtomicU64,
    pub gpu: AtomicU64,
    /// How often the line was used before: tells this allocation from earlier ones.
    pub claim: AtomicU64,
    /// Position of the slot that exported it.
    pub owner: AtomicU64,
    _room: [AtomicU64; 3],
    /// One bit a slot that holds it. A bit of a slot that is not live counts for nothing.
    pub holders: [AtomicU64; LIVE_WORDS],
}

/// Size of `control` in bytes.
pub(crate) const CONTROL_SIZE: usize = size_of::<ControlFile>();
/// Size of `slots` in bytes.
pub(crate) const SLOTS_SIZE: usize = size_of::<SlotsFile>();

/// States of a slot (lowest byte of `SlotLines::state`):
/// free → claimed (being filled in) → live → dead (seen dead, its bytes still charged) → free.
pub(crate) mod state {
    pub const FREE: u8 = 0;
    pub const CLAIMED: u8 = 1;
    pub const LIVE: u8 = 2;
    pub const DEAD: u8 = 3;

    pub const fn of(word: u64) -> u8 {
        word as u8
    }
    pub const fn with(word: u64, state: u8) -> u64 {
        word & !0xff | state as u64
    }
    /// The word of abilities of a limiter whose calls wake a parked job. It holds for this claim alone: an earlier limiter
    /// does not write it.
    pub const fn wakes(word: u64) -> u32 {
        (word >> 8) as u32 | 1 << 31
    }
    /// The word of the next claim of a slot.
    pub const fn claim(word: u64) -> u64 {
        with(word.wrapping_add(0x100), CLAIMED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of};

    #[test]
    fn the_frozen_header_never_moves() {
        assert_eq!(offset_of!(Header, magic), 0);
        assert_eq!(offset_of!(Header, version), 8);
        assert_eq!(offset_of!(Header, size), 16);
        assert_eq!(offset_of!(Header, generation), 24);
        assert_eq!(size_of::<Header>(), 64);
    }

    #[test]
    fn control_is_one_page_with_every_field_where_version_2_has_it() {
        assert_eq!(CONTROL_SIZE, 4096);
        assert_eq!(offset_of!(ControlFile, id), 64);
        assert_eq!(offset_of!(ControlFile, sequence), 128);
        assert_eq!(offset_of!(ControlFile, heartbeat), 136);
        assert_eq!(offset_of!(ControlFile, mode), 144);
        assert_eq!(offset_of!(ControlFile, gpu_count), 148);
        assert_eq!(offset_of!(ControlFile, gpus), 256);
        assert_eq!(offset_of!(ControlFile, grant), 2048);
        assert_eq!(offset_of!(ControlFile, keeper), 2056);
        assert_eq!(offset_of!(ControlFile, told), 2064);
        assert_eq!(offset_of!(ControlFile, ahead), 2072);
        assert_eq!(size_of::<ControlGpu>(), 64);
        assert_eq!(offset_of!(ControlGpu, limit), 16);
        assert_eq!(offset_of!(ControlGpu, overhead), 24);
        assert_eq!(offset_of!(ControlGpu, weight), 32);
        assert_eq!(offset_of!(ControlGpu, cap), 34);
        assert_eq!(offset_of!(ControlGpu, unseen), 40);
        assert_eq!(offset_of!(ControlGpu, parked_limit), 48);
    }

    #[test]
    fn the_words_of_the_launch_gate_are_those_of_version_2() {
        assert_eq!(gate_word::OPEN, 0);
        assert_eq!(gate_word::until(7), 0x4000_0000_0000_0007);
        assert_eq!(gate_word::until(u64::MAX), 0x7fff_ffff_ffff_fffe);
        assert_eq!(gate_word::BOUNDED, 0x7fff_ffff_ffff_ffff);
        assert_eq!(gate_word::peers(7), 0x8000_0000_0000_0007);
        assert_eq!(gate_word::CLOSED, 0xc000_0000_0000_0000);
        assert_eq!(gate_word::PARKED, 0xc000_0000_0000_0001);
    }

    #[test]
    fn slots_have_every_field_where_version_2_has_it() {
        assert_eq!(offset_of!(SlotsFile, live), 64);
        assert_eq!(offset_of!(SlotsFile, alarms), 192);
        assert_eq!(offset_of!(SlotsFile, asked), 200);
        assert_eq!(offset_of!(SlotsFile, throttled), 208);
        assert_eq!(offset_of!(SlotsFile, wake_wanted), 216);
        assert_eq!(offset_of!(SlotsFile, wake_call), 224);
        assert_eq!(offset_of!(SlotsFile, recent_peaks), 896);
        assert_eq!(offset_of!(SlotsFile, gpus), 1024);
        assert_eq!(offset_of!(SlotsFile, shared_live), 2048);
        assert_eq!(offset_of!(SlotsFile, slots), 4096);
        assert_eq!(offset_of!(SlotsFile, denials), 1_380_352);
        assert_eq!(offset_of!(SlotsFile, shared), 1_388_608);
        assert_eq!(size_of::<SliceGpu>(), 64);
        assert_eq!(size_of::<SlotLines>(), 1344);
        assert_eq!(size_of::<DenialLine>(), 512);
        assert_eq!(size_of::<SharedLine>(), 192);
        assert_eq!(SLOTS_SIZE, 1408 * 1024);
        assert_eq!(offset_of!(SlotLines, state), 0);
        assert_eq!(offset_of!(SlotLines, pid), 8);
        assert_eq!(offset_of!(SlotLines, abilities), 12);
        assert_eq!(offset_of!(SlotLines, start_time), 16);
        assert_eq!(offset_of!(SlotLines, pid_namespace), 24);
        assert_eq!(offset_of!(SliceGpu, work_end), 32);
        assert_eq!(offset_of!(SliceGpu, device_time), 40);
        assert_eq!(offset_of!(SliceGpu, contexts), 48);
        assert_eq!(offset_of!(SliceGpu, context_failures), 56);
        assert_eq!(offset_of!(SlotLines, dead_since), 32);
        assert_eq!(offset_of!(SlotLines, image), 56);
        assert_eq!(offset_of!(SlotLines, waiting), 40);
        assert_eq!(offset_of!(SlotLines, watching), 44);
        assert_eq!(offset_of!(SlotLines, asked), 48);
        assert_eq!(offset_of!(SlotLines, work_end), 64);
        assert_eq!(offset_of!(SlotLines, mark), 192);
        assert_eq!(offset_of!(LifeMark, thread), 8);
        assert_eq!(offset_of!(LifeMark, previous), 32);
        assert_eq!(offset_of!(LifeMark, next), 40);
        assert_eq!(offset_of!(SlotLines, gpus), 320);
        assert_eq!(offset_of!(Cell, used), 0);
        assert_eq!(offset_of!(Cell, overhead), 8);
        assert_eq!(offset_of!(Cell, managed), 16);
        assert_eq!(offset_of!(Cell, host), 24);
        assert_eq!(offset_of!(Cell, peak), 32);
        assert_eq!(offset_of!(Cell, denied), 40);
        assert_eq!(offset_of!(Cell, last_denied_size), 48);
        assert_eq!(offset_of!(Cell, last_denied_at), 56);
    }

    #[test]
    fn one_process_on_one_gpu_is_one_cache_line() {
        assert_eq!(size_of::<Cell>(), 64);
        assert_eq!(align_of::<Cell>(), 64);
        assert_eq!(align_of::<SlotLines>(), 64);
    }

    #[test]
    fn a_claim_changes_the_generation_and_nothing_else_does() {
        let live = state::with(state::claim(0), state::LIVE);
        assert_eq!(state::of(live), state::LIVE);
        assert_eq!(state::claim(live) >> 8, (live >> 8) + 1);
        assert_eq!(state::with(live, state::FREE) >> 8, live >> 8);
        assert_eq!(state::of(state::claim(u64::MAX)), state::CLAIMED);
    }
}
