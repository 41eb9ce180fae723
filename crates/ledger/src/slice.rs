//! The view of a slice from outside: reads the ledger files without mapping them, and trusts none of their content.
//!
//! This is the view of the daemon and of monitoring tools. A process that allocates joins ([`Slice::join`]) and from
//! then on uses its [`crate::ProcessSlot`]. No descriptor is kept between calls; a frequent reader keeps a [`crate::Reader`].

use std::fs::{self, File};
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::account::Word;
use crate::control::{self, GpuSpec, SliceSpec};
use crate::kept;
use crate::layout::{
    CONTROL_NAME, Cell, ControlFile, GPUS, LIVE_WORDS, SHARED_WORDS, SLOTS, SLOTS_NAME, SharedLine,
    SliceGpu, SlotLines, SlotsFile, WAKE_CALL_WORDS, gate_word, state,
};
use crate::lock;
use crate::map::{self, OpenError, word};
use crate::process::{ProcessIdentity, boot_time_ns};
use crate::reap::{self, Listed, Reaped, SlotsAccess};
use crate::shared;

/// A slice's folder, found to be sound when it was opened.
#[derive(Debug, Clone)]
pub struct Slice {
    pub(crate) control: PathBuf,
    pub(crate) slots: PathBuf,
    spec: SliceSpec,
    /// Where its files are found once their names are gone.
    kept: OnceLock<PathBuf>,
}

/// Usage of one GPU by all processes of a slice together, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub limit: u64,
    /// The limit that a parked job gets back; 0 unless the job is parked. `limit` is 0 then.
    pub parked_limit: u64,
    /// By allocations.
    pub charged: u64,
    /// By contexts.
    pub overhead: u64,
    /// Bytes that the driver holds for the slice beyond all charges, by the daemon's samples.
    pub unseen: u64,
    /// How much of `charged` several processes may hold; it is counted once.
    pub shared: u64,
    /// How much of `charged` and `overhead` only ended and doubtful processes held. Reservations count it until the driver has returned the
    /// memory; views do not show it.
    pub ended: u64,
    /// How much of `charged` is managed memory.
    pub managed: u64,
    /// Pinned host memory; not counted against the limit.
    pub host: u64,
    /// Highest `charged + overhead` so far.
    pub peak: u64,
    /// The same since [`Slice::restart_peaks`]: what was charged then counts as well.
    pub recent_peak: u64,
    /// Refusals that programs got ([`crate::ProcessSlot::count_denial`]), and the last one's size and time
    /// (CLOCK_BOOTTIME, nanoseconds).
    pub denied: u64,
    pub last_denied_size: u64,
    pub last_denied_at: u64,
    /// The largest allocation that would be granted now.
    pub free: u64,
}

/// Usage of one GPU by one process, in bytes; fields as in [`Usage`]. A shared allocation counts for its exporter, or
/// for one of the other holders once the exporter has released it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessGpu {
    pub charged: u64,
    pub overhead: u64,
    pub managed: u64,
    pub host: u64,
    pub peak: u64,
    pub denied: u64,
    pub last_denied_size: u64,
    pub last_denied_at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    Live,
    /// It may have ended, and the daemon is to find out ([`crate::Slice::reap`]); meanwhile views show it as ended.
    Doubtful,
    /// Seen dead; its bytes are charged until the driver has returned them.
    Dead,
}

impl ProcessState {
    /// The state that a slot's words tell; `None` for a slot without a process.
    pub(crate) fn of(word: u64, dead_since: u64) -> Option<Self> {
        match state::of(word) {
            state::LIVE if dead_since == 0 => Some(Self::Live),
            state::LIVE if reap::is_doubtful(dead_since, boot_time_ns()) => Some(Self::Doubtful),
            state::LIVE => Some(Self::Live),
            state::DEAD => Some(Self::Dead),
            _ => None,
        }
    }
}

