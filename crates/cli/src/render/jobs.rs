//! `ps`, and the line `submit` answers with.

use divvy_api::v1::{Bypass, Job, JobState, Slice};
use jiff::Timestamp;

use super::View;
use crate::args::Format;
use crate::table::{self, Column};
use crate::text;

/// One row a job.
pub fn jobs(jobs: &[Job], view: View) -> String {
    drawn(jobs.iter().map(|job| row(job, view)).collect(), view)
}

/// The same of jobs that come one by one, or their names: ten thousand jobs take much more room than their rows.
pub struct Rows {
    format: Format,
    view: View,
    rows: Vec<Vec<String>>,
}

impl Rows {
    pub fn new(format: Format, view: View) -> Self {
        Self {
            format,
            view: format.of(view),
            rows: Vec::new(),
        }
    }

    pub fn add(&mut self, job: &Job) {
        self.rows.push(match self.format {
            Format::Name => vec![job.id.clone()],
            _ => row(job, self.view),
        });
    }

    pub fn drawn(self) -> String {
        match self.format {
            Format::Name => self.rows.iter().map(|row| row.concat() + "\n").collect(),
            _ => drawn(self.rows, self.view),
        }
    }
}

fn drawn(rows: Vec<Vec<String>>, view: View) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut columns = vec![
        Column::Right("ID"),
        Column::Text("NAME"),
        Column::Text("QUEUE"),
        Column::Fixed("ASK"),
    ];
    columns.extend([
        Column::Fixed("STATE"),
        Column::Right("FOR"),
        Column::Right("USED/LIMIT"),
    ]);
    if view.wide {
        columns.extend([
            Column::Fixed("SLICE"),
            Column::Fixed("COMPUTE"),
            Column::Fixed("USER"),
            Column::Text("PROJECT"),
        ]);
        columns.extend([Column::Right("PID"), Column::Text("COMMAND")]);
    }
    columns.push(Column::Text("REASON"));
    table::render(&columns, &rows, view.width)
}

fn row(job: &Job, view: View) -> Vec<String> {
    let mut cells = vec![
        job.id.clone(),
        text::clean(&job.name),
        text::clean(&job.queue),
        text::amount(&job.request),
    ];
    cells.extend([
        text::state(job),
        text::elapsed(in_state_since(job), view.now),
        memory(job),
    ]);
    if view.wide {
        cells.extend([
            labels(&job.slices),
            job.compute.clone(),
            text::clean(&job.user),
        ]);
        cells.push(text::clean(job.project.as_deref().unwrap_or_default()));
        cells.push(job.pid.map(|pid| pid.to_string()).unwrap_or_default());
        cells.push(text::command_line(&job.command));
    }
    cells.push(reason(job));
    cells
}

/// When the job came into the state it is in: the last time known of it.
pub(super) fn in_state_since(job: &Job) -> Timestamp {
    match job.state {
        JobState::Queued | JobState::Starting => job.submitted_at,
        JobState::Running | JobState::Stopping => job.started_at.unwrap_or(job.submitted_at),
        JobState::Ended => job.ended_at.or(job.started_at).unwrap_or(job.submitted_at),
    }
}

/// `gpu0,gpu1`.
pub(super) fn labels(slices: &[Slice]) -> String {
    slices
        .iter()
        .map(|slice| slice.label.as_str())
        .collect::<Vec<_>>()
        .join(",")
}

/// Used and limit, over all GPUs, while it holds them.
fn memory(job: &Job) -> String {
    let slices = &job.slices;
    if job.state == JobState::Ended || slices.is_empty() {
        return String::new();
    }
    let sum = |of: fn(&Slice) -> u64| slices.iter().map(of).fold(0u64, u64::saturating_add);
    text::memories(&[
        sum(|slice| slice.memory_used_bytes),
        sum(|slice| slice.memory_limit_bytes),
    ])
}

/// `shrinks to 4.0 GiB`: what it is to hold once it uses no more.
fn shrinking(slices: &[Slice]) -> Option<String> {
    let targets: Vec<u64> = slices
        .iter()
        .filter_map(|slice| slice.memory_target_bytes)
        .collect();
    match targets[..] {
        [] => None,
        _ => Some(format!(
            "shrinks to {} once it uses no more",
            text::memory(
                targets
                    .iter()
                    .fold(0, |sum, target| sum.saturating_add(*target))
            )
        )),
    }
}

