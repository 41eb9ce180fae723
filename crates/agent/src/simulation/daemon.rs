//! The daemon in a simulation: the real controller over a real journal and real files, until a point at which it is to
//! die.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use divvy_api::daemon::{Configured, LatencyOptions, ParkOptions, ProjectRules};
use divvy_api::home::Home;
use divvy_core::reconcile::BypassPolicy;
use divvy_core::{
    Bytes, GpuSelection, GpuUuid, Grant, JobId, JobState, Order, Preemption, QueueName, QueueSpec,
};
use tokio::sync::broadcast;

use super::checkpoints::{self, SimulatedCheckpoints};
use super::gpus::{CONTEXT, SimulatedDriver};
use super::kernel::Kind;
use super::machine::NoTurns;
use super::mig::dispatch;
use super::with;
use crate::auth::Rules;
use crate::checkpoint::CheckpointOps;
use crate::compute::ComputeScheduler;
use crate::config::{
    Config, Confinement, Containers, InjectionPreference, Limits, NodeConfig, Programs,
    ScheduleConfig, Simulated,
};
use crate::container::gc::ContainerGc;
use crate::controller::known_gpus::KnownGpus;
use crate::controller::mailbox::Message;
use crate::controller::{Controller, ControllerParts};
use crate::gpu::mig::worker::Worker;
use crate::gpu::mig::{MigCommand, MigOutcome, Workers};
use crate::gpu::probe::Prober;
use crate::gpu::sleep::PowerStates;
use crate::gpu::{Device, Observer, Source};
use crate::host::clock::Instant;
use crate::host::disk::FreeSpace;
use crate::host::live::Live;
use crate::host::process::evidence::{KnownFile, KnownFiles};
use crate::journal::recover;
use crate::journal::{Store, StoreError};
use crate::model::event::JobEvent;
use crate::model::gpu_mode::effective_mode;
use crate::model::idle::Rule;
use crate::model::job::{Credentials, Job};
use crate::model::known_gpu::KnownGpu;
use crate::model::mig_instance::{ManagedInstance, MigSlot};

thread_local! {
    /// How many points the daemon passes before it dies; nothing while another program is at work.
    static FUSE: Cell<Option<u32>> = const { Cell::new(None) };
    /// How much is written before the disk is full; nothing while there is room.
    static ROOM: Cell<Option<u32>> = const { Cell::new(None) };
    /// The file system has less room left than the daemon wants.
    static LOW: Cell<bool> = const { Cell::new(false) };
    /// The daemon is at work.
    static WORKS: Cell<bool> = const { Cell::new(false) };
    /// A transaction has begun and not ended since the daemon was called last.
    static BEGUN: Cell<bool> = const { Cell::new(false) };
    /// The journal has been committed since the daemon was called last.
    static COMMITTED: Cell<bool> = const { Cell::new(false) };
}

/// Unwinds to the caller of the daemon when the daemon dies.
struct Death(String);

/// How a call of the daemon ended.
pub enum Call<T> {
    Done(T),
    /// It is dead: where, or why it gave up.
    Dead(String),
    /// It panicked.
    Bug(String),
}

/// The daemon comes to a point.
pub fn reach(point: &str) {
    if !WORKS.get() {
        return;
    }
    match point {
        "journal.begin" => BEGUN.set(true),
        "journal.committed" => {
            COMMITTED.set(true);
            BEGUN.set(false);
        }
        _ => {}
    }
    match FUSE.get() {
        Some(0) => resume_unwind(Box::new(Death(point.to_owned()))),
        Some(left) => FUSE.set(Some(left - 1)),
        None => {}
    }
}

/// The daemon or another program writes.
pub fn write() -> io::Result<()> {
    match ROOM.get() {
        Some(0) => Err(io::ErrorKind::StorageFull.into()),
        Some(left) => {
            ROOM.set(Some(left - 1));
            Ok(())
        }
        None => Ok(()),
    }
}

pub fn set_fuse(points: Option<u32>) {
    FUSE.set(points);
}

/// What the file system tells of its room; nothing outside of a simulation.
pub fn room() -> Option<FreeSpace> {
    with(|_| ())?;
    let mib = if LOW.get() { 1 } else { 1000 };
    Some(FreeSpace {
        bytes: Bytes::mib(mib),
        files: u64::MAX,
    })
}

pub fn set_low(low: bool) {
    LOW.set(low);
}

pub fn set_room(writes: Option<u32>) {
    ROOM.set(writes);
}

