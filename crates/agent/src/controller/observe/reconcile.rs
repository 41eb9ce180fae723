//! Reconciliation: each job's ledger is compared with the driver, to find ledger errors, uncounted memory and limiter
//! bypasses.

use divvy_core::reconcile::{
    self, BypassChange, BypassKind, BypassPolicy, Limiter, Sample, Suspect, compare,
};
use divvy_core::resize::memory::MemoryResidency;
use divvy_core::{Bytes, GpuUuid, JobId};
use jiff::SignedDuration;
use rustix::process::Signal;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::container;
use crate::controller::runtime::{ActiveJob, Runtime};
use crate::controller::state::slice_usage::SliceUsage;
use crate::controller::state::{GpuState, Jobs, State};
use crate::controller::{active_set, mig};
use crate::gpu::Device;
use crate::gpu::attribution::Ownership;
use crate::gpu::sample::{GpuSample, NodeSample};
use crate::gpu::unlisted::UnlistedHolder;
use crate::host::cgroup::Cgroup;
use crate::host::clock::now;
use crate::host::process::{Process, evidence};
use crate::job_dir::processes::processes_of;
use crate::journal::StoreError;
use crate::model::bypass::Bypass;

impl ActiveJob {
    /// Whether its allocations are refused, because one of its processes bypasses the limiter and the policy is to
    /// deny.
    fn is_denied(&self) -> bool {
        let mut lasting = self
            .job
            .bypasses
            .iter()
            .filter(|found| found.over.is_none());
        lasting.any(|found| found.action >= BypassPolicy::Deny)
    }

    /// Its usage on a GPU, where its memory is, and its grant in the planner's sums.
    fn usage_on(&mut self, gpu: &GpuUuid) -> Option<(MemoryResidency, &mut SliceUsage, Bytes)> {
        let Runtime::Placed(placed) = &mut self.runtime else {
            return None;
        };
        placed
            .slice_usage
            .resize(self.job.allocations.len(), SliceUsage::default());
        let mut holdings = self.job.allocations.iter();
        let place = holdings.position(|holding| holding.grant.gpu == *gpu)?;
        let granted = self.job.allocations.get(place)?.grant.memory;
        let memory = self.job.run_state.aside.memory;
        Some((memory, placed.slice_usage.get_mut(place)?, granted))
    }

    /// One of its processes was killed for a bypass, and the others will be too.
    pub fn is_killed(&self) -> bool {
        self.job.bypasses.iter().any(Bypass::is_killed)
    }
}

/// Compares every GPU's processes with the ledgers, and acts on the differences.
pub(in crate::controller) fn reconcile(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    let unseen = state.gpus.unobserved.clone().unwrap_or_default();
    let forget = |active: &mut ActiveJob| {
        let mut held = active.job.state.grants().iter();
        match held.any(|grant| unseen.contains(&grant.gpu)) {
            // A process of the previous sample stays a member until it exits, or until a sample shows that it left the
            // GPU.
            true => active.members_mut().retain(|member| member.is_alive()),
            false => active.members_mut().clear(),
        }
    };
    active_set::for_each_active(&mut state.jobs, io, |_, active| forget(active));
    let owned_processes = || {
        let processes = sample.processes.values();
        processes.filter_map(|process| Some((process.ownership.job()?, process.process)))
    };
    // A job that is queued again may have orphans.
    for (job, _) in owned_processes() {
        if let Some(active) = state.jobs.active.get_mut(&job) {
            forget(active);
        }
    }
    for (job, process) in owned_processes() {
        if let Some(active) = state.jobs.active.get_mut(&job)
            && !active.members().contains(&process)
        {
            active.members_mut().push(process);
        }
    }
    for id in active_set::active_jobs(&mut state.jobs, io) {
        let awake = state.jobs.active.get(&id).is_some_and(|active| {
            !active.job.run_state.aside.memory.holds_gpus() && !active.members().is_empty()
        });
        if awake {
            // Another process has resumed processes of a job that must not use a GPU now.
            fx.jobs.pauses.push(id);
        }
    }
    for seen in &sample.gpus {
        match seen.observed.active_mig() {
            Some(_) => mig::reconcile::reconcile_mig_gpu(state, fx, io, seen)?,
            None => {
                mig::reconcile::reconcile_non_mig_gpu(state, fx, io, seen)?;
                compare_accounts(&mut state.jobs, &mut state.gpus, fx, io, sample, seen)?;
            }
        }
    }
    fx.machine.utilization = Some(percentages(&state.gpus, sample));
    let gone = state
        .gpus
        .watchlist
        .retain(|gpu| sample.gpus.iter().any(|seen| seen.observed.uuid == *gpu));
    for change in gone {
        apply_bypass_change(&mut state.jobs, &mut state.gpus, fx, io, sample, 0, change)?;
    }
    let mut dying = Vec::new();
    active_set::for_each_active(&mut state.jobs, io, |id, active| {
        if active.is_killed() {
            dying.push(id);
        }
        let denied = active.is_denied();
        let ActiveJob { job, runtime, .. } = active;
        let Runtime::Placed(placed) = runtime else {
            return;
        };
        let Some(slice) = &placed.slice else { return };
        let ledgers = placed.slice_usage.iter_mut().zip(&job.allocations);
        for (gpu, (ledger, holding)) in ledgers.enumerate() {
            ledger.publish(slice, gpu, holding.grant.memory, denied);
        }
    });
    if state.gpus.watchlist.is_curious() {
        fx.machine.sample_soon = true;
    }
    // Processes that a dying job has started meanwhile.
    fx.jobs.kills.extend(dying);
    Ok(())
}