/// One process of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessUsage {
    pub slot: usize,
    pub owner: ProcessIdentity,
    pub state: ProcessState,
    /// Its calls wake a parked job: its limiter is not of an earlier version.
    pub wakes: bool,
    /// By position in the slice; GPUs the slice does not have are zero.
    pub gpus: [ProcessGpu; GPUS],
}

impl Slice {
    /// The folder to open the slice with this id in: its own, or what stands for it where a name is gone and the supervisor
    /// keeps the files.
    pub fn find_folder(dir: &Path, supervisor: u32, id: &str) -> PathBuf {
        let is_gone = |name: &&str| {
            let found = fs::symlink_metadata(dir.join(name));
            found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let kept = kept::folder(supervisor, id);
        // The pid may have become another process's since.
        let is_kept = || Self::open(&kept).is_ok_and(|slice| slice.spec().id == id);
        if [CONTROL_NAME, SLOTS_NAME].iter().any(is_gone) && is_kept() {
            kept
        } else {
            dir.to_owned()
        }
    }

    /// Opens the slice in `dir`.
    ///
    /// # Errors
    /// One of the two files is missing, not permitted, not a regular file, another user's, writable by others, of the wrong
    /// size, not a ledger, of another version, or of another slice than its pair.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let (slice, _) = Self::open_control(dir)?;
        slice.open_slots(true)?;
        Ok(slice)
    }

    /// The slice as its control file has it, and that file.
    pub(crate) fn open_control(dir: &Path) -> Result<(Self, (File, map::FileIdentity)), OpenError> {
        let path = kept::file_in(dir, CONTROL_NAME);
        let (file, _, was) = map::open_as(&path, map::CONTROL, false)?;
        let (spec, _) = control::read_from(&path, &file)?;
        let slice = Self {
            control: path,
            slots: kept::file_in(dir, SLOTS_NAME),
            spec,
            kept: OnceLock::new(),
        };
        Ok((slice, (file, was)))
    }

    /// From now on the files are found by the descriptors of the job's supervisor, once their names are gone.
    pub fn set_supervisor(&self, pid: u32) {
        let _ = self.kept.set(kept::folder(pid, &self.spec.id));
    }

    /// Opens one of the files, by its name or else by the supervisor's descriptor.
    pub(crate) fn open_file(
        &self,
        kind: map::Kind,
        write: bool,
    ) -> Result<(File, map::FileIdentity), OpenError> {
        let (path, name) = if kind.magic == map::CONTROL.magic {
            (&self.control, CONTROL_NAME)
        } else {
            (&self.slots, SLOTS_NAME)
        };
        let (file, generation, was) = match map::open_as(path, kind, write) {
            Err(OpenError::Missing { path }) => {
                let kept = self.kept.get().map(|dir| kept::file_in(dir, name));
                let opened = kept.and_then(|kept| map::open_as(&kept, kind, write).ok());
                opened.ok_or(OpenError::Missing { path })?
            }
            opened => opened?,
        };
        // A control file may be replaced by one of a later generation, which its reader compares.
        if kind.magic == map::SLOTS.magic {
            self.is_of_ours(generation)?;
        }
        Ok((file, was))
    }

    /// The file that its processes map.
    pub fn slots_path(&self) -> &Path {
        &self.slots
    }

    /// The slice as it was when opened; limits may have changed since ([`Slice::read`]).
    pub fn spec(&self) -> &SliceSpec {
        &self.spec
    }

    pub fn gpus(&self) -> &[GpuSpec] {
        &self.spec.gpus
    }

    /// Whether this process's user owns the limits and may write them (the mount included), so that ignoring them gains it nothing.
    pub fn is_own(&self) -> bool {
        self.open_file(map::CONTROL, true)
            .ok()
            .and_then(|(file, _)| file.metadata().ok())
            .is_some_and(|status| status.uid() == map::user())
    }

