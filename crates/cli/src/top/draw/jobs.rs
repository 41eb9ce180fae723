//! The lists of running and of pending jobs.

use divvy_api::v1::{BoardWaitingJob, Folded, JobState};
use divvy_core::units;
use jiff::Timestamp;
use ratatui::layout::Rect;

use super::canvas::Canvas;
use super::columns::{self, Cells, Column, figure, name, rest};
use super::gpus::gib;
use crate::text;
use crate::top::layout;
use crate::top::look::{Glyphs, Tone};
use crate::top::rows::{JobRow, labels, share_used, sum};
use crate::top::state::{Pane, State};

const JOBS: [Column; 12] = [
    figure("ID", 0).right(),
    name("USER", 6, 12, 0),
    name("NAME", 7, 24, 50),
    name("QUEUE", 7, 14, 96),
    name("PROJECT", 7, 14, 110),
    name("ON", 15, 24, 0),
    figure("USED/LIMIT", 0).right(),
    figure("PEAK", 70).right(),
    figure("GPU%/OF", 62).right(),
    name("COMPUTE", 7, 12, 120),
    figure("FOR", 54).right(),
    rest("NOTE"),
];

const WAITING: [Column; 8] = [
    figure("ID", 0).right(),
    name("USER", 6, 12, 0),
    name("NAME", 7, 20, 50),
    name("QUEUE", 7, 14, 96),
    figure("REQUEST", 0),
    figure("FOR", 70).right(),
    rest("REASON"),
    figure("START", 62).right(),
];

fn title_line(state: &State, canvas: &mut Canvas<'_>, area: Rect, title: &str, pane: Pane) -> u16 {
    let mark = if state.pane == pane && !state.options.is_once {
        "*"
    } else {
        ""
    };
    canvas.text(
        area.x,
        area.y,
        area.width,
        &format!("{title}{mark}"),
        Tone::Title,
    )
}

/// What is in force besides: sort, filter, tree.
fn settings(state: &State) -> String {
    let filter = match (state.typed_filter.is_empty(), state.is_mine) {
        (true, false) => String::new(),
        (true, true) => "mine".to_owned(),
        (false, true) => format!("mine {}", text::cleaned(&state.typed_filter)),
        (false, false) => text::clean(&state.typed_filter),
    };
    let filter = if filter.is_empty() {
        filter
    } else {
        format!("  filter: {filter}")
    };
    let reversed = if state.sort.is_reversed {
        ", reversed"
    } else {
        ""
    };
    let tree = if state.is_tree { "by GPU, " } else { "" };
    format!(
        "GiB  sort: {tree}{}{reversed}{filter}",
        state.sort.by.name()
    )
}

pub fn draw_jobs(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    if area.height == 0 {
        return;
    }
    let rows = state.job_rows();
    let all = state.board.as_ref().map_or(0, |board| board.jobs.len());
    let title = if rows.len() == all || state.is_tree {
        format!("JOBS {all}")
    } else {
        format!("JOBS {} of {all}", rows.len())
    };
    let used = title_line(state, canvas, area, &title, Pane::Jobs);
    let x = area.x + used + 2;
    let left = area.right().saturating_sub(x);
    canvas.text(x, area.y, left, &settings(state), Tone::Faint);
    let picked = state.job_row(&rows);
    let window = layout::window(picked, rows.len(), layout::rows_of(area, Pane::Jobs));
    let is_focus = state.pane == Pane::Jobs && !state.options.is_once;
    let glyphs = canvas.glyphs();
    let cells: Vec<Cells> = window
        .clone()
        .map(|at| job_cells(state, glyphs, &rows[at]))
        .collect();
    let mut columns = JOBS;
    if state.is_tree {
        // Branches begin at the left.
        columns[0] = figure("ID", 0);
    }
    columns::draw(canvas, below(area, 1), &columns, true, &cells);
    if is_focus && window.contains(&picked) {
        select(canvas, below(area, 2), picked - window.start);
    }
    if rows.is_empty() && area.height > 2 && state.board.is_some() {
        let text = if all == 0 {
            "no job runs"
        } else {
            "no running job matches the filter"
        };
        canvas.text(
            area.x + 1,
            area.y + 2,
            area.width.saturating_sub(1),
            text,
            Tone::Faint,
        );
    }
}

