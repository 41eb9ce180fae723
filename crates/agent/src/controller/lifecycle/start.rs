//! Start: the daemon creates a placed job's slice, writes its launch spec, and starts its supervisor.

use std::fs::File;
use std::io;
use std::os::unix::fs::fchown;

use divvy_api::home::Home;
use divvy_api::v1::Runner;
use divvy_core::{Bytes, Grant, JobId, JobState};
use divvy_ledger::{CreateError, Numbering, OpenError};
use rustix::io::Errno;

use super::container::{ContainerError, plan};
use crate::container::job_files::CoverError;
use crate::controller::claims;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::confirm;
use crate::controller::run_as::run_as;
use crate::controller::runtime::{ActiveJob, Shortage};
use crate::controller::state::mig::is_divided;
use crate::controller::state::{Jobs, State};
use crate::gpu::Device;
use crate::gpu::slice::{HeldSlice, SliceConfig, SliceError, chown_to_user};
use crate::gpu::watched_jobs::WatchedJob;
use crate::host::cgroup::{Cgroup, CgroupStatus};
use crate::host::clock::{Instant, now};
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::host::run_as::Identity;
use crate::job_dir::container_spec::{self, Plan};
use crate::job_dir::{self, ExitRecord, JobDir, LaunchSpec, OutputFiles, RecordError, RunOutcome};
use crate::journal::StoreError;
use crate::journal::secrets::SecretsError;
use crate::model::job::Job;
use crate::supervisor::handle::SupervisorHandle;
use crate::supervisor::job_environment::{JobEnvironment, for_program};
use crate::supervisor::{forkserver, script};

/// Why a job with grants could not be started.
#[derive(Debug, thiserror::Error)]
pub(in crate::controller) enum StartError {
    #[error(transparent)]
    Slice(#[from] SliceError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    #[error("the journal lacks the job's environment")]
    NoEnvironment,
    #[error("its MIG instance does not exist")]
    NoInstance,
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Cover(#[from] CoverError),
    #[error("cannot write its CDI file")]
    Cdi(#[source] io::Error),
    #[error("cannot write the slice's entry")]
    Entry(#[source] io::Error),
    #[error("another process supervises it already")]
    Locked,
    #[error("cannot start its supervisor")]
    Spawn(#[source] io::Error),
}

impl StartError {
    /// Whether the machine lacks descriptors, processes or disk space now. That is no fault of the job, and it may
    /// start later.
    fn is_shortage(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if error.downcast_ref().is_some_and(is_short) {
                return true;
            }
            cause = error.source();
        }
        match self {
            // For a spawn this means too many processes; for a file it has another meaning.
            Self::Spawn(error) => {
                Errno::from_io_error(error) == Some(Errno::AGAIN)
                    || forkserver::is_server_gone(error)
            }
            // These errors do not return the kernel's error as their source.
            Self::Slice(
                SliceError::Create(CreateError::Open(OpenError::Io { source, .. }))
                | SliceError::Open(OpenError::Io { source, .. }),
            ) => is_short(source),
            _ => false,
        }
    }
}

fn is_short(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::DQUOT)
    )
}

pub(in crate::controller) fn job_dir(jobs: &Jobs, io: &Io, id: JobId) -> JobDir {
    match jobs.active.get(&id) {
        Some(active) => records(&io.config.home, id, &active.job),
        None => JobDir::new(io.config.home.job(&id.to_string())),
    }
}

pub(in crate::controller) fn runs_on_client(jobs: &Jobs, id: JobId) -> bool {
    jobs.active
        .get(&id)
        .is_some_and(|active| active.job.spec.runner == Runner::Client)
}

/// Creates the slice and writes the launch spec of a job that is starting.
pub(in crate::controller) fn prepare(state: &mut State, fx: &mut Effects, io: &Io, id: JobId) {
    confirm::pass(&state.jobs, id, "confirm.answered");
    if let Some(placed) = (state.jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        placed.start.shortage = None;
    }
    if let Err(error) = try_prepare(state, io, id) {
        failed_to_start(&mut state.jobs, fx, io, id, &error);
    }
}

/// Fails a start, or notes the shortage. In that case the next check finds that no process started the job, and
/// requeues it.
fn failed_to_start(jobs: &mut Jobs, fx: &mut Effects, io: &Io, id: JobId, error: &StartError) {
    let why = error_chain(error);
    // This round's reply announces the start to the client, so its job cannot return to the queue.
    if !error.is_shortage() || runs_on_client(jobs, id) {
        return fail_start(jobs, fx, io, id, &why);
    }
    tracing::warn!(job = %id, why, "cannot start the job now; it returns to its queue");
    if let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        let why = format!("it could not be started: {why}");
        let since = Instant::now();
        placed.start.shortage = Some(Shortage { why, since });
    }
}

fn try_prepare(state: &mut State, io: &Io, id: JobId) -> Result<(), StartError> {
    let dir = job_dir(&state.jobs, io, id);
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
            io.observer.register(id, slice.to_watched_job(Vec::new()));
            // A resize may have lowered its limits between its grants and its slice.
            let limits = active.job.limits();
            slice.resize(&limits, compute);
            io.compute_scheduler
                .add_slice(id, &folder, &limits, compute);
        }
        None => io.observer.register(id, WatchedJob::without_ledger()),
    }
    if let Some(placed) = active.placed_mut() {
        placed.slice = slice;
        placed.slice_usage.clear();
        placed.since = Instant::now();
        placed.client_seen = Instant::now();
    }
    watch_job(&state.jobs, io, id);
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
        let dir = job_dir(jobs, io, id);
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
    id: JobId,
) {
    let placed = jobs.active.get(&id).and_then(|active| active.placed());
    if placed.is_none_or(|one| one.start.failure.is_some() || one.start.shortage.is_some()) {
        return;
    }
    confirm::pass(jobs, id, "confirm.prepared");
    if let Err(error) = try_spawn(jobs, children, io, id) {
        failed_to_start(jobs, fx, io, id, &error);
    }
    confirm::pass(jobs, id, "confirm.spawned");
}