    /// Position of a GPU in the slice.
    pub fn gpu_by_uuid(&self, uuid: &[u8; 16]) -> Option<usize> {
        self.spec.gpus.iter().position(|gpu| gpu.uuid == *uuid)
    }

    /// Reads everything that is in use: the first page, and the slots that its bitmap names (some 10 µs and 1 µs a
    /// process). A process that takes its slot out of the bitmap hides from this account only, not from the driver's.
    ///
    /// # Errors
    /// As [`Slice::open`], for a job may have damaged its files since.
    pub fn read(&self) -> Result<Snapshot, OpenError> {
        let (control, _) = self.open_file(map::CONTROL, false)?;
        self.read_from(&control, &self.open_slots(false)?)
    }

    /// The same for open files, in any state.
    pub(crate) fn read_from(&self, control: &File, file: &File) -> Result<Snapshot, OpenError> {
        let (spec, heartbeat) = control::read_from(&self.control, control)?;
        let read = |offset: usize, size: usize| {
            let mut bytes = vec![0; size];
            file.read_exact_at(&mut bytes, offset as u64)
                .map(|()| bytes)
                .map_err(|error| map::failed(&self.slots, "read", error))
        };
        let head = read(0, offset_of!(SlotsFile, slots))?;
        let generation = map::generation(&self.slots, map::SLOTS, &head, map::SLOTS.size as u64)?;
        self.is_of_ours(generation)?;
        let slots = live(&head)
            .map(|slot| Ok((slot, read(slot_offset(slot), size_of::<SlotLines>())?)))
            .collect::<Result<_, OpenError>>()?;
        let shared = shared_lines(&head)
            .map(|line| Ok((line, read(shared::line_at(line), size_of::<SharedLine>())?)))
            .collect::<Result<_, OpenError>>()?;
        Ok(Snapshot {
            spec,
            heartbeat,
            head,
            slots,
            shared,
        })
    }

    /// The slice's usage of one GPU; zero for a GPU it does not have.
    ///
    /// # Errors
    /// As [`Slice::read`].
    pub fn usage(&self, gpu: usize) -> Result<Usage, OpenError> {
        Ok(self.read()?.usage(gpu))
    }

    /// Gives back what dead processes held. `now`: [`crate::boot_time_ns`]. `listed`: whether the driver still lists a
    /// process; it is asked about dead processes, and about others whose lock is free.
    ///
    /// # Errors
    /// As [`Slice::read`].
    pub fn reap(
        &self,
        now: u64,
        listed: &dyn Fn(&ProcessIdentity) -> Listed,
    ) -> Result<Reaped, OpenError> {
        let file = self.open_slots(true)?;
        self.reap_slots(SlotsAccess::unmapped(&file), 0..SLOTS, now, listed)
    }

    /// The same for some of the slots.
    pub(crate) fn reap_slots(
        &self,
        file: SlotsAccess<'_>,
        slots: impl Iterator<Item = usize>,
        now: u64,
        listed: &dyn Fn(&ProcessIdentity) -> Listed,
    ) -> Result<Reaped, OpenError> {
        reap::reap(file, slots, now, listed)
            .and_then(|reaped| {
                let waiting = reaped.waiting + shared::sweep(file)?;
                Ok(Reaped { waiting, ..reaped })
            })
            .map_err(|error| map::failed(&self.slots, "reap", error))
    }

    /// Finds processes of this PID namespace that have ended, so that [`Usage::ended`] counts what they held: a question to the
    /// kernel for each process of the slice.
    ///
    /// # Errors
    /// As [`Slice::read`].
    pub fn note_ended(&self) -> Result<(), OpenError> {
        let file = self.open_slots(true)?;
        let mut head = vec![0; offset_of!(SlotsFile, slots)];
        file.read_exact_at(&mut head, 0)
            .and_then(|()| reap::note_ended(SlotsAccess::unmapped(&file), live(&head)))
            .map_err(|error| map::failed(&self.slots, "reap", error))
    }

