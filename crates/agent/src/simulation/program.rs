//! Simulated programs of jobs: they join their slice in the ledger, allocate, free, fork and end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_core::mig::MigUuid;
use divvy_core::resize::memory::ProcessState;
use divvy_core::{Bytes, JobId};
use divvy_ledger::{ProcessSlot, Slice};

use super::gates::WaitingCall;
use super::gpus::{CONTEXT, Health, uuid};
use super::kernel::{Kind, Proc, SIGTERM};
use super::{World, clock};
use crate::job_dir::JobDir;
use divvy_testkit::Rng;

pub struct Program {
    /// The folder of the job's run that it is of.
    pub run: PathBuf,
    pub job: u64,
    /// The supervisor that started it, or what started it; its session is that one's.
    pub led_by: u32,
    /// The job ends with it.
    pub is_first: bool,
    pub slot: Option<ProcessSlot>,
    /// Of its run's slice, where that could be read.
    generation: Option<u64>,
    /// What the driver gave it, by GPU.
    pub held: BTreeMap<usize, u64>,
    /// What of it is in host memory, and how the driver has it.
    pub saved: BTreeMap<usize, u64>,
    pub checkpoint: ProcessState,
    /// Its call that waits for the memory of its parked job.
    pub call: Option<WaitingCall>,
    /// Its MIG devices, where its job has such, and the GPU and the bytes of those that it uses.
    pub devices: Vec<MigUuid>,
    pub inside: BTreeMap<MigUuid, (usize, u64)>,
    /// The owner: an account, or `team/` for the pods of a namespace.
    pub tenant: String,
    /// The account that it runs on, where that is not the daemon's.
    pub uid: Option<u32>,
    /// What its environment has that is only its owner's to see.
    pub secret: Option<String>,
    /// What is mounted for it: it is of a pod that uses a claim.
    pub mounted: Option<PathBuf>,
    /// The job's environment under these names: that a client has to confirm it, and the value of that confirmation.
    pub confirmed: Option<(String, Option<String>)>,
    /// When it last had a GPU do something.
    pub worked: Option<Duration>,
    /// It does not hear SIGTERM.
    stubborn: bool,
}

/// Variables of all jobs: the owner; and of some, a secret.
pub const OWNER: &str = "OWNER";
pub const SECRET: &str = "TOKEN";

/// Variables of jobs that are to be confirmed, and of those that were.
pub const TO_CONFIRM: &str = "TO_CONFIRM";
pub const CONFIRMED: &str = "CONFIRMED";

/// What a program asks for at once, in MiB.
const STEP_MIB: u64 = 4096;

impl Program {
    pub fn of(dir: &JobDir, slices: &Path, led_by: u32, dice: &mut Rng) -> Self {
        let run = dir.path().to_owned();
        // `jobs/7`, or `jobs/7/run-1`.
        let mut names = run.iter().rev().filter_map(|name| name.to_str());
        let job = names.find_map(|name| name.parse().ok()).unwrap_or(0);
        let spec = dir.spec().ok().flatten();
        let variable = |name: &str| {
            let spec = spec.as_ref()?;
            let contained = spec.container.as_ref();
            let own = contained.and_then(|plan| plan.held.variables.get(name));
            own.or_else(|| spec.env.get(name)).cloned()
        };
        let visible = variable("CUDA_VISIBLE_DEVICES");
        Self {
            run,
            job,
            led_by,
            is_first: true,
            slot: None,
            generation: Slice::open(&slices.join(job.to_string()))
                .ok()
                .map(|slice| slice.spec().generation),
            held: BTreeMap::new(),
            saved: BTreeMap::new(),
            checkpoint: ProcessState::Running,
            call: None,
            devices: devices_of(&visible.unwrap_or_default()),
            inside: BTreeMap::new(),
            tenant: variable(OWNER).unwrap_or_default(),
            uid: spec.as_ref().and_then(|spec| Some(spec.user.as_ref()?.uid)),
            secret: variable(SECRET),
            mounted: None,
            confirmed: variable(TO_CONFIRM).map(|job| (job, variable(CONFIRMED))),
            worked: None,
            stubborn: dice.once_in(4),
        }
    }

