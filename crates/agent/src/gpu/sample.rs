//! One sample of everything: the slices' ledgers, the driver, the ledgers again, and the attribution of the listed
//! processes.
//!
//! ```text
//! accounts ──► driver ──► accounts ──► /proc ──► a sight of each GPU, for `divvy_core::reconcile`
//! ```
//! The driver's figures are compared only with ledgers that were the same before and after the driver's answer. A
//! ledger is read once if its slice has no process and the driver lists none on its GPUs: there is nothing to compare.

use std::collections::{BTreeMap, HashMap, HashSet};

use divvy_core::mig::Placement;
use divvy_core::reconcile::{self, LedgerEntry, ProcessOwner, ProcessSample, Sample, SliceSample};
use divvy_core::{Bytes, JobId};
use divvy_ledger::{
    ContextCounts, OpenError, ProcessIdentity, ProcessState, ProcessUsage, SliceSpec, Snapshot,
    is_settled,
};

use super::attribution::{AttributedProcess, Attribution, Ownership, PidLookup, ProcessEvidence};
use super::health::GpuXid;
use super::outside::OutsideProcess;
use super::unlisted::UnlistedHolder;
use super::watched_jobs::{self, WatchedJobs};
use super::{FaultyGpu, GpuProcess, Observation, ObservedGpu};
use crate::host::clock::boot_ns;
use crate::host::process::evidence::{KnownFile, KnownFiles, has_mapped};
use crate::host::process::{self, Process};

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct NodeSample {
    /// When the driver was asked (CLOCK_BOOTTIME, nanoseconds).
    pub at: reconcile::BootNanos,
    pub gpus: Vec<GpuSample>,
    /// GPUs that do not answer.
    pub troubles: Vec<FaultyGpu>,
    /// The driver's error reports since the sample before.
    pub xids: Vec<GpuXid>,
    pub processes: HashMap<u32, AttributedProcess>,
    /// The evidence found inside those without a ledger.
    pub evidence: HashMap<u32, ProcessEvidence>,
    pub ledgers: BTreeMap<JobId, SliceReading>,
    /// Owners of slots that have ended in another PID namespace, or run another program, by what they called themselves.
    pub exited: HashSet<ProcessIdentity>,
    /// Processes in the control groups of released jobs, once for each GPU that they use.
    pub leftovers: Vec<Leftover>,
    /// Jobs that may hold memory which the driver lists for no process, the likeliest first.
    pub unlisted_holders: Vec<UnlistedHolder>,
}

/// A process in the control group of a job that has been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub job: JobId,
    pub process: Process,
    pub gpu_index: u32,
    /// `None` where the driver does not say.
    pub used: Option<Bytes>,
}

/// One GPU.
#[derive(Clone, Debug)]
pub struct GpuSample {
    pub observed: ObservedGpu,
    pub sample: Sample,
    /// Pids of those that are no job's.
    pub unmanaged: Vec<u32>,
    /// The largest of them, by user and program.
    pub outside: Vec<OutsideProcess>,
    /// The processes in its MIG instances.
    pub mig_processes: Vec<MigProcess>,
}

/// A process in a MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigProcess {
    pub placement: Placement,
    pub pid: u32,
    /// The job that it is of.
    pub job: Option<JobId>,
}

/// A slice and its ledger.
#[derive(Clone, Debug)]
pub struct SliceReading {
    spec: SliceSpec,
    /// Why the ledger cannot be read, where it cannot.
    pub snapshots: Result<LedgerSnapshots, String>,
}

/// A slice's ledger before and after one query of the driver.
#[derive(Clone, Debug)]
pub struct LedgerSnapshots {
    before: Snapshot,
    after: Snapshot,
    then: Vec<ProcessUsage>,
    now: Vec<ProcessUsage>,
    /// A process in it has ended, and may leave bytes to be reaped.
    pub has_dead: bool,
    /// By position in its GPUs, the most that all slots said before or after, those of ended processes too.
    at_most: Vec<Bytes>,
}

/// The accounts before the driver is asked.
pub type LedgersBefore = BTreeMap<JobId, Result<Snapshot, OpenError>>;