/// The driver's utilization of each GPU that is shared in slices.
fn percentages(gpus: &GpuState, sample: &NodeSample) -> Vec<(u32, u32)> {
    let of = |seen: &GpuSample| {
        let mut devices = gpus.devices.iter();
        let device = devices.find(|device| device.gpu.uuid == seen.observed.uuid)?;
        Some((device.gpu.index, device.utilization_percent?))
    };
    let shared = |seen: &&GpuSample| seen.observed.active_mig().is_none();
    sample.gpus.iter().filter(shared).filter_map(of).collect()
}

fn compare_accounts(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
    seen: &GpuSample,
) -> Result<(), StoreError> {
    let uuid = &seen.observed.uuid;
    let balance = compare(&sample_with_grants(jobs, sample, seen));
    let mut errors = Vec::new();
    for found in &balance.slices {
        let Some((memory, ledger, _)) = jobs
            .active
            .get_mut(&found.job)
            .and_then(|active| active.usage_on(uuid))
        else {
            continue;
        };
        match memory {
            MemoryResidency::Kept => ledger.update(found),
            // The ledger keeps counting memory that is not on the GPU.
            _ => ledger.suspend_accounting(found),
        }
        errors.extend(ledger.mismatch.map(|error| (error, ledger.mismatch_max)));
    }
    if let Some(device) = gpus
        .devices
        .iter_mut()
        .find(|device| device.gpu.uuid == *uuid)
    {
        // Most of what appears is a process's whose memory the driver is giving back: soon over.
        if balance.unlisted > device.gpu.unlisted {
            fx.machine.sample_soon = true;
        }
        fx.replan |= device.update(seen, &balance);
        name_unlisted_holder(device, fx, io, sample, seen)?;
        let error = errors
            .iter()
            .map(|(error, _)| Bytes::new(error.unsigned_abs()));
        device.ledger_error.sum = (!errors.is_empty()).then(|| error.sum());
        let largest = errors.iter().map(|(_, largest)| *largest).max();
        device.ledger_error.max = device.ledger_error.max.max(largest.unwrap_or_default());
    }
    report_accounts_only(gpus, fx, io, seen)?;
    let suspects: Vec<(Suspect, Limiter)> = balance
        .suspects
        .iter()
        .map(|suspect| {
            let inside = sample.evidence.get(&suspect.process.pid);
            let limiter = inside.map_or(Limiter::Loaded, |inside| inside.limiter);
            (*suspect, limiter)
        })
        .collect();
    let there: Vec<_> = seen
        .sample
        .processes
        .iter()
        .map(|seen| seen.process)
        .collect();
    let changes = gpus
        .watchlist
        .update(sample.at, uuid, &suspects, &there, &balance.inconclusive);
    for change in changes {
        apply_bypass_change(jobs, gpus, fx, io, sample, seen.observed.index, change)?;
    }
    Ok(())
}

/// Names the job of the GPU that may hold what the driver lists for no process.
fn name_unlisted_holder(
    device: &mut Device,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
    seen: &GpuSample,
) -> Result<(), StoreError> {
    let slices = &seen.sample.slices;
    let is_here = |holder: &&UnlistedHolder| slices.iter().any(|slice| slice.job == holder.job);
    let holder = (sample.unlisted_holders.iter().find(is_here))
        .filter(|_| device.gpu.unlisted > Bytes::ZERO)
        .copied();
    if !device.set_unlisted_holder(holder) {
        return Ok(());
    }
    fx.replan = true;
    let Some(UnlistedHolder {
        job,
        pid,
        descriptors,
    }) = holder
    else {
        return Ok(());
    };
    let text = format!(
        "no listed process uses {} of GPU {}; pid {pid} ({}) has {descriptors} descriptors that can hold it",
        device.gpu.unlisted.human(),
        device.gpu.index,
        evidence::name(pid)
    );
    tracing::warn!(job = %job, "{text}");
    fx.record_event(io, Some(job), "unlisted_memory", &text)
}

