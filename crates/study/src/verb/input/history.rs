//! This program's own jobs: `divvy ps -a -o ndjson`, or `-o json`.

use divvy_api::v1;
use divvy_core::{Amount, Bytes};
use jiff::Timestamp;
use serde::Deserialize;

use super::table::shown;
use super::{InputError, Job, Jobs, bound, invalid_json, without_place};

const HINT: &str = "use the output of `divvy ps -a -o ndjson`";

/// Reads jobs, one on each line or as one list.
///
/// # Errors
/// [`InputError`].
pub fn read(text: &[u8]) -> Result<Jobs, InputError> {
    let mut jobs = Jobs::default();
    if is_list(text) {
        let list: List =
            serde_json::from_slice(text).map_err(|error| invalid_json(&error, HINT))?;
        for (nth, record) in (1..).zip(list.items) {
            let place = format!("item {nth}");
            bound(jobs.jobs.len(), &place)?;
            jobs.jobs.push(job(record, &place)?);
        }
        return Ok(jobs);
    }
    let lines = (1_u64..).zip(text.split(|byte| *byte == b'\n'));
    for (line, text) in lines {
        let text = text.trim_ascii();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        bound(jobs.jobs.len(), &format!("line {line}"))?;
        let record: Record = serde_json::from_slice(text).map_err(|error| InputError {
            place: format!("line {line}, column {}", error.column()),
            what: format!("invalid job `{}`: {}", shown(text), without_place(&error)),
            hint: HINT.to_owned(),
        })?;
        jobs.jobs.push(Job {
            line,
            ..job(record, &format!("line {line}"))?
        });
    }
    Ok(jobs)
}

/// Whether the text is one document with all jobs.
fn is_list(text: &[u8]) -> bool {
    let line = text.trim_ascii_start().split(|byte| *byte == b'\n').next();
    let has = |line: &[u8], word: &[u8]| line.windows(word.len()).any(|at| at == word);
    line.is_some_and(|line| line.starts_with(b"{") && !has(line, b"\"submitted_at\""))
        && has(text, b"\"items\"")
}

#[derive(Deserialize)]
struct List {
    items: Vec<Record>,
}

/// The fields of [`v1::Job`] that a simulation needs. Lists of other versions may lack the optional ones.
#[derive(Deserialize)]
struct Record {
    id: String,
    #[serde(default)]
    name: String,
    request: v1::Amount,
    #[serde(default)]
    memory_exact: bool,
    queue: Option<String>,
    project: Option<String>,
    user: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    preemptible: bool,
    submitted_at: Timestamp,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    time_limit_s: Option<u64>,
    #[serde(default)]
    slices: Vec<Slice>,
}

#[derive(Deserialize)]
struct Slice {
    gpu_index: u32,
    #[serde(default)]
    memory_peak_bytes: u64,
}

fn job(record: Record, place: &str) -> Result<Job, InputError> {
    let error = |field: &str, what: String, hint: &str| InputError {
        place: format!("{place}, job {}, field {field}", record.id),
        what,
        hint: hint.to_owned(),
    };
    let amount = Amount::try_from(record.request.clone())
        .map_err(|why| error("request", why.message, HINT))?;
    let follows = |field, later: Option<Timestamp>, earlier: Option<Timestamp>, what| match (
        later, earlier,
    ) {
        (Some(later), Some(earlier)) if later < earlier => Err(error(
            field,
            format!("`{later}`: before {what}, at {earlier}"),
            "check the times of the job",
        )),
        _ => Ok(()),
    };
    follows(
        "started_at",
        record.started_at,
        Some(record.submitted_at),
        "its submission",
    )?;
    follows("ended_at", record.ended_at, record.started_at, "its start")?;
    let peak = record
        .slices
        .iter()
        .map(|slice| slice.memory_peak_bytes)
        .max();
    let has_ended = record.ended_at.is_some();
    Ok(Job {
        name: if record.name.is_empty() {
            record.id.clone()
        } else {
            record.name.clone()
        },
        amount: Some(amount),
        exact: record.memory_exact,
        queue: record.queue,
        project: record.project,
        user: record.user,
        priority: record.priority,
        preemptible: record.preemptible,
        submitted: Some(record.submitted_at.as_millisecond()),
        started: record.started_at.map(Timestamp::as_millisecond),
        ended: record.ended_at.map(Timestamp::as_millisecond),
        limit_ms: record.time_limit_s.map(|limit| limit.saturating_mul(1000)),
        used: peak.filter(|peak| *peak > 0).map(Bytes::new),
        holds: if has_ended {
            Vec::new()
        } else {
            record.slices.iter().map(|slice| slice.gpu_index).collect()
        },
        ..Job::default()
    })
}