    /// Whether a process holds reserved bytes, also one of another PID namespace, or one that has not called the driver
    /// yet. A killed process holds none: the kernel drops its slot's lock. A process can claim bytes that it does not
    /// hold, so the caller waits for a bounded time.
    ///
    /// # Errors
    /// As [`Slice::read`].
    pub fn has_reservations(&self, snapshot: &Snapshot) -> Result<bool, OpenError> {
        let charged = snapshot.charged_slots();
        if charged.is_empty() {
            return Ok(false);
        }
        let file = self.open_slots(false)?;
        for slot in charged {
            let locked = lock::is_locked(file.as_raw_fd(), lock::life(slot));
            if locked.map_err(|error| map::failed(&self.slots, "lock", error))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn open_slots(&self, write: bool) -> Result<File, OpenError> {
        self.open_file(map::SLOTS, write).map(|(file, _)| file)
    }

    /// Begins a new stretch of time for [`Usage::recent_peak`].
    ///
    /// # Errors
    /// The slots file cannot be opened or written any more.
    pub fn restart_peaks(&self) -> Result<(), OpenError> {
        let file = self.open_slots(true)?;
        // Written and not mapped: a job that has cut its file short cannot end the daemon with SIGBUS.
        let write = |gpu: usize| file.write_all_at(&[0; 8], recent_peak(gpu) as u64);
        (0..self.spec.gpus.len())
            .try_for_each(write)
            .map_err(|source| OpenError::Io {
                path: self.slots.clone(),
                operation: "writing",
                source,
            })
    }

    /// Whether the gate says that the job is parked. `false` also where it cannot be read.
    pub fn is_parked(&self) -> bool {
        let mut word = [0; size_of::<u64>()];
        let read = self.open_file(map::CONTROL, false).is_ok_and(|(file, _)| {
            let at = offset_of!(ControlFile, grant) as u64;
            file.read_exact_at(&mut word, at).is_ok()
        });
        read && u64::from_ne_bytes(word) == gate_word::PARKED
    }

    /// Forgets that calls of a parked job have asked for its memory. For the agent, before it parks the job again.
    ///
    /// # Errors
    /// The slots file cannot be opened or written any more.
    pub fn clear_wake_request(&self) -> Result<(), OpenError> {
        let file = self.open_slots(true)?;
        let nothing = [0; size_of::<u64>() * (1 + WAKE_CALL_WORDS)];
        file.write_all_at(&nothing, offset_of!(SlotsFile, wake_wanted) as u64)
            .map_err(|source| OpenError::Io {
                path: self.slots.clone(),
                operation: "writing",
                source,
            })
    }

    /// Whether a slots file of this generation belongs to the control file.
    pub(crate) fn is_of_ours(&self, generation: u64) -> Result<(), OpenError> {
        let expected = self.spec.generation;
        if generation == expected {
            return Ok(());
        }
        Err(OpenError::Unmatched {
            path: self.slots.clone(),
            found: generation,
            expected,
        })
    }
}

/// Where the slots file has [`Usage::recent_peak`] of a GPU.
fn recent_peak(gpu: usize) -> usize {
    offset_of!(SlotsFile, recent_peaks) + gpu * 8
}

/// Contexts on one GPU, as the slice's processes counted them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContextCounts {
    pub made: u64,
    /// First contexts of a process that the driver refused.
    pub failed: u64,
    /// The CUresult of the last refusal; 0 without one.
    pub last_code: u32,
}

/// The bytes of a slice at one time. Any bytes at all make a snapshot; none makes it panic.
#[derive(Debug, Clone)]
pub struct Snapshot {
    spec: SliceSpec,
    heartbeat: u64,
    /// All before the first slot.
    head: Vec<u8>,
    /// The slots in use, in order.
    slots: Vec<(usize, Vec<u8>)>,
    /// The shared allocations, in order.
    shared: Vec<(usize, Vec<u8>)>,
}

impl Snapshot {
    /// The same snapshot under the granted limits, instead of those in its control file.
    #[must_use]
    pub fn granted(self, spec: SliceSpec) -> Self {
        Self { spec, ..self }
    }

