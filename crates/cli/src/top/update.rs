//! The state machine of the live view: an input changes the state and yields calls. It reads no clock and does no I/O.

mod answers;
mod questions;

use divvy_api::v1::{Error, Job};
use jiff::{SignedDuration, Timestamp};

use self::answers::{finish, take};
use self::questions::ask;
use super::call::{Action, Call, Data, NewSize, Question, Span, Topic};
use super::filter::{self, Filter};
use super::keys::{self, Command, Key, Motion};
use super::layout;
use super::rows;
use super::state::{INTERVALS, Mode, Notice, PAGE, Page, Pane, Section, State};
use crate::text;

/// Longest size that a user can type. The longest, `1234.5GiB` for each of several GPUs, fits twice.
const LONGEST_SIZE: usize = 40;

/// What happens to the view.
#[derive(Debug)]
pub enum Input {
    Key(Key),
    Resize(u16, u16),
    /// The time; at least once a second.
    Tick(Timestamp),
    Answer(Question, Result<Data, Error>),
    /// The result of an action: the job as it is then.
    Done(Action, Result<Box<Job>, Error>),
    /// A new screen, after the program was stopped.
    Continued,
}

/// Takes one input.
pub fn update(state: &mut State, input: Input) -> Vec<Call> {
    let mut is_new_second = false;
    let mut calls = match input {
        Input::Key(key) => {
            state.is_changed = true;
            press(state, key)
        }
        Input::Resize(width, height) => {
            state.size = (width, height);
            state.is_changed = true;
            Vec::new()
        }
        Input::Tick(now) => {
            is_new_second = now.as_second() != state.now.as_second();
            state.now = now;
            Vec::new()
        }
        Input::Answer(question, answer) => {
            take(state, question, answer);
            Vec::new()
        }
        Input::Done(action, result) => {
            finish(state, &action, result);
            Vec::new()
        }
        Input::Continued => {
            state.is_changed = true;
            Vec::new()
        }
    };
    follow_selection(state);
    calls.extend(ask(state).into_iter().map(Call::Ask));
    // With a board on its way, one drawing shows the clock and the board.
    state.is_changed |= is_new_second && (!state.is_open(Topic::Board) || state.is_stale());
    calls
}

fn press(state: &mut State, key: Key) -> Vec<Call> {
    if key == Key::Control('c') {
        return vec![Call::Quit];
    }
    if key == Key::Control('z') {
        return vec![Call::Stop];
    }
    match state.mode.clone() {
        Mode::Normal => {
            state.notice = None;
            keys::command(key).map_or_else(Vec::new, |command| obey(state, command))
        }
        Mode::Help => {
            leave_help(state, key);
            Vec::new()
        }
        Mode::Order => {
            state.mode = Mode::Normal;
            order(state, key);
            Vec::new()
        }
        Mode::Filter { before } => {
            type_filter(state, key, before);
            Vec::new()
        }
        Mode::Size { job, typed } => {
            type_size(state, key, job, typed);
            Vec::new()
        }
        Mode::Confirm(action) => {
            state.mode = Mode::Normal;
            match key {
                Key::Char('y' | 'Y') => vec![Call::Act(action)],
                _ => {
                    say(state, format!("nothing was done: {}", action.command()));
                    Vec::new()
                }
            }
        }
    }
}

fn say(state: &mut State, text: String) {
    state.notice = Some(Notice {
        text,
        is_refusal: false,
    });
}

fn refuse(state: &mut State, text: String) {
    state.notice = Some(Notice {
        text,
        is_refusal: true,
    });
}

