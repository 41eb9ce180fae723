//! Start: the daemon creates a placed job's slice, writes its launch spec, and starts its supervisor.

use std::os::unix::fs::fchown;
use std::time::Duration;

use divvy_core::{Bytes, Grant, JobId, JobState};
use divvy_ledger::Numbering;

use super::container::plan;
use crate::controller::actuators::Actuators;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::start_failure::StartError;
use crate::controller::lifecycle::{confirm, start_failure};
use crate::controller::run_as::run_as;
use crate::controller::runtime::{ActiveJob, Shortage};
use crate::controller::state::mig::is_divided;
use crate::controller::state::{Jobs, State};
use crate::gpu::Device;
use crate::gpu::slice::{HeldSlice, SliceConfig, chown_to_user};
use crate::gpu::watched_jobs::WatchedJob;
use crate::host::cgroup::{Cgroup, CgroupStatus};
use crate::host::clock::Instant;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::host::run_as::Identity;
use crate::job_dir::container_spec::{self, Plan};
use crate::job_dir::{JobDir, LaunchSpec, OutputFiles};
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::supervisor::handle::SupervisorHandle;
use crate::supervisor::job_environment::{JobEnvironment, for_program};
use crate::supervisor::script;

/// Creates the slice and writes the launch spec of a job that is starting.
pub(in crate::controller) fn prepare(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) {
    confirm::pass(&state.jobs, id, "confirm.answered");
    if let Some(placed) = (state.jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        placed.start.shortage = None;
    }
    if let Err(error) = try_prepare(state, io, actuators, id) {
        failed_to_start(&mut state.jobs, fx, io, id, &error);
    }
}

/// Fails a start, or notes the shortage. In that case the next check finds that no process started the job, and
/// requeues it.
fn failed_to_start(jobs: &mut Jobs, fx: &mut Effects, io: &Io, id: JobId, error: &StartError) {
    let why = error_chain(error);
    // This round's reply announces the start to the client, so its job cannot return to the queue.
    if !error.is_shortage() || jobs.runs_on_client(id) {
        return start_failure::fail_start(jobs, fx, io, id, &why);
    }
    tracing::warn!(job = %id, why, "cannot start the job now; it returns to its queue");
    if let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        let why = format!("it could not be started: {why}");
        let since = Instant::now();
        placed.start.shortage = Some(Shortage { why, since });
    }
}

