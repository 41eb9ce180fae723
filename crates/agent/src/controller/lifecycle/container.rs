//! Container jobs: the plan by which a supervisor creates a container, its garbage collection, and its slice.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::JobId;
use divvy_core::docker::{self, ContainerOptionError};

use crate::config::{Config, LibraryMissing, Simulated, simulated_gpus};
use crate::container::driver::{DriverError, GpuDevice};
use crate::container::edits::{JobFiles, edits};
use crate::container::engine::{self, NoEngine};
use crate::container::gc::{self, ContainerGc};
use crate::container::{cdi, job_files, user_mounts};
use crate::controller::claims::files;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::start;
use crate::controller::query::reference;
use crate::controller::state::Jobs;
use crate::controller::state::mig::{MigManager, is_divided};
use crate::host::clock::Instant;
use crate::host::error::error_chain;
use crate::host::process::{self, Process};
use crate::host::run_as::Identity;
use crate::job_dir::JobDir;
use crate::job_dir::container_spec::{
    self, ContainerSlice, ContainerSubmitter, Driver, Limiter, OnUnlimited, Plan,
};
use crate::job_dir::injection::InjectionPolicy;
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::supervisor::forkserver;
use crate::supervisor::handle::SupervisorHandle;
use crate::supervisor::job_environment::{JobEnvironment, for_job};

/// The delay between two supervisors of one container, so that one which dies at once is not replaced at once.
const REST: Duration = Duration::from_secs(2);

/// How long after a container job's end leftovers are collected. By then its supervisor has removed them or has died.
/// Half could take a container from a supervisor that waits for a slow engine; longer only keeps leftovers.
pub(in crate::controller) const CONTAINER_GC_DELAY: Duration = Duration::from_secs(60);

/// The input for the garbage collection: which containers may belong to active jobs.
///
/// # Errors
/// When the journal cannot be read.
pub fn container_gc(jobs: &Jobs, io: &Io) -> Result<ContainerGc, StoreError> {
    // Jobs that ended in this round are still in the map.
    let active = jobs.active.values();
    let active = active.filter(|active| active.job.state.outcome().is_none());
    Ok(ContainerGc {
        journal: io.store.name()?,
        began: io.store.began()?,
        living: active.map(|active| active.job.id).collect(),
        newest: io.store.last_numbered()?,
    })
}

/// Schedules a collection, because a container or CDI file may be left over. It runs within `after`.
pub(in crate::controller) fn schedule_container_gc(fx: &mut Effects, after: Duration) {
    let due = Instant::now() + after;
    fx.container_gc_at = Some(fx.container_gc_at.map_or(due, |before| before.min(due)));
}

/// Starts the garbage collection of containers and CDI files once it is due.
pub(in crate::controller) fn run_container_gc(
    jobs: &Jobs,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    if fx.container_gc_at.is_none_or(|due| due > Instant::now()) {
        return Ok(());
    }
    fx.container_gc_at = None;
    files::remove_stale_cdi_files(jobs, io);
    remove_stale_mounts(jobs, io);
    let Ok(socket) = engine::socket() else {
        return Ok(());
    };
    let instance = container_spec::instance(io.config.home.instance());
    if let Err(error) = gc::start(socket, instance, container_gc(jobs, io)?) {
        tracing::warn!(%error, "cannot search for leftover containers");
    }
    Ok(())
}

/// Removes staged mounts of containers whose jobs hold nothing any more: their supervisors died before they could.
pub(in crate::controller) fn remove_stale_mounts(jobs: &Jobs, io: &Io) {
    let instance = container_spec::instance(io.config.home.instance());
    let jobs = jobs.active.values().map(|active| &active.job);
    let holds = jobs.filter(|job| !job.state.grants().is_empty());
    let names =
        holds.map(|job| container_spec::name(&instance, &job.id.to_string(), job.run_state.runs));
    for folder in user_mounts::stale(&io.config.home.mounts(), &names.collect()) {
        if let Err(error) = forkserver::remove_mounts(&folder) {
            tracing::warn!(%error, folder = %folder.display(), "cannot remove the mounts of a dead supervisor");
        }
    }
}

/// Starts a new supervisor for a container that has lost its own; it continues from the job's records.
pub(in crate::controller) fn replace_supervisor(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let Some(placed) = active.placed_mut() else {
        return Ok(());
    };
    let last = placed.supervisor.replaced_at;
    if last.is_some_and(|last| last.elapsed() < REST) {
        return Ok(());
    }
    placed.supervisor.replaced_at = Some(Instant::now());
    let name = start::job_dir(jobs, io, id).container().ok().flatten();
    let name = name.map_or_else(|| "its container".to_owned(), |placed| placed.name);
    match start::try_spawn(jobs, children, io, id) {
        Ok(()) => fx.record_event(
            io,
            Some(id),
            "container_adopted",
            &format!("{name} lost its supervisor; a new one supervises it"),
        ),
        Err(error) => {
            tracing::error!(job = %id, error = error_chain(&error), "cannot start a new supervisor for the container");
            Ok(())
        }
    }
}

