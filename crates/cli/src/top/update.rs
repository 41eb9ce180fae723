//! The state machine of the live view: an input changes the state and yields calls. It reads no clock and does no I/O.

use divvy_api::daemon::Role;
use divvy_api::v1::{Board, BoardWaitingJob, Brief, Error, Job, JobQuery, JobState};
use jiff::{SignedDuration, Timestamp};

use super::call::{Action, Call, Data, LogPiece, NewSize, Question, Span, Topic};
use super::filter::{self, Filter};
use super::keys::{self, Command, Key, Motion};
use super::layout;
use super::rows;
use super::state::{
    Asked, Caller, INTERVALS, Log, MOST_EVENTS, MOST_LOG, Mode, Notice, PAGE, Page, Pane, Section,
    State,
};
use crate::text;

/// Pause between two answers of one kind, besides the board.
const OFTEN: SignedDuration = SignedDuration::from_secs(1);
const SOMETIMES: SignedDuration = SignedDuration::from_secs(5);
const RARELY: SignedDuration = SignedDuration::from_secs(30);

/// Longest size that a user can type.
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
    let next = match is_longer {
        true => intervals.find(|one| i128::from(*one) > now),
        false => intervals.rfind(|one| i128::from(*one) < now),
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
    for topic in [Topic::Job, Topic::Why, Topic::Oom, Topic::Curve, Topic::Log] {
        state.asked.remove(&topic);
    }
    state.page = Some(page);
}

