//! Calls about a job while it waits: changes, holds, and what `why` says of them.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use divvy_api::v1;

use super::arrays::Asks;
use super::body::{Body, Failure, Path};
use super::veil::Sight;
use super::{Api, acts};
use crate::access::Caller;
use crate::mailbox::{ArrayAct, Message};

pub async fn change(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Body(change): Body<v1::JobChange>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    let (change, by) = (Box::new(change), Box::new(caller.clone()));
    let act = ArrayAct::Change(change.clone());
    acts(asks, &reference, act, |reference, reply| Message::Change {
        reference,
        change,
        by,
        reply,
    })
    .await
}

pub async fn hold(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    set_held(asks, &reference, true).await
}

pub async fn release(
    State(api): State<Api>,
    Extension(sight): Extension<Sight>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, Failure> {
    let asks = Asks {
        api: &api,
        sight,
        caller: &caller,
    };
    set_held(asks, &reference, false).await
}

async fn set_held(asks: Asks<'_>, reference: &str, hold: bool) -> Result<Response, Failure> {
    let by = Box::new(asks.caller.clone());
    let act = match hold {
        true => ArrayAct::Hold,
        false => ArrayAct::Release,
    };
    acts(asks, reference, act, |reference, reply| Message::Hold {
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
