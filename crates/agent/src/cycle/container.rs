//! From a job that asks for a container to the plan its supervisor makes one by.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::JobId;
use divvy_core::docker::{self, Refused};

use super::Cycle;
use super::mig::is_divided;
use crate::clock::Instant;
use crate::config::{Config, LibraryMissing, Simulated};
use crate::container::driver::{Driver, DriverError, Part};
use crate::container::edits::{Files, edits};
use crate::container::engine::{self, NoEngine};
use crate::container::plan::{self, Held, Limiter, OnUnlimited, Plan};
use crate::container::sweep::{self, Sweep};
use crate::container::{cdi, cover};
use crate::environment::{Surroundings, for_job};
use crate::process::{self, Process};
use crate::records::JobDir;
use crate::simulated;
use crate::store::StoreError;
use crate::supervise::chain;
use crate::supervise::form::Wish;

/// Between two supervisors of one container: one that dies at once is not to be followed by the next at once.
const REST: Duration = Duration::from_secs(2);

/// How long after the end of a job in a container it is looked for what is left of it: who takes that away has done so by then, or died.
pub(super) const AFTERWARDS: Duration = Duration::from_secs(60);

impl Cycle {
    /// Which containers are left over from before, as of now.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn sweep_of_containers(&self) -> Result<Sweep, StoreError> {
        // Those that have ended in this round are still there.
        let living = self.jobs.values();
        let living = living.filter(|living| living.job.life.outcome().is_none());
        Ok(Sweep {
            journal: self.store.name()?,
            began: self.store.began()?,
            living: living.map(|living| living.job.id).collect(),
            newest: self.store.last_numbered()?,
        })
    }

    /// Something may be left of a container, or of a CDI file, and is to be looked for this long from now at the latest.
    pub(super) fn may_be_left(&mut self, after: Duration) {
        let due = Instant::now() + after;
        self.leftovers = Some(self.leftovers.map_or(due, |before| before.min(due)));
    }

    /// Looks for what is left of jobs in containers, once it is time.
    pub(super) fn clear_leftovers(&mut self) -> Result<(), StoreError> {
        if self.leftovers.is_none_or(|due| due > Instant::now()) {
            return Ok(());
        }
        self.leftovers = None;
        self.sweep_devices();
        let Ok(socket) = engine::socket() else {
            return Ok(());
        };
        let instance = plan::instance(self.config.home.state());
        if let Err(error) = sweep::start(socket, instance, self.sweep_of_containers()?) {
            tracing::warn!(%error, "cannot search for leftover containers");
        }
        Ok(())
    }

    /// Gives a container that has lost its supervisor another one, which goes on where that one was.
    pub(super) fn relay(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        if living.relayed.is_some_and(|last| last.elapsed() < REST) {
            return Ok(());
        }
        living.relayed = Some(Instant::now());
        let name = self.job_dir(id).container().ok().flatten();
        let name = name.map_or_else(|| "its container".to_owned(), |placed| placed.name);
        match self.try_spawn(id) {
            Ok(()) => self.tell(
                Some(id),
                "container_adopted",
                &format!("{name} lost its supervisor; a new one supervises it"),
            ),
            Err(error) => {
                tracing::error!(job = %id, error = chain(&error), "cannot start a new supervisor for the container");
                Ok(())
            }
        }
    }
}

