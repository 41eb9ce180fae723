//! `divvy run --no-daemon`: one program in a slice, without a daemon and a queue.
//!
//! May use: `host`, `registry`, `model`, `gpu`, `job_dir`, `config`, `journal`, `supervisor`, `container`, `controller`,
//! `daemon`.
//! Used by: the programs, through the crate's root.
//!
//! Runs of one home find each other by their folders. `solo/N/` is a job folder with the run's grants, and the run
//! holds its lock. A new run plans under `solo/lock` and counts the grants of the others. A run that does not fit
//! fails, since there is no queue. All runs hold the daemon's lock shared, so that no daemon serves the same GPUs.
//! There is no compute scheduler, so such runs share compute time without leases.

mod docker_run;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use divvy_api::daemon::DEFAULT_GRACE;
use divvy_api::home::Home;
use divvy_api::standalone::StandaloneOptions;
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::reconcile::compare;
use divvy_core::{
    AllocatedJob, Amount, Bytes, ComputeMode, Gpu, GpuUuid, Grant, JobId, Mode, PendingJob, Queue,
    QueueName, QueueSpec, Request, Snapshot,
};
use divvy_ledger::{Numbering, ProcessState, Slice};

use crate::config::simulated_gpus;
use crate::container;
use crate::container::driver::GpuDevice;
use crate::controller::lifecycle::container::{Machine, plan_on};
use crate::daemon::bootstrap::NodeInventory;
use crate::daemon::{from_home, from_store, refuse_if_system_daemon};
use crate::daemon::{home_lock, machine_folder};
use crate::gpu::slice::{self, HeldSlice, SliceConfig};
use crate::gpu::watched_jobs::WatchedJob;
use crate::gpu::{Device, ObservedGpu, Observer};
use crate::host::error::error_chain;
use crate::host::error::internal;
use crate::host::lock_file;
use crate::host::process::Process;
use crate::job_dir::processes::has_processes;
use crate::job_dir::{JobDir, LaunchSpec};
use crate::journal::Store;
use crate::model::oom;
use crate::model::validate::{self, usage};
use crate::registry::entry::{Amount as RegistryAmount, Writer};
use crate::registry::{Held, Membership, Registry, Wanted};
use crate::supervisor;
use crate::supervisor::job_environment::{JobEnvironment, for_job, for_program};

const GRANTS: &str = "grants.json";

/// How often a run plans anew because another daemon was faster.
const ATTEMPTS: u32 = 4;

/// Runs the program in the foreground and answers its exit code.
///
/// # Errors
/// [`ErrorCode::Conflict`] when a daemon serves this home, [`ErrorCode::WouldWait`] when there is no room now, and what
/// a submit is refused for.
pub fn run_standalone(args: StandaloneOptions) -> Result<u8, Error> {
    validate::check_texts(&args.submit)?;
    let home = Home::from_env().map_err(|error| from_home(&error))?;
    machine_folder::settle(&home)?;
    home.create().map_err(|error| from_home(&error))?;
    let simulated = simulated_gpus::requested(args.sim.as_deref(), &home);
    if let Some(simulated) = &simulated {
        simulated_gpus::ensure_environment(simulated)?;
    } else {
        refuse_if_system_daemon(&home)?;
    }
    divvy_fork::survive_file_limit();
    let _shared = lock_out_daemon(&home)?;
    let planning = planning_lock(&home)?;
    let runs = living_runs(&home);
    let node = NodeInventory::open(simulated, Some(&home.limiters()), !runs.is_empty(), false)?;
    let run = prepare(args, &home, &node, &runs)?;
    drop(planning);

    let code = {
        let me = Process::this().map_err(|error| internal("cannot read /proc", &error))?;
        let observer = node.observer();
        observer.register(JobId(0), run.slice.to_watched_job(vec![me]));
        let upkeep = Box::new(|| run.release_dead(&observer));
        supervisor::run_here(&run.dir, container::run::run, Some(upkeep))
    };
    if code.as_ref().is_ok_and(|code| *code != 0) {
        run.print_refusal();
    }
    run.clean_up();
    let code = code.map_err(|error| Error::new(ErrorCode::LaunchFailed, error_chain(&error)))?;
    Ok(u8::try_from(code & 0xff).unwrap_or(125))
}

/// A run of this home that lives, or left processes that do.
struct LiveRun {
    number: u64,
    grants: Vec<Grant>,
    /// Its slice and the processes that it grew from, where there is a slice.
    entry: Option<WatchedJob>,
}