/// Reads the accounts of all slices.
pub fn read_ledgers(roster: &WatchedJobs) -> LedgersBefore {
    roster
        .ledgers()
        .map(|(job, account)| (job, account.slice.read()))
        .collect()
}

/// Puts together what the driver answered at `at` and the accounts of `before`.
pub fn build_sample(
    at: reconcile::BootNanos,
    observation: Observation,
    before: LedgersBefore,
    roster: &WatchedJobs,
    kin: &mut Attribution,
    marks: &KnownFiles,
) -> NodeSample {
    let listed = |pid: u32| {
        let lists = |gpu: &ObservedGpu| listed_processes(gpu).any(|process| process.pid == pid);
        observation.gpus.iter().any(lists)
    };
    let is_complete = observation.troubles.is_empty()
        && !observation.gpus.iter().any(ObservedGpu::hides_processes);
    let gone = kin.ended_owners(
        &slot_owners(&before, roster),
        is_complete.then_some(&listed as &dyn Fn(u32) -> bool),
        roster,
    );
    let mut look = NodeSample {
        at,
        ledgers: pair_ledgers(before, roster, &gone, &gpus_in_use(&observation)),
        exited: gone,
        ..NodeSample::default()
    };
    kin.retain(listed);
    let mut gpus = Vec::new();
    for observed in &observation.gpus {
        if observed.active_mig().is_some() {
            gpus.push(look.sample_mig_gpu(observed, roster, kin));
            continue;
        }
        let context = look
            .slices_on(observed, roster)
            .map(|(_, context)| context)
            .max();
        let mut seen = GpuSample {
            sample: Sample {
                used: observed.used,
                context: context.unwrap_or_default(),
                slices: look
                    .slices_on(observed, roster)
                    .map(|(slice, _)| slice)
                    .collect(),
                processes: Vec::new(),
            },
            unmanaged: Vec::new(),
            outside: Vec::new(),
            mig_processes: Vec::new(),
            observed: observed.clone(),
        };
        for process in &observed.processes {
            let sight = look.sample_process(observed, process, roster, kin, marks);
            if sight.owner == ProcessOwner::Unmanaged {
                seen.unmanaged.push(process.pid);
            }
            seen.sample.processes.push(sight);
        }
        gpus.push(seen);
    }
    look.gpus = gpus;
    look.leftovers = look.find_leftovers(roster);
    look.troubles = observation.troubles;
    look.xids = observation.xids;
    look
}

/// The owners of all slots, each with its slots file.
fn slot_owners<'a>(
    before: &LedgersBefore,
    roster: &'a WatchedJobs,
) -> Vec<(ProcessIdentity, &'a KnownFile)> {
    let owners = |(job, account): (JobId, &'a watched_jobs::SliceLedger)| {
        let processes = before.get(&job)?.as_ref().ok()?.processes();
        Some(
            processes
                .into_iter()
                .map(|process| (process.owner, &account.slots)),
        )
    };
    roster.ledgers().filter_map(owners).flatten().collect()
}

/// Every process of a GPU; one that is listed for the GPU and for an instance of it comes twice.
pub fn listed_processes(gpu: &ObservedGpu) -> impl Iterator<Item = &GpuProcess> {
    let instances = gpu.active_mig().into_iter().flat_map(|mig| &mig.instances);
    let devices = instances.flat_map(|instance| &instance.devices);
    gpu.processes
        .iter()
        .chain(devices.flat_map(|device| &device.processes))
}

/// Now, in the clock of [`NodeSample::at`].
pub fn now() -> reconcile::BootNanos {
    boot_ns()
}

/// The GPUs on which the driver lists a process.
fn gpus_in_use(observation: &Observation) -> HashSet<[u8; 16]> {
    let gpus = observation.gpus.iter();
    gpus.filter(|gpu| listed_processes(gpu).next().is_some())
        .map(|gpu| gpu.uuid.to_bytes())
        .collect()
}

/// Whether a ledger has nothing to be compared with: its slice had no process, and its GPUs have none.
fn is_unused(before: &Snapshot, inhabited: &HashSet<[u8; 16]>) -> bool {
    let mut gpus = before.spec().gpus.iter();
    before.is_empty() && !gpus.any(|gpu| inhabited.contains(&gpu.uuid))
}