/// The sample of a GPU with the journal's grants, as a limit in a job's own file proves nothing. A shrinking job counts
/// with its present grant until it releases memory. An offloaded job counts with nothing.
fn sample_with_grants(jobs: &mut Jobs, sample: &NodeSample, seen: &GpuSample) -> Sample {
    let mut granted_sample = seen.sample.clone();
    for slice in &mut granted_sample.slices {
        let Some(active) = jobs.active.get_mut(&slice.job) else {
            continue;
        };
        slice.tampered = active.tampered;
        let holds = active.job.holds();
        let Some((memory, ledger, granted)) = active.usage_on(&seen.observed.uuid) else {
            continue;
        };
        slice.granted = if holds { granted } else { Bytes::ZERO };
        let lately = ledger.granted.record(sample.at, slice.granted);
        slice.granted_recently = (memory == MemoryResidency::Kept).then_some(lately);
    }
    granted_sample
}

/// Records once for each GPU that the driver does not report the memory of each process.
fn report_accounts_only(
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    seen: &GpuSample,
) -> Result<(), StoreError> {
    let uuid = &seen.observed.uuid;
    let processes = &seen.observed.processes;
    let unknown = processes.iter().any(|process| process.used.is_none());
    if unknown && gpus.accounts_only.insert(uuid.clone()) {
        let index = seen.observed.index;
        let text = format!(
            "the driver does not report the memory of each process on GPU {index}: limits there rely on the slices' ledgers"
        );
        tracing::warn!("{text}");
        fx.record_event(io, None, "process_memory_unknown", &text)?;
    }
    Ok(())
}

fn apply_bypass_change(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
    gpu_index: u32,
    change: BypassChange,
) -> Result<(), StoreError> {
    match change {
        BypassChange::Detected {
            gpu,
            suspect,
            limiter,
            since,
        } => {
            let detected = now();
            let before = sample.at.saturating_sub(since) / 1000;
            let before = SignedDuration::from_micros(i64::try_from(before).unwrap_or(i64::MAX));
            let process = Process::from(suspect.process);
            let bypass = Bypass {
                gpu,
                gpu_index,
                process,
                program: evidence::name(process.pid),
                way: suspect.kind,
                limiter,
                used: suspect.used,
                charged: suspect.charged,
                first_seen: detected - before,
                detected,
                over: None,
                action: policy_about(io, sample, &suspect),
            };
            record_bypass(jobs, gpus, fx, io, suspect.job, bypass)
        }
        BypassChange::Updated { gpu, suspect } => {
            update_bypass(jobs, fx, io, sample, &gpu, &suspect)
        }
        BypassChange::Cleared { gpu, suspect } => end_bypass(jobs, fx, io, &gpu, &suspect),
    }
}

/// The policy for a suspect. Only a process that the kernel shows to be of the job's tree is killed.
fn policy_about(io: &Io, sample: &NodeSample, suspect: &Suspect) -> BypassPolicy {
    let process = sample.processes.get(&suspect.process.pid);
    let descends = process.is_some_and(|process| {
        process.process == suspect.process.into()
            && process.ownership == Ownership::Descendant(suspect.job)
    });
    match io.config.confinement.on_bypass.action_for(suspect) {
        BypassPolicy::Kill if !descends => BypassPolicy::Deny,
        policy => policy,
    }
}

fn record_bypass(
    jobs: &mut Jobs,
    gpus: &mut GpuState,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    bypass: Bypass,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let after = bypass.detected.duration_since(bypass.first_seen);
    let overdraw = active
        .usage_on(&bypass.gpu)
        .filter(|_| bypass.way == BypassKind::Overdrawn)
        .map(|(_, ledger, granted)| {
            let held = ledger.driver.map(|held| format!("{} of ", held.human()));
            format!(" ({}{})", held.unwrap_or_default(), granted.human())
        });
    let text = format!(
        "{}: {}{}; detected {} ms after its first observation{}",
        bypass.describe(),
        bypass.cause(),
        overdraw.unwrap_or_default(),
        after.as_millis(),
        match bypass.action {
            BypassPolicy::Warn => "",
            BypassPolicy::Deny => "; further allocations of its slice are refused",
            // A claim's other processes are of the scheduler that holds it.
            BypassPolicy::Kill if active.job.claim().is_some() =>
                "; the daemon kills this process alone",
            BypassPolicy::Kill => "; the daemon kills it and its job",
        }
    );
    tracing::warn!(job = %id, "{text}");
    gpus.bypasses[way_index(bypass.way)] += 1;
    if bypass.is_killed() {
        fx.processes_to_kill.push(bypass.process);
    }
    io.store.add_bypass(id, &bypass)?;
    active.job.bypasses.push(bypass);
    fx.record_event(io, Some(id), "bypass", &text)
}

