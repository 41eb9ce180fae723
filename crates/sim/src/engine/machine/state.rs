//! The state file: the machine that all processes share, mapped by each of them and named by DIVVY_SIM_STATE.
//!
//! ```text
//! Header │ Gpu × count │ Slot × SLOTS │ Share × SHARES │ IpcEvent × MAX_IPC_EVENTS │ Group × GROUPS
//! │ Queue × SLOTS × partitions (sparse; only touched pages exist)
//! ```
//!
//! The first process creates the file from DIVVY_SIM, and names it when it is complete, so no process sees half of one.
//! One robust mutex guards every change but a process's pushes to its own queues. Processes die at any instruction:
//! what counts (a slot's bytes, its liveness) is single words, what is derived from them (a GPU's sum) is computed
//! again whenever a holder of the lock has died.

mod file;

use crate::config::{Clock, Config, ConfigError, InstanceConfig, MemoryLimitsConfig, MigConfig};
use crate::engine::machine::gpu::Gpu;
use crate::engine::machine::group::{GROUPS, Group};
use crate::engine::machine::ipc_event::{IpcEvent, MAX_IPC_EVENTS};
use crate::engine::machine::share::{NUMBERED, SHARES, Share};
use crate::engine::machine::slots::{ProcessSlot, SLOTS};
use crate::engine::machine::state::file::{
    Identity, UnnamedFile, map_shared, open_existing, raised,
};
use crate::engine::mig::partition::{
    ComputeUnit, PARTITIONS_PER_GPU, gpu_of, instance_of, position,
};
use crate::engine::time::together;
use crate::engine::time::together::ActiveEngine;
use crate::engine::time::{Lane, Queue};
use crate::model;
use crate::model::mig::{GpuProfile, Table};
use crate::model::{MAX_GPUS, Model, SpecError};
use std::cell::UnsafeCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};
use std::time::Duration;

const MAGIC: [u8; 8] = *b"divvysim";

/// A change of the layout takes the next number, so that no process maps another's.
const VERSION: u32 = 11;

/// The kernel's page on x86-64.
const PAGE: usize = 4096;

/// Where a virtual clock begins, in nanoseconds: later than 0, so that 0 can mean "not yet".
const VIRTUAL_BEGINNING: u64 = 1_000_000_000;

#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    gpu_count: u32,
    size: u64,
    spec: [u8; 512],
    virtual_clock: u32,
    /// Counts changes that waiters on a virtual clock sleep for.
    epoch: AtomicU32,
    virtual_now: AtomicU64,
    /// Slots at and above this index have never been used.
    high_water: AtomicU64,
    /// Rows of groups at and above this index have never been used.
    groups_high_water: AtomicU64,
    /// Whether anyone has ever queued a meeting: from then on all GPUs advance together.
    meetings: AtomicU64,
    /// How many shares have had a number for a key.
    numbered_shares: AtomicU64,
    lock: UnsafeCell<libc::pthread_mutex_t>,
}

