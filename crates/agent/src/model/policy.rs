//! The job policy: priority, time limits and dependencies of a job, and its run state.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use divvy_api::v1::{self, Error, ErrorCode, Runner, Submit};
use divvy_core::job::StopReason;
use divvy_core::{JobId, ProjectName, SchedulingClass, Top};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::auth::{Caller, Role};
use crate::host::process::Process;
use crate::model::cause::Cause;
use crate::model::cause::StopRecord;
use crate::model::claim::Claim;
use crate::model::gpu_memory::{GpuMemoryState, ParkHistory};
use crate::model::idle::Rule;
use crate::model::validate::usage;

/// Priorities are small numbers, so that there is always one between two others for an administrator.
const MOST_PRIORITY: i32 = 1000;

/// More would be a loop.
const MOST_RETRIES: u32 = 1000;

/// How long an unconfirmed slice is kept: several times the response time of a server that is asked for the
/// confirmation.
const CONFIRM_WITHIN_S: u64 = 60;

/// A day: a slice that is kept is unused. So longer would keep a GPU from all others for a client that has forgotten
/// it.
const LONGEST_UNCONFIRMED_S: u64 = 24 * 3600;

/// Longest time limit and minimum runtime: a hundred years. So longer than any job, and its nanoseconds still fit 64
/// bits.
pub const LONGEST_S: u64 = 100 * 366 * 24 * 3600;

/// Whether this caller may ask for this priority: above 0 it passes all jobs without one. A user is an admin of their
/// own daemon.
/// an admin.
///
/// # Errors
/// [`ErrorCode::NotAllowed`], with the role that would do.
pub fn check_priority(priority: i32, by: &Caller) -> Result<(), Error> {
    if priority <= 0 || by.role >= Role::Operator {
        return Ok(());
    }
    let why = format!(
        "priority {priority} is above 0, which requires the role {}, but {} (uid {}) has the role {}",
        Role::Operator.name(),
        by.account.name,
        by.account.uid,
        by.role.name()
    );
    Err(Error::new(ErrorCode::NotAllowed, why)
        .hint("leave --priority out, or give your less urgent jobs a negative priority"))
}

/// Refuses a priority that no job has.
///
/// # Errors
/// [`ErrorCode::Usage`].
pub fn check_range(priority: i32) -> Result<(), Error> {
    if (-MOST_PRIORITY..=MOST_PRIORITY).contains(&priority) {
        return Ok(());
    }
    let why = format!("priority {priority} is out of range");
    Err(usage(why).hint(format!(
        "use a number from -{MOST_PRIORITY} to {MOST_PRIORITY}"
    )))
}

/// Refuses a time limit that no job has.
///
/// # Errors
/// [`ErrorCode::Usage`].
pub fn check_time_limit(limit_s: Option<u64>) -> Result<(), Error> {
    match limit_s {
        Some(limit) if limit > LONGEST_S => Err(usage("the time limit is longer than 100 years")),
        _ => Ok(()),
    }
}

/// What was agreed on when it was submitted, besides what it gets and what it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobPolicy {
    /// Higher first in its queue and its project.
    pub priority: i32,
    /// It may be stopped for a job that is within its project's quota, and is put back into its queue then.
    pub preemptible: bool,
    /// How long each of its runs may take.
    pub time_limit_s: Option<u64>,
    /// It is not placed before these have ended.
    pub after: Vec<Dependency>,
    /// How often its program is started again after it failed.
    pub retries: u32,
    pub array: Option<ArrayTask>,
    /// The action when it does nothing with its GPUs; it overrides the daemon's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Rule>,
    /// For how long it keeps its slice unconfirmed, where it is to be confirmed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm_within_s: Option<u64>,
    /// What its front end wants to find again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Of the submit that made it, where that had an idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What it is the claim of, where it has no program of ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<Box<Claim>>,
    /// The files of its output, as patterns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<v1::Output>,
    /// What is started when it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
    /// The client with which it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie: Option<Tie>,
    /// The account that submitted it, where the job shows another user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Its environment has its numbers by the names of Slurm.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slurm_names: bool,
}

/// A job's bond to its client: the job is cancelled once the client has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tie {
    pub client: Process,
    /// The kernel's id of the boot: another boot may have a process with the same pid and start time.
    pub boot: String,
}

impl Tie {
    /// Whether the client has ended. `boot`: the kernel's id of this boot.
    pub fn is_over(&self, boot: &str) -> bool {
        self.boot != boot || self.client.has_ended()
    }
}

/// A job, or an array, that another runs after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    pub job: JobId,
    /// Only if that one ends well; otherwise however it ends.
    pub ok: bool,
    /// Absent in journals of earlier versions, where it is always the job.
    #[serde(default, skip_serializing_if = "Of::is_job")]
    pub of: Of,
}

/// What the number of an `After` stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    #[default]
    Job,
    /// The first job of an array, which has this index there, and no other of it.
    First(u32),
    /// All jobs of an array, by its first. The array has at most so many, with numbers in a row.
    Array(u32),
}

impl Of {
    fn is_job(&self) -> bool {
        *self == Self::Job
    }
}

impl fmt::Display for Dependency {
    /// What refers to it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Of::Job | Of::Array(_) => self.job.fmt(out),
            Of::First(index) => write!(out, "{}_{index}", self.job),
        }
    }
}

impl Dependency {
    /// Numbers of the jobs that it may be about, from the first to before the last.
    pub fn numbers(&self) -> Range<JobId> {
        let count = match self.of {
            Of::Job | Of::First(_) => 1,
            Of::Array(count) => count,
        };
        self.job..JobId(self.job.0.saturating_add(u64::from(count)))
    }
}

