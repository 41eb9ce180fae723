//! The drawing of the live view: the same state on the same size gives the same cells.

mod bar;
mod canvas;
mod columns;
mod gpus;
mod jobs;
mod lists;
mod page;
#[cfg(test)]
mod tests;

use divvy_core::units;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use self::canvas::{Canvas, width_of};
pub use self::gpus::has_names;
use super::call::Action;
use super::keys;
use super::layout::{self, SMALLEST};
use super::look::Tone;
use super::state::{Mode, State};
use crate::text;

/// Draws the whole screen.
pub fn draw(state: &State, buffer: &mut Buffer) {
    let area = buffer.area;
    let mut canvas = Canvas::new(buffer, state.options.look);
    let Some(layout) = layout::layout(state) else {
        let (width, height) = state.size;
        let (least_width, least_height) = SMALLEST;
        let text = format!("{width}x{height}: need {least_width}x{least_height}");
        canvas.text(area.x, area.y, area.width, &text, Tone::Plain);
        return;
    };
    header(state, &mut canvas, layout.header);
    if let Some(area) = layout.gpus {
        gpus::draw(state, &mut canvas, area, layout.lines_per_gpu);
    }
    if let Some(area) = layout.jobs {
        jobs::draw_jobs(state, &mut canvas, area);
    }
    if let Some(area) = layout.waiting {
        jobs::draw_waiting(state, &mut canvas, area);
    }
    if let Some(area) = layout.events {
        lists::events(state, &mut canvas, area);
    }
    if let Some(area) = layout.shares {
        lists::shares(state, &mut canvas, area);
    }
    if let (Some(area), Some(page)) = (layout.page, &state.page) {
        page::draw(state, page, &mut canvas, area);
    }
    if let Some(area) = layout.footer {
        footer(state, &mut canvas, area);
    }
    if state.is_stale() {
        // The header says how old the figures are.
        let body = Rect {
            y: area.y + 1,
            height: area.height.saturating_sub(2),
            ..area
        };
        canvas.add(body, Modifier::DIM);
    }
    if state.mode == Mode::Help {
        help(state, &mut canvas, area);
    }
}

/// `divvy top  lab1   8 GPUs  13 jobs run, 4 wait  6.5 allocated      12:04:31  1 s  ?`
fn header(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    let clock = state.now.to_zoned((state.options.zone)());
    let clock = clock.strftime("%H:%M:%S");
    let millis = state.options.interval.as_millis();
    let seconds = match millis % 1000 {
        0 => format!("{}", millis / 1000),
        _ => format!("{}.{}", millis / 1000, millis % 1000 / 100),
    };
    let frozen = if state.is_frozen { "frozen  " } else { "" };
    let right = if state.options.is_once {
        clock.to_string()
    } else {
        format!("{frozen}{clock}  {seconds} s  ?")
    };
    let left_width = area.width.saturating_sub(width_of(&right) + 1);
    let mut pen = canvas.pen(area.x, area.y, left_width);
    pen.write("divvy top", Tone::Title);
    if let Some(board) = &state.board {
        pen.write(
            &format!("  {}", text::cleaned(&board.hostname)),
            Tone::Plain,
        );
    }
    if let Some(trouble) = trouble(state) {
        pen.write(&format!("  ! {trouble}"), Tone::Alert);
    } else if let Some(board) = &state.board {
        let allocated: u64 = board.gpus.iter().map(|gpu| u64::from(gpu.share)).sum();
        let (gpus, running) = (board.gpus.len(), board.jobs.len());
        let waiting = board.waiting.count;
        let plural = if gpus == 1 { "" } else { "s" };
        let allocated = units::gpus(allocated);
        let run = if running == 1 { "job runs" } else { "jobs run" };
        let text = format!(
            "   {gpus} GPU{plural}  {running} {run}, {waiting} wait  {allocated} allocated"
        );
        pen.write(&text, Tone::Plain);
        if let Some(simulated) = &state.simulated {
            let host = text::cleaned(&board.hostname);
            let known = ["divvy top  ", &*host, &*text].map(width_of).iter().sum();
            let room = left_width.saturating_sub(known);
            let words = [
                format!("  simulated: {}", text::cleaned(simulated)),
                "  simulated".to_owned(),
                "  sim".to_owned(),
            ];
            // Half a word would say nothing.
            let fitting = words.iter().find(|words| width_of(words) <= room);
            pen.write(fitting.map_or("", String::as_str), Tone::Faint);
        }
    } else {
        pen.write("  waiting for the daemon", Tone::Plain);
    }
    canvas.right(area, &right, Tone::Plain);
}

/// Why the figures are old, and how old they are.
fn trouble(state: &State) -> Option<String> {
    let age = text::elapsed(state.board_at, state.now);
    match (&state.trouble, state.lateness()) {
        (Some(trouble), _) => Some(format!("figures are {age} old: {trouble}")),
        (None, Some(_)) => Some(format!(
            "figures are {age} old: the daemon has not answered"
        )),
        (None, None) => None,
    }
}