/// Does what a key of the lists or of a job's page says.
fn obey(state: &mut State, command: Command) -> Vec<Call> {
    let is_page = state.page.as_ref().is_some_and(|page| page.is_open);
    match command {
        Command::Quit if is_page => state.page = None,
        Command::Quit => return vec![Call::Quit],
        Command::Stop => return vec![Call::Stop],
        Command::Redraw => {}
        Command::Help => (state.mode, state.help_row) = (Mode::Help, 0),
        Command::Back if is_page => state.page = None,
        Command::Back => {
            set_filter(state, "");
            state.is_mine = false;
        }
        Command::Tree if is_page => {
            if let Some(page) = &mut state.page {
                page.span = match page.span {
                    Span::TenMinutes => Span::SixHours,
                    Span::SixHours => Span::TenMinutes,
                };
                page.curve = None;
                state.asked.remove(&Topic::Curve);
            }
        }
        Command::Tree => state.is_tree = !state.is_tree,
        Command::Unfold => {
            state.is_unfolded = !state.is_unfolded;
            forget_waiting(state);
        }
        Command::Refusals => show(state, Section::Oom),
        Command::Order if is_page => show(state, Section::Oom),
        Command::Order => state.mode = Mode::Order,
        Command::Filter => {
            state.page = None;
            let before = state.typed_filter.clone();
            state.mode = Mode::Filter { before };
        }
        Command::Freeze => state.is_frozen = !state.is_frozen,
        Command::Faster => change_interval(state, false),
        Command::Slower => change_interval(state, true),
        Command::Mine => mine(state),
        Command::Open => {
            let is_waiting = state.pane == Pane::Waiting;
            show(state, Section::first(is_waiting));
        }
        Command::Why => show(state, Section::Why),
        Command::Log => show(state, Section::Log),
        Command::Events if !is_page => state.pane = Pane::Events,
        Command::Events => show(state, Section::Events),
        Command::Facts => show(state, Section::Facts),
        Command::Cancel => confirm(state, Action::Cancel),
        Command::Suspend => confirm(state, Action::Suspend),
        Command::Resume => confirm(state, Action::Resume),
        Command::Resize => {
            if let Some(job) = allowed(state, "resize") {
                let typed = String::new();
                state.mode = Mode::Size { job, typed };
            }
        }
        Command::Copy => return copy(state),
        Command::Next | Command::Before => {
            let is_next = command == Command::Next;
            match &mut state.page {
                Some(page) if is_page => {
                    (page.section, page.scroll) = (page.section.beside(is_next), 0);
                }
                _ => state.pane = state.pane.beside(is_next),
            }
        }
        Command::Pane(at) => match &mut state.page {
            Some(page) if is_page => (page.section, page.scroll) = (Section::ALL[at], 0),
            _ => state.pane = Pane::ALL[at],
        },
        Command::Move(motion) => go(state, motion),
    }
    Vec::new()
}

fn copy(state: &mut State) -> Vec<Call> {
    match state.done.clone() {
        Some(command) => {
            say(state, format!("copied: {command}"));
            vec![Call::Copy(command)]
        }
        None => {
            say(
                state,
                "nothing to copy: no command was run here yet".to_owned(),
            );
            Vec::new()
        }
    }
}

fn mine(state: &mut State) {
    match state.caller {
        Some(_) => {
            state.is_mine = !state.is_mine;
            forget_waiting(state);
        }
        None => refuse(
            state,
            "your user is not known: the daemon has not reported it".to_owned(),
        ),
    }
}

fn change_interval(state: &mut State, is_longer: bool) {
    let now = state.options.interval.as_millis();
    let mut intervals = INTERVALS.iter().copied();
    let next = if is_longer {
        intervals.find(|one| i128::from(*one) > now)
    } else {
        intervals.rfind(|one| i128::from(*one) < now)
    };
    if let Some(next) = next {
        state.options.interval = SignedDuration::from_millis(next);
    }
}

/// Opens the page of the picked job at this section.
fn show(state: &mut State, section: Section) {
    let Some(picked) = state.picked() else {
        say(state, "no job is selected".to_owned());
        return;
    };
    match &mut state.page {
        Some(page) if page.job == picked.job => {
            (page.is_open, page.section, page.scroll) = (true, section, 0);
        }
        _ => open(state, Page::new(picked.job, section, true)),
    }
}

