//! Routes for all jobs of an array. Each answers a list of jobs, and a header names the array.

use crate::controller::query::job_summary::JobSummary;
use crate::controller::request::{Act, ActOutcome, Milestone, Selection};
use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::HeaderName;
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::JobId;
use tokio::task::JoinSet;

use super::body::ApiError;
use super::budget::{Bound, until_read};
use super::redact::Visibility;
use super::{Api, internal, list, list_writer};
use crate::auth::Caller;
use crate::controller::mailbox::Message;
use crate::controller::reference::JobRef;
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
        let living = self
            .api
            .mailbox
            .query(move |queries| Ok(queries.array_summaries(array)));
        let mut jobs = living.await?;
        let known: BTreeSet<JobId> = jobs.iter().map(JobSummary::id).collect();
        let database = self.api.home.database();
        let read = move || journal::ended_of_array(&database, array);
        let ended = self.api.budget.run(read).await?;
        let mut ended = ended.map_err(|error| internal(&error))?;
        ended.retain(|job| !known.contains(&job.id));
        let ended = self.api.mailbox.query(move |queries| {
            let seen = ended.iter().map(|job| queries.view(job, None, None));
            Ok(seen.map(JobSummary::from).collect::<Vec<_>>())
        });
        jobs.extend(ended.await?);
        jobs.sort_by_key(JobSummary::id);
        let answer = list_writer::job_list_response(self.api, self.visibility, jobs);
        Ok(named(array, answer.await?))
    }

    /// Applies an act to every job of an array that accepts it; answers these.
    pub async fn act(self, array: JobId, act: Act) -> Result<Response, ApiError> {
        let permit = self.api.budget.take(Bound::Answer).await?;
        let changed = self.apply(Selection::Array(array), act).await?.done;
        let answer = list_writer::job_list_response(self.api, self.visibility, changed);
        Ok(until_read(permit, named(array, answer.await?)))
    }

    /// Applies an act to the jobs of a selection in one round of the controller.
    pub async fn apply(
        &self,
        selection: Selection,
        act: Act,
    ) -> Result<ActOutcome<JobSummary>, Error> {
        let by = Box::new(self.caller.clone());
        let request = (self.api.mailbox).request(|reply| Message::Act {
            selection,
            act,
            by,
            reply,
        });
        request.await
    }

    /// Suspends every running job of an array and offloads its memory; answers once that is done or given up for each.
    pub async fn release(self, array: JobId) -> Result<Response, ApiError> {
        let mut outcome = self.offload(Selection::Array(array)).await?;
        if outcome.done.is_empty() {
            let none = || {
                v1::Error::new(
                    ErrorCode::Conflict,
                    format!("no job of array {array} is running"),
                )
                .hint(format!("`divvy ps {array}` lists the states of its jobs"))
            };
            return Err(outcome.refused.drain(..).next().unwrap_or_else(none).into());
        }
        (outcome.done).sort_by_key(|job| job.array.as_ref().map(|task| task.index));
        Ok(named(array, list("JobList", outcome.done)?.into_response()))
    }

    /// Suspends the jobs of a selection and offloads their memory, each by a message of its own; returns once that is done
    /// or given up for each. A job that ends meanwhile is in neither list.
    pub async fn offload(&self, selection: Selection) -> Result<ActOutcome<v1::Job>, ApiError> {
        let by = self.caller.clone();
        let selected = (self.api.mailbox).query(move |queries| queries.offloaded(&selection, &by));
        let selected = selected.await?;
        let mut offloads = JoinSet::new();
        for job in selected.done {
            let (mailbox, reference) = (self.api.mailbox.clone(), job.to_string());
            offloads.spawn(async move {
                let offload = mailbox.request(|reply| Message::Offload { reference, reply });
                (job, offload.await)
            });
        }
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        while let Some(answer) = offloads.join_next().await {
            match answer.map_err(|error| internal(&error))? {
                (_, Ok(job)) => done.push(job),
                (job, Err(error)) => failed.push((job, error)),
            }
        }
        failed.sort_by_key(|(job, _)| *job);
        let failed = (self.api.mailbox).query(move |queries| {
            failed.retain(|(job, _)| queries.lives(*job));
            Ok(failed)
        });
        let mut refused = selected.refused;
        refused.extend(failed.await?.into_iter().map(|(_, error)| error));
        Ok(ActOutcome { done, refused })
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
