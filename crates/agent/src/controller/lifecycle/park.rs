//! Parking: the GPU memory of a running job moves to host memory, and the job's processes run on. A call of the driver
//! waits in the driver's lock until `divvy wake` has brought the memory back. The copies are those of suspended jobs
//! ([`super::offload`]).
//!
//! What the driver cannot save is refused before any process is locked.

use std::time::Duration;

use divvy_api::daemon::HostMemory;
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::resize::memory::{MemoryEvent, MemoryResidency};
use divvy_core::resize::park::min_awake;
use divvy_core::{Bytes, JobId};
use divvy_ledger::{ProcessIdentity, Snapshot};
use rustix::process::Signal;

use crate::checkpoint::host_memory;
use crate::controller::effects::Effects;
use crate::controller::halt::Halt;
use crate::controller::io::Io;
use crate::controller::lifecycle::{offload, pause};
use crate::controller::reference;
use crate::controller::request::{Milestone, Reply};
use crate::controller::runtime::{ActiveJob, Waiter};
use crate::controller::state::copy_rates::CopyRates;
use crate::controller::state::usage::Woken;
use crate::controller::state::{Jobs, State};
use crate::host::clock::Instant;
use crate::journal::StoreError;
use crate::model::gpu_memory::{GpuMemoryState, OffloadKind};
use crate::model::job::Job;
use crate::model::park_record::{ParkOff, ParkRecord};

/// Parks a job, or refuses to, before anything is done to it.
pub(in crate::controller) fn park(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
    reply: Reply<v1::Job>,
) -> Result<(), StoreError> {
    let (id, bytes) = match admit(state, io, reference) {
        Ok(admitted) => admitted,
        Err(Halt::Refused(error)) => {
            fx.replies.job(reply, Err(error));
            return Ok(());
        }
        Err(Halt::Journal(error)) => return Err(error),
    };
    let jobs = &mut state.jobs;
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    active.waiters.push(Waiter {
        milestone: Milestone::Parked,
        reply,
    });
    start(jobs, fx, io, id, bytes)
}

/// Begins to park a job that can be parked.
pub(super) fn start(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    bytes: Bytes,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    (active.memory_op.parked_for, active.memory_op.woken) = (None, None);
    let aside = &mut active.job.run_state.aside;
    (aside.kind, aside.bytes, aside.because) = (OffloadKind::Parked, bytes, None);
    offload::move_memory(jobs, fx, io, id, MemoryEvent::Release)
}

/// A job that can be parked, and the bytes that it is to have in host memory.
fn admit(state: &State, io: &Io, reference: &str) -> Result<(JobId, Bytes), Halt> {
    let jobs = &state.jobs;
    let id = pause::pausable(jobs, io, reference, "parked")?;
    let conflict = |why: String| Error::new(ErrorCode::Conflict, why);
    let Some(active) = jobs.active.get(&id) else {
        return Err(reference::has_ended(id).into());
    };
    let reference = active.job.reference();
    if active.job.run_state.suspended {
        let error = conflict(format!("job {reference} is suspended"));
        let hint = format!("`divvy suspend --release-memory {reference}` offloads its GPU memory");
        return Err(error.hint(hint).into());
    }
    let bytes = check(state, io, active).map_err(|Obstacle { why, hint }| {
        conflict(format!("job {reference} cannot be parked: {why}"))
            .hint(hint.unwrap_or_else(|| format!("divvy describe {reference}")))
    })?;
    Ok((id, bytes))
}

/// Why a job cannot be parked, and what helps.
pub(super) struct Obstacle {
    pub why: String,
    hint: Option<String>,
}

impl From<String> for Obstacle {
    fn from(why: String) -> Self {
        Self { why, hint: None }
    }
}

