//! `PATCH /v1/jobs`: one action on the jobs that a query selects.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Extension;
use axum::response::Response;
use divvy_api::v1::{Error, JobAction, JobQuery, JobsChange};
use divvy_core::JobId;
use serde::Deserialize;

use super::Api;
use super::arrays::CallContext;
use super::body::{ApiError, Body, Query};
use super::list_writer;
use super::redact::Visibility;
use crate::auth::Caller;
use crate::controller::request::{Act, ActOutcome, MatchingJobs, Selection};
use crate::model::job_filter::JobFilter;
use crate::model::validate::usage;

/// The filters of the query. Parameters of a list, such as `limit`, are refused: they would hide selected jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filters {
    state: Option<String>,
    user: Option<String>,
    project: Option<String>,
    queue: Option<String>,
    gpu: Option<String>,
    name: Option<String>,
    text: Option<String>,
}

impl Filters {
    /// Without a user the caller's own jobs, so that a forgotten parameter changes no other user's.
    fn parse(self, caller: &Caller) -> Result<JobFilter, Error> {
        let own = || caller.account.uid.to_string();
        JobFilter::parse(&JobQuery {
            state: self.state,
            user: Some(self.user.unwrap_or_else(own)),
            project: self.project,
            queue: self.queue,
            gpu: self.gpu,
            name: self.name,
            text: self.text,
            ..JobQuery::default()
        })
    }
}

pub async fn change(
    api: Api,
    Extension(visibility): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Query(filters): Query<Filters>,
    Body(change): Body<JobsChange>,
) -> Result<Response, ApiError> {
    if change.release_memory && change.action != JobAction::Suspend {
        let why = "release_memory is invalid: only the action suspend releases memory";
        return Err(usage(why).hint("omit release_memory").into());
    }
    let selection = Selection::Matching(MatchingJobs {
        filter: Arc::new(filters.parse(&caller)?),
        only: change.only.map(numbers).transpose()?,
    });
    let act = Act::from(change.action);
    let call = CallContext {
        api: &api,
        visibility: visibility.clone(),
        caller: &caller,
    };
    let changed = match (change.dry_run, change.release_memory) {
        (true, _) => {
            let selected = (api.mailbox).query(move |queries| queries.selected(&selection, &act));
            ActOutcome {
                done: selected.await?,
                refused: Vec::new(),
            }
        }
        (false, true) => {
            let outcome = call.offload(selection).await?;
            let numbers = outcome.done.iter().filter_map(|job| job.id.parse().ok());
            let mut done: Vec<JobId> = numbers.collect();
            done.sort_unstable();
            let done = (api.mailbox).query(move |queries| Ok(queries.summaries(&done)));
            ActOutcome {
                done: done.await?,
                refused: outcome.refused,
            }
        }
        (false, false) => call.apply(selection, act).await?,
    };
    list_writer::jobs_changed_response(&api, visibility, changed).await
}

/// The numbers of jobs.
fn numbers(texts: Vec<String>) -> Result<BTreeSet<JobId>, Error> {
    let number = |text: String| {
        text.parse::<JobId>().map_err(|_| {
            usage(format!("only has {text:?}: not the number of a job"))
                .hint("use the `id` of jobs, as a dry run returns them")
        })
    };
    texts.into_iter().map(number).collect()
}
