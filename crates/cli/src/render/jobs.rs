//! Output of `ps`, and the line that `submit` prints.

use std::borrow::Cow;

use divvy_api::v1::{Brief, Bypass, Job, JobState, Slice};
use jiff::Timestamp;

use super::View;
use crate::args::Format;
use crate::colour::Tone;
use crate::table::{Cells, Column, Spare};
use crate::text;

/// One row a job.
pub fn jobs(jobs: &[Job], view: View) -> String {
    rows(jobs, view, Span::Present)
}

/// One row a job, with the times and the peak memory of those that have ended.
pub fn past_jobs(jobs: &[Job], view: View) -> String {
    rows(jobs, view, Span::Past)
}

fn rows(jobs: &[Job], view: View, span: Span) -> String {
    let mut rows = Rows::in_view(Format::Table, view, span);
    jobs.iter().for_each(|job| rows.add_whole(job));
    rows.drawn()
}

/// The jobs that a table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Jobs that wait or run: how long they are in their state, and the memory that they use.
    Present,
    /// Ended jobs, too: when they started and ended, how long they ran, and their peak memory.
    Past,
}

/// The same of jobs that come one by one, or their names: ten thousand jobs take much more room than their rows.
pub struct Rows {
    format: Format,
    view: View,
    span: Span,
    cells: Cells,
}

impl Rows {
    pub fn new(format: Format, view: View, span: Span) -> Self {
        Self::in_view(format, format.of(view), span)
    }

    fn in_view(format: Format, view: View, span: Span) -> Self {
        Self {
            format,
            view,
            span,
            cells: Cells::coloured(match format {
                Format::Name => Default::default(),
                _ => view.palette,
            }),
        }
    }

    /// Adds a job of which only the columns of the plain table are known.
    pub fn add(&mut self, job: &Brief<'_>) {
        self.put(job, None);
    }

    pub fn add_whole(&mut self, job: &Job) {
        self.put(&Brief::from(job), Some(job));
    }

    fn put(&mut self, job: &Brief<'_>, whole: Option<&Job>) {
        match self.format {
            Format::Name => self.cells.add(&text::cleaned(job.reference())),
            _ => {
                let whole = whole.filter(|_| self.view.wide);
                row(&mut self.cells, job, whole, self.view, self.span);
            }
        }
        self.cells.end_row();
    }

    pub fn drawn(&self) -> String {
        if self.cells.is_empty() {
            return String::new();
        }
        match self.format {
            Format::Name => self.cells.lines(),
            _ => {
                let columns = columns(self.view.wide, self.span);
                self.cells.render(&columns, self.view.fit())
            }
        }
    }
}

/// The columns of `divvy ps`.
pub(crate) fn columns(wide: bool, span: Span) -> Vec<Column> {
    let mut columns = vec![
        Column::Right("ID"),
        Column::Text("NAME"),
        Column::Spare("USER", Spare::Same),
        Column::Spare("QUEUE", Spare::If("default")),
        Column::Spare("REQ", Spare::Late),
        Column::Fixed("STATE"),
    ];
    match span {
        Span::Present => columns.extend([Column::Right("FOR"), Column::Right("USED/LIMIT")]),
        Span::Past => columns.extend([
            Column::Spare("STARTED", Spare::Late),
            Column::Spare("ENDED", Spare::Late),
            Column::Right("ELAPSED"),
            Column::Right("PEAK/LIMIT"),
        ]),
    }
    if wide {
        columns.extend([
            Column::Fixed("SLICE"),
            Column::Fixed("COMPUTE"),
            Column::Text("PROJECT"),
            Column::Right("PID"),
            Column::Text("COMMAND"),
        ]);
    }
    columns.push(Column::Text("REASON"));
    columns
}

/// Adds the cells of a job. `whole`: it, where the wide table is drawn.
fn row(cells: &mut Cells, job: &Brief<'_>, whole: Option<&Job>, view: View, span: Span) {
    cells.add(&text::cleaned(job.reference()));
    cells.add(&text::cleaned(&job.name));
    cells.add(&text::cleaned(&job.user));
    cells.add(&text::cleaned(&job.queue));
    cells.add(&text::cleaned(&job.request));
    cells.add_in(text::state_tone(job), &text::state_of(job));
    match span {
        Span::Present => {
            cells.add(&text::elapsed(job.since, view.now));
            cells.add(&memory(job));
        }
        Span::Past => {
            let moment = |at: Option<Timestamp>| {
                at.map(|at| text::moment(at, view.now, (view.zone)()))
                    .unwrap_or_default()
            };
            let ran = job.started_at.map(|started| {
                let until = job.ended_at.unwrap_or(view.now);
                text::elapsed(started, until)
            });
            cells.add(&moment(job.started_at));
            cells.add(&moment(job.ended_at));
            cells.add(&ran.unwrap_or_default());
            cells.add(&peak(job));
        }
    }
    if let Some(job) = whole {
        cells.add(&labels(&job.slices));
        cells.add(&job.compute);
        cells.add(&text::cleaned(job.project.as_deref().unwrap_or_default()));
        cells.add(&job.pid.map(|pid| pid.to_string()).unwrap_or_default());
        cells.add(&text::command_line(&job.command));
    }
    let is_refused = job.slices.iter().any(|slice| slice.denials > 0);
    let tone = (is_refused || bypass(&job.bypasses).is_some()).then_some(Tone::Bad);
    cells.add_in(tone, &reason(job));
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
fn memory(job: &Brief<'_>) -> String {
    if job.state == JobState::Ended {
        return String::new();
    }
    of_limit(&job.slices, |slice| slice.memory_used_bytes)
}

/// The most that it used, and its limit, over all GPUs.
fn peak(job: &Brief<'_>) -> String {
    of_limit(&job.slices, |slice| slice.memory_peak_bytes)
}

fn of_limit(slices: &[Slice], figure: fn(&Slice) -> u64) -> String {
    if slices.is_empty() {
        return String::new();
    }
    let sum = |of: fn(&Slice) -> u64| slices.iter().map(of).fold(0u64, u64::saturating_add);
    text::memories(&[sum(figure), sum(|slice| slice.memory_limit_bytes)])
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
            "shrinks to {} when it uses no more than that",
            text::memory(
                targets
                    .iter()
                    .fold(0, |sum, target| sum.saturating_add(*target))
            )
        )),
    }
}