/// Whether the journal was committed in the last call; and whether that was outside of any transaction when it ended,
/// so that what the daemon remembers is what the journal has.
pub fn has_committed() -> (bool, bool) {
    (COMMITTED.get(), !BEGUN.get())
}

/// Has the daemon do something, to the end or until it dies.
pub fn call<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Call<T> {
    COMMITTED.set(false);
    BEGUN.set(false);
    WORKS.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    WORKS.set(false);
    match done {
        Ok(Ok(done)) => Call::Done(done),
        Ok(Err(error)) => Call::Dead(crate::host::error::error_chain(&error)),
        Err(payload) => match payload.downcast::<Death>() {
            Ok(death) => Call::Dead(format!("killed at {}", death.0)),
            Err(payload) => {
                let text = payload.downcast_ref::<String>().cloned();
                let text = text.or_else(|| {
                    payload
                        .downcast_ref::<&str>()
                        .map(|text| (*text).to_owned())
                });
                Call::Bug(text.unwrap_or_else(|| "a panic without words".to_owned()))
            }
        },
    }
}

/// What of a job the journal has: what must be the same after a restart. GPUs are their UUIDs: the indices of a restart
/// are others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournaledJob(Job, BTreeSet<GpuUuid>);

impl JournaledJob {
    fn of(mut job: Job, gpus: &[KnownGpu]) -> Self {
        // Statistics are written at release and at discovery: changes in between may be lost.
        for holding in &mut job.allocations {
            holding.stats = Default::default();
            without_number(&mut holding.grant);
        }
        if let JobState::Starting { grants }
        | JobState::Running { grants, .. }
        | JobState::Bound { grants }
        | JobState::Stopping { grants, .. } = &mut job.state
        {
            grants.iter_mut().for_each(without_number);
        }
        job.bypasses.clear();
        let on = std::mem::take(&mut Arc::make_mut(&mut job.spec).request.on);
        let asked = gpus.iter().filter(|gpu| on.contains(&gpu.number));
        let asked = asked.map(|gpu| gpu.uuid.clone()).collect();
        Self(job, asked)
    }

    /// A GPU that it holds and did not ask for, in words.
    pub fn other_gpu(&self) -> Option<String> {
        let Self(job, asked) = self;
        let mut held = job.state.grants().iter().map(|grant| &grant.gpu);
        let other = held.find(|gpu| !asked.is_empty() && !asked.contains(gpu))?;
        Some(format!(
            "job {} asked for {asked:?}, and holds {other}",
            job.id
        ))
    }
}

/// The grant with the part of its label that is the same under every index.
fn without_number(grant: &mut Grant) {
    let number = format!("gpu{}", grant.index);
    let label = grant.label.strip_prefix(&number);
    grant.label = label.unwrap_or("a label of another GPU").to_owned();
    grant.index = 0;
}

/// What of one the other does not say, line by line.
pub fn difference(
    one: &BTreeMap<JobId, JournaledJob>,
    other: &BTreeMap<JobId, JournaledJob>,
) -> String {
    let ids: BTreeSet<&JobId> = one.keys().chain(other.keys()).collect();
    let lines = |of: &BTreeMap<JobId, JournaledJob>, id: &JobId| match of.get(id) {
        Some(kept) => format!("{kept:#?}"),
        None => "nothing".to_owned(),
    };
    let mut text = String::new();
    for id in ids {
        let (one, other) = (lines(one, id), lines(other, id));
        let only = |these: &str, those: &str, sign: &str| -> String {
            let those: BTreeSet<&str> = those.lines().collect();
            let lines = these.lines().filter(|line| !those.contains(line));
            lines
                .map(|line| format!("  {sign} {}\n", line.trim()))
                .collect()
        };
        if one != other {
            text += &format!(
                "job {id}:\n{}{}",
                only(&one, &other, "-"),
                only(&other, &one, "+")
            );
        }
    }
    text
}

/// What a daemon remembers, or its journal.
pub type Memory = BTreeMap<JobId, JournaledJob>;

/// A daemon that has been started.
pub struct Daemon {
    pub cycle: Controller,
    pub source: Arc<Source>,
    observer: Arc<Observer>,
    ticked: Instant,
    /// What it has told since it was asked last.
    pub told: broadcast::Receiver<Arc<JobEvent>>,
    /// What it does to containers that it found.
    pub sweep: Option<ContainerGc>,
    /// The folder of the GPUs' lock files.
    locks: PathBuf,
    /// It started without a GPU that responds.
    is_blind: bool,
    /// A GPU responds to it, so that it has to start anew.
    pub is_renewed: bool,
}

