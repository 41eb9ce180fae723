//! Routes for all jobs of an array. Each answers a list of jobs, and a header names the array.

use crate::controller::query::job_summary::JobSummary;
use crate::controller::request::{ArrayAct, Milestone};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::HeaderName;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{self, ErrorCode};
use divvy_core::JobId;
use tokio::task::JoinSet;

use super::body::ApiError;
use super::redact::Visibility;
use super::{Api, internal, list, list_writer, run_blocking};
use crate::auth::Caller;
use crate::controller::mailbox::Message;
use crate::controller::query::reference::JobRef;
use crate::journal;

/// The array that a reference meant.
const ARRAY: HeaderName = HeaderName::from_static(divvy_api::route::ARRAY);

/// The caller.
pub struct CallContext<'a> {
    pub api: &'a Api,
    pub visibility: Visibility,
    pub caller: &'a Caller,
}

impl CallContext<'_> {
    /// All jobs of an array that are kept, oldest first.
    pub async fn jobs(self, array: JobId) -> Result<Response, ApiError> {
        let turn = list_writer::turn_of(self.caller).await?;
        let living = self
            .api
            .mailbox
            .query(move |queries| Ok(queries.array_summaries(array)));
        let mut jobs = living.await?;
        let known: BTreeSet<JobId> = jobs.iter().map(JobSummary::id).collect();
        let database = self.api.home.database();
        let ended = run_blocking(move || journal::ended_of_array(&database, array)).await?;
        let mut ended = ended.map_err(|error| internal(&error))?;
        ended.retain(|job| !known.contains(&job.id));
        let ended = self.api.mailbox.query(move |queries| {
            let seen = ended.iter().map(|job| queries.view(job, None, None));
            Ok(seen.map(JobSummary::from).collect::<Vec<_>>())
        });
        jobs.extend(ended.await?);
        jobs.sort_by_key(JobSummary::id);
        let answer =
            list_writer::job_list_response(Arc::clone(&self.api.home), self.visibility, jobs, turn);
        Ok(named(array, answer.await?))
    }

    /// Does the same to every job of an array that it can be done to; answers these.
    pub async fn act(self, array: JobId, act: ArrayAct) -> Result<Response, ApiError> {
        let turn = list_writer::turn_of(self.caller).await?;
        let by = Box::new(self.caller.clone());
        let ask = (self.api.mailbox).request(|reply| Message::Array {
            array,
            act,
            by,
            reply,
        });
        let jobs = ask.await?;
        let answer =
            list_writer::job_list_response(Arc::clone(&self.api.home), self.visibility, jobs, turn);
        Ok(named(array, answer.await?))
    }

    /// Suspends every running job of an array and offloads its memory; answers once that is done or given up for each.
    pub async fn release(self, array: JobId) -> Result<Response, ApiError> {
        let running = self
            .api
            .mailbox
            .query(move |queries| Ok(queries.running_of_array(array)));
        let mut asked = JoinSet::new();
        for job in running.await? {
            let (mailbox, reference) = (self.api.mailbox.clone(), job.to_string());
            asked.spawn(async move {
                let ask = mailbox.request(|reply| Message::Offload { reference, reply });
                ask.await
            });
        }
        let (mut done, mut refused) = (Vec::new(), None);
        while let Some(answer) = asked.join_next().await {
            match answer.map_err(|error| internal(&error))? {
                Ok(job) => done.push(job),
                Err(error) => refused = Some(error),
            }
        }
        done.sort_by_key(|job| job.array.as_ref().map(|task| task.index));
        if done.is_empty() {
            let none = || {
                v1::Error::new(
                    ErrorCode::Conflict,
                    format!("no job of array {array} is running"),
                )
                .hint(format!("`divvy ps {array}` lists the states of its jobs"))
            };
            return Err(refused.unwrap_or_else(none).into());
        }
        Ok(named(array, list("JobList", done)?.into_response()))
    }
}

/// Waits until all jobs of an array are there, or have ended; answers the job that says how the array stands.
pub async fn wait(
    api: &Api,
    array: JobId,
    milestone: Milestone,
    patience: Duration,
) -> Result<Response, ApiError> {
    let all = async {
        loop {
            let next = api
                .mailbox
                .query(move |queries| Ok(queries.next_of_array(array, milestone)));
            let Some(next) = next.await? else {
                return Ok(());
            };
            let wait = api.mailbox.request(|reply| Message::Wait {
                reference: next.to_string(),
                milestone,
                reply,
            });
            match wait.await {
                // It ended, and was forgotten since.
                Err(error) if error.code == ErrorCode::NotFound => {}
                answer => drop(answer?),
            }
        }
    };
    if let Ok(waited) = tokio::time::timeout(patience, all).await {
        let waited: Result<(), v1::Error> = waited;
        waited?;
    }
    // When a job starts is not foretold here: with thousands of jobs that takes seconds.
    let verdict = api
        .mailbox
        .query(move |queries| queries.verdict_of_array(array));
    let job = verdict.await?;
    Ok(named(array, list("JobList", vec![job])?.into_response()))
}

/// What a reference means.
pub async fn resolve(api: &Api, reference: &str) -> Result<JobRef, ApiError> {
    let reference = reference.to_owned();
    let read = api
        .mailbox
        .query(move |queries| queries.resolve(&reference));
    Ok(read.await?)
}

fn named(array: JobId, mut answer: Response) -> Response {
    answer
        .headers_mut()
        .insert(ARRAY, HeaderValue::from(array.0));
    answer
}
