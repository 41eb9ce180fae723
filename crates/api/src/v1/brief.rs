//! A job in a list of many: what a table shows of it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Amount, Bypass, EndReason, Isolation, Job, JobState, Runner, Slice};

/// A [`Job`] without what no table shows, and without what would say nothing: fields that are null, false or empty. It is written in
/// the words of a job, and read as one it is one, whose folders are not told. Of ten thousand jobs it is a third of the text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Brief<'a> {
    pub id: Cow<'a, str>,
    pub name: Cow<'a, str>,
    pub user: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Cow<'a, str>>,
    pub queue: Cow<'a, str>,
    pub state: JobState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<EndReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    pub request: Amount,
    pub compute: Cow<'a, str>,
    pub slices: Cow<'a, [Slice]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    pub command: Cow<'a, [String]>,
    /// Always empty: every job has one.
    pub cwd: Cow<'a, str>,
    pub runner: Runner,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub submitted_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// As `cwd`.
    pub directory: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub bypasses: Cow<'a, [Bypass]>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Somebody else's, and the caller may not see what it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
}

impl<'a> From<&'a Job> for Brief<'a> {
    fn from(job: &'a Job) -> Self {
        Self {
            id: job.id.as_str().into(),
            name: job.name.as_str().into(),
            user: job.user.as_str().into(),
            uid: job.uid,
            project: job.project.as_deref().map(Cow::from),
            queue: job.queue.as_str().into(),
            state: job.state,
            end_reason: job.end_reason,
            exit_code: job.exit_code,
            request: job.request.clone(),
            compute: job.compute.as_str().into(),
            slices: (&job.slices).into(),
            reason: job.reason.as_deref().map(Cow::from),
            place: job.place,
            command: (&job.command).into(),
            cwd: "".into(),
            runner: job.runner,
            pid: job.pid,
            submitted_at: job.submitted_at,
            started_at: job.started_at,
            ended_at: job.ended_at,
            directory: "".into(),
            bypasses: (&job.bypasses).into(),
            suspended: job.suspended,
            redacted: job.redacted,
        }
    }
}

/// What is not told is as it is with most jobs.
impl From<Brief<'_>> for Job {
    fn from(brief: Brief<'_>) -> Self {
        Self {
            id: brief.id.into_owned(),
            name: brief.name.into_owned(),
            user: brief.user.into_owned(),
            uid: brief.uid,
            redacted: brief.redacted,
            group: None,
            project: brief.project.map(Cow::into_owned),
            queue: brief.queue.into_owned(),
            state: brief.state,
            end_reason: brief.end_reason,
            exit_code: brief.exit_code,
            request: brief.request,
            isolation: Isolation::default(),
            memory_exact: false,
            compute: brief.compute.into_owned(),
            compute_time: None,
            slices: brief.slices.into_owned(),
            reason: brief.reason.map(Cow::into_owned),
            place: brief.place,
            command: brief.command.into_owned(),
            container: None,
            cwd: brief.cwd.into_owned(),
            runner: brief.runner,
            pid: brief.pid,
            submitted_at: brief.submitted_at,
            started_at: brief.started_at,
            ended_at: brief.ended_at,
            directory: brief.directory.into_owned(),
            slice_directory: None,
            bypasses: brief.bypasses.into_owned(),
            limiter: None,
            priority: 0,
            preemptible: false,
            time_limit_s: None,
            after: Vec::new(),
            retries: 0,
            runs_before: 0,
            suspended: brief.suspended,
            idle: None,
            idle_s: None,
            array: None,
            secrets: Vec::new(),
            expected_start: None,
            latest_start: None,
            attempt: 0,
            confirmation: None,
            labels: BTreeMap::new(),
            claim: None,
        }
    }
}