fn open(state: &mut State, page: Page) {
    for topic in [
        Topic::Job,
        Topic::Why,
        Topic::Oom,
        Topic::JobEvents,
        Topic::Curve,
        Topic::Log,
    ] {
        state.asked.remove(&topic);
    }
    state.page = Some(page);
}

/// The picked job, unless the caller may not act on it.
fn allowed(state: &mut State, verb: &str) -> Option<String> {
    let is_page = state.page.as_ref().is_some_and(|page| page.is_open);
    if !is_page && !matches!(state.pane, Pane::Jobs | Pane::Waiting) {
        // The selection of another list is not what the user looks at.
        say(
            state,
            format!("cannot {verb}: no job is selected; 2 and 3 lead to the lists of jobs"),
        );
        return None;
    }
    let Some(picked) = state.picked() else {
        say(state, "no job is selected".to_owned());
        return None;
    };
    match state.forbidden(picked.owner.as_deref()) {
        None => Some(picked.job),
        Some(why) => {
            refuse(state, format!("cannot {verb} #{}: {why}", picked.job));
            None
        }
    }
}

fn confirm(state: &mut State, action: fn(String) -> Action) {
    let verb = action(String::new()).verb();
    if let Some(job) = allowed(state, verb) {
        state.mode = Mode::Confirm(action(job));
    }
}

fn order(state: &mut State, key: Key) {
    match key {
        Key::Char('o') => show(state, Section::Oom),
        Key::Char(letter) => match rows::Key::sort(letter) {
            Some(sort) => state.sort = sort,
            None => say(state, format!("{} is no column", letter.escape_default())),
        },
        _ => {}
    }
}

fn leave_help(state: &mut State, key: Key) {
    let lines = keys::help().len();
    let row = &mut state.help_row;
    match keys::command(key) {
        Some(Command::Move(Motion::Up)) => *row = row.saturating_sub(1),
        Some(Command::Move(Motion::Down)) => *row = (*row + 1).min(lines),
        Some(Command::Move(Motion::PageUp)) => *row = row.saturating_sub(10),
        Some(Command::Move(Motion::PageDown)) => *row = (*row + 10).min(lines),
        _ => state.mode = Mode::Normal,
    }
}

fn type_filter(state: &mut State, key: Key, before: String) {
    let mut typed = state.typed_filter.clone();
    match key {
        Key::Enter => return state.mode = Mode::Normal,
        Key::Escape => {
            state.mode = Mode::Normal;
            return set_filter(state, &before);
        }
        Key::Backspace => {
            typed.pop();
        }
        Key::Control('u') => typed.clear(),
        Key::Char(letter) if typed.chars().count() < filter::LONGEST && !letter.is_control() => {
            typed.push(letter);
        }
        _ => {}
    }
    set_filter(state, &typed);
}

pub fn set_filter(state: &mut State, typed: &str) {
    if state.typed_filter != typed {
        typed.clone_into(&mut state.typed_filter);
        state.filter = Filter::parse(typed);
        forget_waiting(state);
    }
}

/// Drops the pages of another filter.
fn forget_waiting(state: &mut State) {
    state.waiting = super::state::Waiting::default();
    state.waiting_row = 0;
    state.picked_waiting = None;
    state
        .asked
        .retain(|topic, _| !matches!(topic, Topic::Waiting(_)));
}

fn type_size(state: &mut State, key: Key, job: String, mut typed: String) {
    match key {
        Key::Enter => match NewSize::parse(&typed) {
            Ok(size) => return state.mode = Mode::Confirm(Action::Resize(job, size)),
            Err(error) => refuse(state, in_one_line(&error)),
        },
        Key::Escape => return state.mode = Mode::Normal,
        Key::Backspace => {
            typed.pop();
        }
        Key::Control('u') => typed.clear(),
        Key::Char(letter) if typed.len() < LONGEST_SIZE && letter.is_ascii_graphic() => {
            typed.push(letter);
        }
        _ => {}
    }
    state.mode = Mode::Size { job, typed };
}