/// The engine's flags that bring a container into the slice of a job.
///
/// # Errors
/// [`ErrorCode::NotFound`] if there is no such job, [`ErrorCode::Conflict`] if it holds nothing now.
pub fn docker_args(
    jobs: &Jobs,
    mig: &MigManager,
    io: &Io,
    reference: &str,
) -> Result<v1::DockerArgs, Error> {
    let id = reference::find(jobs, io, reference)
        .map_err(|error| Error::new(ErrorCode::Internal, error_chain(&error)))??;
    let nothing = || {
        Error::new(
            ErrorCode::Conflict,
            format!("job {id} holds no slice at the moment"),
        )
        .hint("try again while it runs; `divvy ps` lists running jobs")
    };
    let active = jobs.active.get(&id).ok_or_else(nothing)?;
    let (job, grants) = (&active.job, active.job.state.grants());
    let visible = grants.iter().map(|grant| mig.visible_uuid(grant));
    let visible: Vec<String> = visible.collect::<Option<_>>().ok_or_else(nothing)?;
    if visible.is_empty() {
        return Err(nothing());
    }
    let asked = job.spec.container.as_ref();
    let is_guest = asked.is_some_and(|asked| asked.starter.is_some());
    // Its supervisor first checks the process that will start the container.
    if is_guest && !matches!(start::job_dir(jobs, io, id).launch(), Ok(Some(_))) {
        let why = format!("job {id} is not ready for its container yet");
        return Err(Error::new(ErrorCode::Conflict, why).hint("try again in a moment"));
    }
    let (config, number) = (&io.config, id.to_string());
    // The slice of a job that waits for its confirmation is known before it exists.
    let ahead = job.awaits_confirmation();
    let has_slice = active.slice().is_some() || ahead && !is_divided(grants);
    let internal =
        |error: &dyn std::error::Error| Error::new(ErrorCode::Internal, error_chain(error));
    let held = slice_of_job(io, mig, job, &visible, has_slice).map_err(|error| internal(&error))?;
    let files = JobFiles::of(start::job_dir(jobs, io, id).path());
    let edits = edits(&held, &files);
    // A container job already has these files; for any other job they are created now.
    if !ahead {
        job_files::write(&edits, &files).map_err(|error| internal(&error))?;
    }
    let instance = container_spec::instance(config.home.instance());
    let name = container_spec::name(&instance, &number, job.run_state.runs);
    let mut flags = edits.flags();
    // The job's supervisor finds the container by this flag.
    if is_guest {
        flags.push(container_spec::joins(&name));
    }
    Ok(v1::DockerArgs {
        job: number,
        flags,
        cdi_device: cdi::device(&name),
        cdi: serde_json::to_value(cdi::cdi(&name, &edits)).unwrap_or_default(),
    })
}

/// What a container gets of a job's GPUs. `visible` are their UUIDs as a program sees them.
///
/// # Errors
/// When the driver's files for the container are missing.
pub(in crate::controller) fn slice_of_job(
    io: &Io,
    mig: &MigManager,
    job: &Job,
    visible: &[String],
    has_slice: bool,
) -> Result<ContainerSlice, ContainerError> {
    let (config, number) = (&io.config, job.id.to_string());
    let folder = config.home.slice(&number);
    let simulated = config.node.simulated.as_ref();
    let around = JobEnvironment {
        job: &number,
        queue: &job.spec.queue,
        visible,
        slice: has_slice.then_some(folder.as_path()),
        preload: &config.programs.preload,
        simulated,
    };
    let wish = config.programs.choose_injection(&folder, simulated);
    let parts: Vec<GpuDevice> = (job.state.grants().iter())
        .map(|grant| mig.part(grant))
        .collect();
    let limiter = has_slice.then_some(&wish);
    slice_injection(&config.machine(), &around, &parts, limiter)
}

