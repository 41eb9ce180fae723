//! Notifications: a command of the user that runs when a job has ended (`--notify`).
//!
//! The daemon queues a notification in the transaction that ends the job, and starts it once that transaction is
//! durable. The journal ends a job once, so a notification runs at most once, even after a crash. A queued notification
//! is lost if the daemon dies. It has its own supervisor and its own record, in the job's folder `notice`, and no part
//! of the job's slice.
//!
//! Nor has it a GPU: as root, its control group opens no device node, and what uses a GPU all the same is killed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::fchown;
use std::time::Duration;

use divvy_api::v1::EndReason;
use divvy_core::reconcile::BypassPolicy;
use divvy_core::{Bytes, JobId};

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::start_failure::StartError;
use crate::controller::run_as::run_as;
use crate::controller::state::Jobs;
use crate::controller::state::notifications::{MOST_BYTES, MOST_WAITING, Notification, Running};
use crate::gpu::sample::NodeSample;
use crate::host::cgroup::{Cgroup, CgroupStatus};
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::host::process::ancestry;
use crate::job_dir::{JobDir, LaunchSpec, NOTICE};
use crate::journal::StoreError;
use crate::model::job::{Allocation, Job};
use crate::model::validate::budget;
use crate::supervisor::handle::SupervisorHandle;
use crate::supervisor::job_environment::{JobEnvironment, for_job};
use crate::supervisor::script;

/// How long a notification may run, for example against a mail server that does not answer. Longer would fill the
/// places of other users' notifications; mail servers answer within some ten seconds.
const TIME: Duration = Duration::from_secs(60);

/// From SIGTERM to SIGKILL. Enough to remove a temporary file, and no more, as the result counts no more.
const GRACE: Duration = Duration::from_secs(2);

/// The default `PATH` of a job without variables from a shell, such as a container job.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Queues the notification of a job that has just ended, before its environment is deleted.
pub(in crate::controller) fn queue_notification(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = jobs.active.get(&id) else {
        return Ok(());
    };
    let job = &active.job;
    let Some(line) = job.spec.policy.notify.clone() else {
        return Ok(());
    };
    let mut env = io.store.env(id)?.unwrap_or_default();
    script::take_from_env(&mut env);
    if !job.spec.secrets.is_empty() {
        match io.secrets.of(id) {
            Ok(secrets) => env.extend(secrets),
            Err(error) => {
                tracing::warn!(job = %id, error = error_chain(&error), "cannot read the job's secrets; its notification runs without them");
            }
        }
    }
    let uid = job.spec.credentials.uid;
    let spec = self::launch_spec(io, job, line, env);
    let bytes = budget::written(&spec);
    if !jobs.notifications.admits(uid, bytes) {
        let why = format!(
            "a user can have at most {MOST_WAITING} pending notifications, with {} MiB of variables",
            MOST_BYTES >> 20
        );
        return fx.record_event(io, Some(id), "notification_dropped", &why);
    }
    let notice = Notification {
        job: id,
        spec,
        bytes,
    };
    let waiting = jobs.notifications.waiting.entry(uid).or_default();
    waiting.push_back(notice);
    Ok(())
}

/// The launch spec of a notification.
fn launch_spec(io: &Io, job: &Job, line: String, env: BTreeMap<String, String>) -> LaunchSpec {
    let id = job.id.to_string();
    let around = JobEnvironment {
        job: &id,
        queue: &job.spec.queue,
        visible: &[],
        slice: None,
        preload: &io.config.programs.preload,
        simulated: None,
    };
    let mut env = for_job(env, &around);
    env.entry("PATH".to_owned())
        .or_insert_with(|| PATH.to_owned());
    let reason = job.state.outcome().map(EndReason::from);
    let reason = reason.and_then(|reason| serde_json::to_value(reason).ok());
    let reason = reason.as_ref().and_then(serde_json::Value::as_str);
    let code = job.exit_code.map(|code| code.to_string());
    for (name, value) in [
        ("DIVVY_JOB_NAME", job.spec.name.clone()),
        ("DIVVY_END_REASON", reason.unwrap_or_default().to_owned()),
        ("DIVVY_EXIT_CODE", code.unwrap_or_default()),
        ("DIVVY_USED", peak_of_limit(job)),
    ] {
        env.insert(name.to_owned(), value);
    }
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    LaunchSpec {
        job: id,
        command: ["/bin/sh", "-c", &line].map(str::to_owned).into(),
        cwd: job.spec.cwd.clone().into(),
        env,
        grace_ms: milliseconds(GRACE),
        ends_after_ms: Some(milliseconds(TIME)),
        log_most: io.config.limits.max_log_bytes,
        user: run_as(job),
        refuse_user_namespaces: io.config.confinement.refuse_user_namespaces,
        refuse_gpus: true,
        held: match &io.config.confinement.cgroup_parent {
            Ok(stem) => CgroupStatus {
                group: Some(Cgroup::of_notice(stem, job.id)),
                ..CgroupStatus::default()
            },
            Err(because) => CgroupStatus {
                because: Some(because.clone()),
                ..CgroupStatus::default()
            },
        },
        ..LaunchSpec::default()
    }
}

