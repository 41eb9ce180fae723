//! The demand reader: the daemon's view of the work that a slice's processes report; no figure of a process is trusted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::mem::{self, offset_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::gate::ASK_AGAIN;
use super::park;
use crate::futex::{self, WaitWord};
use crate::layout::{GPUS, SliceGpu, SlotLines, SlotsFile, WAKE_CALL_WORDS, state};
use crate::map::{self, OpenError, word};
use crate::process::{Liveness, ProcessIdentity};
use crate::slice::{Slice, live};

/// Slack after the expected end of work, in nanoseconds: unobserved work then counts as done, as does that of a stopped
/// or dead process. Half of the shortest turn. A busy machine wakes processes late, so less would end work too early;
/// more would leave the GPU idle after each turn.
const SLACK_NS: u64 = 2_000_000;
/// Work that is watched is overdue this long after it should have been done. One millisecond more than the slack for
/// unobserved work. Double would let a stopped process hold the GPU for longer than the shortest turn.
const OVERDUE_NS: u64 = 3_000_000;
/// A waiting process reports ten times in this period ([`ASK_AGAIN`]). A process without a report counts as stopped
/// until its next report. In nanoseconds. So one or two late reports count for nothing, and a stopped process holds no
/// turn for longer.
const SILENT_NS: u64 = 10 * ASK_AGAIN.as_nanos() as u64;
/// At most so much of the time between two looks counts as silence, in nanoseconds: the looker may have slept, and the machine.
const SLEPT_NS: u64 = 2 * ASK_AGAIN.as_nanos() as u64;
/// Most slot owners that one observation looks up. Jobs write their own slots, so a job with many slots must not delay
/// the other slices. Slots beyond this number are trusted.
const LOOKED_UP: u32 = 16;
/// How long to sleep where words cannot be waited for. A quarter of the shortest turn: a longer sleep would be seen in
/// shares, and a shorter one takes processor time from programs.
const BLIND: Duration = Duration::from_millis(1);

/// The demand of a slice: the reports of its processes, taken together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// One of them stands at the gate.
    pub waiting: bool,
    /// Moves on whenever one of them asks.
    pub requests: u64,
    /// Work of theirs is on a GPU.
    pub busy: bool,
    /// And should have been done by now.
    pub overdue: bool,
    /// So many of them have work on a GPU.
    pub workers: u32,
    /// When the last of it should be done, by their reckoning; 0 while there is none.
    pub ends_at: u64,
    /// Moves on with every piece of work that they put on a GPU while they are gated.
    pub submitted: u64,
    /// Measured device time per GPU of the slice, in nanoseconds, since the slice was made.
    pub device_time: [u64; GPUS],
    /// Time spent at the gate, all threads together, in nanoseconds, since the slice was made.
    pub throttled_ns: u64,
}

/// An open eye on a slice's `slots`.
pub struct DemandReader {
    slice: Slice,
    file: File,
    /// The file's first page, for the address of a word to wait for. Never read through: the job may cut the file short.
    page: Page,
    seen: u32,
    /// Waiting processes at the gate, by slot.
    waiting: BTreeMap<usize, GateWaiter>,
}

/// A process at the gate.
#[derive(Clone, Copy)]
struct GateWaiter {
    asked: u64,
    seen: u64,
    /// For how long it has not asked again, in nanoseconds.
    silent: u64,
}

impl GateWaiter {
    /// The same process at this look, having asked so often.
    fn at(before: Option<&Self>, asked: u64, now: u64) -> Self {
        let before = before.filter(|before| before.asked == asked);
        let silent = before.map_or(0, |before| {
            before.silent + now.saturating_sub(before.seen).min(SLEPT_NS)
        });
        Self {
            asked,
            seen: now,
            silent,
        }
    }
}

impl DemandReader {
    /// # Errors
    /// As [`Slice::open`], or the file cannot be mapped.
    pub fn new(slice: &Slice) -> Result<Self, OpenError> {
        let file = slice.open_slots(false)?;
        let page = Page::of(&file).map_err(|error| map::failed(&slice.slots, "map", error))?;
        let slice = slice.clone();
        Ok(Self {
            slice,
            file,
            page,
            seen: 0,
            waiting: BTreeMap::new(),
        })
    }

    /// The current demand of the slice's processes, and the point from which [`wait_for_demand`] waits. `now`:
    /// [`crate::boot_time_ns`].
    ///
    /// # Errors
    /// The file is too short: a job cut it.
    pub fn demand(&mut self, now: u64) -> Result<Demand, OpenError> {
        let failed = |error| map::failed(&self.slice.slots, "read", error);
        let mut head = [0; offset_of!(SlotsFile, shared_live)];
        self.file.read_exact_at(&mut head, 0).map_err(failed)?;
        let gpus = self.slice.gpus().len();
        let mut demand = Demand {
            throttled_ns: word(&head, offset_of!(SlotsFile, throttled)),
            ..Demand::default()
        };
        for gpu in 0..gpus {
            let at = offset_of!(SlotsFile, gpus) + gpu * size_of::<SliceGpu>();
            demand.device_time[gpu] = word(&head, at + offset_of!(SliceGpu, device_time));
            let end = word(&head, at + offset_of!(SliceGpu, work_end));
            demand.submitted = demand.submitted.wrapping_add(end);
        }
        let mut line = [0; offset_of!(SlotLines, gpus)];
        let mut left = LOOKED_UP;
        let stood = mem::take(&mut self.waiting);
        for slot in live(&head) {
            let at = offset_of!(SlotsFile, slots) + slot * size_of::<SlotLines>();
            self.file
                .read_exact_at(&mut line, at as u64)
                .map_err(failed)?;
            let mut is_silent = false;
            if half(&line, offset_of!(SlotLines, waiting)) != 0 {
                let asked = word(&line, offset_of!(SlotLines, asked));
                let standing = GateWaiter::at(stood.get(&slot), asked, now);
                is_silent = standing.silent >= SILENT_NS;
                self.waiting.insert(slot, standing);
            }
            demand.add(&line, gpus, now, is_silent, &mut left);
        }
        self.seen = word(&head, offset_of!(SlotsFile, asked)) as u32;
        Ok(demand)
    }