fn pair_ledgers(
    mut before: LedgersBefore,
    roster: &WatchedJobs,
    gone: &HashSet<ProcessIdentity>,
    inhabited: &HashSet<[u8; 16]>,
) -> BTreeMap<JobId, SliceReading> {
    let mut book = |(job, account): (JobId, &watched_jobs::SliceLedger)| {
        let before = before.remove(&job);
        let after = match &before {
            Some(Ok(before)) if is_unused(before, inhabited) => Ok(before.clone()),
            _ => account.slice.read(),
        };
        let spec = account.slice.granted();
        let pages = match (before, after) {
            (Some(Ok(before)), Ok(after)) => Ok(LedgerSnapshots::new(before, after, gone)),
            (_, Err(error)) | (Some(Err(error)), _) => Err(error.to_string()),
            (None, _) => Err("the slice did not exist at the previous observation".to_owned()),
        };
        (
            job,
            SliceReading {
                spec,
                snapshots: pages,
            },
        )
    };
    roster.ledgers().map(&mut book).collect()
}

impl LedgerSnapshots {
    fn new(before: Snapshot, after: Snapshot, gone: &HashSet<ProcessIdentity>) -> Self {
        let (then, mut now) = (before.processes(), after.processes());
        let here = process::own_pid_namespace();
        let lives = |process: &ProcessUsage| {
            let ProcessIdentity {
                pid,
                start_time,
                pid_namespace,
            } = process.owner;
            process.state != ProcessState::Dead
                && !gone.contains(&process.owner)
                && (pid_namespace != here || Process { pid, start_time }.is_alive())
        };
        let sum = |processes: &[ProcessUsage], gpu: usize| {
            let figures = processes.iter().map(|slot| figure(slot, gpu));
            figures.fold(Bytes::ZERO, Bytes::saturating_add)
        };
        let gpus = 0..after.spec().gpus.len();
        let at_most = gpus
            .map(|gpu| sum(&then, gpu).max(sum(&now, gpu)))
            .collect();
        let all = now.len();
        now.retain(lives);
        Self {
            at_most,
            has_dead: now.len() < all,
            before,
            after,
            then,
            now,
        }
    }

    /// How often the limiter came upon what it could not count, or should not be.
    pub fn alarms(&self) -> u64 {
        self.after.alarms()
    }

    /// What became of contexts on one GPU.
    pub fn contexts(&self, gpu: usize) -> ContextCounts {
        self.after.contexts(gpu)
    }

    /// The slot of a process.
    fn slot(&self, person: &AttributedProcess) -> Option<&ProcessUsage> {
        self.now.iter().find(|slot| owns(&slot.owner, person))
    }

    /// What a slot says of a GPU.
    fn ledger_entry(&self, slot: &ProcessUsage, gpu: usize) -> LedgerEntry {
        let figure = |slot: &ProcessUsage| figure(slot, gpu);
        let then = self
            .then
            .iter()
            .find(|then| then.slot == slot.slot && then.owner == slot.owner);
        let words = [&self.before, &self.after].map(|snapshot| snapshot.word(slot.slot, gpu));
        LedgerEntry {
            charged: figure(slot).max(then.map(figure).unwrap_or_default()),
            steady: then.is_some() && words[0] == words[1] && is_settled(words[0]),
        }
    }

    /// What living processes are charged for.
    fn charged(&self, gpu: usize) -> Bytes {
        self.now.iter().map(|slot| figure(slot, gpu)).sum()
    }
}

/// What a slot says of one of its slice's GPUs.
fn figure(slot: &ProcessUsage, gpu: usize) -> Bytes {
    let gpu = slot.gpus.get(gpu).copied().unwrap_or_default();
    Bytes::new(gpu.charged.saturating_add(gpu.overhead))
}

/// Whether a slot's owner is this process. Its pid there is the one that it has in its own namespace.
pub fn owns(owner: &ProcessIdentity, person: &AttributedProcess) -> bool {
    owner.pid == person.namespaced_pid.pid
        && owner.start_time == person.process.start_time
        && person
            .namespaced_pid
            .namespace
            .is_none_or(|namespace| namespace == owner.pid_namespace)
}

