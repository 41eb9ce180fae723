//! The page of a job: its memory curve against its limit, its figures, and one text at a time below.

use divvy_api::v1::{BoardJob, History, JobState};
use ratatui::layout::Rect;

use super::canvas::{Canvas, width_of};
use super::gpus::gib;
use super::lists;
use crate::render::{self, View};
use crate::text;
use crate::top::call::Topic;
use crate::top::look::Tone;
use crate::top::rows::{labels, share_used, sum};
use crate::top::state::{Log, Page, Section, State};

/// Columns left of the curve, for its scale. Room for `100.0%` or `80 GiB`, and a space. So the longest label fits.
const SCALE: u16 = 7;

pub fn draw(state: &State, page: &Page, canvas: &mut Canvas<'_>, area: Rect) {
    let mut y = area.y;
    for (line, tone) in heading(state, page) {
        if y < area.bottom() {
            canvas.text(area.x, y, area.width, &line, tone);
        }
        y += 1;
    }
    let left = area.bottom().saturating_sub(y);
    let height = if page.curve.is_some() || state.job(&page.job).is_some() {
        (left / 3).clamp(3, 12)
    } else {
        0
    };
    let height = height.min(left);
    if height >= 3 {
        curve(state, page, canvas, Rect { y, height, ..area });
        y += height;
    }
    tabs(
        state,
        page,
        canvas,
        Rect {
            y,
            height: 1,
            ..area
        },
    );
    let body = Rect {
        y: (y + 1).min(area.bottom()),
        height: area.bottom().saturating_sub(y + 1),
        ..area
    };
    section(state, page, canvas, body);
}

/// The job in three lines: what it is, its memory, its compute time.
fn heading(state: &State, page: &Page) -> Vec<(String, Tone)> {
    let glyphs = state.options.look.glyphs;
    let running = state.job(&page.job);
    let facts = page.facts.as_deref();
    let name = running
        .map(|job| &job.name)
        .or_else(|| facts.map(|job| &job.name));
    let user = running
        .map(|job| &job.user)
        .or_else(|| facts.map(|job| &job.user));
    let mut title = format!("#{}", page.job);
    title.extend(name.map(|name| format!(" {}", text::cleaned(name))));
    title.extend(user.map(|user| format!("  {}", text::cleaned(user))));
    if let Some(job) = facts {
        title += &format!("  queue {}", text::cleaned(&job.queue));
        title.extend(
            job.project
                .as_deref()
                .map(|project| format!("  project {}", text::cleaned(project))),
        );
        let for_ = text::elapsed(job.since(), state.now);
        title += &match job.state {
            JobState::Ended => format!("  {} {for_} ago", text::state(job)),
            _ => format!("  {} for {for_}", text::state(job)),
        };
    }
    let mut lines = vec![(title, Tone::Title)];
    if let Some(job) = running {
        lines.push((memory_line(job, &labels(job)), Tone::Plain));
        lines.push(compute_line(job, facts.map(processes), glyphs.none));
    } else if let Some(reason) = facts.and_then(|job| job.reason.as_deref()) {
        lines.push((text::clean(reason), Tone::Plain));
    } else if let Some(why) = page.refused.get(&Topic::Job) {
        lines.push((format!("! {why}"), Tone::Alert));
    }
    lines
}

fn memory_line(job: &BoardJob, labels: &str) -> String {
    let used = [
        sum(job, |slice| slice.used_bytes),
        sum(job, |slice| slice.limit_bytes),
    ];
    let peak = sum(job, |slice| slice.peak());
    format!(
        "memory {} GiB, peak {} GiB, on {labels}",
        gib(&used),
        gib(&[peak])
    )
}

fn processes(job: &divvy_api::v1::Job) -> u32 {
    job.slices
        .iter()
        .map(|slice| slice.processes)
        .fold(0, u32::saturating_add)
}