/// Why there is no machine to simulate. Every text is one line.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("DIVVY_SIM_STATE is not set: the simulated driver needs the path of its state file")]
    NoPath,
    #[error("{0} does not exist, and DIVVY_SIM is not set: set DIVVY_SIM=MODEL:N (models: {known})", known = model::keys().collect::<Vec<_>>().join(", "))]
    NoSpec(PathBuf),
    #[error("DIVVY_SIM: {0}")]
    Spec(#[from] SpecError),
    #[error(
        "{0} simulates `{1}`, but DIVVY_SIM is `{2}`: remove the file or use another DIVVY_SIM_STATE"
    )]
    OtherSpec(PathBuf, String, String),
    #[error("DIVVY_SIM_CONFIG: cannot create instance {} at memory slice {} on GPU {}", .0.profile, .0.start, .0.gpu)]
    Instance(InstanceConfig),
    #[error("{0} is not a state file of this simulator (version {VERSION})")]
    NotOurs(PathBuf),
    #[error("cannot {1} {0}: {2}")]
    Io(PathBuf, &'static str, io::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Where the parts of the file lie, in bytes from its beginning.
#[derive(Clone, Copy)]
struct Layout {
    gpus: usize,
    slots: usize,
    shares: usize,
    marks: usize,
    groups: usize,
    queues: usize,
    size: usize,
}

impl Layout {
    fn of(gpu_count: usize) -> Layout {
        let page = |at: usize| at.next_multiple_of(PAGE);
        let gpus = page(size_of::<Header>());
        let slots = page(gpus + gpu_count * size_of::<Gpu>());
        let shares = page(slots + SLOTS * size_of::<ProcessSlot>());
        let marks = page(shares + SHARES * size_of::<Share>());
        let groups = page(marks + MAX_IPC_EVENTS * size_of::<IpcEvent>());
        let queues = page(groups + GROUPS * size_of::<Group>());
        Layout {
            gpus,
            slots,
            shares,
            marks,
            groups,
            queues,
            size: page(queues + SLOTS * gpu_count * PARTITIONS_PER_GPU * size_of::<Queue>()),
        }
    }
}

/// The mapped state file.
pub struct State {
    path: PathBuf,
    map: *const u8,
    layout: Layout,
    models: Vec<Model>,
    /// What this process's driver says of MIG: the configuration, and each GPU's table once it was needed.
    mig: MigConfig,
    /// As this process's driver has it.
    memory_limits: Option<MemoryLimitsConfig>,
    tables: Vec<OnceLock<Option<Table>>>,
    identity: Identity,
    /// What the locks are taken through; -1 until it is needed, as after a fork. Not what the mapping was made through:
    /// a mapping keeps its open file alive, and with it the locks, in fork children too.
    descriptor: AtomicI32,
    /// Slot of this process, or usize::MAX.
    own_slot: AtomicUsize,
}

// SAFETY: the mapping lives as long as the process and is only reached through atomics or under the process-shared
// lock.
unsafe impl Send for State {}

// SAFETY: as above.
unsafe impl Sync for State {}

impl State {
    /// Opens the machine that the environment names, and makes it when it does not exist yet.
    pub fn from_env(config: &Config) -> Result<State, InitError> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = PathBuf::from(set("DIVVY_SIM_STATE").ok_or(InitError::NoPath)?);
        State::open(&path, set("DIVVY_SIM").as_deref(), config)
    }

    /// Opens `path`; makes it from `spec` when it does not exist.
    pub fn open(path: &Path, spec: Option<&OsStr>, config: &Config) -> Result<State, InitError> {
        let spec = spec.map(|spec| spec.to_string_lossy().into_owned());
        let wanted = spec.as_deref().map(model::parse_spec).transpose()?;
        let file = match open_existing(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let keys = wanted
                    .as_deref()
                    .ok_or_else(|| InitError::NoSpec(path.to_owned()))?;
                create(path, keys, config)?;
                open_existing(path)
            }
            other => other,
        }
        .map_err(|error| InitError::Io(path.to_owned(), "open", error))?;

        let mut state = State::map(path, &file)?;
        state.mig = config.mig.clone();
        state.memory_limits = config.memory_limits.clone();
        state
            .descriptor()
            .map_err(|error| InitError::Io(path.to_owned(), "open", error))?;
        if let Some(keys) = wanted.filter(|keys| keys.join(",") != state.spec()) {
            return Err(InitError::OtherSpec(
                path.to_owned(),
                state.spec(),
                keys.join(","),
            ));
        }
        Ok(state)
    }

    fn map(path: &Path, file: &File) -> Result<State, InitError> {
        let not_ours = || InitError::NotOurs(path.to_owned());
        let failed = |what| move |error| InitError::Io(path.to_owned(), what, error);
        let identity = Identity::of(file).map_err(failed("examine"))?;
        let size = usize::try_from(identity.size).unwrap_or(0);
        if size < size_of::<Header>() {
            return Err(not_ours());
        }
        let map = map_shared(file, size).map_err(failed("map"))?;
        // SAFETY: the mapping is at least as long as the header, and page aligned.
        let header = unsafe { &*map.cast::<Header>() };
        let gpu_count = header.gpu_count as usize;
        let sound = header.magic == MAGIC
            && header.version == VERSION
            && (1..=MAX_GPUS).contains(&gpu_count);
        if !sound || Layout::of(gpu_count).size != size || header.size != size as u64 {
            return Err(not_ours());
        }
        let mut state = State {
            path: path.to_owned(),
            map,
            layout: Layout::of(gpu_count),
            models: Vec::new(),
            mig: MigConfig::default(),
            memory_limits: None,
            tables: Vec::new(),
            identity,
            descriptor: AtomicI32::new(-1),
            own_slot: AtomicUsize::new(usize::MAX),
        };
        state.models = state
            .gpus()
            .iter()
            .map(|gpu| model::find(gpu.model_key()))
            .collect::<Option<_>>()
            .ok_or_else(not_ours)?;
        state.tables = vec![OnceLock::new(); gpu_count];
        Ok(state)
    }

    /// Makes the instances that the configuration has from the beginning.
    fn divide(&self) -> Result<(), InitError> {
        let locked = self.lock();
        for wanted in &self.mig.instances {
            let made = locked.make_whole_instance(wanted.gpu, &wanted.profile, wanted.start);
            made.map_err(|_| InitError::Instance(wanted.clone()))?;
        }
        Ok(())
    }

    /// Whether the device files of rights are left to another program.
    pub fn has_no_modprobe(&self) -> bool {
        self.mig.without_modprobe
    }

    fn header(&self) -> &Header {
        // SAFETY: `map` checked the file's size against the layout; the mapping is never removed.
        unsafe { &*self.map.cast::<Header>() }
    }

    fn part<T>(&self, offset: usize, count: usize) -> &[T] {
        // SAFETY: offsets and counts come from the layout that `map` checked; the records consist of atomics and of
        // fields set before the file got its name, and zeroed memory is valid for all of them.
        unsafe { std::slice::from_raw_parts(self.map.add(offset).cast::<T>(), count) }
    }

    pub fn gpu_count(&self) -> usize {
        self.header().gpu_count as usize
    }

    pub fn gpus(&self) -> &[Gpu] {
        self.part(self.layout.gpus, self.gpu_count())
    }

    /// The GPU that a partition is on.
    pub fn gpu(&self, partition: usize) -> &Gpu {
        &self.gpus()[gpu_of(partition)]
    }

    pub fn model(&self, gpu: usize) -> &Model {
        &self.models[gpu]
    }

    /// What a GPU can be divided into, as this process's driver says it; `None` if it cannot be divided.
    pub fn mig_table(&self, gpu: usize) -> Option<&Table> {
        let read = || {
            let table = Table::find(self.models[gpu].mig.as_deref()?)?;
            let here = |other: &&GpuProfile| other.is_of(gpu);
            let others: Vec<GpuProfile> = self.mig.profiles.iter().filter(here).cloned().collect();
            Some(table.with(&others))
        };
        self.tables[gpu].get_or_init(read).as_ref()
    }

    /// Bytes that a GPU instance has beyond what its profile says.
    pub fn mig_extra_memory(&self) -> u64 {
        self.mig.extra_memory_mib << 20
    }

    /// All slots that were ever used.
    pub fn slots(&self) -> &[ProcessSlot] {
        self.part(
            self.layout.slots,
            (self.header().high_water.load(SeqCst) as usize).min(SLOTS),
        )
    }

    pub fn all_slots(&self) -> &[ProcessSlot] {
        self.part(self.layout.slots, SLOTS)
    }

    pub fn raise_high_water(&self, slot: usize) {
        self.header().high_water.fetch_max(slot as u64 + 1, SeqCst);
    }

    pub fn shares(&self) -> &[Share] {
        self.part(self.layout.shares, SHARES)
    }

    pub fn marks(&self) -> &[IpcEvent] {
        self.part(self.layout.marks, MAX_IPC_EVENTS)
    }

    /// All rows of groups that were ever used.
    pub fn groups(&self) -> &[Group] {
        let high_water = self.header().groups_high_water.load(SeqCst) as usize;
        &self.all_groups()[..high_water.min(GROUPS)]
    }

    pub fn all_groups(&self) -> &[Group] {
        self.part(self.layout.groups, GROUPS)
    }

    pub fn raise_groups(&self, row: usize) {
        let high_water = &self.header().groups_high_water;
        high_water.fetch_max(row as u64 + 1, SeqCst);
    }

    /// How the driver limits the memory of control groups; None for a driver that does not.
    pub fn memory_limits(&self) -> Option<&MemoryLimitsConfig> {
        self.memory_limits.as_ref()
    }

    pub fn queue(&self, slot: usize, partition: usize) -> &Queue {
        let partitions = self.gpu_count() * PARTITIONS_PER_GPU;
        &self.part::<Queue>(self.layout.queues, SLOTS * partitions)
            [slot * partitions + position(partition)]
    }

    pub fn spec(&self) -> String {
        text(&self.header().spec).to_owned()
    }

    pub fn own_slot(&self) -> Option<usize> {
        Some(self.own_slot.load(SeqCst)).filter(|slot| *slot != usize::MAX)
    }

    pub fn set_own_slot(&self, slot: Option<usize>) {
        self.own_slot.store(slot.unwrap_or(usize::MAX), SeqCst);
    }

    /// The descriptor the byte-range locks are taken through, of the very file that is mapped. The program may have
    /// closed it, and the number may be another file of its own by now: then the file is opened once more, and the lock
    /// on the own slot taken again unless another process has it.
    pub fn descriptor(&self) -> io::Result<RawFd> {
        let known = self.descriptor.load(SeqCst);
        if known >= 0 && Identity::of_descriptor(known).is_ok_and(|found| found == self.identity) {
            return Ok(known);
        }
        let fresh = open_existing(&self.path)?;
        if Identity::of(&fresh)? != self.identity {
            return Err(io::Error::other("the state file was replaced"));
        }
        let fresh = raised(fresh);
        match self
            .descriptor
            .compare_exchange(known, fresh.as_raw_fd(), SeqCst, SeqCst)
        {
            Ok(_) => {
                let fresh = fresh.into_raw_fd();
                if let Some(slot) = self.own_slot() {
                    self.lock_again(fresh, slot);
                }
                Ok(fresh)
            }
            Err(other) => Ok(other),
        }
    }

    /// In a fork child: lets go of the parent's slot, which stays the parent's.
    pub fn forget_after_fork(&self) {
        let inherited = self.descriptor.swap(-1, SeqCst);
        let found = Identity::of_descriptor(inherited);
        if found.is_ok_and(|found| found == self.identity) {
            // SAFETY: a descriptor of the state file, which only this place held.
            drop(unsafe { File::from_raw_fd(inherited) });
        }
        self.set_own_slot(None);
    }

    /// A key for a share that has no file of its own; never given twice.
    pub fn next_key(&self) -> u64 {
        NUMBERED | self.header().numbered_shares.fetch_add(1, SeqCst)
    }

    pub fn has_virtual_clock(&self) -> bool {
        self.header().virtual_clock != 0
    }

    /// Simulated time in nanoseconds.
    pub fn now(&self) -> u64 {
        if self.has_virtual_clock() {
            self.header().virtual_now.load(SeqCst)
        } else {
            monotonic_ns()
        }
    }

    /// Before the first meeting is queued.
    pub fn expect_meetings(&self) {
        self.header().meetings.store(1, SeqCst);
    }

    pub fn set_virtual_now(&self, now: u64) {
        self.header().virtual_now.fetch_max(now, SeqCst);
    }

    /// Takes the machine's lock. It survives its holders: the sums are computed again when one has died.
    pub fn lock(&self) -> Locked<'_> {
        let lock = self.header().lock.get();
        // SAFETY: a robust, process-shared mutex, initialised before the file got its name.
        match unsafe { libc::pthread_mutex_lock(lock) } {
            0 => Locked { state: self },
            libc::EOWNERDEAD => {
                let locked = Locked { state: self };
                locked.repair();
                // SAFETY: this thread owns the mutex.
                unsafe { libc::pthread_mutex_consistent(lock) };
                locked
            }
            error => panic!(
                "the state file's lock is unusable: {}",
                io::Error::from_raw_os_error(error)
            ),
        }
    }

    /// Wakes all waiters for a change of the machine.
    pub fn notify(&self) {
        let epoch = &self.header().epoch;
        epoch.fetch_add(1, SeqCst);
        // SAFETY: a futex on a live word of the shared mapping.
        unsafe { libc::syscall(libc::SYS_futex, epoch.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    pub fn epoch(&self) -> u32 {
        self.header().epoch.load(SeqCst)
    }

    /// Sleeps until the epoch is no longer `seen`, at most `ns`. A waiter that is killed is noticed by the others'
    /// timeouts.
    pub fn sleep(&self, seen: u32, ns: u64) {
        let timeout = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (ns % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: a futex on a live word of the shared mapping, and a timeout that outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.header().epoch.as_ptr(),
                libc::FUTEX_WAIT,
                seen,
                &raw const timeout,
            )
        };
    }
}

/// The state while this thread holds its lock.
pub struct Locked<'a> {
    state: &'a State,
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread owns the mutex.
        unsafe { libc::pthread_mutex_unlock(self.header().lock.get()) };
    }
}