/// The bytes that a running job would have in host memory, or why it cannot be parked.
pub(super) fn check(state: &State, io: &Io, active: &ActiveJob) -> Result<Bytes, Obstacle> {
    let jobs = &state.jobs;
    if let Some(why) = offload::offload_obstacle(jobs, active.job.id) {
        return Err(why.into());
    }
    if let Some(why) = driver_obstacle(state, io, active) {
        let hint = Some("divvy selftest --park".to_owned());
        return Err(Obstacle { why, hint });
    }
    let ledger = active.slice().and_then(|slice| slice.read().ok());
    let obstacle = ledger.map_or(Some("its slice cannot be read"), |ledger| {
        ledger_obstacle(&ledger, active.job.allocations.len())
    });
    if let Some(why) = obstacle {
        return Err(why.to_owned().into());
    }
    let bytes = offload::memory_by_allocation(active).into_iter().sum();
    check_budget(jobs, io.config.park.host_memory, bytes).map_err(|why| Obstacle {
        why,
        hint: Some("wake another job first, or end it".to_owned()),
    })?;
    Ok(bytes)
}

/// Why only a command wakes a job.
pub(super) const EARLIER_LIMITER: &str =
    "a process has the limiter of an earlier version, and its calls do not wake the job";

/// Whether each process of a job has a limiter that wakes it.
pub(super) fn calls_wake(ledger: &Snapshot) -> bool {
    ledger.processes().iter().all(|slot| slot.wakes)
}

/// What the ledger shows that the driver cannot save.
fn ledger_obstacle(ledger: &Snapshot, gpus: usize) -> Option<&'static str> {
    let usages: Vec<_> = (0..gpus).map(|gpu| ledger.usage(gpu)).collect();
    let here = ProcessIdentity::current().pid_namespace;
    let is_elsewhere = |slot: &divvy_ledger::ProcessUsage| slot.owner.pid_namespace != here;
    if usages.iter().all(|usage| usage.used() == 0) {
        Some("no process of the job uses GPU memory")
    } else if usages.iter().any(|usage| usage.managed > 0) {
        Some("it has managed memory, which the driver cannot save")
    } else if usages.iter().any(|usage| usage.shared > 0) {
        Some("it shares GPU memory between processes, which the driver cannot save")
    } else if ledger.processes().iter().any(is_elsewhere) {
        Some("a process of the job is in another PID namespace")
    } else if !calls_wake(ledger) {
        Some(EARLIER_LIMITER)
    } else {
        None
    }
}

/// Why the driver is not trusted with the memory of a job that runs on. The simulated driver is Divvy's own.
fn driver_obstacle(state: &State, io: &Io, active: &ActiveJob) -> Option<String> {
    if io.config.node.simulated.is_some() {
        return None;
    }
    let record = ParkRecord::read(&io.config.home);
    if let Some(off) = off(&state.jobs, io, record.as_ref()) {
        return Some(off.to_string());
    }
    let devices = state.gpus.devices.iter();
    let its = devices.filter(|device| {
        let mut grants = active.job.state.grants().iter();
        grants.any(|grant| grant.gpu == device.gpu.uuid)
    });
    let mut models = its.map(|device| device.gpu.model.as_str());
    let version = &io.config.node.driver_version;
    models.find_map(|model| ParkRecord::obstacle(record.as_ref(), version, model))
}

/// The driver with which parking is off until it passes the test again.
fn off<'a>(jobs: &'a Jobs, io: &Io, record: Option<&ParkRecord>) -> Option<&'a ParkOff> {
    let off = jobs.park_off.as_ref()?;
    let has_passed_since = record.is_some_and(|record| record.at > off.at);
    (off.driver_version == io.config.node.driver_version && !has_passed_since).then_some(off)
}

/// Whether the driver is trusted with jobs on some GPU of the node.
pub(super) fn is_driver_trusted(state: &State, io: &Io) -> bool {
    if io.config.node.simulated.is_some() {
        return true;
    }
    let record = ParkRecord::read(&io.config.home);
    let version = &io.config.node.driver_version;
    let mut models = state.gpus.devices.iter().map(|device| &device.gpu.model);
    off(&state.jobs, io, record.as_ref()).is_none()
        && models.any(|model| ParkRecord::obstacle(record.as_ref(), version, model).is_none())
}

