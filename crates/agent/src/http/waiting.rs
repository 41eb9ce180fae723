//! Calls about a job while it waits: changes, holds, and what `why` says of them.

use axum::Extension;
use axum::extract::State;
use divvy_api::v1;

use super::body::{Body, Path};
use super::{Answer, Api, list};
use crate::access::Caller;
use crate::mailbox::Message;

pub async fn change(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Body(change): Body<v1::JobChange>,
) -> Answer<v1::Job> {
    let (change, by) = (Box::new(change), Box::new(caller));
    let changed = api.mailbox.ask(|reply| Message::Change {
        reference,
        change,
        by,
        reply,
    });
    list("JobList", vec![changed.await?])
}

pub async fn hold(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Answer<v1::Job> {
    set_held(&api, reference, caller, true).await
}

pub async fn release(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Answer<v1::Job> {
    set_held(&api, reference, caller, false).await
}

async fn set_held(api: &Api, reference: String, caller: Caller, hold: bool) -> Answer<v1::Job> {
    let by = Box::new(caller);
    let held = api.mailbox.ask(|reply| Message::Hold {
        reference,
        hold,
        by,
        reply,
    });
    list("JobList", vec![held.await?])
}

/// What would start a job, each with the command that does it.
pub fn with_commands(texts: &[String], commands: Vec<Vec<String>>) -> Vec<v1::WhyChange> {
    let pairs = texts.iter().zip(commands);
    let change = |(text, command): (&String, _)| v1::WhyChange {
        text: text.clone(),
        command,
    };
    pairs.map(change).collect()
}