/// This run.
struct PreparedRun {
    dir: JobDir,
    slice: Box<HeldSlice>,
    _lock: File,
    /// Its entry among the daemons and runs of all users; it lasts as long as the run.
    _registry: Registry,
}

impl PreparedRun {
    /// After a failure: what its last refused process met. Nothing of it is kept for later.
    fn print_refusal(&self) {
        let last = self
            .slice
            .denials()
            .ok()
            .and_then(|(mut denials, _)| denials.pop());
        if let Some(line) = last.as_ref().and_then(oom::describe) {
            supervisor::write_stderr(&line);
        }
    }

    /// Releases what dead processes held that no process of the slice can judge: those of other PID namespaces, and
    /// those that run another program. The driver is only asked where a process of the slice has found one.
    fn release_dead(&self, observer: &Observer) {
        let may_be_dead = |snapshot: divvy_ledger::Snapshot| {
            let processes = snapshot.processes();
            let mut states = processes.iter().map(|process| process.state);
            states.any(|state| state != ProcessState::Live)
        };
        if self.slice.read().is_ok_and(may_be_dead)
            && let Ok(sample) = observer.observe()
        {
            // Its processes find a damaged slice themselves.
            let _ = self.slice.reap(&|owner| sample.is_listed(owner));
        }
    }

    fn clean_up(self) {
        for error in [
            self.slice.remove().err().map(|error| error_chain(&error)),
            remove(self.dir.path()),
        ]
        .into_iter()
        .flatten()
        {
            supervisor::write_stderr(&error);
        }
    }
}

fn prepare(
    args: StandaloneOptions,
    home: &Home,
    node: &NodeInventory,
    runs: &[LiveRun],
) -> Result<PreparedRun, Error> {
    let StandaloneOptions { submit, docker, .. } = args;
    let store = Store::open(&home.database()).map_err(|error| from_store(&error))?;
    // MIG instances outlive the process that creates them, so only a daemon creates them.
    let mode = |gpu: &ObservedGpu| match gpu.active_mig() {
        Some(_) => Mode::Unmanaged,
        None => Mode::Shared,
    };
    let mut devices = node.devices(&store, |gpu| Some(mode(gpu)))?;
    observe(&mut devices, node, runs)?;
    let registry = Membership {
        home: home.state().to_owned(),
        writer: Writer::Run,
        simulated: node.simulated_state(),
    }
    .join(&BTreeMap::new());
    let gpus: Vec<Gpu> = devices.iter().map(|device| device.gpu.clone()).collect();
    let amount = submit.amount.clone().map(Amount::try_from).transpose()?;
    let amount = amount.ok_or_else(|| {
        usage("the job has no request for a GPU").hint("add -g 0.25, -g 2 or --gpu-memory 4G")
    })?;
    let request = validate::request(amount, &submit, &gpus)?;
    if request.compute.mode == ComputeMode::Strict {
        return Err(usage(format!(
            "--compute {} requires a daemon, which schedules the compute time",
            request.compute
        ))
        .hint("leave out --no-daemon or --compute"));
    }
    if let Some(goal) = request.compute.latency {
        return Err(usage(format!(
            "--latency {goal} requires a daemon, which schedules the compute time"
        ))
        .hint("leave out --no-daemon or --latency"));
    }
    let number = (1..)
        .find(|number| !folder(home, *number).exists())
        .unwrap_or(u64::MAX);
    let grants = plan_beside_others(JobId(number), &request, gpus, runs, &registry)?;

    let name = slice_name(number);
    let overheads: Vec<Bytes> = grants
        .iter()
        .filter_map(|grant| devices.iter().find(|device| device.gpu.uuid == grant.gpu))
        .map(|device| device.overhead)
        .collect();
    let folder = home.slice(&name);
    let cut = SliceConfig {
        job: &name,
        generation: 1,
        compute: request.compute,
        numbering: match submit.container {
            Some(_) => Numbering::Driver,
            None => Numbering::Slice,
        },
        closed: false,
        grants: &grants,
        overheads: &overheads,
    };
    let slice = HeldSlice::create(&folder, &cut)
        .map_err(|error| Error::new(ErrorCode::Internal, error_chain(&error)))?;
    let queue = QueueName::default_queue();
    let visible: Vec<String> = grants.iter().map(|grant| grant.gpu.to_string()).collect();
    let around = JobEnvironment {
        job: &name,
        queue: &queue,
        visible: &visible,
        slice: Some(&folder),
        preload: &node.programs.preload,
        simulated: node.simulated.as_ref(),
    };
    let wish = node
        .programs
        .choose_injection(&folder, node.simulated.as_ref());
    let dir = JobDir::new(self::folder(home, number));
    let container = match &submit.container {
        Some(container) => {
            // A run without a daemon gets no MIG instance.
            let part = |grant: &Grant| GpuDevice {
                gpu: grant.gpu.clone(),
                instance: None,
            };
            let parts: Vec<GpuDevice> = grants.iter().map(part).collect();
            let machine = Machine {
                divvy: &node.programs.divvy,
                simulated: node.simulated.as_ref(),
                driver_version: &node.driver_version,
            };
            let plan = plan_on(&machine, home, container, 0, &around, &parts, Some(&wish))
                .map_err(|error| Error::new(ErrorCode::LaunchFailed, error_chain(&error)))?;
            Some(docker_run::plan_docker_run(&dir, plan, &docker))
        }
        None => None,
    };
    let mut env = submit.env;
    env.extend(submit.secrets);
    let spec = LaunchSpec {
        job: name.clone(),
        command: submit.command,
        cwd: submit.cwd.into(),
        env: match container {
            Some(_) => for_job(env, &around),
            None => for_program(env, &around),
        },
        grace_ms: u64::try_from(DEFAULT_GRACE.as_millis()).unwrap_or(u64::MAX),
        script: None,
        // Its output is its terminal's.
        output: None,
        ends_after_ms: None,
        log_most: None,
        limiter: Some(wish),
        container,
        user: None,
        refuse_user_namespaces: false,
        refuse_gpus: false,
        held: crate::host::cgroup::CgroupStatus {
            group: None,
            because: Some("it runs without a daemon".to_owned()),
            tasks: None,
        },
        needs_group: false,
        replica: None,
    };
    let record = |error| Error::new(ErrorCode::Internal, error_chain(&error));
    dir.write_spec(&spec).map_err(record)?;
    let lock = dir.lock().map_err(record)?;
    let lock = lock.ok_or_else(|| {
        Error::new(
            ErrorCode::Internal,
            format!("{} is in use", dir.path().display()),
        )
    })?;
    let text = serde_json::to_vec(&grants).map_err(io::Error::from);
    text.and_then(|text| fs::write(dir.path().join(GRANTS), text))
        .map_err(|error| internal("cannot record the allocation", &error))?;
    Ok(PreparedRun {
        dir,
        slice,
        _lock: lock,
        _registry: registry,
    })
}

