//! Job selection: calls that take the reference of a job or of an array, and return the jobs that it selects.

use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;

use super::{Answer, Client, WaitFor, empty, internal, job_list_path, job_path, only};
use crate::client::liveness::Patience;
use crate::route::ARRAY;
use crate::v1::{Error, Job, JobAction, JobChange, JobQuery, JobsChange, JobsChanged, Suspend};

/// The jobs that a reference selects: one job, or jobs of an array.
#[derive(Clone, Debug)]
pub struct JobSelection {
    /// Reference of the array.
    pub array: Option<String>,
    /// Never empty.
    pub jobs: Vec<Job>,
}

impl From<Job> for JobSelection {
    fn from(job: Job) -> Self {
        Self {
            array: None,
            jobs: vec![job],
        }
    }
}

impl JobSelection {
    /// Returns a reference that selects the same at any later time.
    pub fn reference(&self) -> String {
        let first = self.jobs.first();
        let of = |job: &Job| match &job.array {
            // A daemon from before array references does not know `12_3`.
            Some(task) if task.count.is_none() => job.id.clone(),
            _ => job.reference(),
        };
        let job = || first.map(of).unwrap_or_default();
        self.array.clone().unwrap_or_else(job)
    }
}

/// An action on a job, or on every job of an array that it applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Cancel,
    Requeue,
    Suspend,
    /// As [`Act::Suspend`]; the daemon also offloads their GPU memory to the host.
    Release,
    Resume,
    Hold,
    /// Ends a hold.
    Unhold,
}

impl Act {
    fn path(self) -> &'static str {
        match self {
            Self::Cancel => "/cancel",
            Self::Requeue => "/requeue",
            Self::Suspend | Self::Release => "/suspend",
            Self::Resume => "/resume",
            Self::Hold => "/hold",
            Self::Unhold => "/release",
        }
    }
}

impl From<Act> for JobsChange {
    fn from(act: Act) -> Self {
        let action = match act {
            Act::Cancel => JobAction::Cancel,
            Act::Requeue => JobAction::Requeue,
            Act::Suspend | Act::Release => JobAction::Suspend,
            Act::Resume => JobAction::Resume,
            Act::Hold => JobAction::Hold,
            Act::Unhold => JobAction::Release,
        };
        Self {
            action,
            release_memory: act == Act::Release,
            dry_run: false,
            only: None,
        }
    }
}

impl Client {
    /// Applies an action to the jobs that the filters of a query select, in one step of the daemon.
    pub async fn change_jobs(
        &self,
        filters: &JobQuery,
        change: &JobsChange,
    ) -> Result<JobsChanged, Error> {
        let path = job_list_path(filters);
        only(self.send(Method::PATCH, &path, change).await?)
    }

    /// Returns the job with this reference, or all retained jobs of the array, the oldest first.
    pub async fn jobs_of(&self, reference: &str) -> Result<JobSelection, Error> {
        let answer = self.get(&job_path(reference, "")).await?;
        self.selection(answer).await
    }

    /// Applies an action to the selected jobs; returns the jobs that it applied to.
    pub async fn act(&self, reference: &str, act: Act) -> Result<JobSelection, Error> {
        let body = Suspend {
            release_memory: act == Act::Release,
        };
        let body = match act {
            Act::Release => serde_json::to_vec(&body),
            _ => serde_json::to_vec(&serde_json::json!({})),
        };
        let body = body.map_err(|error| internal(format!("cannot write the request: {error}")))?;
        let path = job_path(reference, act.path());
        let answer = self.call(Method::POST, &path, Bytes::from(body)).await?;
        self.selection(answer).await
    }

    /// Changes a job, completely or not at all. The change is on disk before the answer; a repeat changes nothing.
    pub async fn change(&self, reference: &str, change: &JobChange) -> Result<JobSelection, Error> {
        let body = serde_json::to_vec(change)
            .map_err(|error| internal(format!("cannot write the request: {error}")))?;
        let path = job_path(reference, "/change");
        let answer = self.call(Method::POST, &path, Bytes::from(body)).await?;
        self.selection(answer).await
    }

    /// As [`Client::wait`]. For an array, it returns a job that has not ended. Once all have ended, it returns the job with
    /// the lowest index among those that failed, else the job with the lowest index.
    pub async fn wait_for(
        &self,
        reference: &str,
        what: WaitFor,
        timeout: Duration,
    ) -> Result<JobSelection, Error> {
        let path = job_path(reference, &what.query(timeout));
        let answer = self.get_in(Patience::Endless, &path).await?;
        self.selection(answer).await
    }

    async fn selection(&self, answer: Answer) -> Result<JobSelection, Error> {
        let array = answer.response.headers().get(ARRAY);
        let array = array.and_then(|array| Some(array.to_str().ok()?.to_owned()));
        let jobs: Vec<Job> = self.items(answer).await?;
        if jobs.is_empty() {
            Err(empty())
        } else {
            Ok(JobSelection { array, jobs })
        }
    }
}