fn try_prepare(
    state: &mut State,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) -> Result<(), StartError> {
    let dir = state.jobs.dir(&io.config.home, id);
    let folder = io.config.home.slice(&id.to_string());
    let Some(active) = state.jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let job = &active.job;
    let grants = job.state.grants();
    let overheads = overheads(&state.gpus.devices, grants);
    let compute = job.compute();
    let slice = match is_divided(grants) {
        true => None,
        false => {
            let name = id.to_string();
            Some(HeldSlice::create(
                &folder,
                &slice_layout(&name, job, &overheads),
            )?)
        }
    };
    reach("start.slice");
    let visible = grants.iter().map(|grant| state.mig.visible_uuid(grant));
    let visible: Vec<String> = visible
        .collect::<Option<_>>()
        .ok_or(StartError::NoInstance)?;
    let mut env = io.store.env(id)?.ok_or(StartError::NoEnvironment)?;
    if !job.spec.secrets.is_empty() {
        env.extend(io.secrets.of(id)?);
    }
    let script = script::take_from_env(&mut env);
    if job.spec.policy.slurm_names {
        env.extend(script::slurm_names(job));
    }
    let around = JobEnvironment {
        job: &id.to_string(),
        queue: &job.spec.queue,
        visible: &visible,
        slice: slice.is_some().then_some(folder.as_path()),
        preload: &io.config.programs.preload,
        simulated: io.config.node.simulated.as_ref(),
    };
    let limiter = slice.is_some().then(|| {
        io.config
            .programs
            .choose_injection(&folder, io.config.node.simulated.as_ref())
    });
    let user = run_as(job).map(Identity::with_recent_groups);
    let container = match &job.spec.container {
        Some(container) => {
            let container = (container, user.as_ref());
            let parts: Vec<_> = grants.iter().map(|grant| state.mig.part(grant)).collect();
            let config = &io.config;
            let runs = job.run_state.runs;
            let limiter = limiter.as_ref();
            let mut plan = plan(config, container, runs, &around, &parts, limiter)?;
            let labels = &mut plan.options.labels;
            labels.insert(container_spec::NAME.to_owned(), job.spec.name.clone());
            Some(Plan {
                journal: io.store.name()?,
                began: io.store.began()?,
                ..plan
            })
        }
        None => None,
    };
    let spec = LaunchSpec {
        job: id.to_string(),
        command: job.spec.command.clone(),
        cwd: job.spec.cwd.clone().into(),
        // A container has its own variables; the slice's are added when it is created.
        env: match container {
            Some(_) => env,
            None => for_program(env, &around),
        },
        grace_ms: u64::try_from(io.config.grace.as_millis()).unwrap_or(u64::MAX),
        script,
        output: OutputFiles::next_run_of(job),
        ends_after_ms: None,
        log_most: io.config.limits.max_log_bytes,
        limiter,
        container,
        user: user.clone(),
        refuse_user_namespaces: io.config.confinement.refuse_user_namespaces,
        refuse_gpus: false,
        held: match &io.config.confinement.cgroup_parent {
            Ok(stem) => CgroupStatus {
                group: Some(Cgroup::of(stem, id)),
                because: None,
                tasks: None,
            },
            Err(because) => CgroupStatus {
                group: None,
                because: Some(because.clone()),
                tasks: None,
            },
        },
        needs_group: job.needs_limited_group(),
        replica: Some(io.store.replica(id)?),
    };
    dir.write_spec(&spec)?;
    if let Some(user) = &user {
        dir.grant_log_access(user)?;
        if slice.is_some() {
            chown_to_user(&folder, user)?;
        }
    }
    match &slice {
        Some(slice) => {
            actuators
                .observer
                .register(id, slice.to_watched_job(Vec::new()));
            // A resize may have lowered its limits between its grants and its slice.
            let limits = active.job.limits();
            slice.resize(&limits, compute, &[]);
            actuators
                .compute_scheduler
                .add_slice(id, &folder, &limits, compute);
        }
        None => actuators
            .observer
            .register(id, WatchedJob::without_ledger()),
    }
    if let Some(placed) = active.placed_mut() {
        placed.slice = slice;
        placed.slice_usage.clear();
        placed.since = Instant::now();
        placed.client_seen = Instant::now();
    }
    watch_job(&state.jobs, io, actuators, id);
    Ok(())
}

/// Writes the journal rows of jobs that this round changed into their folders.
///
/// # Errors
/// When the journal fails.
pub(in crate::controller) fn write_replicas(
    jobs: &Jobs,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    for id in std::mem::take(&mut fx.jobs.changed) {
        let holds = |active: &ActiveJob| !active.job.state.grants().is_empty();
        let dir = jobs.dir(&io.config.home, id);
        // A job without a folder gets its row together with its launch spec.
        if !jobs.active.get(&id).is_some_and(|active| holds(active)) || !dir.path().is_dir() {
            continue;
        }
        if let Err(error) = io.store.replica(id)?.write(&dir) {
            tracing::warn!(job = %id, error = error_chain(&error), "cannot update the job record; it is older than the journal");
        }
    }
    Ok(())
}

/// Starts the supervisor of a job that has its slice and its spec, and passes it the lock.
pub(in crate::controller) fn spawn(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) {
    let placed = jobs.active.get(&id).and_then(|active| active.placed());
    if placed.is_none_or(|one| one.start.failure.is_some() || one.start.shortage.is_some()) {
        return;
    }
    confirm::pass(jobs, id, "confirm.prepared");
    if let Err(error) = try_spawn(jobs, children, io, actuators, id) {
        failed_to_start(jobs, fx, io, id, &error);
    }
    confirm::pass(jobs, id, "confirm.spawned");
}