fn compute_line(job: &BoardJob, processes: Option<u32>, none: &str) -> (String, Tone) {
    let percent = |thousandths: u64| format!("{}%", (thousandths + 5) / 10);
    let held = percent(sum(job, |slice| u64::from(slice.share)));
    let used = share_used(job).map_or_else(|| none.to_owned(), percent);
    let mode = job.compute.as_deref().unwrap_or("fair");
    let mut line = format!("GPU time {used} of {held} ({}), ", text::cleaned(mode));
    line += &match job.denials {
        0 => "no memory refused".to_owned(),
        1 => "! memory refused once".to_owned(),
        times => format!("! memory refused {times} times"),
    };
    line.extend(processes.map(|count| match count {
        1 => ", 1 process on the GPU".to_owned(),
        _ => format!(", {count} processes on the GPU"),
    }));
    if let Some(time) = job.latency.filter(|time| time.requests > 0) {
        let [wait, work] = [time.wait_p99_us, time.work_p99_us].map(|us| us.div_ceil(1000));
        line += &format!(", 99 % of requests: gate {wait} ms, work {work} ms");
    }
    if job.bypass {
        line += ", ! bypass of the limiter";
    }
    let tone = if job.bypass || job.denials > 0 {
        Tone::Alert
    } else {
        Tone::Plain
    };
    (line, tone)
}

/// A column of the curve: the largest value of its time.
fn columns(values: &[Option<f64>], count: usize) -> Vec<Option<f64>> {
    let length = values.len().max(1);
    let mut columns = vec![None; count];
    for (at, value) in values.iter().enumerate() {
        let column: &mut Option<f64> =
            &mut columns[(at * count / length).min(count.saturating_sub(1))];
        *column = match (*column, *value) {
            (Some(one), Some(other)) => Some(f64::max(one, other)),
            (one, other) => one.or(other),
        };
    }
    columns
}

/// The values of a figure on the whole span, the newest last.
fn on_span(curve: &History, name: &str, state: &State, seconds: i64) -> Vec<Option<f64>> {
    let step = i64::from(curve.step_s.max(1));
    let count = usize::try_from(seconds / step).unwrap_or(0);
    let first = state.board_at.as_second() - seconds;
    let mut values = vec![None; count];
    let figure = curve.figures.iter().find(|figure| figure.name == name);
    for (at, value) in (0..).zip(figure.map_or(&[][..], |figure| &figure.values)) {
        let second = curve.from.as_second() + at * step;
        if let Some(place) = usize::try_from((second - first) / step)
            .ok()
            .and_then(|at| values.get_mut(at))
        {
            *place = *value;
        }
    }
    values
}

#[expect(clippy::cast_precision_loss, reason = "for drawing only")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a level between 0 and the lines of a screen"
)]
fn level(value: f64, highest: f64, levels: usize) -> usize {
    let levels = f64::from(u32::try_from(levels).unwrap_or(u32::MAX));
    (value / highest.max(1.0) * levels)
        .round()
        .clamp(0.0, levels) as usize
}

