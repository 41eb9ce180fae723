//! What CUDA is for one process: the devices it sees and the objects it has made. The rest of the engine adds to it, topic by topic.

use super::array::Arrays;
use super::context::{Context, Primary};
use super::external::Externals;
use super::graph::Graphs;
use super::green::GreenContexts;
use super::handles::{Handle, Handles};
use super::memory::Memory;
use super::module::{Function, Library, Module};
use super::pool::Pools;
use super::seat::{MAX_PARTITIONS, gpu_of};
use super::sharing::Sharing;
use super::standing::CheckpointState;
use super::state::State;
use super::stream::{Event, Issue, Stream};
use super::texture::Textures;
use super::visible::{self, Device, Instance};
use super::vmm::VirtualMemory;
use crate::machine::{Machine, machine};
use crate::model::Model;
use divvy_driver::sys::cuda::{CUdevice, CUresult};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub type Done<T = ()> = Result<T, CUresult>;

pub struct Process {
    pub machine: &'static Machine,
    pub slot: usize,
    /// Its devices, by ordinal: GPUs, and compute instances with figures of their own.
    devices: Vec<Device>,
    objects: Mutex<Objects>,
    /// Taken by whoever appends work for a GPU, which may mean waiting until its queue has room.
    pub(super) issue: [Mutex<Issue>; MAX_PARTITIONS],
    next_id: AtomicU64,
    /// How many captures there are, so that calls without any need not look.
    pub(super) captures: AtomicUsize,
}

/// Everything handles and addresses refer to.
pub struct Objects {
    pub contexts: Handles<Context>,
    pub primary: [Primary; MAX_PARTITIONS],
    pub memory: Memory,
    pub virtual_memory: VirtualMemory,
    pub pools: Pools,
    pub streams: Handles<Stream>,
    pub events: Handles<Event>,
    pub modules: Handles<Module>,
    pub libraries: Handles<Library>,
    pub functions: Handles<Function>,
    pub graphs: Graphs,
    pub arrays: Arrays,
    pub textures: Textures,
    pub sharing: Sharing,
    pub externals: Externals,
    pub greens: GreenContexts,
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
    if visible::devices(&machine.state).is_empty() {
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
    let devices = visible::devices(&machine.state);
    if devices.is_empty() {
        return Err(CUresult::NO_DEVICE);
    }
    for device in &devices {
        locked.enter(slot, device.partition, device.compute);
    }
    drop(locked);
    PROCESS.get_or_init(|| Process {
        machine,
        slot,
        devices,
        objects: Mutex::new(Objects {
            contexts: Handles::new(0x51),
            primary: std::array::from_fn(|_| Primary::default()),
            memory: Memory::default(),
            virtual_memory: VirtualMemory::default(),
            pools: Pools::default(),
            streams: Handles::new(0x52),
            events: Handles::new(0x53),
            modules: Handles::new(0x54),
            libraries: Handles::new(0x55),
            functions: Handles::new(0x56),
            graphs: Graphs::default(),
            arrays: Arrays::default(),
            textures: Textures::default(),
            sharing: Sharing::default(),
            externals: Externals::default(),
            greens: GreenContexts::default(),
        }),
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

pub fn forget_after_fork() {
    if PROCESS.get().is_some() {
        FORKED.store(true, SeqCst);
    }
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

    /// The seat behind an ordinal.
    pub fn gpu(&self, device: CUdevice) -> Done<usize> {
        let ordinal = usize::try_from(device).map_err(|_| CUresult::INVALID_DEVICE)?;
        let device = self.devices.get(ordinal);
        device
            .map(|device| device.partition)
            .ok_or(CUresult::INVALID_DEVICE)
    }

    /// The ordinal of a seat.
    pub fn device(&self, gpu: usize) -> CUdevice {
        let mut seats = self.partitions();
        seats
            .position(|seat| seat == gpu)
            .map_or(-1, |ordinal| ordinal as CUdevice)
    }

    /// Its seats in the order of their ordinals.
    pub fn partitions(&self) -> impl Iterator<Item = usize> + '_ {
        self.devices.iter().map(|device| device.partition)
    }

    /// The compute instance it uses on a seat.
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
        if self.state().gpu(gpu).is_lost() {
            Err(CUresult::UNKNOWN)
        } else {
            Ok(())
        }
    }

    pub(super) fn checkpoint_state(&self) -> &CheckpointState {
        &self.state().slots()[self.slot].checkpoint_state
    }

    /// Takes device memory for this process.
    pub fn take_bytes(&self, gpu: usize, bytes: u64) -> Done {
        self.state()
            .lock()
            .take_bytes(self.slot, gpu, bytes)
            .map_err(|_| CUresult::OUT_OF_MEMORY)
    }

    pub fn return_bytes(&self, gpu: usize, bytes: u64) {
        self.state().lock().return_bytes(self.slot, gpu, bytes);
    }
}

impl Objects {
    pub fn context(&self, handle: Handle<Context>) -> Done<&Context> {
        self.contexts.get(handle).ok_or(CUresult::INVALID_CONTEXT)
    }
}