/// `12.4 GiB of 39.6 GiB at its peak`, on all GPUs together; empty for a job whose limiter counted no memory. A size for
/// the next run takes all earlier runs, which are too many to read on this thread: `divvy describe` has it.
fn peak_of_limit(job: &Job) -> String {
    let sum = |of: fn(&Allocation) -> Bytes| job.allocations.iter().map(of).sum::<Bytes>();
    let (peak, limit) = (sum(|one| one.stats.peak), sum(|one| one.grant.memory));
    match peak {
        Bytes::ZERO => String::new(),
        peak => {
            let [peak, limit] = peak.human_beside(limit);
            format!("{peak} of {limit} at its peak")
        }
    }
}

/// Starts queued notifications, once the ends of their jobs are durable.
pub(in crate::controller) fn start_notifications(
    jobs: &mut Jobs,
    children: &mut Vec<SupervisorHandle>,
    io: &Io,
) {
    let home = &io.config.home;
    let supervisors: BTreeSet<u32> = children.iter().map(SupervisorHandle::id).collect();
    jobs.notifications.running.retain(|running| {
            let runs = supervisors.contains(&running.supervisor);
            if !runs {
                let dir = folder(&home.job(&running.job.to_string()));
                if let Err(error) = dir.erase_spec() {
                    tracing::warn!(job = %running.job, error = error_chain(&error), "cannot delete the notification's environment from the disk");
                }
                if let Some(group) = dir.group() {
                    group.remove();
                }
            }
            runs
        });
    while let Some((uid, notice)) = jobs.notifications.next() {
        let job = notice.job;
        reach("notice.noted");
        match start_supervisor(io, &notice) {
            Ok(child) => {
                reach("notice.given");
                let supervisor = child.id();
                children.push(child);
                jobs.notifications.running.push(Running {
                    job,
                    uid,
                    supervisor,
                    reported: HashSet::new(),
                });
            }
            Err(error) => {
                tracing::warn!(%job, error = error_chain(&error), "cannot start the notification");
            }
        }
    }
}

/// Ends processes of notifications that use a GPU. They are in no slice, so nothing limits them.
pub(in crate::controller) fn end_gpu_use(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    sample: &NodeSample,
) -> Result<(), StoreError> {
    if jobs.notifications.running.is_empty() {
        return Ok(());
    }
    let gpus = sample.gpus.iter();
    let outside = gpus.flat_map(|gpu| gpu.outside.iter().map(|one| (gpu.observed.index, one)));
    for (gpu, outside) in outside {
        let Some(process) = sample.processes.get(&outside.pid) else {
            continue;
        };
        let process = process.process;
        let above = ancestry(process);
        let is_of = |notice: &&mut Running| {
            let mut above = above.iter();
            above.any(|member| member.process.pid == notice.supervisor)
        };
        let Some(notice) = jobs.notifications.running.iter_mut().find(is_of) else {
            continue;
        };
        if !notice.reported.insert(process) {
            continue;
        }
        let kills = io.config.confinement.on_bypass != BypassPolicy::Warn;
        let text = format!(
            "the job's notification uses GPU {gpu} outside every slice: pid {} ({}){}",
            outside.pid,
            outside.program.as_deref().unwrap_or("?"),
            if kills { "; the daemon kills it" } else { "" },
        );
        let job = notice.job;
        tracing::warn!(%job, "{text}");
        if kills {
            fx.processes_to_kill.push(process);
        }
        fx.record_event(io, Some(job), "bypass", &text)?;
    }
    Ok(())
}

fn start_supervisor(io: &Io, notice: &Notification) -> Result<SupervisorHandle, StartError> {
    let home = io.config.home.job(&notice.job.to_string());
    let dir = folder(&home);
    dir.write_spec(&notice.spec)?;
    let lock = dir.lock()?.ok_or(StartError::Locked)?;
    let log = JobDir::new(&home).open_log()?;
    if let Some(user) = &notice.spec.user {
        fchown(&log, Some(user.uid), Some(user.gid)).map_err(StartError::Spawn)?;
    }
    let divvy = &io.config.programs.divvy;
    SupervisorHandle::start(divvy, dir.path(), lock, log).map_err(StartError::Spawn)
}

fn folder(job: &std::path::Path) -> JobDir {
    JobDir::new(job.join(NOTICE))
}