impl Cycle {
    /// What brings a container into the slice of a job that holds one.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] for no such job, [`ErrorCode::Conflict`] for one that holds nothing now.
    pub fn docker_args(&mut self, reference: &str) -> Result<v1::DockerArgs, Error> {
        let id = self
            .find(reference)
            .map_err(|error| Error::new(ErrorCode::Internal, chain(&error)))??;
        let nothing = || {
            Error::new(
                ErrorCode::Conflict,
                format!("job {id} holds no slice at the moment"),
            )
            .hint("try again while it runs; `divvy ps` lists running jobs")
        };
        let living = self.jobs.get(&id).ok_or_else(nothing)?;
        let (job, grants) = (&living.job, living.job.life.grants());
        let visible = grants.iter().map(|grant| self.migs.visible_as(grant));
        let visible: Vec<String> = visible.collect::<Option<_>>().ok_or_else(nothing)?;
        if visible.is_empty() {
            return Err(nothing());
        }
        let asked = job.ask.container.as_ref();
        let is_guest = asked.is_some_and(|asked| asked.starter.is_some());
        // Its supervisor looks at what is to be started first.
        if is_guest && !matches!(self.job_dir(id).launch(), Ok(Some(_))) {
            let why = format!("job {id} is not ready for its container yet");
            return Err(Error::new(ErrorCode::Conflict, why).hint("try again in a moment"));
        }
        let (config, number) = (&self.config, id.to_string());
        let folder = config.home.slice(&number);
        // What one that is to be confirmed will have is known before it is there.
        let ahead = job.awaits_confirmation();
        let has_slice = living.slice.is_some() || ahead && !is_divided(grants);
        let around = Surroundings {
            job: &number,
            queue: &job.ask.queue,
            visible: &visible,
            slice: has_slice.then_some(folder.as_path()),
            preload: &config.programs.preload,
            simulated: config.simulated.as_ref(),
        };
        let wish = config.programs.wish(&folder, config.simulated.as_ref());
        let internal =
            |error: &dyn std::error::Error| Error::new(ErrorCode::Internal, chain(error));
        let parts: Vec<Part> = grants.iter().map(|grant| self.migs.part(grant)).collect();
        let limiter = has_slice.then_some(&wish);
        let held =
            held(&config.machine(), &around, &parts, limiter).map_err(|error| internal(&error))?;
        let files = Files::of(self.job_dir(id).path());
        let edits = edits(&held, &files);
        // A container job's are there; for any other they are made now.
        if !ahead {
            cover::lay(&edits, &files).map_err(|error| internal(&error))?;
        }
        let instance = plan::instance(config.home.state());
        let name = plan::name(&instance, &number, job.course.runs);
        let mut flags = edits.flags();
        // The job's supervisor knows the container by it.
        if is_guest {
            flags.push(plan::joins(&name));
        }
        Ok(v1::DockerArgs {
            job: number,
            flags,
            cdi_device: cdi::device(&name),
            cdi: serde_json::to_value(cdi::cdi(&name, &edits)).unwrap_or_default(),
        })
    }
}

/// The processes of a job's container, where it has one: they descend from the engine, not from the supervisor.
pub(super) fn processes(dir: &JobDir) -> Vec<Process> {
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

/// Why a job cannot have its container.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error(transparent)]
    Engine(#[from] NoEngine),
    #[error(transparent)]
    Arguments(#[from] Refused),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Simulator(#[from] LibraryMissing),
}

/// What the supervisor of a job that has its grants needs. `runs`: how often it ran before. `limiter`: in which form it is to be; none where the hardware holds it.
pub fn plan(
    config: &Config,
    container: &v1::Container,
    runs: u32,
    around: &Surroundings<'_>,
    parts: &[Part],
    limiter: Option<&Wish>,
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
    Ok(plan)
}

/// What of this machine a container is made with.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// This program.
    pub divvy: &'a Path,
    pub simulated: Option<&'a Simulated>,
    pub driver_version: &'a str,
}

impl Config {
    pub(super) fn machine(&self) -> Machine<'_> {
        Machine {
            divvy: &self.programs.divvy,
            simulated: self.simulated.as_ref(),
            driver_version: &self.driver_version,
        }
    }
}

/// What of the host no job may mount: Divvy's own, from where one could write limits or call the daemon as its user, and the engine.
fn kept(home: &Home, socket: &Path) -> Vec<PathBuf> {
    let runtime = home.socket();
    let runtime = runtime.parent().unwrap_or(&runtime).to_owned();
    vec![
        home.state().to_owned(),
        home.slices().to_owned(),
        runtime,
        socket.to_owned(),
    ]
}

/// The same without a daemon, whose own wishes are left at what they are by default.
pub fn plan_on(
    machine: &Machine<'_>,
    home: &Home,
    container: &v1::Container,
    runs: u32,
    around: &Surroundings<'_>,
    parts: &[Part],
    limiter: Option<&Wish>,
) -> Result<Plan, ContainerError> {
    let instance = plan::instance(home.state());
    let socket = engine::socket()?;
    let starter = container.starter.map(|starter| {
        plan::Starter::Process(Process {
            pid: starter.pid,
            start_time: starter.start_time.unwrap_or_default(),
        })
    });
    Ok(Plan {
        name: plan::name(&instance, around.job, runs),
        image: container.image.clone(),
        options: docker::options(&container.arguments)?,
        kept: kept(home, &socket),
        held: held(machine, around, parts, limiter)?,
        on_unlimited: OnUnlimited::default(),
        cdi: None,
        starter,
        instance,
        journal: None,
        began: None,
        socket,
    })
}

/// What holds any container to the job's slice.
pub fn held(
    machine: &Machine<'_>,
    around: &Surroundings<'_>,
    parts: &[Part],
    limiter: Option<&Wish>,
) -> Result<Held, ContainerError> {
    let driver = match machine.simulated {
        Some(simulated) => Driver::Simulated {
            library: simulated::library(machine.divvy)?,
            state: simulated.state.clone(),
        },
        None => Driver::installed(machine.driver_version, parts)?,
    };
    let limiter = limiter.zip(around.slice);
    Ok(Held {
        limiter: limiter.map(|(wish, slice)| Limiter::new(slice, around.preload, wish)),
        driver,
        variables: for_job(BTreeMap::new(), around),
    })
}