fn update_bypass(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
    gpu: &GpuUuid,
    suspect: &Suspect,
) -> Result<(), StoreError> {
    let policy = policy_about(io, sample, suspect);
    let Some((id, bypass)) = open_bypass(jobs, gpu, suspect) else {
        return Ok(());
    };
    bypass.update_peaks(suspect);
    if policy <= bypass.action {
        return Ok(());
    }
    // The process now takes memory from other jobs; before, it kept within its limit.
    bypass.action = policy;
    let bypass = bypass.clone();
    io.store.save_bypass(id, &bypass)?;
    if bypass.is_killed() {
        fx.processes_to_kill.push(bypass.process);
    }
    let text = format!(
        "{}: {}; the daemon kills it now",
        bypass.describe(),
        bypass.cause()
    );
    fx.record_event(io, Some(id), "bypass", &text)
}

fn end_bypass(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    gpu: &GpuUuid,
    suspect: &Suspect,
) -> Result<(), StoreError> {
    let Some((id, bypass)) = open_bypass(jobs, gpu, suspect) else {
        return Ok(());
    };
    bypass.over = Some(now());
    let bypass = bypass.clone();
    io.store.save_bypass(id, &bypass)?;
    let Process { pid, .. } = bypass.process;
    let text = format!(
        "pid {pid} ({}) no longer bypasses the limiter on GPU {}",
        bypass.program, bypass.gpu_index
    );
    fx.record_event(io, Some(id), "bypass_ended", &text)
}

fn open_bypass<'a>(
    jobs: &'a mut Jobs,
    gpu: &GpuUuid,
    suspect: &Suspect,
) -> Option<(JobId, &'a mut Bypass)> {
    let active = jobs.active.get_mut(&suspect.job)?;
    let same = |bypass: &&mut Bypass| {
        bypass.over.is_none() && bypass.gpu == *gpu && bypass.process == suspect.process.into()
    };
    let found = active.job.bypasses.iter_mut().find(same);
    found.map(|bypass| (suspect.job, bypass))
}

/// Restores the open bypasses that an earlier daemon found.
pub(in crate::controller) fn restore_bypasses(jobs: &Jobs, gpus: &mut GpuState) {
    for (id, active) in &jobs.active {
        for bypass in active
            .job
            .bypasses
            .iter()
            .filter(|found| found.over.is_none())
        {
            let suspect = Suspect {
                job: *id,
                process: bypass.process.into(),
                kind: bypass.way,
                used: bypass.used,
                charged: bypass.charged,
                harmful: bypass.is_killed(),
            };
            gpus.watchlist
                .restore(bypass.gpu.clone(), suspect, bypass.limiter, 0);
        }
    }
}

/// Closes the bypasses of a job that ends.
pub(in crate::controller) fn close_bypasses(
    jobs: &mut Jobs,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let lasting = active
        .job
        .bypasses
        .iter_mut()
        .filter(|found| found.over.is_none());
    for bypass in lasting {
        bypass.over = Some(now());
        io.store.save_bypass(id, bypass)?;
    }
    Ok(())
}

/// Kills processes as the journal records it: first the processes that bypassed the limiter, then the rest of their
/// jobs.
pub(in crate::controller) fn kill_processes(jobs: &Jobs, fx: &mut Effects, io: &Io) {
    for process in std::mem::take(&mut fx.processes_to_kill) {
        // Gone by itself is just as well.
        let _ = process.signal(Signal::KILL);
    }
    let mut doomed = std::mem::take(&mut fx.jobs.kills);
    doomed.sort_unstable();
    doomed.dedup();
    for id in doomed {
        for process in live_tree(jobs, io, id) {
            let _ = process.signal(Signal::KILL);
        }
    }
}

/// The live processes of a job below its supervisor and in its cgroup. The supervisor itself stays, as it has to record
/// the end. Processes that belong to another job, started by this one, stay too.
fn live_tree(jobs: &Jobs, io: &Io, id: JobId) -> Vec<Process> {
    let dir = jobs.dir(&io.config.home, id);
    let Some(launch) = dir.launch().ok().flatten() else {
        return Vec::new();
    };
    let mut tree = processes_of(&dir, launch.process);
    tree.extend(container::processes(&dir));
    tree.extend(dir.group().iter().flat_map(Cgroup::members));
    tree.sort_unstable_by_key(|process| process.pid);
    tree.dedup();
    tree.retain(|process| io.sensors.job_of(*process) == Some(id));
    tree
}

/// The index of a kind of bypass.
pub(in crate::controller) fn way_index(way: BypassKind) -> usize {
    reconcile::BypassKind::ALL
        .iter()
        .position(|known| *known == way)
        .unwrap_or_default()
}