/// All parked jobs together keep to the budget of host memory.
fn check_budget(jobs: &Jobs, most: HostMemory, more: Bytes) -> Result<(), String> {
    let Some(budget) = host_memory::park_budget(most) else {
        return Err("the machine does not say how much memory it has".to_owned());
    };
    let all = jobs
        .active
        .values()
        .map(|active| &active.job.run_state.aside);
    let parked: Bytes = all.filter(|one| one.is_parked()).map(|one| one.bytes).sum();
    if parked.saturating_add(more) <= budget {
        return Ok(());
    }
    let [more, parked, budget] = [more, parked, budget].map(|bytes| bytes.human());
    Err(format!(
        "it has {more}, and parked jobs have {parked} of at most {budget} of host memory"
    ))
}

/// What a request to park is answered: an error where the memory stays.
pub(in crate::controller) fn result(active: &ActiveJob) -> Result<JobId, Error> {
    let job = &active.job;
    let aside = &job.run_state.aside;
    let why = match (&aside.because, aside.memory, &active.memory_op.woken) {
        (Some(why), ..) => why.clone(),
        (None, MemoryResidency::Offloaded | MemoryResidency::Due, _) => return Ok(job.id),
        (None, _, Some(cause)) => format!("it was woken {cause} meanwhile"),
        (None, _, None) => "it does not run any more".to_owned(),
    };
    let why = format!("job {} was not parked: {why}", job.reference());
    let hint = format!("divvy describe {}", job.reference());
    Err(Error::new(ErrorCode::Conflict, why).hint(hint))
}

/// Wakes a parked job once its GPUs have room. A job that is being woken already stays as it is.
pub(in crate::controller) fn wake(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    reference: &str,
) -> Result<JobId, Halt> {
    let id = reference::find(jobs, io, reference)?;
    let active = jobs.active.get(&id);
    let Some(active) = active.filter(|active| active.job.state.outcome().is_none()) else {
        return Err(reference::has_ended(id).into());
    };
    let aside = &active.job.run_state.aside;
    if !aside.is_parked() {
        let reference = active.job.reference();
        let error = Error::new(
            ErrorCode::Conflict,
            format!("job {reference} is not parked"),
        );
        return Err(error.hint(format!("divvy describe {reference}")).into());
    }
    request_wake(jobs, fx, io, id, "by command")?;
    Ok(id)
}

/// Wakes a parked job whose call of this name waits for its memory. A job that has ended, or is woken already, stays as
/// it is.
pub(in crate::controller) fn wake_for_call(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    call: &str,
) -> Result<(), StoreError> {
    let is_parked = jobs.active.get(&id).is_some_and(|active| {
        active.job.state.outcome().is_none() && active.job.run_state.aside.is_parked()
    });
    match is_parked {
        true => request_wake(jobs, fx, io, id, &format!("by {call}")),
        false => Ok(()),
    }
}

/// Makes a parked job due, and records the cause once.
fn request_wake(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    cause: &str,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let before = active.job.run_state.aside.memory;
    if !matches!(
        before,
        MemoryResidency::Offloaded | MemoryResidency::Leaving
    ) {
        return offload::move_memory(jobs, fx, io, id, MemoryEvent::Resume);
    }
    active.memory_op.woken = Some(cause.to_owned());
    offload::move_memory(jobs, fx, io, id, MemoryEvent::Resume)?;
    fx.record_event(io, Some(id), "wake_requested", cause)
}

/// How long a job keeps so much memory when it was woken.
pub(super) fn stays_awake(rates: &CopyRates, io: &Io, job: &Job, bytes: Bytes) -> Duration {
    min_awake(io.config.park.min_awake, rates.there_and_back(job, bytes))
}

