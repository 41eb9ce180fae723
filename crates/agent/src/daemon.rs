//! `divvy daemon`: start-up and shutdown of the daemon.
//!
//! May use: `host`, `registry`, `auth`, `compute`, `history`, `model`, `gpu`, `job_dir`, `checkpoint`, `config`, `journal`,
//! `supervisor`, `container`, `controller`, `http`.
//! Used by: `diagnostics`, `standalone`.
//!
//! The order matters: the daemon validates its options before it writes, locks its home before it opens files, and
//! reconciles the journal with the running processes before it answers a call.

pub mod bootstrap;
mod detach;
mod front_end;
pub(crate) mod home_lock;
mod listen;
pub(crate) mod machine_folder;
mod stderr;
mod systemd;
mod worker_reports;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use divvy_api::daemon::{Configured, DeviceNodes, ListenOptions};
use divvy_api::home::{Home, HomeError, LockFile, machine};
use divvy_api::v1::{Error, ErrorCode, JournalFile, ParkTest};
use divvy_core::{EnforcementPolicy, Gpu, GpuUuid, JobId, Mode};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, oneshot, watch};
use tracing_subscriber::EnvFilter;

use crate::checkpoint::CheckpointOps;
use crate::checkpoint::helper::CheckpointHelper;
use crate::compute::ComputeScheduler;
use crate::config::simulated_gpus;
use crate::config::{Config, Confinement, NodeConfig, Settings, Simulated};
use crate::container::{engine, gc};
use crate::controller::known_gpus::{self, KnownGpus};
use crate::controller::mailbox::{Mailbox, Message, mailbox};
use crate::controller::reload::{self, Reloader};
use crate::controller::{Controller, ControllerParts};
use crate::daemon::bootstrap::NodeInventory;
use crate::gpu::driver_limit::{self, ProbeConditions};
use crate::gpu::mig::Workers;
use crate::gpu::probe::Prober;
use crate::gpu::{Device, ObservedGpu, Source};
use crate::history::History;
use crate::host::cgroup::JobCgroups;
use crate::host::error::{error_chain, internal};
use crate::host::limiter_copies;
use crate::host::live::Live;
use crate::host::log_trim;
use crate::host::node_pods::NodePods;
use crate::host::rlimits;
use crate::http::socket::Socket;
use crate::http::{self, Api, Budget};
use crate::job_dir::processes::has_processes;
use crate::job_dir::{JobDir, container_spec};
use crate::journal::backup::{self, Backups};
use crate::journal::recover;
use crate::journal::retention::Pruner;
use crate::journal::{self, Store, StoreError};
use crate::model::gpu_mode::effective_mode;
use crate::model::park_record::ParkRecord;
use crate::registry::Membership;
use crate::registry::entry::Writer;
use crate::supervisor::forkserver;
use crate::supervisor::watch::Watch;
pub use front_end::FrontEndTask;
use front_end::RunningFrontEnd;
use listen::{Listeners, TcpPlace};
use systemd::Notify;
use worker_reports::{
    checkpoint_reports, mig_reports, probe_reports, prune_requests, samples, wake_reports,
};

/// Pause before a daemon restarts after its journal refused a write. A full or slow disk is not cured at once; a
/// shorter pause would fill the log, and a longer one stops users' calls.
const REST: Duration = Duration::from_secs(1);

/// Events that a slow reader may lag behind before it has to read the journal again. So an array of thousands of jobs
/// overruns no reader that is only a moment late; the memory is a few megabytes.
const EVENT_BACKLOG: usize = 4096;