fn job_cells(state: &State, glyphs: &Glyphs, row: &JobRow<'_>) -> Cells {
    let job = row.job;
    let plain = |text: String| (text, Tone::Plain);
    let id = match row.slice {
        None => job.reference().to_owned(),
        Some(slice) => {
            let branch = if row.is_last {
                glyphs.last_branch
            } else {
                glyphs.branch
            };
            format!("{}{branch}{}", slice.gpu, job.reference())
        }
    };
    let on = match (row.slice, &job.slices[..]) {
        (Some(slice), _) => text::labels([&*slice.label]),
        (None, []) => glyphs.none.to_owned(),
        (None, _) => labels(job),
    };
    let (used, limit, peak) = match row.slice {
        Some(slice) => (slice.used_bytes, slice.limit_bytes, slice.peak()),
        None => (
            sum(job, |slice| slice.used_bytes),
            sum(job, |slice| slice.limit_bytes),
            sum(job, |slice| slice.peak()),
        ),
    };
    let (share, share_used) = match row.slice {
        Some(slice) => (u64::from(slice.share), slice.share_used.map(u64::from)),
        None => (sum(job, |slice| u64::from(slice.share)), share_used(job)),
    };
    // Percent of one GPU.
    let percent = |thousandths: u64| (thousandths + 5) / 10;
    let compute =
        share_used.map_or_else(|| glyphs.none.to_owned(), |used| percent(used).to_string());
    let or = |name: &Option<String>, none: &str| text::clean(name.as_deref().unwrap_or(none));
    let mode = job.compute.as_deref().unwrap_or("fair").replace('=', " ");
    vec![
        plain(id),
        plain(text::clean(&job.user)),
        plain(text::clean(&job.name)),
        plain(or(&job.queue, "default")),
        plain(or(&job.project, glyphs.none)),
        plain(on),
        plain(gib(&[used, limit])),
        plain(gib(&[peak])),
        plain(format!("{compute}/{}", percent(share))),
        plain(text::clean(&mode)),
        plain(text::elapsed(job.since, state.now)),
        note(state, glyphs, row),
    ]
}

/// The most important of what there is to say about a job.
fn note(state: &State, glyphs: &Glyphs, row: &JobRow<'_>) -> (String, Tone) {
    let job = row.job;
    let mut notes = Vec::new();
    let mut tone = Tone::Plain;
    if job.bypass {
        notes.push("! bypass".to_owned());
        tone = Tone::Alert;
    }
    if job.denials > 0 {
        notes.push(format!("! refused {}{}", job.denials, glyphs.times));
        tone = Tone::Alert;
    }
    match job.state {
        _ if job.suspended => notes.push("suspended".to_owned()),
        None if job.parked => notes.push("parked".to_owned()),
        Some(JobState::Starting) => notes.push("starting".to_owned()),
        Some(JobState::Stopping) => notes.push("stopping".to_owned()),
        _ => {}
    }
    let mismatch = job
        .slices
        .iter()
        .filter_map(|slice| slice.mismatch_bytes)
        .max_by_key(|bytes| bytes.abs());
    if let Some(bytes) = mismatch {
        notes.push(format!("mismatch {} GiB", gib(&[bytes.unsigned_abs()])));
    }
    if let Some(ends) = job.ends_by {
        notes.push(format!("until {}", clock(state, ends)));
    }
    (notes.join(", "), tone)
}

/// A time of day; with the date unless it is today's.
pub fn clock(state: &State, at: Timestamp) -> String {
    let zone = (state.options.zone)();
    let (at, now) = (at.to_zoned(zone.clone()), state.now.to_zoned(zone));
    let format = if at.date() == now.date() {
        "%H:%M"
    } else {
        "%m-%d %H:%M"
    };
    at.strftime(format).to_string()
}