/// A parked job has its memory again, or it was never taken, and `because` says why.
pub(super) fn woken(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    took_s: f64,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let before = std::mem::take(&mut active.job.run_state.aside);
    let has_failed = before.because.is_some();
    if has_failed {
        active.job.run_state.aside = GpuMemoryState {
            kind: OffloadKind::Parked,
            since: before.since,
            because: before.because,
            ..GpuMemoryState::default()
        };
    }
    let stays = stays_awake(&jobs.copy_rates, io, &active.job, before.bytes);
    let at = Instant::now();
    active.activity.mark_active(at);
    let took = Duration::try_from_secs_f64(took_s).unwrap_or_default();
    if !has_failed {
        active.activity.woken = Some(Woken {
            at,
            took,
            stays,
            is_judged: false,
        });
        fx.counters.wakes.add(took);
    }
    let job = active.job.clone();
    fx.jobs.changed.insert(id);
    io.store.save(&job)?;
    // The operation has done so, unless the daemon that began it is dead.
    pause::signal_all(jobs, io, id, Signal::CONT);
    if has_failed {
        return Ok(());
    }
    let words = format!("its memory is on its GPUs again after {took_s:.1} s of copying");
    fx.record_event(io, Some(id), "woken", &words)
}

#[cfg(test)]
mod tests {
    use divvy_ledger::{Control, GpuSpec, ProcessSlot, Slice, SliceSpec};

    use super::*;

    /// What `change` makes of the slice of a job with one process and one GPU.
    fn obstacle_after(change: impl FnOnce(&ProcessSlot, &std::path::Path)) -> Option<&'static str> {
        let folder = tempfile::tempdir().unwrap();
        let spec = SliceSpec {
            id: "3".into(),
            gpus: vec![GpuSpec {
                limit: Bytes::gib(8).get(),
                ..GpuSpec::default()
            }],
            ..SliceSpec::default()
        };
        let _control = Control::create(folder.path(), &spec).unwrap();
        let slice = Slice::open(folder.path()).unwrap();
        let slot = slice.join().unwrap();
        change(&slot, folder.path());
        ledger_obstacle(&slice.read().unwrap(), 1)
    }

    /// Where a slot has its abilities and the PID namespace of its process (layout version 2, the first slot).
    const ABILITIES: u64 = 4096 + 12;
    const NAMESPACE: u64 = 4096 + 24;

    fn write(folder: &std::path::Path, at: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt as _;
        let slots = std::fs::File::options()
            .write(true)
            .open(folder.join("slots"));
        slots.unwrap().write_all_at(bytes, at).unwrap();
    }

    #[test]
    fn memory_that_the_driver_cannot_save_and_processes_that_cannot_wake_refuse_a_park() {
        let used = Bytes::gib(1).get();
        let plain = obstacle_after(|slot, _| slot.force(0, used));
        assert_eq!(plain, None);
        let nothing = obstacle_after(|_, _| {}).unwrap();
        assert!(nothing.contains("uses GPU memory"), "{nothing}");
        let managed = obstacle_after(|slot, _| {
            slot.force(0, used);
            slot.note_managed(0, 4096);
        });
        assert!(managed.unwrap().contains("managed memory"));
        let shared = obstacle_after(|slot, _| {
            slot.force(0, used);
            slot.export(0, 7, 4096).unwrap();
        });
        assert!(shared.unwrap().contains("shares GPU memory"));
        let earlier = obstacle_after(|slot, folder| {
            slot.force(0, used);
            write(folder, ABILITIES, &[0; 4]);
        });
        assert!(earlier.unwrap().contains("earlier version"));
        let elsewhere = obstacle_after(|slot, folder| {
            slot.force(0, used);
            write(folder, NAMESPACE, &1_u64.to_ne_bytes());
        });
        assert!(elsewhere.unwrap().contains("PID namespace"));
    }
}