/// Which of an array's jobs it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayTask {
    /// The array's first job; `None` for that one itself.
    pub array: Option<JobId>,
    pub index: u32,
    /// So many of the array's jobs hold something at once.
    pub most: Option<u32>,
    /// How many jobs the array was submitted with; `None` for arrays of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

impl ArrayTask {
    /// The number of its array. `id`: its own.
    pub fn array_of(&self, id: JobId) -> JobId {
        self.array.unwrap_or(id)
    }

    /// `12_3`: what refers to it alone. `id`: its own number.
    pub fn handle(&self, id: JobId) -> String {
        format!("{}_{}", self.array_of(id), self.index)
    }
}

/// In the API's words.
pub fn dependency_to_api(after: &Dependency) -> v1::After {
    v1::After {
        job: after.to_string(),
        ok: after.ok,
    }
}

impl JobPolicy {
    /// What a submit says of them, but for the jobs that it is to run after and its array.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`](v1::ErrorCode::Usage) for what cannot be.
    pub fn from_submit(submit: &Submit) -> Result<Self, Error> {
        let (priority, retries) = (submit.priority, submit.retries);
        check_range(priority)?;
        if retries > MOST_RETRIES {
            return Err(usage(format!(
                "{retries} retries requested, but at most {MOST_RETRIES} are allowed"
            )));
        }
        match submit.time_limit_s {
            Some(0) => {
                return Err(usage("the time limit is 0")
                    .hint("leave the limit out, or use one such as 30m or 2h"));
            }
            limit => check_time_limit(limit)?,
        }
        if submit.runner == Runner::Client && (submit.preemptible || retries > 0) {
            let restarted = if submit.preemptible {
                "preempted"
            } else {
                "retried"
            };
            return Err(usage(format!(
                "a job on its client's terminal cannot be {restarted}: the daemon cannot restart it"
            ))
            .hint("use `divvy submit`, and `divvy logs -f` to follow its output"));
        }
        Ok(Self {
            account: None,
            priority,
            preemptible: submit.preemptible,
            time_limit_s: submit.time_limit_s,
            after: Vec::new(),
            retries,
            array: None,
            idle: submit.idle.map(Rule::of).transpose()?,
            confirm_within_s: confirm_within(submit)?,
            labels: submit.labels.clone(),
            digest: None,
            claim: None,
            tie: None,
            output: submit.output.clone(),
            notify: submit.notify.clone(),
            slurm_names: submit
                .script
                .as_ref()
                .is_some_and(|script| script.slurm_names),
        })
    }

    pub fn owner(&self, project: Option<&str>) -> SchedulingClass {
        SchedulingClass {
            project: project.and_then(|name| name.parse::<ProjectName>().ok()),
            priority: self.priority,
            preemptible: self.preemptible,
            user: None,
        }
    }
}

/// For how long a job keeps its slice unconfirmed, where it is to be confirmed.
fn confirm_within(submit: &Submit) -> Result<Option<u64>, Error> {
    match (submit.confirm, submit.confirm_within_s) {
        (false, None) => Ok(None),
        (false, Some(_)) => Err(usage("confirm_within_s is set, but confirm is not")
            .hint("set `confirm`, or leave out `confirm_within_s`")),
        (true, _) if submit.runner == Runner::Client => Err(usage(
            "a job on its client's terminal is started by the client, so it cannot wait for a confirmation",
        )
        .hint("leave out `confirm`, or let the daemon start the job")),
        (true, within) => match within.unwrap_or(CONFIRM_WITHIN_S) {
            seconds @ 1..=LONGEST_UNCONFIRMED_S => Ok(Some(seconds)),
            seconds => Err(usage(format!(
                "confirm_within_s is {seconds}, but must be from 1 to {LONGEST_UNCONFIRMED_S}"
            ))),
        },
    }
}

/// What has happened to a job besides what its life says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunState {
    /// Why it is being stopped, and when it was first told.
    pub stop: Option<(StopReason, Timestamp)>,
    /// The reason in words, and the user that requested it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Why its last run was stopped, of a job that went back into its queue for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_before: Option<StopRecord>,
    /// How often it went back to its queue after its program had been started. Each run has a folder of its own.
    pub runs: u32,
    /// How many of those were failures.
    pub failures: u32,
    /// It had to leave, so it comes before its equals.
    pub requeued: bool,
    /// Its processes are stopped until a user resumes them.
    pub suspended: bool,
    /// Where its GPU memory is.
    #[serde(skip_serializing_if = "GpuMemoryState::is_untouched")]
    pub aside: GpuMemoryState,
    /// What its parks have shown.
    #[serde(skip_serializing_if = "ParkHistory::is_untouched")]
    pub park: ParkHistory,
    /// Digest of the confirmation for the slice that it has, or had last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<String>,
    /// Its front end has withdrawn it, so its record goes with its end.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub withdrawn: bool,
    /// It is not placed before it is released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// Whether it was put first in its queue.
    #[serde(skip_serializing_if = "Top::is_no")]
    pub top: Top,
}

/// The jobs that keep a job from being placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Name of the user.
    pub by: String,
    /// An operator holds another user's job: only operators release it.
    pub operator: bool,
    pub since: Timestamp,
}

impl Hold {
    /// In the API's words.
    pub fn to_api(&self) -> v1::JobHold {
        let Self {
            by,
            operator,
            since,
        } = self.clone();
        v1::JobHold {
            by,
            operator,
            since,
        }
    }
}

impl RunState {
    /// Of a job that was submitted just now.
    pub fn with_hold(hold: Option<Hold>) -> Self {
        Self {
            hold,
            ..Self::default()
        }
    }
}