impl NodeSample {
    /// Slices that have a part of a GPU, and what a context there is taken to cost.
    fn slices_on(
        &self,
        gpu: &ObservedGpu,
        roster: &WatchedJobs,
    ) -> impl Iterator<Item = (SliceSample, Bytes)> {
        self.ledgers.iter().filter_map(|(job, book)| {
            let at = book.gpu_position(gpu)?;
            let spec = book.spec.gpus.get(at)?;
            let slice = SliceSample {
                job: *job,
                granted: Bytes::new(spec.limit),
                granted_recently: Some(Bytes::new(spec.limit)),
                tampered: false,
                is_walled: roster.is_walled(*job),
                charged: book
                    .snapshots
                    .as_ref()
                    .map_or(Bytes::ZERO, |pages| pages.charged(at)),
                charged_at_most: (book.snapshots.as_ref().ok())
                    .and_then(|pages| pages.at_most.get(at).copied())
                    .unwrap_or_default(),
            };
            Some((slice, Bytes::new(spec.overhead)))
        })
    }

    fn find_leftovers(&self, roster: &WatchedJobs) -> Vec<Leftover> {
        let of_gpu = |seen: &GpuSample| {
            let index = seen.observed.index;
            let listed: Vec<_> = listed_processes(&seen.observed).copied().collect();
            listed.into_iter().map(move |process| (index, process))
        };
        let listed = self.gpus.iter().flat_map(of_gpu);
        listed
            .filter_map(|(gpu_index, seen)| {
                let person = self.processes.get(&seen.pid)?;
                let job = match person.ownership {
                    Ownership::Released(job) => job,
                    // Found while its job still was a watched one.
                    Ownership::Descendant(job) if roster.is_released(job) => job,
                    _ => return None,
                };
                Some(Leftover {
                    job,
                    process: person.process,
                    gpu_index,
                    used: seen.used,
                })
            })
            .collect()
    }

    /// A GPU in MIG mode: its memory is the instances', and the hardware keeps them apart, so that there is nothing to
    /// weigh.
    fn sample_mig_gpu(
        &mut self,
        gpu: &ObservedGpu,
        roster: &WatchedJobs,
        kin: &mut Attribution,
    ) -> GpuSample {
        let (mut unmanaged, mut tenants) = (Vec::new(), Vec::new());
        for process in listed_processes(gpu) {
            if let Some(None) = self.job_of(process.pid, roster, kin) {
                unmanaged.push(process.pid);
            }
        }
        unmanaged.sort_unstable();
        unmanaged.dedup();
        for instance in gpu.active_mig().iter().flat_map(|mig| &mig.instances) {
            let processes = instance.devices.iter().flat_map(|device| &device.processes);
            for GpuProcess { pid, .. } in processes {
                if let Some(job) = self.job_of(*pid, roster, kin) {
                    tenants.push(MigProcess {
                        placement: instance.placement,
                        pid: *pid,
                        job,
                    });
                }
            }
        }
        GpuSample {
            observed: gpu.clone(),
            sample: Sample::default(),
            unmanaged,
            outside: Vec::new(),
            mig_processes: tenants,
        }
    }

    /// The job that a listed process is of, if it is of any; `None` for one that has ended.
    fn job_of(
        &mut self,
        pid: u32,
        roster: &WatchedJobs,
        kin: &mut Attribution,
    ) -> Option<Option<JobId>> {
        match kin.lookup(pid, process::ticks(self.at), roster) {
            PidLookup::Found(person) => {
                self.processes.insert(pid, person);
                Some(person.ownership.job().filter(|job| roster.has(*job)))
            }
            PidLookup::Exited => None,
            PidLookup::Unknown => Some(None),
        }
    }