/// The picked job, unless the caller may not act on it.
fn allowed(state: &mut State, verb: &str) -> Option<String> {
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
        // The drawing knows how many lines there are, and stops at the last one.
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
    let picked = match layout::has_side_page(state) {
        true => state.picked_in_list(),
        false => None,
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

fn take(state: &mut State, question: Question, answer: Result<Data, Error>) {
    let topic = question.topic();
    let asked = state.asked.entry(topic).or_insert(Asked {
        at: state.now,
        is_open: true,
    });
    asked.is_open = false;
    if state.now.duration_since(asked.at) >= OFTEN {
        // A daemon that answers late gets a pause before the next question.
        asked.at = state.now;
    }
    match answer {
        Ok(data) => {
            if let Some(page) = &mut state.page {
                page.refused.remove(&topic);
            }
            store(state, question, data);
        }
        Err(error) => miss(state, &question, &error),
    }
}

/// A question had no answer.
fn miss(state: &mut State, question: &Question, error: &Error) {
    match question {
        Question::Board => {
            state.trouble = Some(in_one_line(error));
            state.is_changed = true;
        }
        // Without the stored history the sparkline begins now.
        Question::Trend(gpu) => state.trends.entry(*gpu).or_default().has_history = true,
        Question::Job(job)
        | Question::Why(job)
        | Question::Oom(job)
        | Question::Curve { job, .. }
        | Question::Log { job, .. } => {
            if let Some(page) = state.page.as_mut().filter(|page| page.job == *job) {
                page.refused.insert(question.topic(), in_one_line(error));
                state.is_changed = true;
            }
        }
        Question::Node
        | Question::Projects
        | Question::Events { .. }
        | Question::Waiting { .. } => {}
    }
}

fn store(state: &mut State, question: Question, data: Data) {
    match (question, data) {
        (Question::Board, Data::Board(board)) => take_board(state, board),
        (Question::Node, Data::Node(node)) => {
            state.simulated.clone_from(&node.simulated);
            state.caller = node.caller.map(|caller| Caller {
                role: Role::ALL
                    .into_iter()
                    .find(|role| role.name() == caller.role),
                user: caller.user,
            });
        }
        (Question::Projects, Data::Projects(projects)) => state.projects = projects,
        (Question::Trend(gpu), Data::History(history)) => {
            let trend = state.trends.entry(gpu).or_default();
            trend.has_history = true;
            let figure =
                (history.figures.iter()).find(|figure| figure.name == "utilization_percent");
            let second = history.from.as_second();
            let values = figure.map_or(&[][..], |figure| &figure.values);
            for (at, value) in (0..).zip(values) {
                if let Some(percent) = value.map(percent) {
                    trend.add(second + at * i64::from(history.step_s), percent);
                }
            }
        }
        (Question::Events { .. }, Data::Events(events)) => {
            let last = state.events.back().map_or(0, |event| event.seq);
            state
                .events
                .extend(events.into_iter().filter(|event| event.seq > last));
            let over = state.events.len().saturating_sub(MOST_EVENTS);
            state.events.drain(..over);
        }
        (Question::Waiting { page, query }, Data::Page(answer)) => {
            take_page(state, page, &query, &answer);
        }
        (question, data) => return take_for_page(state, &question, data),
    }
    state.is_changed = true;
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0 to 100"
)]
fn percent(value: f64) -> u8 {
    value.round().clamp(0.0, 100.0) as u8
}

fn take_board(state: &mut State, board: Box<Board>) {
    let was_away = state.trouble.take().is_some();
    let is_same_daemon = state.board.as_ref().is_none_or(|before| {
        // Events of one journal only grow.
        before.last_event <= board.last_event
    });
    if was_away || !is_same_daemon {
        // A daemon that was restarted may know other jobs, roles and figures.
        state
            .asked
            .retain(|topic, asked| asked.is_open || *topic == Topic::Board);
        state
            .trends
            .values_mut()
            .for_each(|trend| trend.has_history = false);
        forget_pages(state);
    }
    if !is_same_daemon {
        state.events.clear();
    }
    let second = state.now.as_second();
    for gpu in &board.gpus {
        let trend = state.trends.entry(gpu.index).or_default();
        if let Some(use_now) = gpu.utilization_percent {
            trend.add(second, u8::try_from(use_now.min(100)).unwrap_or(100));
        }
    }
    state
        .trends
        .retain(|index, _| board.gpus.iter().any(|gpu| gpu.index == *index));
    state.board_at = state.now;
    state.board = Some(board);
    // The picked jobs keep the selection when rows move.
    let rows = state.job_rows();
    let row = state.job_row(&rows);
    let picked = rows.get(row).map(|row| row.job.reference().to_owned());
    (state.job_row, state.picked_job) = (row, picked);
    find_waiting(state);
}

fn forget_pages(state: &mut State) {
    state.waiting.pages.clear();
    state.waiting.after.clear();
}

/// Follows the picked pending job to its new row, if that is known.
fn find_waiting(state: &mut State) {
    let count = state.waiting_count();
    state.waiting_row = state.waiting_row.min(count.saturating_sub(1));
    let is_picked = |row: usize| {
        let job = state.waiting_at(row).map(BoardWaitingJob::reference);
        job.is_some() && job == state.picked_waiting.as_deref()
    };
    if state.picked_waiting.is_none() || is_picked(state.waiting_row) {
        return;
    }
    // Jobs ahead start, so that a pending job moves up. It may also move down a little.
    let near = state.waiting_row.saturating_sub(PAGE)..(state.waiting_row + PAGE).min(count);
    if let Some(row) = near.into_iter().find(|row| is_picked(*row)) {
        state.waiting_row = row;
    }
}

fn take_page(state: &mut State, page: usize, query: &JobQuery, answer: &divvy_api::v1::JobPage) {
    if Some(query) != page_query(state, page).as_ref() {
        return;
    }
    let rows = answer.jobs.iter().take(PAGE).map(pending);
    state.waiting.pages.insert(page, rows.collect());
    state.waiting.total = Some(answer.total);
    let known = &mut state.waiting.after;
    if known.is_empty() {
        known.push(None);
    }
    known.truncate(page + 1);
    if let Some(next) = &answer.next {
        known.push(Some(next.clone()));
    }
    let near = state.waiting_row / PAGE;
    (state.waiting.pages).retain(|number, _| number.abs_diff(near) <= 1);
    find_waiting(state);
}

/// A pending job of a page, as the board has it.
fn pending(job: &Job) -> BoardWaitingJob {
    let brief = Brief::from(job);
    BoardWaitingJob {
        id: job.id.clone(),
        task: brief.task.as_ref().map(ToString::to_string),
        name: job.name.clone(),
        user: job.user.clone(),
        queue: Some(job.queue.clone()),
        request: brief.request.into_owned(),
        since: job.submitted_at,
        reason: job.reason.clone(),
        reason_code: job.reason_code,
        expected_start: job.expected_start,
        latest_start: job.latest_start,
    }
}

fn take_for_page(state: &mut State, question: &Question, data: Data) {
    let Some(page) = &mut state.page else { return };
    match (question, data) {
        (Question::Job(job), Data::Job(facts)) if *job == page.job => page.facts = Some(facts),
        (Question::Why(job), Data::Why(why)) if *job == page.job => page.why = Some(why),
        (Question::Oom(job), Data::Oom(oom)) if *job == page.job => {
            page.denials = Some(oom.denials);
            page.oom = Some(oom);
        }
        (Question::Curve { job, span }, Data::History(curve))
            if *job == page.job && *span == page.span =>
        {
            page.curve = Some(curve);
        }
        (Question::Log { job, .. }, Data::Log(piece)) if *job == page.job => {
            let log = page.log.get_or_insert_default();
            if !add_output(log, piece) {
                return;
            }
        }
        _ => return,
    }
    state.is_changed = true;
}

/// Adds output behind what is known. Whether there was any.
fn add_output(log: &mut Log, piece: LogPiece) -> bool {
    if piece.from > log.end || piece.end < log.end {
        // Output in between is not kept any more, or the job started again.
        log.bytes.clear();
    }
    let is_new = piece.end != log.end || !piece.bytes.is_empty();
    log.bytes.extend(piece.bytes);
    let over = log.bytes.len().saturating_sub(MOST_LOG);
    log.bytes.drain(..over);
    log.end = piece.end;
    is_new
}

fn finish(state: &mut State, action: &Action, result: Result<Box<Job>, Error>) {
    state.is_changed = true;
    let command = action.command();
    match result {
        Ok(job) => {
            let is = text::state(&job);
            let after = match action {
                Action::Resize(_, NewSize::Compute(_)) => crate::render::redivided(&job),
                Action::Resize(..) if job.state != JobState::Queued => crate::render::resized(&job),
                _ => format!("#{} is {is}", job.reference()),
            };
            let after = after.lines().next().unwrap_or_default().to_owned();
            say(state, format!("{command}: {after}  (y copies the command)"));
            state.done = Some(command);
        }
        Err(error) => refuse(state, format!("{command}: {}", in_one_line(&error))),
    }
    // The next figures show the effect.
    for topic in [Topic::Board, Topic::Job] {
        if !state.is_open(topic) {
            state.asked.remove(&topic);
        }
    }
}

/// The questions that are due.
fn ask(state: &mut State) -> Vec<Question> {
    if state.is_frozen {
        return Vec::new();
    }
    let mut due = Vec::new();
    let mut want = |state: &mut State, question: Question, pause: SignedDuration| {
        if state.may_ask(&question, pause) {
            due.push(question);
        }
    };
    let interval = state.options.interval;
    // Ticks come a little early or late, which must not cost a whole interval.
    let pause = match state.trouble {
        None => interval - SignedDuration::from_millis(100),
        Some(_) => interval.min(OFTEN) - SignedDuration::from_millis(100),
    };
    want(state, Question::Board, pause);
    let Some(board) = &state.board else {
        return due;
    };
    if state.trouble.is_some() {
        return due;
    }
    let indices: Vec<u32> = board.gpus.iter().map(|gpu| gpu.index).collect();
    let last_event = board.last_event;
    if !state.asked.contains_key(&Topic::Node) || state.caller.is_none() {
        want(state, Question::Node, RARELY);
    }
    let lacks_history = |gpu: &u32| (state.trends.get(gpu)).is_none_or(|trend| !trend.has_history);
    // One after the other: a board of sixteen GPUs opens no sixteen connections.
    let is_asking = (state.asked.iter())
        .any(|(topic, asked)| matches!(topic, Topic::Trend(_)) && asked.is_open);
    if let Some(gpu) = indices
        .into_iter()
        .find(lacks_history)
        .filter(|_| !is_asking)
    {
        want(state, Question::Trend(gpu), SignedDuration::ZERO);
    }
    let seen = state.events.back().map_or(0, |event| event.seq);
    if last_event > seen {
        let most = u64::try_from(MOST_EVENTS).unwrap_or(u64::MAX);
        let after = seen.max(last_event.saturating_sub(most));
        want(state, Question::Events { after }, pause);
    }
    if layout::shows(state, Pane::Shares) {
        want(state, Question::Projects, SOMETIMES);
    }
    for page in pages_on_screen(state) {
        if let Some(query) = page_query(state, page) {
            let query = Box::new(query);
            want(state, Question::Waiting { page, query }, SOMETIMES);
        }
    }
    ask_for_page(state, &mut want);
    due
}

fn ask_for_page(state: &mut State, want: &mut impl FnMut(&mut State, Question, SignedDuration)) {
    let Some(page) = &state.page else { return };
    let (job, span) = (page.job.clone(), page.span);
    let (section, denials, has_ended) = (
        page.section,
        page.denials,
        (page.facts.as_ref()).is_some_and(|job| job.state == JobState::Ended),
    );
    let from = page.log.as_ref().map_or(0, |log| log.end);
    let running = state.job(&job);
    let refusals = running.map_or(0, |job| job.denials);
    let is_running = running.is_some();
    let often = state.options.interval.max(OFTEN) - SignedDuration::from_millis(100);
    let pause = if has_ended { RARELY } else { often };
    want(state, Question::Job(job.clone()), pause);
    if is_running || has_ended {
        let pause =
            SignedDuration::from_secs(i64::from(span.step())).max(SignedDuration::from_secs(2));
        let job = job.clone();
        want(state, Question::Curve { job, span }, pause);
    }
    if section == Section::Oom && denials != Some(refusals) {
        want(state, Question::Oom(job.clone()), often);
    }
    if section == Section::Why {
        want(state, Question::Why(job.clone()), SOMETIMES);
    }
    if section == Section::Log {
        want(state, Question::Log { job, from }, pause);
    }
}

/// The pages of pending jobs that the screen shows, as far as the board lacks them.
fn pages_on_screen(state: &State) -> Vec<usize> {
    let needs_pages = match state.filter().is_empty() {
        true => !state.has_all_waiting(),
        false => !state.has_all_waiting() || state.filter().needs_daemon(),
    };
    if !needs_pages || !layout::shows(state, Pane::Waiting) {
        return Vec::new();
    }
    let rows = layout::waiting_rows(state);
    let is_on_board = state.filter().is_empty()
        && rows.end <= (state.board.as_ref()).map_or(0, |board| board.waiting.first.len());
    if is_on_board {
        return Vec::new();
    }
    let (first, last) = (rows.start / PAGE, rows.end.saturating_sub(1) / PAGE);
    // Each page names the place of the next one.
    let known = state.waiting.after.len().max(1) - 1;
    (first..=last.max(first))
        .filter(|page| *page <= known)
        .collect()
}

/// The query for a page; `None` if its place is unknown, or if no pending job can match.
fn page_query(state: &State, page: usize) -> Option<JobQuery> {
    let after = match page {
        0 => None,
        _ => state.waiting.after.get(page)?.clone(),
    };
    let query = state.filter().query()?;
    Some(JobQuery {
        sort: Some("place".to_owned()),
        limit: PAGE,
        after,
        ..query
    })
}

#[cfg(test)]
pub mod tests;
