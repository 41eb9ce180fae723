//! Notifications: a command of the user that runs when a job has ended (`--notify`).
//!
//! The daemon queues a notification in the transaction that ends the job, and starts it once that transaction is
//! durable. The journal ends a job once, so a notification runs at most once, even after a crash. A queued notification
//! is lost if the daemon dies. It has its own supervisor and its own record, in the job's folder `notice`, and no part
//! of the job's slice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::unix::fs::fchown;
use std::time::Duration;

use divvy_api::v1::EndReason;
use divvy_core::JobId;

use super::start::StartError;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::query::caller::run_as;
use crate::controller::state::Jobs;
use crate::host::cgroup::CgroupStatus;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::job_dir::{JobDir, LaunchSpec, NOTICE};
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::model::validate::budget;
use crate::supervisor::handle::SupervisorHandle;
use crate::supervisor::job_environment::{JobEnvironment, for_job};
use crate::supervisor::script;

/// How long a notification may run, for example against a mail server that does not answer.
const TIME: Duration = Duration::from_secs(60);

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Notifications that may run at once: of all users, and of one.
const MOST_RUNNING: usize = 16;
const MOST_RUNNING_OF_A_USER: usize = 4;

/// Notifications of one user that may be queued, and their bytes.
const MOST_WAITING: usize = 1000;
const MOST_BYTES: u64 = 16 << 20;

/// The default `PATH` of a job without variables from a shell, such as a container job.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The notifications of ended jobs.
#[derive(Debug, Default)]
pub struct Notifications {
    /// By user.
    waiting: BTreeMap<u32, VecDeque<Notification>>,
    running: Vec<Running>,
}

#[derive(Debug)]
struct Notification {
    job: JobId,
    spec: LaunchSpec,
    bytes: u64,
}

/// A notification that has started. Its supervisor has not been reaped.
#[derive(Debug)]
struct Running {
    job: JobId,
    uid: u32,
    supervisor: u32,
}

impl Notifications {
    /// Whether a notification of this size may be queued.
    fn admits(&self, uid: u32, bytes: u64) -> bool {
        let waiting = self.waiting.get(&uid).map(VecDeque::as_slices);
        let (front, back) = waiting.unwrap_or_default();
        let held: u64 = front.iter().chain(back).map(|notice| notice.bytes).sum();
        front.len() + back.len() < MOST_WAITING && held.saturating_add(bytes) <= MOST_BYTES
    }

    /// The next notification to start: of the user with the fewest running ones.
    fn next(&mut self) -> Option<(u32, Notification)> {
        if self.running.len() >= MOST_RUNNING {
            return None;
        }
        let running = |uid: u32| self.running.iter().filter(|one| one.uid == uid).count();
        let uid = self.waiting.keys().copied().min_by_key(|uid| running(*uid));
        let uid = uid.filter(|uid| running(*uid) < MOST_RUNNING_OF_A_USER)?;
        let queue = self.waiting.get_mut(&uid)?;
        let notice = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&uid);
        }
        notice.map(|notice| (uid, notice))
    }
}

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
        held: CgroupStatus {
            group: None,
            because: Some("its job has ended".to_owned()),
            tasks: None,
        },
        ..LaunchSpec::default()
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
            if !runs && let Err(error) = folder(&home.job(&running.job.to_string())).erase_spec() {
                tracing::warn!(job = %running.job, error = error_chain(&error), "cannot delete the notification's environment from the disk");
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
                });
            }
            Err(error) => {
                tracing::warn!(%job, error = error_chain(&error), "cannot start the notification");
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn one(job: u64, bytes: u64) -> Notification {
        Notification {
            job: JobId(job),
            spec: LaunchSpec::default(),
            bytes,
        }
    }

    fn running(uid: u32, count: usize) -> Vec<Running> {
        let one = |supervisor| Running {
            job: JobId(1),
            uid,
            supervisor,
        };
        (0..).take(count).map(one).collect()
    }

    #[test]
    fn the_notices_of_one_user_wait_up_to_their_bounds_and_hold_up_no_other() {
        let mut notices = Notifications::default();
        assert!(notices.admits(1, MOST_BYTES) && !notices.admits(1, MOST_BYTES + 1));
        let many = (0..MOST_WAITING as u64).map(|job| one(job, 1));
        notices.waiting.insert(1, many.collect());
        assert!(!notices.admits(1, 1));
        assert!(notices.admits(2, 1));
        notices.waiting.insert(2, [one(7, 1)].into());

        notices.running = running(1, MOST_RUNNING_OF_A_USER);
        let (uid, notice) = notices.next().unwrap();
        assert_eq!((uid, notice.job), (2, JobId(7)));
        assert!(notices.next().is_none(), "user 1 has all that may run");
        notices.running = running(3, MOST_RUNNING);
        assert!(notices.next().is_none(), "all that may run do");
        notices.running = running(3, 1);
        assert_eq!(notices.next().unwrap().1.job, JobId(0), "the oldest");
    }
}
