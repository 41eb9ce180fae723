//! ClearML's tasks: the answer of `tasks.get_all` (or `tasks.get_all_ex`), its `data`, or the list of tasks alone.
//!
//! A task of Divvy names its fraction in `runtime._divvy_gpu_fraction`. Other tasks may name their GPUs in a
//! hyperparameter, or in the arguments of their container. The rest gets what `--queue NAME=AMOUNT` says, or one GPU.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use divvy_core::{Amount, Share};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::Value;

use super::table::shown;
use super::{InputError, Job, Jobs, bound, invalid_json};

const HINT: &str = "use the JSON that tasks.get_all answers";

/// Names of hyperparameters that mean a number of GPUs, in any section.
const PARAMETERS: [&str; 4] = ["gpus", "num_gpus", "n_gpus", "num-gpus"];

/// Reads tasks.
///
/// # Errors
/// [`InputError`].
pub fn read(text: &[u8]) -> Result<Jobs, InputError> {
    let invalid = |error: serde_json::Error| invalid_json(&error, HINT);
    let tasks: Vec<Task> = match text.trim_ascii_start().first() {
        Some(b'[') => serde_json::from_slice(text).map_err(invalid)?,
        _ => {
            let document: Document = serde_json::from_slice(text).map_err(invalid)?;
            let inner = document.data.and_then(|data| data.tasks);
            document.tasks.or(inner).ok_or_else(|| InputError {
                place: "line 1".to_owned(),
                what: "the document has no member `tasks`".to_owned(),
                hint: HINT.to_owned(),
            })?
        }
    };
    let mut jobs = Jobs::default();
    for (nth, task) in (1..).zip(tasks) {
        let place = format!("task {nth} ({})", shown(task.id.as_bytes()));
        bound(jobs.jobs.len(), &place)?;
        // Tasks that were never queued, such as those of a notebook, never asked for a GPU.
        if task.queue().is_none() {
            continue;
        }
        let mut job = task.job(&place)?;
        if job.amount.is_none() {
            job.amount = Some(Amount::ONE_GPU);
            job.is_assumed = true;
            jobs.assumed_whole += 1;
        }
        jobs.jobs.push(job);
    }
    Ok(jobs)
}

#[derive(Deserialize)]
struct Document {
    tasks: Option<Vec<Task>>,
    data: Option<Inner>,
}

#[derive(Deserialize)]
struct Inner {
    tasks: Option<Vec<Task>>,
}

/// The fields of a task that a simulation needs; a server sends those that were asked for.
#[derive(Deserialize)]
struct Task {
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
    created: Option<String>,
    started: Option<String>,
    completed: Option<String>,
    execution: Option<Execution>,
    #[serde(default)]
    runtime: BTreeMap<String, Value>,
    #[serde(default)]
    hyperparams: BTreeMap<String, BTreeMap<String, Value>>,
    container: Option<BTreeMap<String, Value>>,
    user: Option<Named>,
    project: Option<Named>,
}

#[derive(Deserialize)]
struct Execution {
    queue: Option<Named>,
}

/// An id, or an object with id and name where the call joined them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Named {
    Id(String),
    Both {
        id: Option<String>,
        name: Option<String>,
    },
}

impl Named {
    fn text(&self) -> Option<String> {
        let text = match self {
            Self::Id(id) => Some(id),
            Self::Both { id, name } => name.as_ref().or(id.as_ref()),
        };
        text.filter(|text| !text.is_empty()).cloned()
    }
}

impl Task {
    fn queue(&self) -> Option<String> {
        self.execution.as_ref()?.queue.as_ref()?.text()
    }

