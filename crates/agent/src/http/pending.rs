//! Routes of a pending job: changes, holds, and `why`.

use crate::controller::request::Act;
use axum::Extension;
use axum::response::Response;
use divvy_api::v1;

use super::arrays::CallContext;
use super::body::{ApiError, Body, Path};
use super::redact::Visibility;
use super::{Api, act_on_jobs};
use crate::auth::Caller;
use crate::controller::mailbox::Message;

pub async fn change(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Body(change): Body<v1::JobChange>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    let (change, by) = (Box::new(change), Box::new(caller.clone()));
    let act = Act::Change(change.clone());
    act_on_jobs(asks, &reference, act, |reference, reply| Message::Change {
        reference,
        change,
        by,
        reply,
    })
    .await
}

pub async fn hold(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    set_held(asks, &reference, true).await
}

pub async fn release(
    api: Api,
    Extension(sight): Extension<Visibility>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, ApiError> {
    let asks = CallContext {
        api: &api,
        visibility: sight,
        caller: &caller,
    };
    set_held(asks, &reference, false).await
}

async fn set_held(
    asks: CallContext<'_>,
    reference: &str,
    hold: bool,
) -> Result<Response, ApiError> {
    let by = Box::new(asks.caller.clone());
    let act = match hold {
        true => Act::Hold,
        false => Act::Release,
    };
    act_on_jobs(asks, reference, act, |reference, reply| Message::Hold {
        reference,
        hold,
        by,
        reply,
    })
    .await
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