/// An error with its hint.
pub fn in_one_line(error: &Error) -> String {
    let message = text::cleaned(&error.message);
    match &error.hint {
        Some(hint) => format!("{message}; hint: {}", text::cleaned(hint)),
        None => message.into_owned(),
    }
}

/// A row of `count` after a movement.
fn moved(row: usize, count: usize, motion: Motion, page: usize) -> usize {
    let row = match motion {
        Motion::Up => row.saturating_sub(1),
        Motion::Down => row.saturating_add(1),
        Motion::PageUp => row.saturating_sub(page),
        Motion::PageDown => row.saturating_add(page),
        Motion::First => 0,
        Motion::Last => usize::MAX,
    };
    row.min(count.saturating_sub(1))
}

/// The same movement where rows count from the end.
fn upside_down(motion: Motion) -> Motion {
    match motion {
        Motion::Up => Motion::Down,
        Motion::Down => Motion::Up,
        Motion::PageUp => Motion::PageDown,
        Motion::PageDown => Motion::PageUp,
        Motion::First => Motion::Last,
        Motion::Last => Motion::First,
    }
}

fn go(state: &mut State, motion: Motion) {
    let page = layout::page_height(state);
    if let Some(open) = state.page.as_mut().filter(|page| page.is_open) {
        // The drawing knows how many lines there are, and stops at the last one. So any larger number would do.
        const MOST_LINES: usize = 5000;
        open.scroll = match open.section {
            Section::Log => moved(open.scroll, MOST_LINES, upside_down(motion), page),
            _ => moved(open.scroll, MOST_LINES, motion, page),
        };
        return;
    }
    match state.pane {
        Pane::Gpus => {
            let count = state.board.as_ref().map_or(0, |board| board.gpus.len());
            state.picked_gpu = moved(state.picked_gpu, count, motion, page);
        }
        Pane::Jobs => {
            let rows = state.job_rows();
            let row = moved(state.job_row(&rows), rows.len(), motion, page);
            let picked = rows.get(row).map(|row| row.job.reference().to_owned());
            (state.job_row, state.picked_job) = (row, picked);
        }
        Pane::Waiting => {
            // Rows beyond the pages whose places are known cannot be asked for.
            let known = state.waiting.after.len().max(1) * PAGE;
            let count = state.waiting_count().min(known);
            state.waiting_row = moved(state.waiting_row, count, motion, page);
            let picked = state.waiting_at(state.waiting_row);
            state.picked_waiting = picked.map(|job| job.reference().to_owned());
        }
        Pane::Events => {
            let count = state.events.len();
            state.events_up = moved(state.events_up, count, upside_down(motion), page);
        }
        Pane::Shares => {
            let count = state
                .board
                .as_ref()
                .map_or(0, |board| board.users.len() + board.projects.len());
            state.shares_row = moved(state.shares_row, count, motion, page);
        }
    }
}

/// Keeps the page beside the list on the picked job, on screens with room for one.
fn follow_selection(state: &mut State) {
    if state.page.as_ref().is_some_and(|page| page.is_open) {
        return;
    }
    let picked = if layout::has_side_page(state) {
        state.picked_in_list()
    } else {
        None
    };
    match (picked, &state.page) {
        (Some(picked), Some(page)) if page.job == picked.job => {}
        (Some(picked), _) => {
            let section = Section::first(state.pane == Pane::Waiting);
            open(state, Page::new(picked.job, section, false));
        }
        (None, Some(_)) => state.page = None,
        (None, None) => {}
    }
}

#[cfg(test)]
pub mod tests;