    fn sample_process(
        &mut self,
        gpu: &ObservedGpu,
        seen: &GpuProcess,
        roster: &WatchedJobs,
        kin: &mut Attribution,
        marks: &KnownFiles,
    ) -> ProcessSample {
        let sight = |process: Process, of| ProcessSample {
            process: process.into(),
            used: seen.used,
            owner: of,
        };
        let person = match kin.lookup(seen.pid, process::ticks(self.at), roster) {
            PidLookup::Found(person) => person,
            met => {
                let nobody = Process {
                    pid: seen.pid,
                    start_time: 0,
                };
                let of = match met {
                    PidLookup::Unknown if !self.has_slot(seen.pid) => ProcessOwner::Unmanaged,
                    _ => ProcessOwner::Exited,
                };
                return sight(nobody, of);
            }
        };
        let person = match person.ownership {
            Ownership::None => self.check_membership(person, roster, kin),
            _ => person,
        };
        self.processes.insert(seen.pid, person);
        // An ended job has no process left: one that it could not kill counts as unmanaged.
        let job = person.ownership.job();
        let Some(job) = job.filter(|job| roster.has(*job)) else {
            return sight(person.process, ProcessOwner::Unmanaged);
        };
        let account = self.ledger_entry(job, &person, gpu);
        let limiter = match account {
            Some(_) => reconcile::Limiter::Loaded,
            None => {
                let inside = kin.evidence(seen.pid, seen.used, marks);
                self.evidence.insert(seen.pid, inside);
                if inside.is_another {
                    return sight(person.process, ProcessOwner::Unmanaged);
                }
                inside.limiter
            }
        };
        let of = ProcessOwner::Job {
            job,
            account,
            limiter,
            has_escaped: roster.has_escaped(job, seen.pid),
        };
        sight(person.process, of)
    }

    /// What the process's slot says; nothing, for sure, where its slice cannot be read.
    fn ledger_entry(
        &self,
        job: JobId,
        person: &AttributedProcess,
        gpu: &ObservedGpu,
    ) -> Option<LedgerEntry> {
        let book = self.ledgers.get(&job)?;
        let at = book.gpu_position(gpu)?;
        match &book.snapshots {
            Ok(pages) => Some(pages.ledger_entry(pages.slot(person)?, at)),
            Err(_) => Some(LedgerEntry {
                charged: Bytes::ZERO,
                steady: true,
            }),
        }
    }

    fn check_membership(
        &self,
        person: AttributedProcess,
        roster: &WatchedJobs,
        kin: &mut Attribution,
    ) -> AttributedProcess {
        let joined = roster.ledgers().find(|(job, account)| {
            self.snapshots(*job)
                .is_some_and(|pages| pages.slot(&person).is_some())
                && has_mapped(person.process.pid, &account.slots)
        });
        match joined {
            Some((job, _)) => kin.record_member(person, job, roster),
            None => person,
        }
    }

    /// Whether a slot names this pid: an ended process of ours.
    fn has_slot(&self, pid: u32) -> bool {
        let here = process::own_pid_namespace();
        let names = |slot: &ProcessUsage| slot.owner.pid == pid && slot.owner.pid_namespace == here;
        let pages = self.ledgers.values().flat_map(|book| &book.snapshots);
        pages.flat_map(|pages| &pages.then).any(names)
    }

    fn snapshots(&self, job: JobId) -> Option<&LedgerSnapshots> {
        self.ledgers.get(&job)?.snapshots.as_ref().ok()
    }

    /// Whether the driver lists the owner of a slot.
    pub fn is_listed(&self, owner: &ProcessIdentity) -> divvy_ledger::Listed {
        use divvy_ledger::Listed;
        if self.exited.contains(owner) {
            return Listed::Ended;
        }
        let here = process::own_pid_namespace();
        if owner.pid_namespace == here {
            let pid = |process: &GpuProcess| process.pid == owner.pid;
            let listed = |gpu: &GpuSample| listed_processes(&gpu.observed).any(pid);
            return match self.gpus.iter().any(listed) {
                true => Listed::Yes,
                false => Listed::No,
            };
        }
        match self.processes.values().any(|person| owns(owner, person)) {
            true => Listed::Yes,
            // The process has ended, never used a GPU, or looks like others.
            false => Listed::Unknown,
        }
    }
}

impl SliceReading {
    fn gpu_position(&self, gpu: &ObservedGpu) -> Option<usize> {
        let uuid = gpu.uuid.to_bytes();
        self.spec.gpus.iter().position(|spec| spec.uuid == uuid)
    }
}

#[cfg(test)]
mod tests;