/// What the core gives this run beside the runs of this home, and the daemons and runs of all others.
fn plan_beside_others(
    job: JobId,
    request: &Request,
    mut gpus: Vec<Gpu>,
    runs: &[LiveRun],
    registry: &Registry,
) -> Result<Vec<Grant>, Error> {
    for _ in 0..ATTEMPTS {
        registry.refresh();
        for gpu in &mut gpus {
            gpu.elsewhere = registry.elsewhere(&gpu.uuid);
        }
        let grants = plan_grants(job, request, gpus.clone(), runs)?;
        let wanted = grants.iter().map(|grant| {
            let amount = RegistryAmount {
                share: grant.share.thousandths().into(),
                memory: grant.memory,
            };
            let gpu = gpus.iter().find(|gpu| gpu.uuid == grant.gpu);
            let usable = gpu.map_or(grant.memory, Gpu::usable);
            (grant.gpu.clone(), Wanted { amount, usable })
        });
        let wanted: BTreeMap<GpuUuid, Wanted> = wanted.collect();
        if registry.acquire(&wanted).is_ok() {
            let held = wanted.into_iter().map(|(gpu, Wanted { amount, .. })| {
                let held = Held {
                    amount,
                    ..Held::default()
                };
                (gpu, held)
            });
            registry.settle(&held.collect(), &BTreeMap::new());
            return Ok(grants);
        }
    }
    let why = "another daemon of this machine is taking the GPUs now";
    Err(Error::new(ErrorCode::WouldWait, why).hint("try again in a moment"))
}