fn curve(state: &State, page: &Page, canvas: &mut Canvas<'_>, area: Rect) {
    let title = format!("memory, last {}", page.span.name());
    canvas.text(area.x, area.y, area.width, &title, Tone::Title);
    let Some(curve) = &page.curve else {
        let why = page
            .refused
            .get(&Topic::Curve)
            .map_or_else(|| "no history yet".to_owned(), |why| format!("! {why}"));
        let x = area.x + width_of(&title) + 2;
        canvas.text(x, area.y, area.right().saturating_sub(x), &why, Tone::Faint);
        return;
    };
    let plot = Rect {
        x: area.x + SCALE,
        y: area.y + 1,
        width: area.width.saturating_sub(SCALE),
        height: area.height - 1,
    };
    let width = usize::from(plot.width);
    let seconds = page.span.seconds();
    let used = columns(&on_span(curve, "memory_used_bytes", state, seconds), width);
    let mut limits = columns(&on_span(curve, "memory_limit_bytes", state, seconds), width);
    if let (Some(job), Some(last)) = (state.job(&page.job), limits.last_mut()) {
        *last = Some(float(sum(job, |slice| slice.limit_bytes)));
    }
    let most = used
        .iter()
        .chain(&limits)
        .flatten()
        .copied()
        .fold(0.0, f64::max);
    let glyphs = canvas.glyphs();
    let rows = usize::from(plot.height);
    for (x, (used, limit)) in (plot.x..).zip(used.iter().zip(&limits)) {
        if let Some(limit) = limit {
            let row = level(*limit, most, rows).clamp(1, rows) - 1;
            let y = plot.bottom() - 1 - u16::try_from(row).unwrap_or(0);
            canvas.text(x, y, 1, glyphs.line, Tone::Alert);
        }
        let Some(used) = used else { continue };
        let full = glyphs.levels.len();
        let mut left = level(*used, most, rows * full).max(usize::from(*used > 0.0));
        for y in (plot.y..plot.bottom()).rev() {
            match left.min(full) {
                0 => break,
                eighths => canvas.text(x, y, 1, glyphs.levels[eighths - 1], Tone::Used),
            };
            left -= left.min(full);
        }
    }
    let scale = |bytes: f64| format!("{:.1}", bytes / f64::from(1 << 30));
    let limit = limits.iter().flatten().last().copied();
    if let Some(limit) = limit {
        let legend = format!("{} limit {} GiB", glyphs.line, scale(limit));
        canvas.right(Rect { height: 1, ..area }, &legend, Tone::Plain);
    }
    canvas.right(
        Rect::new(area.x, plot.y, SCALE - 1, 1),
        &scale(most),
        Tone::Faint,
    );
    canvas.right(
        Rect::new(area.x, plot.bottom() - 1, SCALE - 1, 1),
        "0.0",
        Tone::Faint,
    );
}

fn tabs(state: &State, page: &Page, canvas: &mut Canvas<'_>, line: Rect) {
    if line.y >= state.size.1 {
        return;
    }
    let mut pen = canvas.pen(line.x, line.y, line.width);
    for section in Section::ALL {
        if section == page.section {
            pen.write(&format!("[{}] ", section.name()), Tone::Title)
        } else {
            pen.write(&format!(" {}  ", section.name()), Tone::Faint)
        };
    }
}

/// Draws the text of the section, from the line that the user scrolled to.
fn section(state: &State, page: &Page, canvas: &mut Canvas<'_>, area: Rect) {
    if area.height == 0 || area.width == 0 {
        return;
    }
    let lines = section_lines(state, page, usize::from(area.width));
    let height = usize::from(area.height);
    let last_top = lines.len().saturating_sub(height);
    let top = match page.section {
        Section::Log => last_top - page.scroll.min(last_top),
        _ => page.scroll.min(last_top),
    };
    for (line, y) in lines.iter().skip(top).take(height).zip(area.y..) {
        canvas.text(area.x, y, area.width, line, Tone::Plain);
    }
}

/// The lines of a section, broken to a width.
fn section_lines(state: &State, page: &Page, width: usize) -> Vec<String> {
    let view = View {
        palette: Default::default(),
        wide: false,
        width: None,
        now: state.now,
        zone: state.options.zone,
    };
    let refused = |topic: Topic| {
        let why = page.refused.get(&topic);
        vec![why.map_or_else(
            || "waiting for the daemon".to_owned(),
            |why| format!("! {why}"),
        )]
    };
    let wrapped = |text: &str| {
        text.lines()
            .flat_map(|line| wrap(line, width))
            .collect::<Vec<_>>()
    };
    match page.section {
        Section::Log => match &page.log {
            Some(log) => output(state, page, log, width),
            None => refused(Topic::Log),
        },
        Section::Why => match &page.why {
            Some(why) => wrapped(&render::why(why, view)),
            None => refused(Topic::Why),
        },
        Section::Oom => match &page.oom {
            Some(oom) => wrapped(&render::oom(oom, view)),
            None => refused(Topic::Oom),
        },
        Section::Events => match &page.events {
            Some(events) => events
                .iter()
                .flat_map(|event| wrap(&lists::event_line(state, event), width))
                .collect(),
            None => refused(Topic::JobEvents),
        },
        Section::Facts => match &page.facts {
            Some(facts) => wrapped(&render::describe(facts, view)),
            None => refused(Topic::Job),
        },
    }
}