pub(in crate::controller) fn try_spawn(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) -> Result<(), StartError> {
    let dir = jobs.dir(&io.config.home, id);
    let lock = dir.lock()?.ok_or(StartError::Locked)?;
    // All runs of a job share one log.
    let log = JobDir::new(io.config.home.job(&id.to_string())).open_log()?;
    if let Some(user) = jobs.active.get(&id).and_then(|active| run_as(&active.job)) {
        fchown(&log, Some(user.uid), Some(user.gid)).map_err(StartError::Spawn)?;
    }
    reach("start.locked");
    let divvy = &io.config.programs.divvy;
    let child = SupervisorHandle::start(divvy, dir.path(), lock, log).map_err(StartError::Spawn)?;
    reach("start.spawned");
    if let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        placed.supervisor.pid = Some(child.id());
        placed.supervisor.end = None;
    }
    if let Some(supervisor) = child.process() {
        actuators.observer.add_root(id, supervisor);
    }
    children.push(child);
    Ok(())
}

pub(in crate::controller) fn watch_job(jobs: &Jobs, io: &Io, actuators: &Actuators, id: JobId) {
    if let Some(watch) = &actuators.watch
        && let Err(error) = watch.add(id, jobs.dir(&io.config.home, id).path())
    {
        tracing::warn!(job = %id, %error, "cannot watch the job's folder; polling it instead");
    }
}

/// The configuration of a job's slice, from the journal.
pub(in crate::controller) fn slice_layout<'a>(
    name: &'a str,
    job: &'a Job,
    overheads: &'a [Bytes],
) -> SliceConfig<'a> {
    SliceConfig {
        job: name,
        generation: u64::from(job.attempt),
        compute: job.compute(),
        numbering: numbering(job),
        closed: matches!(job.state, JobState::Stopping { .. }) && job.claim().is_some(),
        grants: job.state.grants(),
        overheads,
    }
}

/// A container's engine hides the other GPUs from the driver, and so does a scheduler with namespaces.
fn numbering(job: &Job) -> Numbering {
    let claim = job.spec.policy.claim.as_ref();
    let is_hidden = job.spec.container.is_some() || claim.is_some_and(|claim| !claim.is_slice());
    match is_hidden {
        true => Numbering::Driver,
        false => Numbering::Slice,
    }
}

/// The assumed context overhead on each of these GPUs. A GPU that did not answer at the daemon's start is no device of
/// it, but may answer later. For such a GPU the largest known overhead counts.
pub(in crate::controller) fn overheads(devices: &[Device], grants: &[Grant]) -> Vec<Bytes> {
    let most = devices.iter().map(|device| device.overhead).max();
    let of = |grant: &Grant| {
        let mut devices = devices.iter();
        let device = devices.find(|device| device.gpu.uuid == grant.gpu);
        device.map_or(most.unwrap_or_default(), |device| {
            // What is assumed may be more than the driver counts, and the limiter refuses nothing that the driver
            // grants.
            let is_assumed = device.gpu.context == Bytes::ZERO;
            match is_assumed && device.driver_limit.is_ok() {
                true => Bytes::ZERO,
                false => device.overhead,
            }
        })
    };
    grants.iter().map(of).collect()
}

/// The delay between two supervisors of one container, so that one which dies at once is not replaced at once.
const REST: Duration = Duration::from_secs(2);

/// Starts new supervisors for containers that have lost their own; they continue from the jobs' records.
///
/// # Errors
/// When the journal fails.
pub(in crate::controller) fn replace_supervisors(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) -> Result<(), StoreError> {
    let adoptions = std::mem::take(&mut fx.jobs.adoptions);
    if adoptions.is_empty() {
        return Ok(());
    }
    io.store.begin()?;
    for id in adoptions {
        let placed = jobs.active.get_mut(&id).and_then(|one| one.placed_mut());
        let last = placed.map(|placed| &mut placed.supervisor.replaced_at);
        let Some(last) = last.filter(|last| last.is_none_or(|last| last.elapsed() >= REST)) else {
            continue;
        };
        *last = Some(Instant::now());
        let name = jobs.dir(&io.config.home, id).container().ok().flatten();
        let name = name.map_or_else(|| "its container".to_owned(), |placed| placed.name);
        match try_spawn(jobs, children, io, actuators, id) {
            Ok(()) => fx.record_event(
                io,
                Some(id),
                "container_adopted",
                &format!("{name} lost its supervisor; a new one supervises it"),
            )?,
            Err(error) => {
                tracing::error!(job = %id, error = error_chain(&error), "cannot start a new supervisor for the container");
            }
        }
    }
    io.store.commit()
}