/// The processes of a job's container, if it has one. They descend from the engine, not from the supervisor.
pub(in crate::controller) fn processes(dir: &JobDir) -> Vec<Process> {
    let (launch, started) = (dir.launch().ok().flatten(), dir.started().ok().flatten());
    let first = started.map(|begun| begun.process);
    let supervisor = launch.map(|begun| begun.process);
    match first.filter(|first| {
        dir.container().is_ok_and(|placed| placed.is_some()) && Some(*first) != supervisor
    }) {
        Some(first) if first.is_alive() => {
            let mut all = vec![first];
            all.extend(process::descendants(first.pid));
            all
        }
        _ => Vec::new(),
    }
}

/// Why a job's container cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error(transparent)]
    Engine(#[from] NoEngine),
    #[error(transparent)]
    Arguments(#[from] ContainerOptionError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Simulator(#[from] LibraryMissing),
    #[error("the container must run as its submitter, and that is the daemon's own user")]
    NoSubmitter,
}

/// The plan for the supervisor of a container job. `runs`: its earlier runs. `limiter`: the form of the limiter, or
/// `None` if the hardware enforces the limit.
pub fn plan(
    config: &Config,
    (container, user): (&v1::Container, Option<&Identity>),
    runs: u32,
    around: &JobEnvironment<'_>,
    parts: &[GpuDevice],
    limiter: Option<&InjectionPolicy>,
) -> Result<Plan, ContainerError> {
    let mut plan = plan_on(
        &config.machine(),
        &config.home,
        container,
        runs,
        around,
        parts,
        limiter,
    )?;
    plan.on_unlimited = config.containers.on_unlimited;
    if plan.starter.is_none() {
        plan.cdi.clone_from(&config.containers.cdi);
    }
    if container.as_submitter {
        // The daemon's own user is an administrator, so there is another one.
        let identity = user.ok_or(ContainerError::NoSubmitter)?;
        plan.submitter = Some(ContainerSubmitter {
            identity: identity.clone(),
            folders: config.rules.get().mount_folders().to_vec(),
            staging: config.home.mounts().join(&plan.name),
        });
    }
    Ok(plan)
}

/// The parts of this machine that a container needs.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The path of this program.
    pub divvy: &'a Path,
    pub simulated: Option<&'a Simulated>,
    pub driver_version: &'a str,
}

impl Config {
    pub(in crate::controller) fn machine(&self) -> Machine<'_> {
        Machine {
            divvy: &self.programs.divvy,
            simulated: self.node.simulated.as_ref(),
            driver_version: &self.node.driver_version,
        }
    }
}

/// Host paths that no job may mount. Through Divvy's own a job could change limits or call the daemon as its user;
/// through the engine's socket it could do anything.
fn protected_paths(home: &Home, socket: &Path) -> Vec<PathBuf> {
    let runtime = home.socket();
    let runtime = runtime.parent().unwrap_or(&runtime).to_owned();
    vec![
        home.state().to_owned(),
        home.slices().to_owned(),
        runtime,
        socket.to_owned(),
    ]
}

/// The same plan without a daemon, with the default settings.
pub fn plan_on(
    machine: &Machine<'_>,
    home: &Home,
    container: &v1::Container,
    runs: u32,
    around: &JobEnvironment<'_>,
    parts: &[GpuDevice],
    limiter: Option<&InjectionPolicy>,
) -> Result<Plan, ContainerError> {
    let instance = container_spec::instance(home.instance());
    let socket = engine::socket()?;
    let starter = container.starter.map(|starter| {
        container_spec::Starter::Process(Process {
            pid: starter.pid,
            start_time: starter.start_time.unwrap_or_default(),
        })
    });
    Ok(Plan {
        name: container_spec::name(&instance, around.job, runs),
        image: container.image.clone(),
        options: docker::options(&container.arguments)?,
        kept: protected_paths(home, &socket),
        held: slice_injection(machine, around, parts, limiter)?,
        on_unlimited: OnUnlimited::default(),
        cdi: None,
        starter,
        submitter: None,
        instance,
        journal: None,
        began: None,
        socket,
    })
}

/// What brings a container into a job's slice: libraries, devices, variables and the limiter.
fn slice_injection(
    machine: &Machine<'_>,
    around: &JobEnvironment<'_>,
    parts: &[GpuDevice],
    limiter: Option<&InjectionPolicy>,
) -> Result<ContainerSlice, ContainerError> {
    let driver = match machine.simulated {
        Some(simulated) => Driver::Simulated {
            library: simulated_gpus::library(machine.divvy)?,
            state: simulated.state.clone(),
        },
        None => Driver::installed(machine.driver_version, parts)?,
    };
    let limiter = limiter.zip(around.slice);
    Ok(ContainerSlice {
        limiter: limiter.map(|(wish, slice)| Limiter::new(slice, around.preload, wish)),
        driver,
        variables: for_job(BTreeMap::new(), around),
    })
}