/// The end of a job's output as lines. A carriage return begins its line again, as on a terminal.
fn output(state: &State, page: &Page, log: &Log, width: usize) -> Vec<String> {
    let bytes: Vec<u8> = log.bytes.iter().copied().collect();
    let text = String::from_utf8_lossy(&bytes);
    let is_cut = log.end > bytes.len() as u64;
    // The first line may lack its beginning.
    let whole = match text.split_once('\n').filter(|_| is_cut) {
        Some((_, rest)) => rest,
        None => &text,
    };
    if whole.is_empty() {
        let written = page
            .facts
            .as_ref()
            .and_then(|job| job.output.as_ref()?.stdout.clone());
        return vec![match written {
            Some(file) => format!("its output goes to {}", text::cleaned(&file)),
            None if state.job(&page.job).is_none() && page.facts.is_none() => String::new(),
            None => "no output yet".to_owned(),
        }];
    }
    let shown = |line: &str| {
        let line = line.trim_end_matches('\r');
        let last = line.rsplit('\r').next().unwrap_or(line);
        text::clean(&last.replace('\t', "    "))
    };
    whole
        .lines()
        .flat_map(|line| wrap(&shown(line), width))
        .collect()
}

/// Columns that a line may leave empty so that it ends between words.
const RAGGED: usize = 24;

/// A line in pieces of at most `width` columns, broken between words where that costs little; the pieces after the
/// first keep its indent.
fn wrap(line: &str, width: usize) -> Vec<String> {
    use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};
    let indent = line.len() - line.trim_start_matches(' ').len();
    let indent = if indent + RAGGED <= width { indent } else { 0 };
    let mut pieces = Vec::new();
    let (mut piece, mut used) = (String::new(), 0);
    for c in line.chars() {
        let columns = c.width().unwrap_or(0);
        if used + columns > width && used > 0 {
            let blank = piece.rfind(' ').filter(|at| *at > indent);
            let word = blank.map_or("", |at| &piece[at + 1..]);
            // A blank that does not fit ends the line itself.
            let word = if c == ' ' || word.width() > RAGGED {
                ""
            } else {
                word
            }
            .to_owned();
            piece.truncate(piece.len() - word.len());
            piece.truncate(piece.trim_end().len());
            pieces.push(std::mem::take(&mut piece));
            piece = " ".repeat(indent) + &word;
            used = piece.width();
            if c == ' ' {
                continue;
            }
        }
        used += columns;
        piece.push(c);
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_by_columns_and_keeps_its_indent() {
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("訓練訓", 4), ["訓練", "訓"]);
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("one two three", 6), ["one", "two", "three"]);
        let long = "a".repeat(30);
        assert_eq!(
            wrap(&format!("b {long}"), 27),
            [format!("b {}", &long[..25]), long[..5].to_owned()]
        );
        let indented = format!("  {long} b");
        assert_eq!(wrap(&indented, 32), [format!("  {long}"), "  b".to_owned()]);
    }

    #[test]
    fn a_column_of_a_curve_is_its_largest_value() {
        let values = [Some(1.0), Some(5.0), None, Some(2.0)];
        assert_eq!(columns(&values, 2), [Some(5.0), Some(2.0)]);
        assert_eq!(columns(&values, 4), values);
        assert_eq!(columns(&[], 2), [None, None]);
    }
}