impl Locked<'_> {
    fn repair(&self) {
        for slot in 0..self.slots().len() {
            for partition in self.partitions_in_use(slot) {
                self.queue(slot, partition).repair();
            }
        }
        self.sum_up();
    }

    /// The queues of all live processes on a whole GPU, or in a compute instance.
    fn lanes(
        &self,
        ComputeUnit { partition, compute }: ComputeUnit,
    ) -> impl Iterator<Item = Lane<'_>> {
        let is_whole = instance_of(partition).is_none();
        let live = self.slots().iter().enumerate().filter(move |(_, slot)| {
            slot.is_live() && (is_whole || slot.entered(partition) == Some(compute))
        });
        live.map(move |(id, _)| Lane {
            id,
            queue: self.queue(id, partition),
        })
    }

    /// What has time of its own, with its queues.
    pub fn running(&self, unit: ComputeUnit) -> ActiveEngine<'_> {
        let engine = self.gpu(unit.partition).engine_at(unit);
        ActiveEngine::new(engine, self.lanes(unit))
    }

    /// Brings a partition to the present, and all of them where queues may meet.
    pub fn advance(&self, partition: usize) {
        if self.header().meetings.load(SeqCst) != 0 {
            return self.advance_all();
        }
        if instance_of(partition).is_none() {
            return self.advance_unit(ComputeUnit {
                partition,
                compute: 0,
            });
        }
        self.compute_units_of(partition)
            .for_each(|unit| self.advance_unit(unit));
    }

    /// Moves a virtual clock on.
    pub fn pass(&self, time: Duration) {
        let now = self.now() + time.as_nanos() as u64;
        self.set_virtual_now(now);
        self.advance_all();
        self.notify();
    }

    fn advance_unit(&self, unit: ComputeUnit) {
        together::advance(&[self.running(unit)], self.now());
    }

    /// Brings everything to the present.
    pub fn advance_all(&self) {
        if self.header().meetings.load(SeqCst) == 0 {
            return self
                .compute_units()
                .for_each(|unit| self.advance_unit(unit));
        }
        let parts: Vec<ActiveEngine<'_>> = self
            .compute_units()
            .map(|unit| self.running(unit))
            .collect();
        together::advance(&parts, self.now());
    }
}