/// Serves until SIGTERM or SIGINT; detached, until the daemon it started answers.
///
/// # Errors
/// [`ErrorCode::Conflict`] when this home has a daemon, [`ErrorCode::Usage`] and [`ErrorCode::NeverFits`] for arguments
/// that do not fit the node, [`ErrorCode::Internal`] for what the machine lacks.
pub fn daemon(configured: Configured, beside: Option<FrontEndTask>) -> Result<(), Error> {
    let options = &configured.options;
    // First of all, so that no supervisor, job or detached daemon inherits open files or signals of the shell or script.
    divvy_fork::drop_inherited();
    rlimits::raise_limits_of_one_program();
    rlimits::check_file_size()?;
    divvy_fork::mark_close_on_exec().map_err(|error| {
        internal(
            "cannot mark inherited file descriptors as close-on-exec",
            &error,
        )
    })?;
    let doors = Listeners::of(options)?;
    let home = listen::home(&options.listen)?;
    if options.detached {
        return detach::start(&home);
    }
    let simulated = simulated_gpus::requested(options.sim.as_deref(), &home);
    if let Some(simulated) = &simulated {
        simulated_gpus::ensure_environment(simulated)?;
    }
    if simulated.is_none() && !options.listen.beside_system {
        refuse_if_system_daemon(&home)?;
    }
    log_to_stderr();
    if let Some(beside) = &beside {
        tracing::info!("{}", beside.notice);
    } else if options.containers.docker && options.containers.default.is_none() {
        tracing::info!(
            "--docker without an image: jobs that name an image run in it, other jobs run as plain processes under \
             the same limits"
        );
    }
    // Before the wait: the plugin of this pod calls the daemon that serves until then.
    let pods = node_pods(options.node_pod.as_deref(), &home)?;
    let lock = home_lock::take(&home, options.standby)?;
    if let Some(file) = configured.file() {
        tracing::info!(file = %file.display(), "read the configuration file");
    }
    serve(configured, home, simulated, (doors, beside, pods), &lock)?;
    // What the lock says is over, also for a file system that keeps locks on each machine alone.
    let _ = lock.set_len(0);
    Ok(())
}

/// The pods of the cluster that may call this daemon; `None` for a daemon that is in no node pod.
fn node_pods(own: Option<&str>, home: &Home) -> Result<Option<NodePods>, Error> {
    let Some(own) = own else {
        return Ok(None);
    };
    let folder = home.socket().with_file_name("node-pods");
    let serves = home.lock_file().ok().flatten().filter(LockFile::is_alive);
    NodePods::register(&folder, own, serves.map(|lock| lock.holder.pid))
        .map(Some)
        .map_err(|error| {
            internal(
                &format!("cannot note the node pod in {}", folder.display()),
                &error,
            )
        })
}

