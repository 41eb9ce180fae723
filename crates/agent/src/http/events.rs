//! The event stream: past events, and with `follow` each new one as a server-sent event.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body as HttpBody, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use divvy_api::v1::{Error, ErrorCode, Event, List};
use divvy_core::JobId;
use http_body_util::channel::{Channel, SendError, Sender};
use serde::Deserialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::body::{ApiError, Body, Query};
use super::{Api, internal};
use crate::auth::Caller;
use crate::journal::{self, StoreError};

/// Most events that one answer holds; the next question goes on after the last of them.
const PAGE: u32 = 10_000;

/// How often a quiet stream shows that it is alive.
const ALIVE: Duration = Duration::from_secs(15);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    follow: bool,
}

pub async fn events(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<EventsQuery>,
) -> Result<Response, ApiError> {
    is_kept(&api, which.after).await?;
    let veil = EventRedactor::of(&api, &caller);
    if !which.follow {
        let mut page = page(&api, which.after)
            .await
            .map_err(|error| internal(&error))?;
        veil.redact(&mut page).await;
        return Ok(Body(List::new("EventList", page)).into_response());
    }
    // Listening starts before the past is read, so that nothing falls between; what comes twice is told once.
    let news = api.events.subscribe();
    let (sender, body) = Channel::<Bytes, Infallible>::new(16);
    tokio::spawn(async move {
        // The client has hung up.
        let _ = follow(api, which.after, news, veil, sender).await;
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
    ];
    Ok((headers, HttpBody::new(body)).into_response())
}

async fn follow(
    api: Api,
    mut after: u64,
    mut news: Receiver<Event>,
    veil: EventRedactor,
    mut sender: Sender<Bytes, Infallible>,
) -> Result<(), SendError> {
    loop {
        // From the journal until it has no more, then as they come; back to the journal when too many came at once.
        while let Ok(mut page) = page(&api, after).await
            && !page.is_empty()
        {
            veil.redact(&mut page).await;
            for event in page {
                after = event.seq;
                sender.send_data(text(&event)).await?;
            }
        }
        loop {
            match tokio::time::timeout(ALIVE, news.recv()).await {
                Ok(Ok(mut event)) if event.seq > after => {
                    after = event.seq;
                    veil.redact(std::slice::from_mut(&mut event)).await;
                    sender.send_data(text(&event)).await?;
                }
                Ok(Ok(_)) => {}
                Ok(Err(RecvError::Lagged(_))) => break,
                Ok(Err(RecvError::Closed)) => return Ok(()),
                Err(_) => sender.send_data(Bytes::from_static(b": alive\n\n")).await?,
            }
        }
    }
}

/// Leaves of other users' jobs that something happened, and takes out the words: they may say what runs.
struct EventRedactor(Option<(Api, Caller)>);

impl EventRedactor {
    fn of(api: &Api, caller: &Caller) -> Self {
        Self((!caller.can_see_all_users()).then(|| (api.clone(), caller.clone())))
    }

    async fn redact(&self, events: &mut [Event]) {
        let Some((api, caller)) = &self.0 else { return };
        let ids = events
            .iter()
            .filter_map(|event| event.job.as_ref()?.parse().ok());
        let ids: BTreeSet<JobId> = ids.collect();
        let owners = api.mailbox.query(move |queries| {
            let owner = |id| queries.owner(id).ok().flatten().map(|owner| (id, owner));
            Ok(ids
                .into_iter()
                .filter_map(owner)
                .collect::<BTreeMap<_, _>>())
        });
        let owners = owners.await.unwrap_or_default();
        for event in events {
            let Some(job) = &event.job else { continue };
            let owner = job.parse().ok().and_then(|id: JobId| owners.get(&id));
            if !owner.is_some_and(|owner| caller.can_see(*owner)) {
                event.text.clear();
            }
        }
    }
}

/// Refuses a place in the past that is not kept any more: what happened since is not known whole.
async fn is_kept(api: &Api, after: u64) -> Result<(), ApiError> {
    if after == 0 {
        return Ok(());
    }
    let database = api.home.database();
    let forgotten = tokio::task::spawn_blocking(move || journal::events_forgotten(&database)).await;
    let forgotten = forgotten
        .map_err(|error| internal(&error))?
        .map_err(|error| internal(&error))?;
    if after >= forgotten {
        return Ok(());
    }
    let oldest = forgotten + 1;
    let why = format!("events after {after} requested, but events up to {forgotten} are deleted");
    Err(Error::new(ErrorCode::Gone, why)
        .hint(format!(
            "leave out `after` to start with the oldest event, {oldest}; `divvy daemon --keep` sets how long events \
             are kept"
        ))
        .details(serde_json::json!({ "oldest": oldest }))
        .into())
}

async fn page(api: &Api, after: u64) -> Result<Vec<Event>, StoreError> {
    let database = api.home.database();
    let page =
        tokio::task::spawn_blocking(move || journal::events_after(&database, after, PAGE)).await;
    // It panics only if the reading does.
    page.unwrap_or_else(|_| Ok(Vec::new()))
}

fn text(event: &Event) -> Bytes {
    let data = serde_json::to_string(event).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", event.seq, event.kind).into()
}