    /// The first call that has asked for the memory of a parked job, and the point from which [`wait_for_demand`] waits.
    ///
    /// # Errors
    /// As [`DemandReader::demand`].
    pub fn wake_call(&mut self) -> Result<Option<String>, OpenError> {
        const NAME: usize = offset_of!(SlotsFile, wake_call);
        let mut head = [0; NAME + WAKE_CALL_WORDS * size_of::<u64>()];
        self.file
            .read_exact_at(&mut head, 0)
            .map_err(|error| map::failed(&self.slice.slots, "read", error))?;
        self.seen = word(&head, offset_of!(SlotsFile, asked)) as u32;
        let wish = word(&head, offset_of!(SlotsFile, wake_wanted));
        Ok((wish > park::wish::NAMING).then(|| park::name_of(&head[NAME..])))
    }
}

impl Demand {
    /// `is_silent`: it stands at the gate and does not ask. `left`: how many owners may still be looked up.
    fn add(&mut self, line: &[u8], gpus: usize, now: u64, is_silent: bool, left: &mut u32) {
        if state::of(word(line, offset_of!(SlotLines, state))) != state::LIVE {
            return;
        }
        let waits = half(line, offset_of!(SlotLines, waiting)) != 0;
        self.waiting |= waits && !is_silent;
        self.requests = self
            .requests
            .wrapping_add(word(line, offset_of!(SlotLines, asked)));
        let says = waits || half(line, offset_of!(SlotLines, watching)) != 0;
        let ends = || {
            let end = |gpu| word(line, offset_of!(SlotLines, work_end) + gpu * 8);
            (0..gpus).map(end).filter(|end| *end != 0)
        };
        let is_late = |end: u64| now >= end.saturating_add(SLACK_NS);
        // Where both are so already, nothing that a process is can change them.
        let counts = !(self.busy && self.overdue);
        let mut looked_up = || {
            let asks = counts && *left > 0 && ends().any(is_late);
            *left -= u32::from(asks);
            asks && stands_still(line)
        };
        let watched = says && !is_silent && !looked_up();
        let mut works = false;
        for end in ends() {
            works |= watched || !is_late(end);
            self.ends_at = self.ends_at.max(end);
            self.overdue |= watched && now > end.saturating_add(OVERDUE_NS);
        }
        self.busy |= works;
        self.workers += u32::from(works);
    }
}

fn half(line: &[u8], offset: usize) -> u32 {
    word(line, offset) as u32
}

/// Whether the owner of a slot is stopped or gone, so that it takes back nothing that it reported. `false` for a
/// process of another PID namespace, whose state is not visible here.
fn stands_still(line: &[u8]) -> bool {
    let owner = ProcessIdentity {
        pid: word(line, offset_of!(SlotLines, pid)) as u32,
        start_time: word(line, offset_of!(SlotLines, start_time)),
        pid_namespace: word(line, offset_of!(SlotLines, pid_namespace)),
    };
    matches!(owner.liveness(), Liveness::Stopped | Liveness::Gone)
}

/// Ends [`wait_for_demand`] from another thread.
#[derive(Debug, Default)]
pub struct Waker(AtomicU32);

impl Waker {
    pub fn wake(&self) {
        self.0.fetch_add(1, SeqCst);
        futex::wake(&self.0);
    }

    /// The point from which to wait: read it before reading the state that the waker announces.
    pub fn epoch(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

/// Waits until a process of one of the slices asks for something after its [`DemandReader::demand`], the bell is rung after `seen`, or
/// the time is over. May return early. With more slices than the kernel can wait for, or before Linux 5.16, it sleeps a
/// millisecond at most.
pub fn wait_for_demand<'a>(
    bell: &Waker,
    seen: u32,
    lookouts: impl Iterator<Item = &'a DemandReader>,
    time: Duration,
) {
    let own = WaitWord {
        address: ptr::from_ref(&bell.0).addr(),
        seen,
    };
    let words: Vec<WaitWord> = [own]
        .into_iter()
        .chain(lookouts.map(DemandReader::wait_word))
        .collect();
    if words.len() > futex::MOST || !futex::wait_any(&words, time) {
        futex::wait(&bell.0, seen, time.min(BLIND));
    }
}

impl DemandReader {
    fn wait_word(&self) -> WaitWord {
        WaitWord {
            address: self.page.0 + offset_of!(SlotsFile, asked),
            seen: self.seen,
        }
    }
}

/// The kernel's page on x86-64, and the least that mmap(2) gives.
const PAGE_SIZE: usize = 4096;

/// The address of a mapped page of a file that is never touched.
struct Page(usize);

impl Page {
    fn of(file: &File) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE_SIZE,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(at.addr()))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped range; no reference into it exists.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.0), PAGE_SIZE) };
    }
}