/// How the daemon is started, which a run decides once.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    pub order: Order,
    pub backfill: bool,
    pub preemption: Preemption,
    /// Limits of GPUs of users.
    pub project_rules: ProjectRules,
    /// Of jobs without a rule of their own.
    pub idle: Option<Rule>,
    pub park: ParkOptions,
    /// In the end its jobs are cancelled.
    pub cancels: bool,
}

/// Every user may run containers.
fn rules(home: &Home) -> Rules {
    let path = home.state().join("access.toml");
    std::fs::write(&path, "containers = \"user\"").expect("a file");
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a file of ours");
    Rules::read(&path, Credentials::current().uid).expect("rules")
}

fn config(home: &Home, manner: DaemonOptions) -> Config {
    let queue = |text: &str| text.parse::<QueueSpec>().expect("a queue");
    let preload = with(|world| world.preload.clone()).expect("a simulation");
    Config {
        home: home.clone(),
        node: NodeConfig {
            hostname: "simulated".to_owned(),
            driver_version: "simulated".to_owned(),
            start_warnings: Vec::new(),
            simulated: Some(Simulated {
                models: "a100-80gb:3".to_owned(),
                lib: home.state().join("lib"),
                state: home.state().join("sim"),
            }),
        },
        schedule: ScheduleConfig {
            queues: vec![
                queue("dual=2"),
                queue("half=0.5"),
                queue("quarter=0.25"),
                QueueSpec::open(QueueName::default_queue()),
            ],
            order: manner.order,
            backfill: manner.backfill,
            preemption: manner.preemption,
            latency: LatencyOptions::default(),
        },
        limits: Limits {
            max_jobs: crate::config::DEFAULT_MAX_JOBS,
            max_texts: crate::config::DEFAULT_MAX_TEXT_BYTES,
            max_log_bytes: None,
        },
        project_rules: manner.project_rules,
        grace: Duration::from_secs(2),
        idle: manner.idle,
        park: manner.park,
        retention: Live::new(crate::RetentionPolicy::default()),
        front_end: None,
        confinement: Confinement {
            on_bypass: BypassPolicy::Deny,
            enforcement: divvy_core::EnforcementPolicy::Auto,
            refuse_user_namespaces: false,
            cgroup_parent: Err("a simulation".to_owned()),
        },
        programs: Programs {
            // What claims are given of the simulated driver is beside it.
            divvy: home.state().join("divvy"),
            preload,
            wrappers: Err("a simulation".to_owned()),
            injection_preference: InjectionPreference::Preload,
        },
        containers: Containers {
            cdi: Some(home.state().join("cdi")),
            ..Containers::default()
        },
        claims_only: false,
        rules: Live::new(rules(home)),
        configured: Configured::default(),
        needs_restart: Vec::new(),
    }
}