/// GPUs of a running job, reason of a pending or failed one, and refused memory.
fn reason<'a>(job: &'a Brief<'_>) -> Cow<'a, str> {
    let said = job.reason.as_deref().map(text::cleaned);
    if job.slices.is_empty() && job.bypasses.is_empty() {
        return said.unwrap_or_default();
    }
    let holds = job.state != JobState::Ended && !job.slices.is_empty();
    let place = holds.then(|| format!("on {}", labels(&job.slices)));
    let parts = [
        place,
        shrinking(&job.slices),
        said.map(Cow::into_owned),
        bypass(&job.bypasses),
        refusals(&job.slices),
    ];
    parts
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("; ")
        .into()
}

/// `bypass: the limiter is not loaded in pid 4711`: of the last that goes on, how.
fn bypass(bypasses: &[Bypass]) -> Option<String> {
    let lasting = bypasses.iter().rfind(|bypass| bypass.ended_at.is_none())?;
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
        .map(|slice| slice.denials)
        .fold(0u64, u64::saturating_add);
    let last = slices
        .iter()
        .filter(|slice| slice.denials > 0)
        .find_map(|slice| slice.last_denied_bytes);
    let what = last.map_or_else(|| "an allocation".to_owned(), text::memory);
    match denied {
        0 => None,
        1 => Some(format!("its limit refused {what}")),
        _ => Some(format!("its limit refused {what} ({denied} refusals)")),
    }
}

/// Amount of a job after a resize, with one line for each of its GPUs.
pub fn resized(job: &Job) -> String {
    let (id, name) = (&job.id, text::clean(&job.name));
    if job.state == JobState::Queued {
        let what = text::amount_in_words(&job.request);
        return format!("#{id} {name} requests {what}; it keeps its place in the queue\n");
    }
    let one = |slice: &Slice| {
        let held = text::memory(slice.memory_limit_bytes);
        match slice.memory_target_bytes {
            None => format!("#{id} {name} has {held} on {}\n", slice.label),
            Some(target) => format!(
                "#{id} {name}: new limit {} on {}; it keeps {held} until it uses no more than the new limit ({} now)\n",
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
            format!("#{id} {name}: compute time by the driver's time-slicing\n")
        }
        compute => format!("#{id} {name}: compute time {compute}\n"),
    }
}

/// When a waiting job starts, as far as that is known: `in 1h30m at the latest, if no other job comes`.
pub fn start(job: &Job, now: Timestamp) -> Option<String> {
    starts(job.expected_start, job.latest_start, now)
}

/// The same of one of which only that is known.
pub(super) fn starts(
    expected: Option<Timestamp>,
    latest: Option<Timestamp>,
    now: Timestamp,
) -> Option<String> {
    let wait = |at: Timestamp| text::elapsed(now, at);
    let sooner = |at: &Timestamp| latest.is_none_or(|latest| *at < latest);
    let words = match (expected.filter(sooner), latest) {
        (Some(at), Some(latest)) => {
            format!("in about {}, in {} at the latest", wait(at), wait(latest))
        }
        (None, Some(latest)) => format!("in {} at the latest", wait(latest)),
        (Some(at), None) => format!("in about {}", wait(at)),
        (None, None) => return None,
    };
    Some(format!("{words}, if no other job is submitted"))
}

/// Result of a submission in one line; with `dry_run` the expected result.
pub fn submitted(job: &Job, dry_run: bool, now: Timestamp) -> String {
    let what = text::amount_in_words(&job.request);
    let (queue, name) = (text::clean(&job.queue), text::clean(&job.name));
    let fate = fate(job, now);
    if dry_run {
        format!(
            "{name} requests {what} in queue {queue}; if submitted now, it {}\n",
            would(&fate)
        )
    } else {
        format!(
            "#{} {name} requests {what} in queue {queue}; it {fate}\n",
            job.id
        )
    }
}

/// Expected result of a submission.
pub(super) fn would(fate: &str) -> String {
    fate.replacen("waits", "would wait", 1)
        .replacen("starts", "would start", 1)
}

/// Result of a submission.
pub(super) fn fate(job: &Job, now: Timestamp) -> String {
    let fate = match (&job.reason, job.state) {
        (Some(reason), JobState::Queued) => format!("waits: {}", text::clean(reason)),
        (None, JobState::Queued) => "waits".to_owned(),
        (_, JobState::Starting | JobState::Running) => format!("starts on {}", labels(&job.slices)),
        (_, JobState::Stopping | JobState::Ended) => text::state(job),
    };
    // Only a request for a single job contains its start.
    let start = start(job, now).map(|start| format!(" (starts {start})"));
    format!("{fate}{}", start.unwrap_or_default())
}
