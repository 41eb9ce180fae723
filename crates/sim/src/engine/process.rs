//! The process room: CUDA in one process, with the devices that it sees, its objects and the thread's current context.
//!
//! ```text
//! visible_devices ─ current (context stack) ─ issue (appending work) ─ capture_mode ─ peer
//! checkpoint (other processes) ─ checkpoint_lock (calls of a locked process wait)
//! ```
//! It may use `objects`, `machine`, `mig` and `time`. `memory`, `module`, `work` and `context` add the calls of their
//! topics to [`Process`].
//!
//! May use: `machine`, `mig`, `objects`, `time`.
//! Used by: `memory`, `module`, `work`, `context`.

pub mod capture_mode;
pub mod checkpoint;
pub mod checkpoint_lock;
pub mod current;
pub mod issue;
pub mod peer;
pub mod visible_devices;

use crate::engine::machine::checkpoint_state::CheckpointState;
use crate::engine::machine::group::GroupId;
use crate::engine::machine::opened::{Machine, machine};
use crate::engine::machine::state::State;
use crate::engine::mig::partition::{MAX_PARTITIONS, gpu_of};
use crate::engine::objects::Objects;
use crate::engine::objects::memory::Charges;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::Issue;
use crate::engine::process::visible_devices::{Device, Instance};
use crate::model::Model;
use divvy_driver::sys::cuda::{CUdevice, CUresult};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub struct Process {
    pub machine: &'static Machine,
    pub slot: usize,
    /// Its devices, by ordinal: GPUs, and compute instances with figures of their own.
    devices: Vec<Device>,
    objects: Mutex<Objects>,
    /// Held while a thread appends work for a GPU, also while it waits for room in the queue.
    pub issue: [Mutex<Issue>; MAX_PARTITIONS],
    next_id: AtomicU64,
    /// How many captures there are, so that calls without any need not look.
    pub captures: AtomicUsize,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// Held while a thread initialises: a process has one slot.
static INITIALISING: Mutex<()> = Mutex::new(());

static FORKED: AtomicBool = AtomicBool::new(false);

/// Initialises CUDA for this process; later calls change nothing.
pub fn init() -> Done {
    if FORKED.load(SeqCst) {
        return Err(CUresult::NOT_INITIALIZED);
    }
    let _one_at_a_time = INITIALISING.lock();
    if PROCESS.get().is_some() {
        return Ok(());
    }
    let machine = machine().ok_or(CUresult::NO_DEVICE)?;
    if visible_devices::devices(&machine.state).is_empty() {
        return Err(CUresult::NO_DEVICE);
    }
    let slot = match machine
        .state
        .own_slot()
        .map_or_else(|| machine.state.claim_slot(), Ok)
    {
        Ok(slot) => slot,
        Err(error) => {
            eprintln!("divvy-sim: cannot claim a slot: {error}");
            return Err(CUresult::OPERATING_SYSTEM);
        }
    };
    // Instances may have gone meanwhile; from now on this process keeps its own.
    let locked = machine.state.lock();
    let devices = visible_devices::devices(&machine.state);
    if devices.is_empty() {
        return Err(CUresult::NO_DEVICE);
    }
    for device in &devices {
        locked.enter(slot, device.partition, device.compute);
    }
    drop(locked);
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    PROCESS.get_or_init(|| Process {
        machine,
        slot,
        devices,
        objects: Mutex::new(Objects::new()),
        issue: std::array::from_fn(|_| Mutex::default()),
        next_id: AtomicU64::new(1),
        captures: AtomicUsize::new(0),
    });
    Ok(())
}

/// This process's CUDA, once `cuInit` has succeeded; a fork child has none.
pub fn process() -> Done<&'static Process> {
    match PROCESS.get() {
        Some(process) if !FORKED.load(Relaxed) => Ok(process),
        _ => Err(CUresult::NOT_INITIALIZED),
    }
}

/// In a fork child: CUDA is over, as with the real driver.
extern "C" fn after_fork() {
    FORKED.store(true, SeqCst);
}

impl Process {
    pub fn state(&self) -> &'static State {
        &self.machine.state
    }

    pub fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// The partition behind an ordinal.
    pub fn gpu(&self, device: CUdevice) -> Done<usize> {
        let ordinal = usize::try_from(device).map_err(|_| CUresult::INVALID_DEVICE)?;
        let device = self.devices.get(ordinal);
        device
            .map(|device| device.partition)
            .ok_or(CUresult::INVALID_DEVICE)
    }

    /// The ordinal of a partition.
    pub fn device(&self, gpu: usize) -> CUdevice {
        let mut partitions = self.partitions();
        partitions
            .position(|partition| partition == gpu)
            .map_or(-1, |ordinal| ordinal as CUdevice)
    }

    /// Its partitions in the order of their ordinals.
    pub fn partitions(&self) -> impl Iterator<Item = usize> + '_ {
        self.devices.iter().map(|device| device.partition)
    }

    /// The compute instance it uses on a partition.
    pub fn instance(&self, gpu: usize) -> Option<&Instance> {
        let mut devices = self.devices.iter();
        devices
            .find(|device| device.partition == gpu)?
            .instance
            .as_ref()
    }

    /// What the device is like: the GPU's model, with the figures of the instance where it is one.
    pub fn model(&self, gpu: usize) -> &Model {
        match self.instance(gpu) {
            Some(instance) => &instance.model,
            None => self.machine.state.model(gpu_of(gpu)),
        }
    }

    /// Ids of contexts, streams and buffers: unique in the process, never reused.
    pub fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Relaxed)
    }

    /// Fails for a GPU that has fallen off the bus.
    pub fn check_gpu(&self, gpu: usize) -> Done {
        if self.state().gpu(gpu).health.is_lost() {
            Err(CUresult::UNKNOWN)
        } else {
            Ok(())
        }
    }

    pub fn checkpoint_state(&self) -> &CheckpointState {
        &self.state().slots()[self.slot].checkpoint_state
    }

    /// Takes device memory for this process, charged to the control group that it is in now.
    pub fn take_bytes(&self, gpu: usize, bytes: u64) -> Done<GroupId> {
        let folder = if bytes == 0 {
            None
        } else {
            self.state().own_folder()
        };
        self.take_bytes_in(folder.as_deref(), gpu, bytes)
    }

    /// The same charged to the group with this folder, or to none: the driver counts managed memory as system memory.
    pub fn take_bytes_in(&self, folder: Option<&Path>, gpu: usize, bytes: u64) -> Done<GroupId> {
        let locked = self.state().lock();
        let taken = locked.charge_bytes(self.slot, gpu, bytes, folder);
        taken.map_err(|_| CUresult::OUT_OF_MEMORY)
    }

    /// Gives back what was charged to `group`.
    pub fn return_bytes(&self, gpu: usize, bytes: u64, group: GroupId) {
        let locked = self.state().lock();
        locked.return_charged(self.slot, gpu, bytes, group);
    }

    /// Takes bytes for an object that grows and shrinks.
    pub fn grow_charges(&self, gpu: usize, charges: &mut Charges, bytes: u64) -> Done {
        let group = self.take_bytes(gpu, bytes)?;
        charges.0.push((bytes, group));
        Ok(())
    }

    /// Gives bytes of such an object back, the last ones first.
    pub fn shrink_charges(&self, gpu: usize, charges: &mut Charges, mut bytes: u64) {
        while bytes > 0
            && let Some((held, group)) = charges.0.pop()
        {
            let part = held.min(bytes);
            self.return_bytes(gpu, part, group);
            bytes -= part;
            if held > part {
                charges.0.push((held - part, group));
            }
        }
    }
}
