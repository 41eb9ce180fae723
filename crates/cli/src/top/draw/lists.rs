//! The lists of events, and of users and projects.

use divvy_api::v1::{BoardShare, Event};
use ratatui::layout::Rect;

use super::canvas::Canvas;
use super::columns::{self, Cells, Column, figure, name, rest};
use super::gpus::gib;
use super::jobs::{below, gpus, select};
use crate::text;
use crate::top::layout;
use crate::top::look::Tone;
use crate::top::state::{Pane, State};

const SHARES: [Column; 9] = [
    name("NAME", 8, 24, 0),
    figure("RUN", 0).right(),
    figure("WAIT", 0).right(),
    figure("GPUs", 0).right(),
    figure("BUSY", 40).right(),
    figure("DUE", 56).right(),
    figure("QUOTA", 0).right(),
    figure("GiB USED/LIMIT", 46).right(),
    rest(""),
];

/// `12:04:31  #7     ended          completed`.
pub fn event_line(state: &State, event: &Event) -> String {
    let at = event.at.to_zoned((state.options.zone)());
    let job = event.job.as_ref().map(|job| format!("#{job}"));
    let (kind, text) = (text::cleaned(&event.kind), text::cleaned(&event.text));
    format!(
        "{}  {:<7} {kind:<14} {text}",
        at.strftime("%H:%M:%S"),
        job.unwrap_or_default()
    )
}

pub fn events(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    if area.height == 0 {
        return;
    }
    let mark = if state.pane == Pane::Events { "*" } else { "" };
    canvas.text(
        area.x,
        area.y,
        area.width,
        &format!("EVENTS{mark}"),
        Tone::Title,
    );
    let lines = layout::rows_of(area, Pane::Events);
    let count = state.events.len();
    let end = count - state.events_up.min(count.saturating_sub(lines));
    let shown = state.events.range(end.saturating_sub(lines)..end);
    for (event, y) in shown.zip(area.y + 1..) {
        canvas.text(
            area.x + 1,
            y,
            area.width.saturating_sub(1),
            &event_line(state, event),
            Tone::Plain,
        );
    }
    if state.events.is_empty() && area.height > 1 {
        canvas.text(
            area.x + 1,
            area.y + 1,
            area.width.saturating_sub(1),
            "no events yet",
            Tone::Faint,
        );
    }
}

/// Users, then projects: what they hold and use of it, and what projects are due.
pub fn shares(state: &State, canvas: &mut Canvas<'_>, area: Rect) {
    if area.height == 0 {
        return;
    }
    let mark = if state.pane == Pane::Shares { "*" } else { "" };
    canvas.text(
        area.x,
        area.y,
        area.width,
        &format!("USERS AND PROJECTS{mark}"),
        Tone::Title,
    );
    let Some(board) = &state.board else { return };
    let users = board.users.iter().map(|share| (share, false));
    let projects = board.projects.iter().map(|share| (share, true));
    let rows: Vec<(&BoardShare, bool)> = users.chain(projects).collect();
    let picked = state.shares_row.min(rows.len().saturating_sub(1));
    let window = layout::window(picked, rows.len(), layout::rows_of(area, Pane::Shares));
    let none = canvas.glyphs().none;
    let cells = window
        .clone()
        .map(|at| cells_of(state, none, rows[at].0, rows[at].1));
    let cells: Vec<Cells> = cells.collect();
    columns::draw(canvas, below(area, 1), &SHARES, true, &cells);
    if state.pane == Pane::Shares && window.contains(&picked) {
        select(canvas, below(area, 2), picked - window.start);
    }
    if rows.is_empty() && area.height > 2 {
        canvas.text(
            area.x + 1,
            area.y + 2,
            area.width.saturating_sub(1),
            "no user has a job",
            Tone::Faint,
        );
    }
}

fn cells_of(state: &State, none: &str, share: &BoardShare, is_project: bool) -> Cells {
    let name = text::clean(&share.name);
    let name = if is_project {
        format!("project {name}")
    } else {
        name
    };
    let amount = |amount: Option<u64>| amount.map_or_else(|| none.to_owned(), gpus);
    let known = (state.projects.iter()).find(|project| is_project && project.name == share.name);
    let figures = [
        name,
        share.running.to_string(),
        share.waiting.to_string(),
        gpus(share.share),
        amount(share.share_used),
        amount(known.map(|project| project.fair_share)),
        amount(share.quota),
        gib(&[share.used_bytes, share.limit_bytes]),
        String::new(),
    ];
    figures.map(|figure| (figure, Tone::Plain)).into()
}