/// What the core gives this run, the others counted.
fn plan_grants(
    job: JobId,
    request: &Request,
    gpus: Vec<Gpu>,
    runs: &[LiveRun],
) -> Result<Vec<Grant>, Error> {
    let queue = QueueName::default_queue();
    let held =
        |run: &LiveRun| AllocatedJob::new(JobId(run.number), queue.clone(), run.grants.clone());
    let snapshot = Snapshot {
        gpus,
        held: runs.iter().map(held).collect(),
        queues: vec![Queue {
            spec: QueueSpec::open(queue.clone()),
            waiting: vec![PendingJob::new(job, request.clone())],
        }],
        ..Snapshot::default()
    };
    let plan = divvy_core::plan(&snapshot);
    if let Some(start) = plan.starts.into_iter().next() {
        return Ok(start.grants);
    }
    let reason = plan
        .waits
        .first()
        .map(|wait| wait.reason.to_string())
        .unwrap_or_default();
    Err(Error::new(
        ErrorCode::WouldWait,
        format!("the job cannot start now: {reason}"),
    )
    .hint("leave out --no-daemon to wait in a queue"))
}

/// Memory that is neither ours nor another run's.
fn observe(devices: &mut [Device], node: &NodeInventory, runs: &[LiveRun]) -> Result<(), Error> {
    let observer = node.observer();
    for run in runs {
        if let Some(entry) = &run.entry {
            observer.register(JobId(run.number), entry.clone());
        }
    }
    let look = observer.observe();
    let look = look.map_err(|error| Error::new(ErrorCode::Internal, error_chain(&error)))?;
    for seen in &look.gpus {
        let device = devices
            .iter_mut()
            .find(|device| device.gpu.uuid == seen.observed.uuid);
        if let Some(device) = device {
            device.update(seen, &compare(&seen.sample));
        }
    }
    Ok(())
}

/// The runs with a held lock or with living processes; removes the folders of all others. The caller holds the planning
/// lock.
fn living_runs(home: &Home) -> Vec<LiveRun> {
    let numbers = fs::read_dir(home.solo()).into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    let mut runs = Vec::new();
    for number in numbers {
        let folder = home.slice(&slice_name(number));
        let dir = JobDir::new(self::folder(home, number));
        let launch = dir.launch().ok().flatten();
        // A logout may have taken the names of its slice.
        let found = match launch {
            Some(launch) => Slice::find_folder(&folder, launch.process.pid, &slice_name(number)),
            None => folder.clone(),
        };
        let slice = HeldSlice::open(&found).ok();
        let joined = slice.as_ref().is_some_and(|slice| {
            let snapshot = slice.read();
            snapshot.is_ok_and(|snapshot| !slice.live_processes(&snapshot).is_empty())
        });
        let grants = fs::read(dir.path().join(GRANTS)).ok();
        let grants: Vec<Grant> = grants
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let lives = joined || has_processes(&dir);
        if lives && !grants.is_empty() {
            let roots = [dir.launch(), dir.started()].into_iter().flatten();
            let roots = roots.flatten().map(|begun| begun.process).collect();
            runs.push(LiveRun {
                number,
                grants,
                entry: slice.map(|slice| slice.to_watched_job(roots)),
            });
        } else if let Some(error) = slice::remove(&folder)
            .err()
            .map(|error| error_chain(&error))
            .or_else(|| remove(dir.path()))
        {
            supervisor::write_stderr(&error);
        }
    }
    runs
}

fn lock_out_daemon(home: &Home) -> Result<File, Error> {
    let path = home.daemon_lock();
    let file = open(&path)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let lock = home.lock_file().ok().flatten();
            let who = home_lock::describe(lock.as_ref());
            let why = format!(
                "a divvy daemon ({who}) serves {}, and it would not count a run with --no-daemon",
                home.state().display()
            );
            Err(Error::new(ErrorCode::Conflict, why)
                .hint("leave out --no-daemon, or set DIVVY_HOME to another folder"))
        }
        Err(TryLockError::Error(error)) => Err(lock_file::cannot_lock(&path, &error)),
    }
}

fn planning_lock(home: &Home) -> Result<File, Error> {
    let path = home.solo().join("lock");
    let file = open(&path)?;
    file.lock()
        .map_err(|error| lock_file::cannot_lock(&path, &error))?;
    Ok(file)
}

fn open(path: &Path) -> Result<File, Error> {
    lock_file::open(path)
        .map_err(|error| internal(&format!("cannot open {}", path.display()), &error))
}

fn folder(home: &Home, number: u64) -> PathBuf {
    home.solo().join(number.to_string())
}

fn slice_name(number: u64) -> String {
    format!("solo-{number}")
}

fn remove(folder: &Path) -> Option<String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Some(format!("cannot remove {}: {error}", folder.display()))
        }
        _ => None,
    }
}
