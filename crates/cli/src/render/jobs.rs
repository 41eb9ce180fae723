//! Output of `ps`, and the line that `submit` prints.

use std::borrow::Cow;

use divvy_api::v1::{Brief, Bypass, Folded, Job, JobState, Slice};
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

/// One row a job, and one for the queued jobs of an array: what an action would change.
pub fn folded_jobs(jobs: &[Job], view: View) -> String {
    let rows = Rows::in_view(Format::Table, view, Span::Present);
    let mut rows = rows.folding(usize::MAX);
    jobs.iter().for_each(|job| rows.add(&Brief::from(job)));
    rows.drawn()
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
    /// Queued jobs of an array are one row.
    folds: bool,
    /// The queued jobs of the array that was listed last.
    fold: Option<Fold>,
    /// Rows of queued jobs that are drawn at most, and the queued jobs beyond them.
    most_queued: usize,
    queued: usize,
    left_out: usize,
}

/// Queued jobs of one array that follow each other.
struct Fold {
    array: String,
    first: Brief<'static>,
    indices: Vec<u32>,
}

impl Fold {
    /// Whether a job of this array belongs to this row, which shows the reason of the first: those behind it wait for that
    /// one too.
    fn takes(&self, array: &str, job: &Brief<'_>) -> bool {
        let first = &self.first;
        self.array == array && first.queue == job.queue && first.request == job.request
    }
}