pub(in crate::controller) fn try_spawn(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
    io: &Io,
    id: JobId,
) -> Result<(), StartError> {
    let dir = job_dir(jobs, io, id);
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
        io.observer.add_root(id, supervisor);
    }
    children.push(child);
    Ok(())
}

/// Fails a job that could not be started; the next round journals its end.
pub(in crate::controller) fn fail_start(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
    why: &str,
) {
    if claims::is_claim(jobs, id) {
        return claims::give_up_claim(jobs, fx, id, why);
    }
    tracing::error!(job = %id, why, "cannot start the job");
    let exit = ExitRecord {
        outcome: not_started(why),
        at: now(),
    };
    if let Ok(Some(lock)) = job_dir(jobs, io, id).lock() {
        mark_spent(jobs, io, id, &exit, &lock);
    }
    if let Some(placed) = (jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
        placed.start.failure = Some(exit);
    }
    fx.jobs.recheck.push(id);
}

/// Records under the lock of a job that no process has started that it must not be started. A late supervisor or client
/// then finds an ended job.
pub(in crate::controller) fn mark_spent(
    jobs: &Jobs,
    io: &Io,
    id: JobId,
    exit: &ExitRecord,
    _lock: &File,
) {
    if let Err(error) = job_dir(jobs, io, id).write_exit(exit) {
        tracing::error!(job = %id, error = error_chain(&error), "cannot write the folder of a withdrawn job");
    }
}

pub(in crate::controller) fn watch_job(jobs: &Jobs, io: &Io, id: JobId) {
    if let Some(watch) = &io.watch
        && let Err(error) = watch.add(id, job_dir(jobs, io, id).path())
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
        device.map_or(most.unwrap_or_default(), |device| device.overhead)
    };
    grants.iter().map(of).collect()
}

/// The folder of a job's present run.
pub(in crate::controller) fn records(home: &Home, id: JobId, job: &Job) -> JobDir {
    let folder = home.job(&id.to_string());
    JobDir::new(job_dir::run_folder(&folder, job.run_state.runs))
}

/// The outcome of a start that failed because of Divvy itself.
pub(in crate::controller) fn not_started(why: &str) -> RunOutcome {
    RunOutcome::Launch {
        launch_error: format!("divvy could not start it: {why}"),
        exit_code: 125,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_descriptors_processes_and_room_is_no_fault_of_a_job() {
        let of = |errno: Errno| io::Error::from(errno);
        let slice = |errno| {
            StartError::Slice(SliceError::Open(OpenError::Io {
                path: "/s".into(),
                operation: "open",
                source: of(errno),
            }))
        };
        let remove = |errno| {
            StartError::Slice(SliceError::Remove {
                path: "/s".into(),
                source: of(errno),
            })
        };
        for short in [
            StartError::Spawn(of(Errno::AGAIN)),
            StartError::Spawn(of(Errno::MFILE)),
            slice(Errno::NFILE),
            slice(Errno::NOSPC),
            slice(Errno::DQUOT),
            remove(Errno::MFILE),
        ] {
            assert!(short.is_shortage(), "{short:?}");
        }
        for other in [
            StartError::Spawn(of(Errno::NOENT)),
            slice(Errno::ROFS),
            remove(Errno::AGAIN),
            StartError::Locked,
        ] {
            assert!(!other.is_shortage(), "{other:?}");
        }
    }
}
