//! The event stream: past events, and with `follow` each new one as a server-sent event.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body as HttpBody, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{Error, ErrorCode, Event, List};
use divvy_core::JobId;
use http_body_util::channel::{Channel, SendError, Sender};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::body::{ApiError, Query};
use super::job_list::value;
use super::{Api, internal};
use crate::auth::Caller;
use crate::controller::reference::JobRef;
use crate::host::error::error_chain;
use crate::journal::{self, StoreError};
use crate::model::event::JobEvent;

/// Most events that one answer holds; the next question goes on after the last of them. So an answer has some
/// megabytes; more would hold them for each reader that is slow (048).
const PAGE: u32 = 10_000;

/// How often a quiet stream shows that it is alive. Half of the 30 s after which proxies and clients take a connection
/// as dead.
const ALIVE: Duration = Duration::from_secs(15);
const ALIVE_LINE: &[u8] = b": alive\n\n";

/// The pause after a read of the journal that failed: long enough for a lock of the database to pass.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawEventQuery {
    after: u64,
    follow: bool,
    job: Option<String>,
    since: Option<String>,
    tail: Option<String>,
}

/// The jobs of a list of events; `None`: all events.
type Jobs = Option<Arc<BTreeSet<JobId>>>;

pub async fn events(
    api: Api,
    Extension(caller): Extension<Caller>,
    Query(which): Query<RawEventQuery>,
) -> Result<Response, ApiError> {
    let since = value("since", which.since, "use RFC 3339: 2026-11-21T16:00:00Z")?;
    let tail = value("tail", which.tail, "use a number of events")?;
    is_kept(&api, which.after).await?;
    let jobs = match which.job {
        None => None,
        Some(reference) => Some(Arc::new(jobs_of(&api, &reference).await?)),
    };
    let after = match (since, tail) {
        (None, None) => which.after,
        found => {
            let (database, jobs) = (api.home.database(), jobs.clone());
            let first =
                move || journal::first_of_events(&database, which.after, jobs.as_deref(), found);
            api.budget
                .run(first)
                .await?
                .map_err(|error| internal(&error))?
        }
    };
    if !which.follow {
        let (database, read) = (api.home.database(), page(after, jobs));
        let write = move || {
            let list = List::new("EventList", visible(read(&database)?, &caller));
            Ok::<_, StoreError>(serde_json::to_vec(&list))
        };
        // Ten thousand events take longer to write than another call may wait.
        let written = api.budget.run(write).await?;
        let body = written.map_err(|error| internal(&error))?;
        let body = body.map_err(|error| internal(&error))?;
        return Ok(([(CONTENT_TYPE, "application/json")], body).into_response());
    }
    // Listening starts before the past is read, so that nothing falls between; what comes twice is told once.
    let news = api.events.subscribe();
    let (sender, body) = Channel::<Bytes, Infallible>::new(16);
    tokio::spawn(async move {
        // The client has hung up.
        let _ = follow(api, caller, (after, jobs), news, sender).await;
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, HttpBody::new(body)).into_response())
}

async fn follow(
    api: Api,
    caller: Caller,
    (mut after, jobs): (u64, Jobs),
    mut news: Receiver<Arc<JobEvent>>,
    mut sender: Sender<Bytes, Infallible>,
) -> Result<(), SendError> {
    loop {
        // From the journal until it has no more, then as they come; back to the journal when too many came at once.
        loop {
            let (database, read) = (api.home.database(), page(after, jobs.clone()));
            let found = api.budget.run_whenever(move || read(&database)).await;
            let warn = |error: &StoreError| {
                tracing::warn!(
                    error = error_chain(error),
                    "cannot read the journal for an event stream; trying again"
                );
            };
            let found = found.ok().and_then(|found| found.inspect_err(warn).ok());
            let Some(found) = found else {
                // The news alone would leave out what the journal has.
                sender.send_data(Bytes::from_static(ALIVE_LINE)).await?;
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            if found.is_empty() {
                break;
            }
            for event in visible(found, &caller) {
                after = event.seq;
                sender.send_data(text(&event)).await?;
            }
        }
        loop {
            let Ok(received) = tokio::time::timeout(ALIVE, news.recv()).await else {
                sender.send_data(Bytes::from_static(ALIVE_LINE)).await?;
                continue;
            };
            match received {
                Ok(told) if told.event.seq > after => {
                    after = told.event.seq;
                    if is_about(&told.event, jobs.as_deref()) {
                        let event = JobEvent::clone(&told);
                        let event = event.into_visible(|owner| caller.can_see(owner));
                        sender.send_data(text(&event)).await?;
                    }
                }
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }
}

fn visible(events: Vec<JobEvent>, caller: &Caller) -> Vec<Event> {
    let events = events.into_iter();
    events
        .map(|one| one.into_visible(|owner| caller.can_see(owner)))
        .collect()
}

/// Refuses a place in the past that is not kept any more: what happened since is not known whole.
async fn is_kept(api: &Api, after: u64) -> Result<(), ApiError> {
    if after == 0 {
        return Ok(());
    }
    let database = api.home.database();
    let read = move || journal::events_forgotten(&database);
    let forgotten = api.budget.run(read).await?;
    let forgotten = forgotten.map_err(|error| internal(&error))?;
    if after >= forgotten {
        return Ok(());
    }
    let oldest = forgotten + 1;
    let why = format!("events after {after} requested, but events up to {forgotten} are deleted");
    Err(Error::new(ErrorCode::Gone, why)
        .hint(format!(
            "leave out `after` to start with the oldest event, {oldest}; the key retention.jobs-for sets how long events \
             are kept"
        ))
        .details(serde_json::json!({ "oldest": oldest }))
        .into())
}

/// The job or the jobs of the array. Events outlive their job, so a number that means none any more is taken as it is.
async fn jobs_of(api: &Api, reference: &str) -> Result<BTreeSet<JobId>, ApiError> {
    let database = api.home.database();
    let text = reference.to_owned();
    let meant = api.mailbox.query(move |queries| queries.resolve(&text));
    match (meant.await, reference.parse::<JobId>()) {
        (Ok(JobRef::Job { id, .. }), _) => Ok(BTreeSet::from([id])),
        (Ok(JobRef::Array(array)), _) => api
            .budget
            .run(move || journal::ids_of_array(&database, array))
            .await?
            .map_err(|error| internal(&error)),
        (Err(error), Ok(id)) if error.code == ErrorCode::NotFound => {
            let ids = BTreeSet::from([id]);
            let of_job = ids.clone();
            let kept = move || journal::events_after(&database, 0, 1, Some(&of_job));
            let kept = api
                .budget
                .run(kept)
                .await?
                .map_err(|error| internal(&error))?;
            match kept.is_empty() {
                true => Err(error.into()),
                false => Ok(ids),
            }
        }
        (Err(error), _) => Err(error.into()),
    }
}

fn is_about(event: &Event, jobs: Option<&BTreeSet<JobId>>) -> bool {
    jobs.is_none_or(|jobs| {
        let job = event.job.as_ref().and_then(|job| job.parse().ok());
        job.is_some_and(|job| jobs.contains(&job))
    })
}

/// Reads a page of events.
fn page(
    after: u64,
    jobs: Jobs,
) -> impl FnOnce(&Path) -> Result<Vec<JobEvent>, StoreError> + Send + 'static {
    move |database| journal::events_after(database, after, PAGE, jobs.as_deref())
}

fn text(event: &Event) -> Bytes {
    let data = serde_json::to_string(event).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", event.seq, event.kind).into()
}