    pub fn spec(&self) -> &SliceSpec {
        &self.spec
    }

    /// Whether the slice has no process and no charge.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.shared.is_empty()
    }

    /// When the agent last beat (CLOCK_BOOTTIME, nanoseconds); 0 for never.
    pub fn heartbeat(&self) -> u64 {
        self.heartbeat
    }

    /// Things that only a bug or a hostile process can cause, counted by the processes themselves.
    pub fn alarms(&self) -> u64 {
        word(&self.head, offset_of!(SlotsFile, alarms))
    }

    /// What became of contexts on one GPU, over all processes that the slice has had; zero for a GPU it does not have.
    pub fn contexts(&self, gpu: usize) -> ContextCounts {
        if gpu >= self.spec.gpus.len() {
            return ContextCounts::default();
        }
        let kept = offset_of!(SlotsFile, gpus) + gpu * size_of::<SliceGpu>();
        let failures = word(&self.head, kept + offset_of!(SliceGpu, context_failures));
        ContextCounts {
            made: word(&self.head, kept + offset_of!(SliceGpu, contexts)),
            failed: failures >> 32,
            last_code: (failures & u64::from(u32::MAX)) as u32,
        }
    }

    /// The slice's usage of one GPU; zero for a GPU it does not have.
    pub fn usage(&self, gpu: usize) -> Usage {
        let Some(spec) = self.spec.gpus.get(gpu) else {
            return Usage::default();
        };
        let kept = offset_of!(SlotsFile, gpus) + gpu * size_of::<SliceGpu>();
        let kept = |field| word(&self.head, kept + field);
        let start = Usage {
            limit: spec.limit,
            parked_limit: spec.parked_limit,
            unseen: spec.unseen,
            peak: kept(offset_of!(SliceGpu, peak)),
            recent_peak: word(&self.head, recent_peak(gpu)),
            denied: kept(offset_of!(SliceGpu, denied)),
            last_denied_size: kept(offset_of!(SliceGpu, last_denied_size)),
            last_denied_at: kept(offset_of!(SliceGpu, last_denied_at)),
            ..Usage::default()
        };
        let processes = self.slots.iter().fold(start, |sum, (_, slot)| {
            sum.with(&process_gpu(slot, gpu), state_of(slot))
        });
        self.shared_on(gpu)
            .fold(processes, |sum, line| {
                sum.with_shared(bytes_of(line), self.is_held_by_living(line))
            })
            .finish()
    }

    /// Whether a process that is not known to have ended holds a shared allocation.
    fn is_held_by_living(&self, line: &[u8]) -> bool {
        let is_live = |slot: usize| {
            let known = self.slots.iter().find(|(at, _)| *at == slot);
            known.is_some_and(|(_, bytes)| state_of(bytes) == Some(ProcessState::Live))
        };
        let owner = word(line, offset_of!(SharedLine, owner));
        shared::holder(owner, &shared::holders(line), is_live).is_some()
    }

    /// The shared allocations that count against a GPU.
    fn shared_on(&self, gpu: usize) -> impl Iterator<Item = &[u8]> {
        self.shared
            .iter()
            .filter(move |(line, _)| counts(&self.head, gpu, *line))
            .map(|(_, bytes)| bytes.as_slice())
    }

    /// Processes that hold a slot, in slot order.
    pub fn processes(&self) -> Vec<ProcessUsage> {
        self.slots
            .iter()
            .filter_map(|(slot, bytes)| self.process(*slot, bytes))
            .collect()
    }

