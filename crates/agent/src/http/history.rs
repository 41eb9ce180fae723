//! The history of one subject.
//!
//! Every caller sees the figures of GPUs, queues, projects and jobs over time, as lists show them now. Those of a user are
//! the user's own, and operators', as in the usage report.

use axum::Extension;
use divvy_api::v1::history::STEPS;
use divvy_api::v1::{self, Error, ErrorCode};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::body::{ApiError, Query};
use super::usage::time;
use super::{Answer, Api, internal, list};
use crate::auth::{Caller, Role};
use crate::controller::reference::JobRef;
use crate::history::Window;
use crate::host::clock::now;
use crate::model::validate::usage;

/// Answers that are read from the disk at the same time.
static READS: Semaphore = Semaphore::const_new(2);

const SUBJECTS: &str =
    "use node, gpu:0, job:7, slice:7/gpu0.5a, queue:default, user:ana or project:vision";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryQuery {
    #[serde(default)]
    of: Option<String>,
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    step: Option<String>,
}

pub async fn history(
    api: Api,
    Extension(caller): Extension<Caller>,
    Query(which): Query<HistoryQuery>,
) -> Answer<v1::History> {
    let of = which.of.as_deref().unwrap_or("node");
    let since = time("since", which.since.as_deref())?;
    let step = which.step.as_deref().map(step).transpose()?;
    let until = now();
    if let Some(since) = since.filter(|since| *since > until) {
        return Err(usage(format!("since={since} is in the future"))
            .hint("give a `since` that has passed")
            .into());
    }
    let subject = subject(&api, &caller, of).await?;
    let history = api.history.clone();
    let since = since.map(Timestamp::as_second);
    // An index is a number for people, and may be another GPU's after a boot.
    let asked = match subject.strip_prefix("gpu:") {
        Some(index) => gpu(&api, index).await?.1,
        None => subject.clone(),
    };
    let read = move || history.read(&asked, since, step, until.as_second());
    let Window {
        step,
        from,
        figures,
    } = api.budget.run_in_turn(&READS, read).await?;
    let figures = figures.into_iter().map(|(name, values)| v1::HistoryFigure {
        name: name.to_owned(),
        values,
    });
    let answer = v1::History {
        of: subject,
        step_s: step,
        from: Timestamp::from_second(from).map_err(|error| internal(&error))?,
        figures: figures.collect(),
    };
    list("History", vec![answer])
}

fn step(text: &str) -> Result<u32, Error> {
    let step = text.parse().ok();
    let known = step.filter(|step| STEPS.iter().any(|(known, _)| known == step));
    known.ok_or_else(|| {
        usage(format!("step={text} is no step of the history")).hint("use 1, 10 or 60")
    })
}

/// The subject of a GPU that this index or UUID names, for people and as the history knows it.
async fn gpu(api: &Api, name: &str) -> Result<(String, String), ApiError> {
    let wanted = name.to_owned();
    let read = (api.mailbox).query(move |queries| Ok(queries.gpu_identity(&wanted)));
    let missing =
        || Error::new(ErrorCode::NotFound, format!("there is no GPU {name}")).hint("divvy gpus");
    let (index, uuid) = read.await?.ok_or_else(missing)?;
    Ok((format!("gpu:{index}"), format!("gpu:{uuid}")))
}

/// The subject in the form that people know.
async fn subject(api: &Api, caller: &Caller, of: &str) -> Result<String, ApiError> {
    let (kind, name) = of.split_once(':').unwrap_or((of, ""));
    match (kind, name) {
        ("node", "") if !of.contains(':') => {}
        ("gpu", _) => return Ok(gpu(api, name).await?.0),
        ("job" | "slice", _) => {
            let (job, slice) = match kind {
                "slice" => name.split_once('/').ok_or_else(|| not_a_subject(of))?,
                _ => (name, ""),
            };
            let (reference, uid) = (job.to_owned(), caller.account.uid);
            let read = api
                .mailbox
                .query(move |queries| queries.resolve_for_caller(&reference, uid));
            let id = match read.await? {
                (JobRef::Job { id, .. }, _) => id,
                (JobRef::Array(array), _) => {
                    let why = format!("{array} is an array, and the history is of its jobs");
                    return Err(usage(why).hint(format!("use job:{array}_0")).into());
                }
            };
            return Ok(match kind {
                "slice" => format!("slice:{id}/{slice}"),
                _ => format!("job:{id}"),
            });
        }
        ("user", _) if !name.is_empty() => {
            if caller.role < Role::Operator && caller.account.name != name {
                let (own, role) = (&caller.account.name, caller.role.name());
                let why = format!(
                    "the history of user {name}: the role operator is required, but {own} has the role {role}"
                );
                let hint = format!("your own: user:{own}");
                return Err(Error::new(ErrorCode::NotAllowed, why).hint(hint).into());
            }
        }
        ("queue" | "project", _) if !name.is_empty() => {}
        _ => return Err(not_a_subject(of).into()),
    }
    Ok(of.to_owned())
}

fn not_a_subject(of: &str) -> Error {
    usage(format!("of={of} is no subject of the history")).hint(SUBJECTS)
}