    fn job(self, place: &str) -> Result<Job, InputError> {
        let time = |field: &str, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) if text.is_empty() => Ok(None),
            Some(text) => instant(text).map(Some).ok_or_else(|| InputError {
                place: format!("{place}, field {field}"),
                what: format!("`{}`: not a time", shown(text.as_bytes())),
                hint: "use the server's own format, 2026-03-04T12:00:00.000000+00:00".to_owned(),
            }),
        };
        let submitted = time("created", &self.created)?;
        let started = time("started", &self.started)?;
        let ended = time("completed", &self.completed)?;
        for (field, later, earlier, what) in [
            ("started", started, submitted, "created"),
            ("completed", ended, started, "started"),
        ] {
            if let (Some(later), Some(earlier)) = (later, earlier)
                && later < earlier
            {
                return Err(InputError {
                    place: format!("{place}, field {field}"),
                    what: format!("{} s before {what}", (earlier - later) as f64 / 1000.0),
                    hint: "check the times of the task".to_owned(),
                });
            }
        }
        Ok(Job {
            amount: self.amount(place)?,
            queue: self.queue(),
            name: if self.name.is_empty() {
                self.id.clone()
            } else {
                self.name.clone()
            },
            project: self.project.as_ref().and_then(Named::text),
            user: self.user.as_ref().and_then(Named::text),
            submitted,
            started,
            ended: started.and(ended),
            ..Job::default()
        })
    }

    /// What the task's record says about GPUs.
    fn amount(&self, place: &str) -> Result<Option<Amount>, InputError> {
        let wrong = |field: &str, value: &str| InputError {
            place: format!("{place}, field {field}"),
            what: format!("`{}`: not a number of GPUs", shown(value.as_bytes())),
            hint: "write 0.25, or a whole number of GPUs".to_owned(),
        };
        if let Some(Value::String(parts)) = self.runtime.get("_divvy_gpu_fraction") {
            return fractions(parts)
                .map(Some)
                .ok_or_else(|| wrong("runtime._divvy_gpu_fraction", parts));
        }
        for (section, values) in &self.hyperparams {
            let named = values
                .iter()
                .find(|(name, _)| PARAMETERS.contains(&name.as_str()));
            let Some((name, value)) = named else { continue };
            // The server wraps each value: {"section": .., "name": .., "value": "2"}.
            let text = match value.get("value").unwrap_or(value) {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let amount = Amount::from_gpu_flag(text.trim());
            let field = format!("hyperparams.{section}.{name}");
            return amount
                .map(|amount| Some(amount.plain()))
                .map_err(|_| wrong(&field, &text));
        }
        let arguments = self
            .container
            .as_ref()
            .and_then(|container| container.get("arguments"));
        Ok(arguments.and_then(Value::as_str).and_then(docker_gpus))
    }
}

/// `0.25`, or one share for each GPU: `0.5,0.5`.
fn fractions(text: &str) -> Option<Amount> {
    let mut shares = text
        .split(',')
        .map(|part| part.trim().parse::<Share>().ok());
    let first = shares.next()??;
    let mut count = NonZeroU32::MIN;
    for share in shares {
        count = (share? == first).then(|| count.checked_add(1))??;
    }
    Some(
        Amount::Shares {
            count,
            share: first,
        }
        .plain(),
    )
}

/// `--gpus 2`, `--gpus=2`; `all` and lists of devices name no number.
fn docker_gpus(arguments: &str) -> Option<Amount> {
    let mut words = arguments.split_whitespace();
    let value = loop {
        let word = words.next()?;
        match word.strip_prefix("--gpus") {
            Some("") => break words.next()?,
            Some(value) if value.starts_with('=') => break &value[1..],
            _ => {}
        }
    };
    let count = value
        .trim_matches('"')
        .parse()
        .ok()
        .and_then(NonZeroU32::new)?;
    Some(Amount::Whole(count))
}

/// The server's times have an offset; times of its exports may have none, and are then UTC.
fn instant(text: &str) -> Option<i64> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_millisecond());
    }
    let time = text.parse::<DateTime>().ok()?;
    Some(TimeZone::UTC.to_timestamp(time).ok()?.as_millisecond())
}