/// Where it runs, why it waits or failed, what its limit refused.
fn reason(job: &Job) -> String {
    let holds = job.state != JobState::Ended && !job.slices.is_empty();
    let place = holds.then(|| format!("on {}", labels(&job.slices)));
    let parts = [
        place,
        shrinking(&job.slices),
        job.reason.as_deref().map(text::clean),
        bypass(&job.bypasses),
        refusals(&job.slices),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// `bypass: the limiter is not loaded in pid 4711`: of the last that goes on, how.
fn bypass(bypasses: &[Bypass]) -> Option<String> {
    let lasting = bypasses.iter().rfind(|bypass| bypass.over_at.is_none())?;
    Some(format!(
        "bypass by pid {}: {}",
        lasting.pid,
        text::clean(&lasting.cause)
    ))
}

/// `its limit refused 512.0 MiB (3 refusals)`.
pub(super) fn refusals(slices: &[Slice]) -> Option<String> {
    let denied = slices
        .iter()
        .map(|slice| slice.denied)
        .fold(0u64, u64::saturating_add);
    let last = slices
        .iter()
        .filter(|slice| slice.denied > 0)
        .find_map(|slice| slice.last_denied_bytes);
    let what = last.map_or_else(|| "an allocation".to_owned(), text::memory);
    match denied {
        0 => None,
        1 => Some(format!("its limit refused {what}")),
        _ => Some(format!("its limit refused {what} ({denied} refusals)")),
    }
}

/// What a job has or asks for after a resize, in one line for each of its GPUs.
pub fn resized(job: &Job) -> String {
    let (id, name) = (&job.id, text::clean(&job.name));
    if job.state == JobState::Queued {
        let what = text::amount_in_words(&job.request);
        return format!("#{id} {name} asks for {what}; it keeps its place in the queue\n");
    }
    let one = |slice: &Slice| {
        let held = text::memory(slice.memory_limit_bytes);
        match slice.memory_target_bytes {
            None => format!("#{id} {name} has {held} on {}\n", slice.label),
            Some(target) => format!(
                "#{id} {name} gets no more than {} on {}, and holds {held} until it uses no more than that ({} now)\n",
                text::memory(target),
                slice.label,
                text::memory(slice.memory_used_bytes)
            ),
        }
    };
    job.slices.iter().map(one).collect()
}

/// How the job's compute time is divided now that this was changed.
pub fn redivided(job: &Job) -> String {
    let (id, name) = (&job.id, text::clean(&job.name));
    match job.compute.as_str() {
        "none" => {
            format!("#{id} {name} takes no turns: the driver's time-slicing orders its work\n")
        }
        compute => format!("#{id} {name} takes turns of compute time: {compute}\n"),
    }
}

/// When a waiting job starts, as far as that is known: `in 1h30m at the latest, if nobody else comes`.
pub fn start(job: &Job, now: Timestamp) -> Option<String> {
    let wait = |at: Timestamp| text::elapsed(now, at);
    let sooner = |at: &Timestamp| job.latest_start.is_none_or(|latest| *at < latest);
    let words = match (job.expected_start.filter(sooner), job.latest_start) {
        (Some(at), Some(latest)) => {
            format!("in about {}, in {} at the latest", wait(at), wait(latest))
        }
        (None, Some(latest)) => format!("in {} at the latest", wait(latest)),
        (Some(at), None) => format!("in about {}", wait(at)),
        (None, None) => return None,
    };
    Some(format!("{words}, if nobody else comes"))
}

/// What became of a submitted job, in one line; `dry_run` says what would.
pub fn submitted(job: &Job, dry_run: bool, now: Timestamp) -> String {
    let what = text::amount_in_words(&job.request);
    let (queue, name) = (text::clean(&job.queue), text::clean(&job.name));
    let fate = match (&job.reason, job.state) {
        (Some(reason), JobState::Queued) => format!("waits: {}", text::clean(reason)),
        (None, JobState::Queued) => "waits".to_owned(),
        (_, JobState::Starting | JobState::Running) => format!("starts on {}", labels(&job.slices)),
        (_, JobState::Stopping | JobState::Ended) => text::state(job),
    };
    // Only one who is asked alone is told when it starts.
    let start = start(job, now).map(|start| format!(" (starts {start})"));
    let fate = format!("{fate}{}", start.unwrap_or_default());
    if dry_run {
        format!(
            "{name} asks for {what} in queue {queue}; submitted now, it {}\n",
            fate.replacen("waits", "would wait", 1)
                .replacen("starts", "would start", 1)
        )
    } else {
        format!(
            "#{} {name} asks for {what} in queue {queue}; it {fate}\n",
            job.id
        )
    }
}