    /// The word in which a slot's process counts its bytes of a GPU, as it lies in memory: two snapshots with equal words
    /// were taken while nothing was added (it has a version that changes with each addition, 256 of them apart), and none
    /// is being decided where [`is_settled`] says so. 0 for a slot that is not in use.
    pub fn word(&self, slot: usize, gpu: usize) -> u64 {
        let bytes = self.slots.iter().find(|(at, _)| *at == slot);
        let at = offset_of!(SlotLines, gpus) + gpu * size_of::<Cell>() + offset_of!(Cell, used);
        bytes.map_or(0, |(_, bytes)| word(bytes, at))
    }

    /// The slots in which bytes of any GPU are reserved.
    fn charged_slots(&self) -> Vec<usize> {
        let slots = self.slots.iter().map(|(slot, _)| *slot);
        let holds = |slot: usize, gpu| {
            let word = Word(self.word(slot, gpu));
            word.bytes() > 0 || word.undecided() > 0
        };
        slots
            .filter(|slot| (0..GPUS).any(|gpu| holds(*slot, gpu)))
            .collect()
    }

    /// Whether a process of the caller's own PID namespace has a slot and is not known to be dead.
    pub fn is_member(&self, pid: u32) -> bool {
        let namespace = ProcessIdentity::current().pid_namespace;
        let mine = |process: &ProcessUsage| {
            process.owner.pid == pid && process.owner.pid_namespace == namespace
        };
        self.slots
            .iter()
            .filter_map(|(slot, bytes)| self.process(*slot, bytes))
            .any(|process| mine(&process) && process.state == ProcessState::Live)
    }

    /// The slot that a shared allocation is shown with.
    fn holder(&self, line: &[u8]) -> Option<usize> {
        let is_there = |slot: usize| {
            let known = self.slots.iter().find(|(at, _)| *at == slot);
            known.is_some_and(|(_, bytes)| state_of(bytes).is_some())
        };
        let owner = word(line, offset_of!(SharedLine, owner));
        shared::holder(owner, &shared::holders(line), is_there)
    }

    fn process(&self, slot: usize, bytes: &[u8]) -> Option<ProcessUsage> {
        let field = |offset| word(bytes, offset);
        let state = state_of(bytes)?;
        let owner = ProcessIdentity {
            pid: field(offset_of!(SlotLines, pid)) as u32,
            start_time: field(offset_of!(SlotLines, start_time)),
            pid_namespace: field(offset_of!(SlotLines, pid_namespace)),
        };
        let mut gpus = [ProcessGpu::default(); GPUS];
        for (index, gpu) in gpus.iter_mut().enumerate().take(self.spec.gpus.len()) {
            let shown_here = |line: &&[u8]| self.holder(line) == Some(slot);
            let shared = self.shared_on(index).filter(shown_here);
            *gpu = shared.fold(process_gpu(bytes, index), |sum, line| {
                sum.with_shared(bytes_of(line))
            });
        }
        let abilities = field(offset_of!(SlotLines, abilities)) as u32;
        Some(ProcessUsage {
            slot,
            owner,
            state,
            wakes: abilities == state::wakes(field(offset_of!(SlotLines, state))),
            gpus,
        })
    }
}

/// Whether a [`Snapshot::word`] has no reservation that is still being decided.
pub fn is_settled(word: u64) -> bool {
    Word(word).undecided() == 0
}

/// The slots that the bitmap names, in order.
pub(crate) fn live(head: &[u8]) -> impl Iterator<Item = usize> {
    map::bits((0..LIVE_WORDS).map(|at| word(head, offset_of!(SlotsFile, live) + at * 8)))
}

/// The shared allocations that count against any GPU, in order.
fn shared_lines(head: &[u8]) -> impl Iterator<Item = usize> {
    let of = |gpu: usize, at: usize| {
        word(
            head,
            offset_of!(SlotsFile, shared_live) + (gpu * SHARED_WORDS + at) * 8,
        )
    };
    map::bits((0..SHARED_WORDS).map(move |at| (0..GPUS).fold(0, |all, gpu| all | of(gpu, at))))
}