    /// Whether it is known to be in the slice of its own run. A process that got away from one run may join the slice
    /// of the next.
    pub fn has_joined(&self) -> bool {
        let own = |slot: &ProcessSlot| {
            let joined = slot.slice().spec().generation;
            self.generation.is_none_or(|own| own == joined)
        };
        self.slot.as_ref().is_some_and(own)
    }

    /// Of a pod that uses the claim of a job.
    pub fn of_pod(job: u64, namespace: &str, mounted: &Path, visible: &str) -> Self {
        Self {
            run: PathBuf::new(),
            job,
            led_by: 0,
            is_first: false,
            slot: None,
            generation: None,
            held: BTreeMap::new(),
            saved: BTreeMap::new(),
            checkpoint: ProcessState::Running,
            call: None,
            devices: devices_of(visible),
            inside: BTreeMap::new(),
            tenant: format!("{namespace}/"),
            uid: None,
            secret: None,
            mounted: Some(mounted.to_owned()),
            confirmed: None,
            worked: None,
            stubborn: true,
        }
    }

    /// It is of a pod, and uses nothing: kubelet alone knows of it.
    pub fn is_idle_pod(&self) -> bool {
        self.mounted.is_some() && self.held.is_empty()
    }

    pub fn child(&self) -> Self {
        Self {
            run: self.run.clone(),
            job: self.job,
            led_by: self.led_by,
            is_first: false,
            slot: None,
            generation: self.generation,
            held: BTreeMap::new(),
            saved: BTreeMap::new(),
            checkpoint: ProcessState::Running,
            call: None,
            devices: self.devices.clone(),
            inside: BTreeMap::new(),
            tenant: self.tenant.clone(),
            uid: self.uid,
            secret: None,
            mounted: self.mounted.clone(),
            confirmed: None,
            worked: None,
            stubborn: self.stubborn,
        }
    }
}

/// The MIG devices that CUDA_VISIBLE_DEVICES names.
fn devices_of(visible: &str) -> Vec<MigUuid> {
    let all = visible.split(',').map(str::parse);
    all.filter_map(Result::ok).collect()
}

/// What programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Free,
    /// They end.
    Exit,
    /// They end when they are told to, but for the stubborn.
    ExitOnSigterm,
}

impl World {
    /// A program does something.
    pub fn program_steps(&mut self, pid: u32, mood: Behaviour, dice: &mut Rng) {
        let Some(proc) = self.processes.get(&pid) else {
            return;
        };
        let (told, session, within) = (proc.told, proc.session, proc.within);
        let Kind::Program(program) = &proc.kind else {
            return;
        };
        let runs = program.checkpoint == ProcessState::Running;
        let hears = !program.stubborn || (mood == Behaviour::Free && dice.once_in(20));
        // One that waits in the driver ends only by a signal.
        if (mood == Behaviour::Exit && runs) || (told && hears) {
            let status = match !runs || told && dice.once_in(2) {
                true => SIGTERM,
                false => 0,
            };
            return self.leave(pid, status);
        }
        if mood == Behaviour::ExitOnSigterm {
            return;
        }
        // Its calls wait: all that it can do is to call, and to start another.
        if !runs && !dice.once_in(8) {
            if dice.once_in(8) {
                self.calls(pid);
            }
            return;
        }
        match if runs { dice.below(8) } else { 1 } {
            0 => {
                let status = i32::from(dice.once_in(2)) << 8;
                self.leave(pid, status);
            }
            1 => {
                let child = program.child();
                // Daemonised, or not: below the supervisor either way.
                let session = (!dice.once_in(3)).then_some(session);
                let within = within.map(|within| self.next_within(within.namespace));
                self.spawn_within(pid, session, Kind::Program(Box::new(child)), within);
            }
            2 if !self.calls(pid) => {}
            2 => self.frees(pid),
            _ => self.takes(pid, dice),
        }
    }

