//! The places of the lists on the screen. The drawing uses them, and the keys for pages.

use std::ops::Range;

use ratatui::layout::Rect;

use super::draw::has_names;
use super::state::{Mode, Pane, State};

/// The smallest terminal with a view, in columns and lines.
pub const SMALLEST: (u16, u16) = (40, 10);

/// Columns of the page beside the list, and those from which there is one. The list keeps 88 columns, which fit all its
/// columns; half a page would break the texts of the page.
const SIDE: u16 = 72;
const WITH_SIDE: u16 = 160;

/// Lines of the strip with events and users, and the lines of the screen from which there is one. Six rows in a frame:
/// enough for the newest events. The GPUs and jobs above keep 28 lines, more than a small screen has.
const STRIP: u16 = 8;
const WITH_STRIP: u16 = 36;

/// Columns from which events and users stand side by side. Two halves of 60 columns: an event would not fit a narrower
/// one.
const WIDE: u16 = 120;

/// Places of the parts of the screen. A part without a place is not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub header: Rect,
    pub footer: Option<Rect>,
    pub gpus: Option<Rect>,
    /// Lines of each GPU: 2 with the names of its jobs.
    pub lines_per_gpu: u16,
    pub jobs: Option<Rect>,
    pub waiting: Option<Rect>,
    pub events: Option<Rect>,
    pub shares: Option<Rect>,
    /// The page of a job.
    pub page: Option<Rect>,
}

/// Takes lines from the top of an area.
fn take(area: &mut Rect, height: u16) -> Rect {
    let height = height.min(area.height);
    let taken = Rect { height, ..*area };
    area.y += height;
    area.height -= height;
    taken
}

fn take_bottom(area: &mut Rect, height: u16) -> Rect {
    let height = height.min(area.height);
    area.height -= height;
    Rect {
        y: area.y + area.height,
        height,
        ..*area
    }
}