fn footer(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    let mut pen = canvas.pen(area.x, area.y, area.width);
    match &state.mode {
        Mode::Confirm(action) => {
            pen.write(&action.command(), Tone::Title);
            pen.write("  y/N", Tone::Alert);
            if let Some(about) = about(state, action) {
                pen.write(&format!("  {about}"), Tone::Plain);
            }
            return;
        }
        Mode::Size { job, typed } => {
            let cursor = pen.write(&format!("divvy resize {job} to: {typed}"), Tone::Title);
            canvas.cursor(cursor, area.y);
            let hint = match &state.notice {
                Some(notice) => notice.text.clone(),
                None => "12G, 0.5 or fair=0.25; Enter, Esc".to_owned(),
            };
            let tone = if state.notice.is_some() {
                Tone::Alert
            } else {
                Tone::Faint
            };
            let left = area.right().saturating_sub(cursor + 3);
            canvas.text(cursor + 3, area.y, left, &hint, tone);
            return;
        }
        Mode::Filter { .. } => {
            let cursor = pen.write(
                &format!("/{}", text::cleaned(&state.typed_filter)),
                Tone::Title,
            );
            canvas.cursor(cursor, area.y);
            let left = area.right().saturating_sub(cursor + 3);
            let hint = "user: queue: project: gpu: state: text; Enter, Esc";
            canvas.text(cursor + 3, area.y, left, hint, Tone::Faint);
            return;
        }
        Mode::Order => {
            let letters = super::rows::Key::ALL.iter();
            let letters = letters.map(|(letter, _, name)| format!("{letter} {name}"));
            let letters = letters.collect::<Vec<_>>().join("  ");
            pen.write(
                &format!("sort by  {letters}  capital: reversed  o refused memory"),
                Tone::Plain,
            );
            return;
        }
        Mode::Normal | Mode::Help => {}
    }
    if let Some(notice) = &state.notice {
        let sign = if notice.is_refusal { "! " } else { "" };
        let tone = if notice.is_refusal {
            Tone::Alert
        } else {
            Tone::Plain
        };
        pen.write(&format!("{sign}{}", notice.text), tone);
        return;
    }
    keys_of(state, canvas, area);
}

/// The most useful keys, as many as there is room for. Actions that the caller may not do stand in parentheses.
fn keys_of(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    let is_page = state.page.as_ref().is_some_and(|page| page.is_open);
    let owner = state.picked().and_then(|picked| picked.owner);
    let may = state.forbidden(owner.as_deref()).is_none();
    // With the rank at which a key gives way to others.
    let mut keys: Vec<(u8, &str)> = if is_page {
        vec![
            (2, "w why"),
            (2, "l log"),
            (2, "o oom"),
            (3, "e events"),
            (3, "d facts"),
            (3, "t span"),
        ]
    } else {
        vec![(1, "Enter job"), (2, "w why"), (2, "l log"), (2, "O oom")]
    };
    let actions = [(4, "r resize"), (4, "s suspend"), (2, "x cancel")];
    keys.extend(actions);
    keys.extend(if is_page {
        vec![(0, "? help"), (0, "q back")]
    } else {
        vec![(1, "/ filter"), (0, "? help"), (5, "q leave")]
    });
    let is_action = |key: &str| actions.iter().any(|(_, action)| *action == key);
    let shown = |key: &str| {
        if may || !is_action(key) {
            key.to_owned()
        } else {
            format!("({key})")
        }
    };
    let width = |keys: &[(u8, &str)]| {
        let widths = keys.iter().map(|(_, key)| width_of(&shown(key)) + 2);
        widths.sum::<u16>().saturating_sub(2)
    };
    while width(&keys) > area.width {
        let Some(at) = (0..keys.len()).rev().max_by_key(|at| keys[*at].0) else {
            break;
        };
        keys.remove(at);
    }
    let mut pen = canvas.pen(area.x, area.y, area.width);
    for (at, (_, key)) in keys.iter().enumerate() {
        let tone = if may || !is_action(key) {
            Tone::Plain
        } else {
            Tone::Faint
        };
        let gap = if at == 0 { "" } else { "  " };
        pen.write(&format!("{gap}{}", shown(key)), tone);
    }
}

/// The job of an action in words.
fn about(state: &State, action: &Action) -> Option<String> {
    let job = state.job(action.job());
    let named = job.map(|job| (&job.name, &job.user));
    let waiting = || {
        let board = state.board.as_ref()?;
        let first = board
            .waiting
            .first
            .iter()
            .chain(state.waiting.pages.values().flatten());
        let mut first = first.filter(|job| job.reference() == action.job());
        first.next().map(|job| (&job.name, &job.user))
    };
    let (name, user) = named.or_else(waiting)?;
    Some(format!(
        "{} of {}",
        text::cleaned(name),
        text::cleaned(user)
    ))
}

fn help(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    canvas.clear(area);
    let lines = keys::help();
    let rows = usize::from(area.height.saturating_sub(2));
    let top = state.help_row.min(lines.len().saturating_sub(rows));
    canvas.text(area.x, area.y, area.width, "Keys of divvy top", Tone::Title);
    for (line, y) in lines.iter().skip(top).take(rows).zip(area.y + 1..) {
        let (name, meaning) = line;
        canvas.text(area.x + 1, y, 10, name, Tone::Title);
        canvas.text(
            area.x + 12,
            y,
            area.width.saturating_sub(12),
            meaning,
            Tone::Plain,
        );
    }
    let end = if top + rows < lines.len() {
        "arrows: more; any other key: back"
    } else {
        "any key: back"
    };
    canvas.text(area.x, area.bottom() - 1, area.width, end, Tone::Faint);
}