pub fn draw_waiting(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    if area.height == 0 {
        return;
    }
    let count = state.waiting_count();
    let all = state.board.as_ref().map_or(0, |board| board.waiting.count);
    let title = if state.filter().is_empty() {
        format!("PENDING {all}")
    } else {
        format!("PENDING {} of {all}", state.waiting_jobs())
    };
    let used = title_line(state, canvas, area, &title, Pane::Waiting);
    let reasons = state.board.iter().flat_map(|board| &board.waiting.reasons);
    let reasons =
        reasons.map(|(code, count)| format!("{count} {}", text::cleaned(code).replace('_', " ")));
    let reasons = reasons.collect::<Vec<_>>().join(", ");
    let x = area.x + used + 2;
    canvas.text(
        x,
        area.y,
        area.right().saturating_sub(x),
        &reasons,
        Tone::Faint,
    );
    let window = layout::window(
        state.waiting_row,
        count,
        layout::rows_of(area, Pane::Waiting),
    );
    let glyphs = canvas.glyphs();
    let jobs = window.clone().map(|at| state.waiting_at(at));
    let cells: Vec<Cells> = if state.options.is_once {
        jobs.flatten()
            .map(|job| waiting_cells(state, glyphs, job))
            .collect()
    } else {
        // A job of a page that is on its way has no cells yet.
        let cells =
            |job: Option<_>| job.map_or_else(Vec::new, |job| waiting_cells(state, glyphs, job));
        jobs.map(cells).collect()
    };
    columns::draw(canvas, below(area, 1), &WAITING, false, &cells);
    let is_focus = state.pane == Pane::Waiting && !state.options.is_once;
    if is_focus && window.contains(&state.waiting_row) {
        select(canvas, below(area, 1), state.waiting_row - window.start);
    }
}

/// An area without its first lines.
pub fn below(area: Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    Rect {
        y: area.y + lines,
        height: area.height - lines,
        ..area
    }
}

/// Marks a row of an area.
pub fn select(canvas: &mut Canvas<'_>, area: Rect, row: usize) {
    let y = area
        .y
        .saturating_add(u16::try_from(row).unwrap_or(u16::MAX));
    if y < area.bottom() {
        canvas.select(Rect {
            y,
            height: 1,
            ..area
        });
    }
}

fn waiting_cells(state: &State, glyphs: &Glyphs, job: &BoardWaitingJob) -> Cells {
    let plain = |text: String| (text, Tone::Plain);
    let queue = job.queue.as_deref().unwrap_or("default");
    let reason = job.reason.as_deref().map(text::clean);
    let reason = reason.or_else(|| job.reason_code.map(|code| code.name().replace('_', " ")));
    let (reference, name) = match &job.folded {
        Some(folded) => (folded.reference(job.reference()), Folded::name(&job.name)),
        None => (job.reference().to_owned(), job.name.as_str()),
    };
    vec![
        plain(text::clean(&reference)),
        plain(text::clean(&job.user)),
        plain(text::clean(name)),
        plain(text::clean(queue)),
        plain(text::clean(&job.request)),
        plain(text::elapsed(job.since, state.now)),
        plain(reason.unwrap_or_else(|| glyphs.none.to_owned())),
        plain(start(state, glyphs, job)),
    ]
}

/// `~12m  (by 13:10)`: the expected start, and the latest one.
fn start(state: &State, glyphs: &Glyphs, job: &BoardWaitingJob) -> String {
    let expected = job
        .expected_start
        .map(|at| format!("~{}", short(state.now, at)));
    let latest = job
        .latest_start
        .map(|at| format!("(by {})", clock(state, at)));
    let parts: Vec<String> = expected.into_iter().chain(latest).collect();
    if parts.is_empty() {
        glyphs.none.to_owned()
    } else {
        parts.join(" ")
    }
}

/// A time to come in its largest unit.
fn short(now: Timestamp, at: Timestamp) -> String {
    match at.duration_since(now).as_secs().max(0) {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A share in GPUs, as the lists of users and projects have it.
pub fn gpus(thousandths: u64) -> String {
    units::gpus(thousandths).to_string()
}