    /// Ends by itself: a clean end gives everything back first.
    fn leave(&mut self, pid: u32, status: i32) {
        if status & 0x7f == 0
            && let Some(program) = self.program(pid)
            && let Some(slot) = &program.slot
        {
            for (at, gpu) in slot.slice().gpus().iter().enumerate() {
                let held = (0..)
                    .take(16)
                    .find(|index| uuid(*index).to_bytes() == gpu.uuid);
                let held = held.and_then(|index| program.held.remove(&index));
                if let Some(held) = held {
                    slot.release(at, held.saturating_sub(CONTEXT.get()));
                    slot.release_overhead(at);
                }
            }
        }
        self.die(pid, status);
    }

    pub fn program(&mut self, pid: u32) -> Option<&mut Program> {
        match &mut self.processes.get_mut(&pid)?.kind {
            Kind::Program(program) => Some(program),
            _ => None,
        }
    }

    /// Its place in the slice, taken when it first needs one.
    fn join(&mut self, pid: u32) -> bool {
        let folder = self.home.slices().to_owned();
        let preload = self.preload.clone();
        let owner = self.processes.get(&pid).map(Proc::owner);
        let (Some(program), Some(owner)) = (self.program(pid), owner) else {
            return false;
        };
        if program.slot.is_some() {
            return true;
        }
        let folder = folder.join(program.job.to_string());
        // A slice that is damaged or gone grants nothing.
        let slot = Slice::open(&folder).map(|slice| slice.join_as(owner).ok());
        program.slot = slot.ok().flatten();
        let joined = program.slot.is_some();
        if joined {
            self.map(pid, &[&preload, &folder.join("slots")]);
        }
        joined
    }

    fn takes(&mut self, pid: u32, dice: &mut Rng) {
        let wanted = ((1 + dice.below(STEP_MIB / 2)) * 2) << 20;
        let which = dice.below(8);
        let devices = self.program(pid).map(|program| program.devices.clone());
        let device = devices.unwrap_or_default();
        let device = usize::try_from(which)
            .ok()
            .and_then(|which| device.get(which.checked_rem(device.len())?));
        if let Some(device) = device {
            return self.takes_of_device(pid, device, wanted);
        }
        // A new process waits at the gate before it has a context.
        if !self.join(pid) || !self.calls(pid) {
            return;
        }
        let gpus = self.gpus.clone();
        let left: Vec<u64> = (0..gpus.len()).map(|gpu| self.left(gpu)).collect();
        let foreign: Vec<u64> = (0..gpus.len()).map(|gpu| self.foreign(gpu)).collect();
        let Some(program) = self.program(pid) else {
            return;
        };
        let job = program.job;
        let Some(slot) = &program.slot else { return };
        let specs = slot.slice().gpus().to_vec();
        let Some(at) = usize::try_from(which)
            .ok()
            .and_then(|which| which.checked_rem(specs.len()))
        else {
            return;
        };
        let Some(gpu) = (0..gpus.len()).find(|gpu| uuid(*gpu).to_bytes() == specs[at].uuid) else {
            return;
        };
        if gpus[gpu] != Health::Well {
            return;
        }
        if self.divided[gpu].mode.current {
            self.broken(format!(
                "job {job} has a part of GPU {gpu}, which is divided"
            ));
            return;
        }
        let Some(program) = self.program(pid) else {
            return;
        };
        let Some(slot) = &program.slot else { return };
        // The context first, as cuCtxCreate does; then the memory. Granted by the limiter is one thing, given by the
        // driver another.
        let context = match program.held.contains_key(&gpu) {
            true => 0,
            false if slot.charge_overhead(at).is_err() => return,
            false => CONTEXT.get(),
        };
        if context > left[gpu] {
            slot.release_overhead(at);
            let granted = "a context".to_owned();
            return self.short(foreign[gpu], job, gpu, granted);
        }
        *program.held.entry(gpu).or_default() += context;
        let Ok(hold) = slot.reserve(at, wanted) else {
            slot.count_denial(at, wanted);
            return self.notes_usage(pid);
        };
        if context + wanted > left[gpu] {
            drop(hold);
            let granted = format!("{wanted} bytes");
            return self.short(foreign[gpu], job, gpu, granted);
        }
        hold.commit();
        *program.held.entry(gpu).or_default() += wanted;
        self.notes_usage(pid);
        self.works(pid);
    }