impl Daemon {
    /// Starts one; it is what `crate::daemon` does, without doors. Answers what it read of the journal before it
    /// observed the world as well; nothing where no GPU answers.
    pub fn start(home: &Home, manner: DaemonOptions) -> Result<Option<(Self, Memory)>, StoreError> {
        let store = Store::open(&home.database())?;
        store.number_after(&[home.jobs(), home.slices().to_owned()])?;
        let recovered = recover::recover(&store, home)?;
        let source = Arc::new(Source::new(SimulatedDriver));
        let observation = source.observe().unwrap_or_default();
        let is_blind = observation.gpus.is_empty();
        let wishes = store.modes()?;
        let all = GpuSelection::All;
        let known = match is_blind {
            true => KnownGpus::of_last_start(&store, &all, None)?,
            false => Some(KnownGpus::compare(&store, &observation, &all, None)?),
        };
        let Some(known) = known else {
            return Ok(None);
        };
        let devices = observation.gpus.iter();
        let devices = devices
            .map(|gpu| {
                let wanted = wishes.get(&gpu.uuid).copied();
                let mig = gpu.mig.as_ref().map(|mig| mig.mode);
                let mode = effective_mode(wanted.map(|wanted| wanted.mode), mig);
                let mut device = Device::new(gpu, mode, CONTEXT);
                device.mode.requested = wanted;
                device.is_managed = true;
                known.apply_service(&mut device);
                device
            })
            .chain(known.missing())
            .collect::<Vec<_>>();
        let start = known.save(&store, &devices)?;
        with(|world| world.trace(|| start.changes.join("; ")));
        let preload = with(|world| world.preload.clone()).expect("a simulation");
        let marks = KnownFiles {
            limiters: vec![KnownFile::of(&preload)],
            driver: None,
        };
        let observer = Arc::new(Observer::new(
            Arc::clone(&source),
            marks,
            PowerStates::below(None),
        ));
        let (events, told) = broadcast::channel(4096);
        let config = config(home, manner);
        let checkpoint_ops = CheckpointOps::new(
            Arc::new(checkpoints::report),
            Arc::clone(&observer),
            Arc::new(SimulatedCheckpoints),
        );
        let prober = Prober::new(Arc::new(drop), config.programs.divvy.clone(), None);
        let cycle = Controller::new(ControllerParts {
            config,
            prober,
            store,
            watch: None,
            events,
            devices,
            start,
            observer: Arc::clone(&observer),
            compute_scheduler: ComputeScheduler::new(NoTurns),
            workers: Workers::new(|command| dispatch(&command)),
            registry: None,
            checkpoint_ops,
            history: None,
            recovered: u32::try_from(recovered.len()).unwrap_or(u32::MAX),
        })?;
        let mut daemon = Self {
            cycle,
            locks: home.migs(),
            source,
            observer,
            ticked: Instant::now(),
            told,
            sweep: None,
            is_blind,
            is_renewed: false,
        };
        let before = daemon.kept();
        daemon.cycle.resume()?;
        daemon.sweep = Some(daemon.cycle.container_gc()?);
        Ok(Some((daemon, before)))
    }

    /// One round of the controller with these messages; with an observation of the GPUs if `looks`.
    pub fn round(&mut self, mut messages: Vec<Message>, looks: bool) -> Result<(), StoreError> {
        let ticks = self.ticked.elapsed() >= crate::controller::TICK;
        if ticks {
            self.ticked = Instant::now();
        }
        let reports = checkpoints::reports().into_iter().map(Box::new);
        messages.extend(reports.map(Message::CheckpointReport));
        if looks {
            let look = self.observer.observe();
            self.observer.ask_power();
            match look {
                Ok(look) if self.is_blind && !look.gpus.is_empty() => self.is_renewed = true,
                Ok(look) => messages.push(Message::Sampled(Box::new(look))),
                Err(error) => {
                    let why = crate::host::error::error_chain(&error);
                    messages.push(Message::ObservationFailed(why));
                }
            }
        }
        self.cycle.run_once(messages.into_iter(), ticks)
    }

    /// Carries a MIG command out, as its thread would; a run reports the outcome.
    pub fn execute(&self, MigCommand { gpu, task }: MigCommand) -> MigOutcome {
        Worker::new(gpu, &self.source, &self.locks).execute(task)
    }

    /// What it remembers.
    pub fn kept(&self) -> BTreeMap<JobId, JournaledJob> {
        let gpus = self.cycle.journal().known_gpus().unwrap_or_default();
        kept(self.cycle.known_jobs().cloned().collect(), &gpus)
    }

    /// No MIG instance is its.
    pub fn has_no_instances(&self) -> bool {
        self.cycle.instances().is_empty()
    }

    /// What its journal says.
    pub fn journaled(&self) -> Result<BTreeMap<JobId, JournaledJob>, StoreError> {
        let journal = self.cycle.journal();
        Ok(kept(journal.living()?, &journal.known_gpus()?))
    }
}

/// Which MIG instances the journal of a daemon that is dead has.
pub fn migs(home: &Home) -> Result<BTreeMap<MigSlot, ManagedInstance>, StoreError> {
    Store::open(&home.database())?.migs()
}

/// What the journal of a daemon that is dead says.
pub fn read(home: &Home) -> Result<BTreeMap<JobId, JournaledJob>, StoreError> {
    let journal = Store::open(&home.database())?;
    Ok(kept(journal.living()?, &journal.known_gpus()?))
}

fn kept(jobs: Vec<Job>, gpus: &[KnownGpu]) -> BTreeMap<JobId, JournaledJob> {
    let living = jobs.into_iter().filter(|job| job.state.outcome().is_none());
    living
        .map(|job| (job.id, JournaledJob::of(job, gpus)))
        .collect()
}

/// The daemon as a process, for its supervisors to be the children of.
pub fn appears() {
    with(|world| {
        let pid = world.spawn(1, None, Kind::Daemon);
        world.daemon = Some(pid);
        world.known.clear();
    });
}