fn create(path: &Path, keys: &[&str], config: &Config) -> Result<(), InitError> {
    let failed = |what| move |error| InitError::Io(path.to_owned(), what, error);
    let layout = Layout::of(keys.len());
    let unnamed = UnnamedFile::beside(path).map_err(failed("create"))?;
    unnamed
        .file
        .set_len(layout.size as u64)
        .map_err(failed("size"))?;
    let map = map_shared(&unnamed.file, layout.size)
        .map_err(failed("map"))?
        .cast_mut();

    let identity = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut spec = [0; 512];
    fill_text(&mut spec, &keys.join(","));
    // SAFETY: the mapping has the layout's size and is not shared yet; zeroed memory is valid for all fields not
    // written.
    unsafe {
        let header = map.cast::<Header>();
        (*header).magic = MAGIC;
        (*header).version = VERSION;
        (*header).gpu_count = keys.len() as u32;
        (*header).size = layout.size as u64;
        (*header).spec = spec;
        (*header).virtual_clock = u32::from(config.clock == Clock::Virtual);
        (*header).virtual_now = AtomicU64::new(VIRTUAL_BEGINNING);
        init_robust_mutex((*header).lock.get());
        for (index, key) in keys.iter().enumerate() {
            (*map.add(layout.gpus).cast::<Gpu>().add(index)).init(
                identity.as_os_str().as_bytes(),
                index,
                key,
                &config.mig,
            );
        }
        libc::munmap(map.cast(), layout.size);
    }
    if !config.mig.instances.is_empty() {
        let mut state = State::map(path, &unnamed.file)?;
        state.mig = config.mig.clone();
        state.divide()?;
    }
    match unnamed.publish(path) {
        // Someone was faster; the machine is theirs.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(failed("create")),
    }
}

/// # Safety
/// `lock` must be writable, shared memory that is not in use yet.
unsafe fn init_robust_mutex(lock: *mut libc::pthread_mutex_t) {
    // SAFETY: the attribute object lives through the calls; none of them can fail with these arguments.
    unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_mutexattr_init(&raw mut attributes);
        libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(lock, &raw const attributes);
        libc::pthread_mutexattr_destroy(&raw mut attributes);
    }
}

/// The machine's monotonic clock, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the structure it is given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The text before the first zero byte.
pub fn text(bytes: &[u8]) -> &str {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

pub fn fill_text(field: &mut [u8], text: &str) {
    let length = text.len().min(field.len() - 1);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

#[cfg(test)]
mod tests;