fn lines(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

/// The places for a state. `None` if the terminal is too small.
pub fn layout(state: &State) -> Option<Layout> {
    let (width, height) = state.size;
    if width < SMALLEST.0 || height < SMALLEST.1 {
        return None;
    }
    let mut layout = Layout::default();
    let mut body = Rect::new(0, 0, width, height);
    layout.header = take(&mut body, 1);
    if state.options.is_once {
        place_all(state, &mut layout, body);
        return Some(layout);
    }
    layout.footer = Some(take_bottom(&mut body, 1));
    if state.page.as_ref().is_some_and(|page| page.is_open) {
        layout.page = Some(body);
        return Some(layout);
    }
    if has_side_page(state) {
        body.width -= SIDE;
        let x = body.width;
        layout.page = Some(Rect {
            x: x + 1,
            width: SIDE - 1,
            ..body
        });
    }
    place_lists(state, &mut layout, body);
    Some(layout)
}

/// Whether there is room for a job's page beside the lists.
pub fn has_side_page(state: &State) -> bool {
    let (width, height) = state.size;
    width >= WITH_SIDE && height >= 20 && !state.options.is_once
}

fn place_lists(state: &State, layout: &mut Layout, mut body: Rect) {
    let gpus = state
        .board
        .as_ref()
        .map_or(1, |board| board.gpus.len().max(1));
    let gpus = lines(gpus);
    let half = body.height / 2;
    layout.lines_per_gpu = if gpus.saturating_mul(2) < half { 2 } else { 1 };
    let wanted = gpus.saturating_mul(layout.lines_per_gpu).saturating_add(1);
    // The picked GPU has a second line.
    let picked = u16::from(layout.lines_per_gpu == 1 && state.pane == Pane::Gpus);
    layout.gpus = Some(take(
        &mut body,
        wanted.saturating_add(picked).min(half.max(3)),
    ));
    if body.height >= WITH_STRIP - WITH_STRIP / 3 && state.size.1 >= WITH_STRIP {
        let strip = take_bottom(&mut body, STRIP);
        if strip.width >= WIDE {
            let left = strip.width * 3 / 5;
            layout.events = Some(Rect {
                width: left,
                ..strip
            });
            layout.shares = Some(Rect {
                x: strip.x + left + 1,
                width: strip.width - left - 1,
                ..strip
            });
        } else if state.pane == Pane::Shares {
            layout.shares = Some(strip);
        } else {
            layout.events = Some(strip);
        }
    } else if state.pane == Pane::Events {
        layout.events = Some(body);
        return;
    } else if state.pane == Pane::Shares {
        layout.shares = Some(body);
        return;
    }
    let count = lines(state.waiting_count()).saturating_add(1);
    let jobs = lines(state.job_rows().len()).saturating_add(2);
    let third = (body.height / 3).max(2);
    let left = match state.pane {
        // The list that the user is in has most of the room.
        Pane::Waiting => body.height.saturating_sub(jobs.min(5)),
        _ => body.height.saturating_sub(jobs).max(third),
    };
    layout.waiting = Some(take_bottom(&mut body, count.min(left)));
    layout.jobs = Some(body);
}

/// Everything, one below the other.
fn place_all(state: &State, layout: &mut Layout, mut body: Rect) {
    let [gpus, jobs, waiting] = heights(state);
    layout.lines_per_gpu = 2;
    layout.gpus = Some(take(&mut body, gpus));
    layout.jobs = Some(take(&mut body, jobs));
    layout.waiting = Some(take(&mut body, waiting));
}

/// Lines of all GPUs, all jobs and the first waiting jobs.
fn heights(state: &State) -> [u16; 3] {
    let board = state.board.as_ref();
    let gpus = board.map_or(0, |board| {
        let named = (board.gpus.iter()).filter(|gpu| has_names(gpu, &board.jobs));
        board.gpus.len() + named.count()
    });
    let first = (0..state.waiting_count().min(12)).filter(|row| state.waiting_at(*row).is_some());
    let waiting = match first.count() {
        0 => 1,
        count => count + 1,
    };
    [
        lines(gpus + 1),
        lines(state.job_rows().len() + 2),
        lines(waiting),
    ]
}

/// Lines that a drawing of everything needs.
pub fn whole_height(state: &State) -> u16 {
    let sum = heights(state).into_iter().fold(1, u16::saturating_add);
    sum.max(SMALLEST.1)
}

/// Whether a list is on the screen.
pub fn shows(state: &State, pane: Pane) -> bool {
    layout(state).is_some_and(|layout| match pane {
        Pane::Gpus => layout.gpus.is_some(),
        Pane::Jobs => layout.jobs.is_some(),
        Pane::Waiting => layout.waiting.is_some(),
        Pane::Events => layout.events.is_some(),
        Pane::Shares => layout.shares.is_some(),
    })
}

/// The rows of a list on so many lines: those around the picked one.
pub fn window(picked: usize, count: usize, lines: usize) -> Range<usize> {
    let last_top = count.saturating_sub(lines);
    let top = picked.saturating_sub(lines / 2).min(last_top);
    top..(top + lines).min(count)
}

/// Lines of a list besides its title and its columns.
pub fn rows_of(area: Rect, pane: Pane) -> usize {
    let besides = match pane {
        Pane::Jobs | Pane::Shares => 2,
        Pane::Gpus | Pane::Waiting | Pane::Events => 1,
    };
    usize::from(area.height.saturating_sub(besides))
}

/// The pending jobs on the screen.
pub fn waiting_rows(state: &State) -> Range<usize> {
    let area = layout(state).and_then(|layout| layout.waiting);
    let lines = area.map_or(0, |area| rows_of(area, Pane::Waiting));
    window(state.waiting_row, state.waiting_count(), lines)
}

/// Rows that PgUp and PgDn move by.
pub fn page_height(state: &State) -> usize {
    let Some(layout) = layout(state) else {
        return 1;
    };
    if let Some(page) = layout.page.filter(|_| layout.jobs.is_none()) {
        return usize::from(page.height / 2).max(1);
    }
    if matches!(state.mode, Mode::Help) {
        return usize::from(state.size.1 / 2);
    }
    let area = match state.pane {
        Pane::Gpus => layout.gpus,
        Pane::Jobs => layout.jobs,
        Pane::Waiting => layout.waiting,
        Pane::Events => layout.events,
        Pane::Shares => layout.shares,
    };
    area.map_or(1, |area| rows_of(area, state.pane).max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sample;
    use super::super::update::tests::viewed;
    use super::*;

    #[test]
    fn a_window_holds_the_picked_row_and_fills_the_lines() {
        assert_eq!(window(0, 10, 4), 0..4);
        assert_eq!(window(5, 10, 4), 3..7);
        assert_eq!(window(9, 10, 4), 6..10);
        assert_eq!(window(3, 2, 4), 0..2);
        assert_eq!(window(0, 0, 4), 0..0);
        assert_eq!(window(7, 10, 0), 7..7);
    }

    proptest! {
        #[test]
        fn parts_of_the_screen_never_overlap(
            width in 40u16..300, height in 10u16..120, gpus in 0u32..40, pane in 0usize..5,
        ) {
            let mut state = viewed(sample::large(gpus, 30));
            state.size = (width, height);
            state.pane = Pane::ALL[pane];
            let layout = layout(&state).unwrap();
            let all = [
                Some(layout.header), layout.footer, layout.gpus, layout.jobs, layout.waiting, layout.events,
                layout.shares, layout.page,
            ];
            let all: Vec<Rect> = all.into_iter().flatten().collect();
            for (at, one) in all.iter().enumerate() {
                prop_assert!(one.right() <= width && one.bottom() <= height, "{layout:?}");
                for other in &all[..at] {
                    prop_assert!(one.is_empty() || other.is_empty() || !one.intersects(*other), "{layout:?}");
                }
            }
        }
    }
}