/// Whether a shared allocation counts against a GPU, by the bytes before the first slot.
fn counts(head: &[u8], gpu: usize, line: usize) -> bool {
    let at = offset_of!(SlotsFile, shared_live) + (gpu * SHARED_WORDS + line / 64) * 8;
    word(head, at) >> (line % 64) & 1 == 1
}

/// The bytes of a shared allocation.
fn bytes_of(line: &[u8]) -> u64 {
    Word(word(line, offset_of!(SharedLine, used))).bytes()
}

/// The state of a slot's process, by its bytes.
fn state_of(slot: &[u8]) -> Option<ProcessState> {
    let field = |offset| word(slot, offset);
    ProcessState::of(
        field(offset_of!(SlotLines, state)),
        field(offset_of!(SlotLines, dead_since)),
    )
}

/// One GPU's line of a slot's bytes.
fn process_gpu(slot: &[u8], gpu: usize) -> ProcessGpu {
    let at = offset_of!(SlotLines, gpus) + gpu * size_of::<Cell>();
    let field = |offset| word(slot, at + offset);
    ProcessGpu {
        charged: 0,
        overhead: field(offset_of!(Cell, overhead)),
        managed: field(offset_of!(Cell, managed)),
        host: field(offset_of!(Cell, host)),
        peak: field(offset_of!(Cell, peak)),
        denied: field(offset_of!(Cell, denied)),
        last_denied_size: field(offset_of!(Cell, last_denied_size)),
        last_denied_at: field(offset_of!(Cell, last_denied_at)),
    }
    .using(Word(field(offset_of!(Cell, used))))
}

fn slot_offset(slot: usize) -> usize {
    offset_of!(SlotsFile, slots) + slot * size_of::<SlotLines>()
}

impl ProcessGpu {
    /// Splits all bytes in use into overhead and the rest.
    pub(crate) fn using(mut self, used: Word) -> Self {
        self.overhead = self.overhead.min(used.bytes());
        self.charged = used.bytes() - self.overhead;
        self
    }

    /// Adds a shared allocation that is shown with this process.
    pub(crate) fn with_shared(mut self, bytes: u64) -> Self {
        self.charged = self.charged.saturating_add(bytes);
        self
    }
}

impl Usage {
    /// Adds one process's bytes.
    pub(crate) fn with(mut self, process: &ProcessGpu, state: Option<ProcessState>) -> Self {
        if matches!(state, Some(ProcessState::Doubtful | ProcessState::Dead)) {
            let bytes = process.charged.saturating_add(process.overhead);
            self.ended = self.ended.saturating_add(bytes);
        }
        self.charged = self.charged.saturating_add(process.charged);
        self.overhead = self.overhead.saturating_add(process.overhead);
        self.managed = self.managed.saturating_add(process.managed);
        self.host = self.host.saturating_add(process.host);
        self
    }

    /// Adds an allocation that several processes hold.
    pub(crate) fn with_shared(mut self, bytes: u64, is_held_by_living: bool) -> Self {
        self.charged = self.charged.saturating_add(bytes);
        self.shared = self.shared.saturating_add(bytes);
        if !is_held_by_living {
            self.ended = self.ended.saturating_add(bytes);
        }
        self
    }

    pub(crate) fn finish(mut self) -> Self {
        self.free = self.limit.saturating_sub(self.used());
        self
    }

    /// Usage by living processes, which a view of the slice shows as used.
    pub fn used_by_living(&self) -> u64 {
        self.used().saturating_sub(self.ended)
    }

    /// All that counts against the limit.
    pub fn used(&self) -> u64 {
        self.charged
            .saturating_add(self.overhead)
            .saturating_add(self.unseen)
    }
}