/// The array's number and the index of a queued job of an array.
fn array_task<'a>(job: &'a Brief<'_>) -> Option<(&'a str, u32)> {
    let task = job
        .task
        .as_deref()
        .filter(|_| job.state == JobState::Queued)?;
    let (array, index) = task.split_once('_')?;
    Some((array, index.parse().ok()?))
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
            folds: false,
            fold: None,
            most_queued: usize::MAX,
            queued: 0,
            left_out: 0,
        }
    }

    /// Queued jobs of an array that follow each other become one row, and at most so many rows of queued jobs are drawn.
    #[must_use]
    pub fn folding(mut self, most_queued: usize) -> Self {
        self.folds = self.format == Format::Table;
        self.most_queued = most_queued;
        self
    }

    /// Adds a job of which only the columns of the plain table are known.
    pub fn add(&mut self, job: &Brief<'_>) {
        let Some((array, index)) = array_task(job).filter(|_| self.folds) else {
            self.unfold();
            return self.put_bounded(job, 1);
        };
        if let Some(fold) = self.fold.as_mut().filter(|fold| fold.takes(array, job)) {
            fold.indices.push(index);
            return;
        }
        self.unfold();
        self.fold = Some(Fold {
            array: array.to_owned(),
            first: job.clone().into_owned(),
            indices: vec![index],
        });
    }

    /// Draws the row of the jobs that are folded.
    fn unfold(&mut self) {
        let Some(fold) = self.fold.take() else {
            return;
        };
        let count = fold.indices.len();
        if count == 1 {
            return self.put_bounded(&fold.first, 1);
        }
        let mut job = fold.first;
        let folded = Folded::of(fold.indices, job.max_running);
        let name = Folded::name(&job.name).to_owned();
        job.name = Cow::Owned(name);
        job.task = Some(Cow::Owned(folded.reference(job.reference())));
        self.put_bounded(&job, count);
    }

    /// Adds a row that stands for so many jobs, unless it is one of too many that wait.
    fn put_bounded(&mut self, job: &Brief<'_>, count: usize) {
        if job.state == JobState::Queued {
            self.queued += 1;
            if self.queued > self.most_queued {
                self.left_out += count;
                return;
            }
        }
        match count {
            1 => self.put(job, None),
            count => {
                let state = format!("{count} {}", text::state_of(job));
                row(
                    &mut self.cells,
                    job,
                    Some(&state),
                    None,
                    self.view,
                    self.span,
                );
                self.cells.end_row();
            }
        }
    }

    /// How many queued jobs no row stands for.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    pub fn add_whole(&mut self, job: &Job) {
        self.put(&Brief::from(job), Some(job));
    }

    fn put(&mut self, job: &Brief<'_>, whole: Option<&Job>) {
        match self.format {
            Format::Name => self.cells.add(&text::cleaned(job.reference())),
            _ => {
                let whole = whole.filter(|_| self.view.wide);
                row(&mut self.cells, job, None, whole, self.view, self.span);
            }
        }
        self.cells.end_row();
    }

    pub fn drawn(&mut self) -> String {
        self.unfold();
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

/// Adds the cells of a job. `state`: the words in place of its own. `whole`: it, where the wide table is drawn.
fn row(
    cells: &mut Cells,
    job: &Brief<'_>,
    state: Option<&str>,
    whole: Option<&Job>,
    view: View,
    span: Span,
) {
    cells.add(&text::cleaned(job.reference()));
    cells.add(&text::cleaned(&job.name));
    cells.add(&text::cleaned(&job.user));
    cells.add(&text::cleaned(&job.queue));
    cells.add(&text::cleaned(&job.request));
    let own = || text::state_of(job);
    cells.add_in(
        text::state_tone(job),
        &state.map_or_else(own, Cow::Borrowed),
    );
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

/// `gpu0,1`.
pub fn labels(slices: &[Slice]) -> String {
    text::labels(slices.iter().map(|slice| slice.label.as_str()))
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
        let label = labels(std::slice::from_ref(slice));
        match slice.memory_target_bytes {
            None => format!("#{id} {name} has {held} on {label}\n"),
            Some(target) => format!(
                "#{id} {name}: new limit {} on {label}; it keeps {held} until it uses no more than the new limit ({} now)\n",
                text::memory(target),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View {
            wide: false,
            width: None,
            now: "2026-03-04T12:00:00Z".parse().unwrap(),
            zone: || jiff::tz::TimeZone::UTC,
            palette: Default::default(),
        }
    }

    /// The table of these jobs: number, task, state and reason of each.
    fn table(jobs: &[(u32, &str, &str, &str)], most_queued: usize) -> (String, usize) {
        let mut rows = Rows::new(Format::Table, view(), Span::Present).folding(most_queued);
        for (id, task, state, reason) in jobs {
            let index = task.split_once('_').map(|(_, index)| format!("[{index}]"));
            let name = format!("sw{}", index.unwrap_or_default());
            let line = serde_json::json!({
                "id": id.to_string(), "task": (!task.is_empty()).then_some(task), "name": name, "user": "ana",
                "queue": "default", "request": "0.25", "state": state, "since": "2026-03-04T11:59:00Z",
                "reason": reason,
            });
            let line = line.to_string();
            rows.add(&serde_json::from_str(&line).unwrap());
        }
        (rows.drawn(), rows.left_out())
    }

    #[test]
    fn queued_jobs_of_an_array_are_one_row() {
        let most = "its array runs at most 2 jobs at once";
        let mut jobs = vec![(1, "1_0", "running", ""), (2, "1_1", "running", "")];
        let tasks: Vec<String> = (2..40)
            .filter(|index| *index != 9)
            .map(|index| format!("1_{index}"))
            .collect();
        jobs.extend(
            (3..)
                .zip(&tasks)
                .map(|(id, task)| (id, task.as_str(), "queued", most)),
        );
        jobs.extend([
            (50, "", "queued", "no room"),
            (51, "51_3", "queued", "no room"),
        ]);
        jobs.extend([(52, "52_1", "queued", "a"), (53, "52_2", "queued", "b")]);
        jobs.extend([(54, "52_3", "running", ""), (55, "52_4", "queued", "c")]);
        let (text, left_out) = table(&jobs, usize::MAX);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!((rows.len(), left_out), (9, 0), "{text}");
        for (row, words) in [
            (1, &["1_0", "running"][..]),
            (3, &["1_[2-8,10-39]", "sw ", "37 queued", "1m00s", most]),
            (4, &["50", "queued", "no room"]),
            (5, &["51_3", "sw[3]", "queued"]),
            (6, &["52_[1-2]", "2 queued", "a"]),
            (7, &["52_3", "running"]),
            (8, &["52_4", "queued", "c"]),
        ] {
            assert!(words.iter().all(|word| rows[row].contains(word)), "{text}");
        }
        let holes: Vec<String> = (0..9).map(|index| format!("7_{}", 2 * index)).collect();
        let jobs: Vec<_> = (1..)
            .zip(&holes)
            .map(|(id, task)| (id, task.as_str(), "queued", ""))
            .collect();
        assert!(table(&jobs, 1).0.contains("7_[0,2,4,…]"));
    }

    #[test]
    fn what_an_action_would_change_is_one_row_for_an_array() {
        let task = |index: u32| {
            serde_json::from_value(serde_json::json!({
                "id": (12 + index).to_string(), "name": format!("sw[{index}]"), "user": "ana", "project": null,
                "queue": "q", "state": "queued", "end_reason": null, "exit_code": null, "compute": "fair", "slices": [],
                "request": {"kind": "share", "thousandths": 250}, "reason": null, "place": null, "command": ["x"],
                "cwd": "/", "runner": "supervisor", "pid": null, "submitted_at": "2026-03-04T11:59:00Z",
                "started_at": null, "ended_at": null, "directory": "/d", "slice_directory": null,
                "array": {"array": "12", "index": index, "count": 40, "max_running": 2},
            }))
        };
        let jobs: Vec<Job> = (0..40).map(|index| task(index).unwrap()).collect();
        let text = folded_jobs(&jobs, view());
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            text.contains("12_[0-39%2]") && text.contains("40 queued"),
            "{text}"
        );
    }

    #[test]
    fn a_terminal_lists_few_queued_jobs_and_says_how_many_are_left_out() {
        let tasks: Vec<String> = (0..5).map(|index| format!("3_{index}")).collect();
        let mut jobs = vec![(1, "", "running", ""), (2, "", "queued", "")];
        jobs.extend(
            (3..)
                .zip(&tasks)
                .map(|(id, task)| (id, task.as_str(), "queued", "")),
        );
        jobs.extend([(20, "", "queued", ""), (21, "", "running", "")]);
        let (text, left_out) = table(&jobs, 1);
        assert_eq!((text.lines().count(), left_out), (4, 6), "{text}");
        assert_eq!(table(&jobs, 9).1, 0);
    }
}
