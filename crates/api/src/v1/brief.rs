//! A job in a list of many: what a table shows of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Amount, Bypass, EndReason, Isolation, Job, JobState, Runner, Slice};

/// A [`Job`] without what no table shows, and without what would say nothing: fields that are null, false or empty. It is written in
/// the words of a job, and read as one it is one, whose folders are not told. Of ten thousand jobs it is a third of the text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Brief<'a> {
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub user: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub queue: Cow<'a, str>,
    pub state: JobState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<EndReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    pub request: Amount,
    #[serde(borrow)]
    pub compute: Cow<'a, str>,
    pub slices: Cow<'a, [Slice]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    pub command: Cow<'a, [String]>,
    /// Always empty: every job has one.
    #[serde(borrow)]
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
    #[serde(borrow)]
    pub directory: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub bypasses: Cow<'a, [Bypass]>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// Somebody else's, and the caller may not see what it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redacted: bool,
}

/// Reads the answer to `GET /v1/jobs?brief=true` job by job: all of them at once would take several times the room of the text.
///
/// # Errors
/// When it is another answer.
pub fn each<'a>(text: &'a [u8], take: impl FnMut(Brief<'a>)) -> serde_json::Result<()> {
    serde_json::Deserializer::from_slice(text).deserialize_map(Envelope(take))
}

struct Envelope<F>(F);

impl<'a, F: FnMut(Brief<'a>)> Visitor<'a> for Envelope<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of jobs")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match &*key {
                "items" => map.next_value_seed(Items(&mut self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct Items<'f, F>(&'f mut F);

impl<'a, F: FnMut(Brief<'a>)> DeserializeSeed<'a> for Items<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'a, F: FnMut(Brief<'a>)> Visitor<'a> for Items<'_, F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("jobs")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(brief) = seq.next_element()? {
            (self.0)(brief);
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::List;

    #[test]
    fn a_brief_job_is_read_as_a_job_and_a_job_as_a_brief_one() {
        let brief = serde_json::json!({
            "id": "7", "name": "a \"b\"", "user": "ana", "queue": "q", "state": "queued",
            "request": {"kind": "share", "thousandths": 250}, "compute": "fair", "slices": [],
            "command": ["true"], "cwd": "", "directory": "", "runner": "supervisor",
            "submitted_at": "2026-01-02T03:04:05Z", "place": 3,
        });
        let job: Job = serde_json::from_value(brief.clone()).unwrap();
        assert_eq!((job.name.as_str(), job.place), ("a \"b\"", Some(3)));
        assert_eq!(serde_json::to_value(Brief::from(&job)).unwrap(), brief);
        for jobs in [vec![], vec![job.clone()], vec![job.clone(), job]] {
            let list = List::new("JobList", jobs);
            let text = serde_json::to_string(&list).unwrap();
            let mut names = Vec::new();
            each(text.as_bytes(), |brief| names.push(Job::from(brief).name)).unwrap();
            let expected: Vec<String> = list.items.into_iter().map(|job| job.name).collect();
            assert_eq!(names, expected);
        }
        each(b"{\"items\":[{}]}", |_| {}).unwrap_err();
        each(b"[]", |_| {}).unwrap_err();
    }
}