fn serve(
    configured: Configured,
    home: Home,
    simulated: Option<Simulated>,
    (doors, beside, pods): (Listeners, Option<FrontEndTask>, Option<NodePods>),
    lock: &File,
) -> Result<(), Error> {
    let options = &configured.options;
    let (store, recovered) = open_journal(&home, options.listen.system)
        .map_err(|error| backup::unusable(&home, &error))?;
    let living = store.living().map_err(|error| from_store(&error))?;
    let in_use = living.iter().any(|job| !job.state.grants().is_empty());
    let sim = (simulated.as_ref()).map(|simulated| simulated.models.clone());
    let last = KnownGpus::of_last_start(&store, &options.gpus, sim.as_deref())
        .map_err(|error| from_store(&error))?;
    let last = last.filter(|_| !options.strict_start);
    let node = NodeInventory::open(simulated, Some(&home.limiters()), in_use, last.is_some())?;
    if options.listen.system && node.simulated.is_some() {
        simulated_gpus::share(&home)
            .map_err(|error| internal("cannot share the simulated GPUs", &error))?;
    }
    let known = match (&node.blind, last) {
        (Some(why), Some(last)) => Ok(last.warned(why)),
        _ => KnownGpus::compare(&store, &node.observation, &options.gpus, sim.as_deref()),
    };
    let known = known.map_err(|error| from_store(&error))?;
    let is_blind = node.blind.is_some();
    let there = node.observation.gpus.iter();
    match options.strict_start {
        true => options.gpus.check(there.map(|gpu| (gpu.index, &gpu.uuid))),
        false => known.check(&options.gpus),
    }
    .map_err(|error| Error::new(ErrorCode::Usage, error.to_string()).hint(error.hint()))?;
    let mut devices = devices(&node, &store, &known)?;
    let count = reload::served(&devices);
    let settings = Settings::of(options, count)?;
    let ever: Vec<Gpu> = devices.iter().map(Device::unoccupied).collect();
    // A strict start counts on what is here, and on MIG mode that this daemon turns on again.
    let returns = |gpu: &Gpu| {
        let mut here = devices.iter().filter(|device| !device.is_lost);
        let wants_mig =
            |device: &Device| device.mode.requested.map(|to| to.mode) == Some(Mode::Mig);
        here.any(|device| device.gpu.uuid == gpu.uuid && wants_mig(device))
    };
    let mut before = known.start.before.clone();
    before.retain(|gpu| !options.strict_start || returns(gpu));
    let queues = &settings.schedule.queues;
    let misfits = reload::misfits(&configured, queues, &[&ever, &before]);
    if let Some((_, error)) = misfits.first().filter(|_| options.strict_start) {
        return Err(error.clone());
    }
    let mut start = match known.save(&store, &devices) {
        Err(error) if error.is_full() => return Err(reexec(&error)),
        saved => saved.map_err(|error| from_store(&error))?,
    };
    let misfits = misfits.into_iter().map(|(_, error)| error.message);
    start.warnings.extend(misfits);
    let start_warnings = known_gpus::told(start.warnings.clone());
    for warning in &start_warnings {
        tracing::warn!("{warning}");
    }
    let observer = Arc::new(node.observer());
    let membership = Membership {
        home: home.state().to_owned(),
        writer: match options.listen.system {
            true => Writer::SystemDaemon,
            false => Writer::Daemon,
        },
        simulated: node.simulated_state(),
    };
    let NodeInventory {
        programs,
        simulated,
        source,
        driver_version,
        ..
    } = node;
    // Of this machine's folder: two containers of one machine may share a home folder, and see each other's groups.
    let mut instance = container_spec::instance(home.state());
    let name = store.name().map_err(|error| from_store(&error))?;
    if let Some(journal) = name.as_deref().and_then(|name| name.get(..JOURNAL_DIGITS)) {
        instance = format!("{instance}-{journal}");
    }
    let groups = job_cgroups(&instance, options.device_nodes)?;
    let conditions = ProbeConditions {
        policy: options.enforcement,
        is_root: rustix::process::geteuid().is_root(),
        groups: &groups.prefix,
        driver_version: &driver_version,
    };
    find_driver_limits(&mut devices, &source, &conditions)?;
    if let Err(error) = log_trim::can_punch_holes(home.state()) {
        let what = "cannot limit job logs to limits.log-size: the file system does not support holes in files";
        tracing::warn!(%error, "{what}");
    }
    let config = Config {
        node: NodeConfig {
            hostname: machine::host(),
            driver_version,
            simulated,
            start_warnings,
        },
        programs,
        schedule: settings.schedule,
        limits: settings.limits,
        project_rules: settings.project_rules,
        grace: settings.grace,
        retention: Live::new(settings.retention),
        idle: settings.idle,
        park: settings.park,
        confinement: Confinement {
            on_bypass: settings.on_bypass,
            enforcement: options.enforcement,
            refuse_user_namespaces: settings.refuse_user_namespaces,
            cgroup_parent: groups.prefix,
        },
        containers: settings.containers,
        claims_only: settings.claims_only,
        home,
        rules: doors.rules.clone(),
        front_end: beside.as_ref().map(|beside| beside.about.clone()),
        needs_restart: Vec::new(),
        configured,
    };

    let (mailbox, messages) = mailbox();
    let events = broadcast::Sender::new(EVENT_BACKLOG);
    let news = mailbox.clone();
    let watch = Watch::start(move |told| news.post(Message::Watch(told)));
    let watch = watch
        .inspect_err(
            |error| tracing::warn!(%error, "cannot watch job folders; the daemon notices the end of jobs later"),
        )
        .ok();
    let workers = Workers::threads(source, mig_reports(&mailbox), config.home.migs());
    let checkpoint_ops = CheckpointOps::new(
        checkpoint_reports(&mailbox),
        Arc::clone(&observer),
        Arc::new(CheckpointHelper::new(
            config.programs.divvy.clone(),
            (config.node.simulated.as_ref())
                .map(|simulated| simulated.lib.join(divvy_driver::load::CUDA)),
        )),
    );
    let prober = Prober::new(
        probe_reports(&mailbox),
        config.programs.divvy.clone(),
        (config.node.simulated.as_ref()).map(|simulated| simulated.lib.clone()),
    );
    let pruner = Pruner::new(
        config.home.clone(),
        config.retention.clone(),
        prune_requests(&mailbox),
    );
    let home = Arc::new(config.home.clone());
    let preload = config.programs.preload.clone();
    let history = History::start(&home.history())
        .map_err(|error| internal("cannot start a thread", &error))?;
    let history = Arc::new(history);
    let keeper = ComputeScheduler::start(wake_reports(&mailbox))
        .map_err(|error| internal("cannot start the compute scheduler", &error))?;
    let parts = ControllerParts {
        config,
        store,
        watch,
        events: events.clone(),
        devices,
        start,
        observer: Arc::clone(&observer),
        compute_scheduler: keeper,
        workers,
        registry: Some(membership),
        checkpoint_ops,
        prober,
        history: Some(Arc::clone(&history)),
        recovered: u32::try_from(recovered.len()).unwrap_or(u32::MAX),
    };
    let at_start = parts.config.configured.clone();
    // The first message: calls find the projects of the file.
    mailbox.post(Message::DefineProjects);
    let mut controller = Controller::new(parts).map_err(|error| from_store(&error))?;
    if let Some(job) = controller.job_of_earlier_build() {
        let why = format!(
            "job {job} still runs, and a divvy before 0.1.0 started it: this divvy is {}, and cannot read its record",
            divvy_api::version::program()
        );
        return Err(Error::new(ErrorCode::Conflict, why).hint(
            "start the earlier divvy again, wait for its jobs or cancel them, then start this one",
        ));
    }
    controller.reserve().map_err(|error| from_store(&error))?;
    // Last, so that a client that reaches the socket finds everything else in place.
    let listen_error = Live::new(None);
    let tcp = doors.bind_tcp(&listen_error)?;
    let (socket, listener) = doors.bind(&home, lock)?;
    let resumed = match controller.resume() {
        Err(error) if error.is_full() => return Err(reexec(&error)),
        resumed => resumed.map_err(|error| from_store(&error))?,
    };
    sweep_containers(&controller, &home)?;
    remove_old_limiters(&controller, &home, &preload);
    tracing::info!(
        gpus = count,
        queued = resumed.queued,
        adopted = resumed.adopted,
        settled = resumed.finalized,
        recovered = recovered.len(),
        socket = %home.socket().display(),
        "serving"
    );
    let (renew, renewal) = watch::channel(None);
    Arc::clone(&observer)
        .spawn(samples(&mailbox, is_blind, renew))
        .map_err(|error| internal("cannot start a thread", &error))?;
    pruner
        .start()
        .map_err(|error| internal("cannot start a thread", &error))?;
    Backups::of(&home)
        .start()
        .map_err(|error| internal("cannot start a thread", &error))?;
    let (done, cycle_end) = oneshot::channel();
    let work = move || drop(done.send(controller.run(messages)));
    let thread = std::thread::Builder::new().name("cycle".into()).spawn(work);
    let thread = thread.map_err(|error| internal("cannot start a thread", &error))?;

    let source = at_start.source().clone();
    let reloader = Arc::new(Reloader::new(source, mailbox.clone()));
    Arc::clone(&reloader)
        .check_accounts(at_start)
        .map_err(|error| internal("cannot start a thread", &error))?;
    let api = Api {
        mailbox: mailbox.clone(),
        budget: Budget::of(&Arc::default(), doors.me.uid),
        events,
        home: Arc::clone(&home),
        observer,
        history: Arc::clone(&history),
        rules: doors.rules,
        me: doors.me,
        token: doors.token,
        gate: Arc::new(doors.gate),
        listen_error,
        reloader,
        gpu_time: Arc::default(),
        boards: Arc::default(),
        matches: Arc::default(),
        front_end: beside.as_ref().map(|beside| Arc::clone(&beside.withdraw)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(yield_to_controller)
        .build();
    let runtime = runtime.map_err(|error| internal("cannot start the server", &error))?;
    let holds = mailbox.clone();
    let tell_holds = move |found| holds.post(Message::WorkerHolds(found));
    // Its calls wait in the socket until the server accepts them.
    let beside = RunningFrontEnd::start(beside, &home, count, Box::new(tell_holds))
        .map_err(|error| internal("cannot start a thread", &error))?;
    let ended = runtime.block_on(serve_until_stopped(
        api,
        ((socket.clone(), listener, pods), tcp),
        mailbox,
        (cycle_end, beside, renewal),
    ));
    runtime.shutdown_background();
    history.stop();
    socket.remove();
    if thread.join().is_err() {
        return Err(Error::new(
            ErrorCode::Internal,
            "the daemon stopped because of an internal error; all changes that it confirmed are in its journal",
        ));
    }
    match ended? {
        ServeEnd::Stopped => Ok(()),
        ServeEnd::JournalFull(error) => Err(reexec(&error)),
        ServeEnd::OtherDriver(why) => {
            tracing::warn!(why, "the daemon starts anew for the driver");
            Err(simulated_gpus::exec(|_| ()))
        }
    }
}

/// Removes copies of the limiter that neither a job of an earlier daemon nor a run without a daemon may load. `preload`:
/// the file that jobs load now.
fn remove_old_limiters(controller: &Controller, home: &Home, preload: &Path) {
    let current = preload.parent();
    let is_copy = current.and_then(Path::parent) == Some(&home.limiters());
    // The journal knows no run without a daemon.
    let runs = std::fs::read_dir(home.solo())
        .into_iter()
        .flatten()
        .flatten();
    let mut runs = runs.map(|run| JobDir::new(run.path()));
    let any_run = runs.any(|run| run.path().is_dir() && has_processes(&run));
    let Some(current) = current.filter(|_| is_copy && !any_run) else {
        return;
    };
    if let Err(error) = limiter_copies::remove_unused(current, &controller.living()) {
        tracing::warn!(%error, "cannot remove old copies of the limiter");
    }
}

/// Asks of each GPU whether the driver limits jobs there.
///
/// # Errors
/// Where the configuration demands the driver's limit and a GPU does not have it.
fn find_driver_limits(
    devices: &mut [Device],
    source: &Source,
    conditions: &ProbeConditions<'_>,
) -> Result<(), Error> {
    let shared = |device: &&mut Device| device.is_managed && !device.is_lost;
    for device in devices.iter_mut().filter(shared) {
        let is_mig = device.mode.mig.is_some_and(|mode| mode.current);
        let limit = driver_limit::probe(source, &device.gpu.uuid, is_mig, conditions);
        let index = device.gpu.index;
        match &limit {
            Ok(()) => tracing::info!(gpu = index, "the driver limits jobs"),
            Err(why) if conditions.policy == EnforcementPolicy::Driver && !is_mig => {
                let what = format!(
                    "enforcement = \"driver\", but GPU {index} has no driver's limit: {why}"
                );
                return Err(Error::new(ErrorCode::Usage, what)
                    .hint("set enforcement = \"auto\", or leave the GPU out of gpus"));
            }
            Err(why) => tracing::info!(gpu = index, %why, "the limiter alone limits jobs"),
        }
        device.set_driver_limit(limit);
    }
    Ok(())
}

/// Gives a thread that reads for calls a tenth of the weight of the threads that decide and answer (sched(7)).
fn yield_to_controller() {
    const NICE: i32 = 10;
    // The nice value of the thread alone: Linux keeps one for each.
    if rustix::process::getpriority_process(None).is_ok_and(|nice| nice < NICE) {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

/// Connects to the fork server's unit, if this daemon's unit names one. Returns the control groups of its jobs.
fn job_cgroups(instance: &str, nodes: DeviceNodes) -> Result<JobCgroups, Error> {
    let Some(socket) = systemd::fork_server() else {
        return match nodes {
            DeviceNodes::Open => Ok(JobCgroups::of_instance(instance)),
            DeviceNodes::Jobs => {
                let why = "device-nodes = \"jobs\" requires the units divvy-forkserver.socket and divvy-forkserver.service";
                Err(Error::new(ErrorCode::Usage, why)
                    .hint("start the daemon as a unit: systemctl start divvy"))
            }
        };
    };
    forkserver::use_unit(&socket, instance, nodes).map_err(|error| {
        internal("cannot use the fork server's unit", &error)
            .hint("systemctl status divvy-forkserver.socket divvy-forkserver.service")
    })
}

/// So many digits of the journal's random name are in the names of control groups: two journals of one folder are the
/// same in them once in four billion times.
const JOURNAL_DIGITS: usize = 8;

/// Why the daemon serves no longer.
enum ServeEnd {
    Stopped,
    /// The journal refused a write, even into its reserve. Its content is consistent.
    JournalFull(StoreError),
    /// A new process alone can serve the GPUs, and why.
    OtherDriver(String),
}

/// Executes this program again, which recovers as after a crash: decisions that are not in the journal are in this
/// process's memory only. Returns only the error of exec(2).
fn reexec(full: &StoreError) -> Error {
    tracing::error!(
        why = error_chain(full),
        "cannot write to the journal; restarting the daemon"
    );
    std::thread::sleep(REST);
    simulated_gpus::exec(|_| ())
}

/// Opens the journal and completes it from the records of jobs.
fn open_journal(
    home: &Home,
    serves_every_user: bool,
) -> Result<(Store, BTreeSet<JobId>), StoreError> {
    if serves_every_user {
        journal::check_owner(&home.database())?;
    }
    let torn = journal::torn(&home.database());
    if torn > 0 {
        let what = "the journal's write-ahead log ends within a frame; unless a daemon was killed while writing, the \
                    last changes are missing";
        tracing::warn!(bytes = torn, "{what}");
    }
    backup::before_migration(home);
    let store = Store::open(&home.database())?;
    store.number_after(&[home.jobs(), home.slices().to_owned()])?;
    let recovered = recover::recover(&store, home)?;
    Ok((store, recovered))
}

/// Writes a copy of the journal beside it, whether or not a daemon serves.
///
/// # Errors
/// [`ErrorCode::NotFound`] where there is no journal, [`ErrorCode::Internal`] for one that cannot be copied.
pub fn copy_journal(system: bool) -> Result<JournalFile, Error> {
    backup::write(&home_of(system)?)
}

/// Puts a copy in the place of the journal. The next daemon takes what has happened since from the records of jobs.
///
/// # Errors
/// [`ErrorCode::Conflict`] while a daemon serves, [`ErrorCode::NotFound`] and [`ErrorCode::Usage`] for a file that is no
/// whole journal; nothing is changed then.
pub fn restore_journal(system: bool, file: &Path) -> Result<JournalFile, Error> {
    let home = home_of(system)?;
    let _lock = home_lock::take(&home, false)?;
    backup::restore(&home, file)
}

/// Stores for a daemon that its driver has passed the test of parking.
///
/// # Errors
/// [`ErrorCode::NotAllowed`] for the system's daemon and another user than root.
pub fn record_park(system: bool, tests: &[ParkTest]) -> Result<(), Error> {
    let Some(first) = tests.first() else {
        return Ok(());
    };
    let mut models: Vec<String> = tests.iter().map(|test| test.model.clone()).collect();
    models.sort_unstable();
    models.dedup();
    let record = ParkRecord {
        driver_version: first.driver_version.clone(),
        models,
        at: first.at,
    };
    let written = record.write(&home_of(system)?);
    written.map_err(|error| internal("cannot record that the driver has passed", &error))
}

fn home_of(system: bool) -> Result<Home, Error> {
    if system && !rustix::process::geteuid().is_root() {
        let why = "the journal of the system's daemon belongs to root".to_owned();
        return Err(Error::new(ErrorCode::NotAllowed, why).hint("run it as root"));
    }
    listen::home(&ListenOptions {
        system,
        ..ListenOptions::default()
    })
}

/// Removes leftover containers of ended jobs, if a container engine runs.
fn sweep_containers(controller: &Controller, home: &Home) -> Result<(), Error> {
    let Ok(socket) = engine::socket() else {
        return Ok(());
    };
    let sweep = controller.container_gc();
    let sweep = sweep.map_err(|error| from_store(&error))?;
    gc::start(socket, container_spec::instance(home.instance()), sweep)
        .map_err(|error| internal("cannot start a thread", &error))
}

async fn serve_until_stopped(
    api: Api,
    (local, tcp): ((Socket, StdListener, Option<NodePods>), Option<TcpPlace>),
    mailbox: Mailbox,
    (mut cycle_end, mut beside, mut renewal): (
        oneshot::Receiver<Result<(), StoreError>>,
        RunningFrontEnd,
        watch::Receiver<Option<String>>,
    ),
) -> Result<ServeEnd, Error> {
    let watch = |kind| signal(kind).map_err(|error| internal("cannot wait for signals", &error));
    let (mut terminate, mut interrupt) = (
        watch(SignalKind::terminate())?,
        watch(SignalKind::interrupt())?,
    );
    // Nor is a closed terminal a reason to stop serving.
    let mut hangup = watch(SignalKind::hangup())?;
    let (reloader, boards) = (Arc::clone(&api.reloader), Arc::clone(&api.boards));
    let reloads = async move {
        while hangup.recv().await.is_some() {
            // The reloader logs the result.
            let _ = reloader.reload().await;
        }
        std::future::pending().await
    };
    let notify = Notify::from_env();
    notify.ready();
    let stopped = |served: io::Result<()>| {
        let error = served
            .err()
            .unwrap_or_else(|| io::Error::other("it accepts no more connections"));
        Err(internal("the server has stopped", &error))
    };
    let mut serving = std::pin::pin!(http::serve(api, local, tcp.map(TcpPlace::listener)));
    let other_driver = async move {
        match renewal.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            // The observer's thread lives as long as the process.
            Err(_) => std::future::pending().await,
        }
    };
    let (by, left) = tokio::select! {
        why = other_driver => {
            boards.end();
            mailbox.post(Message::Stop);
            return match journal_failed(cycle_end.await.unwrap_or(Ok(())))? {
                ServeEnd::Stopped => Ok(ServeEnd::OtherDriver(why)),
                end => Ok(end),
            };
        }
        () = notify.watch(mailbox.clone()) => return Ok(ServeEnd::Stopped),
        () = reloads => return Ok(ServeEnd::Stopped),
        served = &mut serving => return stopped(served),
        ended = &mut cycle_end => return journal_failed(ended.unwrap_or(Ok(()))),
        left = beside.ended() => ("end of the front end", Some(left)),
        _ = terminate.recv() => ("SIGTERM", None),
        _ = interrupt.recv() => ("SIGINT", None),
    };
    notify.stopping();
    let left = match left {
        Some(left) => left,
        // The front end still has calls to make. A second signal ends the wait for them.
        None => tokio::select! {
            left = beside.stopped() => left,
            served = &mut serving => return stopped(served),
            ended = &mut cycle_end => return journal_failed(ended.unwrap_or(Ok(()))),
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
        },
    };
    // Followers see the end of their streams while the controller finishes its round.
    boards.end();
    mailbox.post(Message::Stop);
    if let full @ ServeEnd::JournalFull(_) = journal_failed(cycle_end.await.unwrap_or(Ok(())))? {
        return Ok(full);
    }
    left?;
    tracing::info!(
        by,
        "stopped; running jobs continue, and the next daemon adopts them"
    );
    Ok(ServeEnd::Stopped)
}

fn journal_failed(ended: Result<(), StoreError>) -> Result<ServeEnd, Error> {
    match ended {
        Ok(()) => Ok(ServeEnd::Stopped),
        Err(error) if error.is_full() => Ok(ServeEnd::JournalFull(error)),
        Err(error) => Err(from_store(&error).hint(
            "running jobs continue, and no confirmed change is lost; start the daemon again",
        )),
    }
}

/// The GPUs to serve, missing ones too, and those that jobs of an earlier daemon still hold: seen, shown, never given
/// out.
fn devices(node: &NodeInventory, store: &Store, known: &KnownGpus) -> Result<Vec<Device>, Error> {
    let living = store.living().map_err(|error| from_store(&error))?;
    let held = |uuid: &GpuUuid| {
        living
            .iter()
            .flat_map(|job| &job.allocations)
            .any(|holding| holding.grant.gpu == *uuid)
    };
    let wanted = store.modes().map_err(|error| from_store(&error))?;
    let mode = |gpu: &ObservedGpu| {
        let wanted = wanted.get(&gpu.uuid).map(|wanted| wanted.mode);
        effective_mode(wanted, gpu.mig.as_ref().map(|mig| mig.mode))
    };
    let mut devices = node.devices(store, |gpu| match known.serves(&gpu.uuid) {
        true => Some(mode(gpu)),
        false => held(&gpu.uuid).then_some(Mode::Unmanaged),
    })?;
    devices.extend(known.missing());
    for device in &mut devices {
        device.is_managed = known.serves(&device.gpu.uuid);
        device.mode.requested = wanted.get(&device.gpu.uuid).copied();
        known.apply_service(device);
    }
    Ok(devices)
}

/// Refuses the machine's GPUs while its system daemon serves them from another home: neither counts the other's jobs.
pub(crate) fn refuse_if_system_daemon(home: &Home) -> Result<(), Error> {
    if home.is_systems() {
        return Ok(());
    }
    Home::system_daemon().map_or(Ok(()), |pid| {
        let why = format!(
            "the system's daemon (pid {pid}) serves the GPUs of this machine and would not count jobs of {}",
            home.state().display()
        );
        Err(Error::new(ErrorCode::Conflict, why).hint(
            "use that daemon: `divvy run` without --own-daemon and DIVVY_HOME; `divvy daemon --set listen.beside-system=true` \
             skips this check",
        ))
    })
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("DIVVY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // Fails only if a subscriber is installed already, which then stays.
    let _ = tracing_subscriber::fmt()
        .with_writer(|| stderr::Escaped(io::stderr()))
        .with_env_filter(filter)
        .with_target(false)
        // The daemon goes on without a writable log. The message about it would end the thread.
        .log_internal_errors(false)
        .try_init();
}

pub(crate) fn from_home(error: &HomeError) -> Error {
    error.into()
}

pub(crate) fn from_store(error: &StoreError) -> Error {
    Error::new(ErrorCode::Internal, error_chain(error))
}