    /// What the journal is to remember of a slice. A process that another user's job has left may use its ledger after
    /// the slice is gone, which is not remembered.
    fn notes_usage(&mut self, pid: u32) {
        let folder = self.home.slices().to_owned();
        let Some(program) = self.program(pid) else {
            return;
        };
        let (job, Some(slot)) = (program.job, &program.slot) else {
            return;
        };
        let generation = slot.slice().spec().generation;
        if folder.join(job.to_string()).is_dir() {
            let gpus = 0..slot.slice().gpus().len();
            let usage = gpus.map(|gpu| slot.usage(gpu));
            let usage = usage.map(|usage| (Bytes::new(usage.peak), usage.denied));
            let usage = usage.collect();
            self.usage.insert((JobId(job), generation), usage);
        }
    }

    /// The same in a MIG instance, where the hardware is the limiter.
    fn takes_of_device(&mut self, pid: u32, device: &MigUuid, wanted: u64) {
        // A process that has left its session and lost its supervisor cannot be attributed: the daemon may give the
        // instance to others.
        let held = self
            .processes
            .get(&pid)
            .filter(|one| !self.has_escaped(one));
        let its = held.and_then(|one| match &one.kind {
            Kind::Program(program) => Some((program.job, program.tenant.clone())),
            _ => None,
        });
        if let Some((job, tenant)) = its {
            self.has_its_device(job, &tenant, device);
        }
        let Some((gpu, total)) = self.device(device) else {
            return;
        };
        if self.gpus[gpu] != Health::Well {
            return;
        }
        let left = total.saturating_sub(self.inside(device).values().sum());
        let Some(program) = self.program(pid) else {
            return;
        };
        let context = match program.inside.contains_key(device) {
            true => 0,
            false => CONTEXT.get(),
        };
        if context + wanted <= left {
            *program.held.entry(gpu).or_default() += context + wanted;
            let (_, inside) = program.inside.entry(device.clone()).or_insert((gpu, 0));
            *inside += context + wanted;
        }
    }

    /// It launches work on a GPU, which a watching compute scheduler sees.
    fn works(&mut self, pid: u32) {
        let now = clock::boot();
        let Some(program) = self.program(pid) else {
            return;
        };
        program.worked = now;
        let job = JobId(program.job);
        self.worked.insert(job, now.unwrap_or_default());
        if self.watched.contains(&job) {
            self.wanted.insert(job, crate::host::clock::Instant::now());
        }
    }

    /// The limiter has granted memory that the driver does not have: too much was promised, unless unmanaged processes
    /// hold it.
    fn short(&mut self, foreign: u64, job: u64, gpu: usize, granted: String) {
        if foreign == 0 {
            let left = self.left(gpu);
            self.broken(format!(
                "job {job} was granted {granted} of GPU {gpu}, of which {left} bytes are left"
            ));
        }
    }

    fn frees(&mut self, pid: u32) {
        let Some(program) = self.program(pid) else {
            return;
        };
        for (gpu, inside) in program.inside.values_mut() {
            let freed = inside.saturating_sub(CONTEXT.get());
            *inside -= freed;
            if let Some(held) = program.held.get_mut(gpu) {
                *held -= freed;
            }
        }
        let Some(slot) = &program.slot else { return };
        for (at, spec) in slot.slice().gpus().iter().enumerate() {
            for (gpu, held) in &mut program.held {
                if uuid(*gpu).to_bytes() == spec.uuid && *held > CONTEXT.get() {
                    slot.release(at, *held - CONTEXT.get());
                    *held = CONTEXT.get();
                }
            }
        }
    }
}
