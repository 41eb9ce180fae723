//! Answers of the daemon: each becomes a part of the state, within its bounds.

use divvy_api::daemon::Role;
use divvy_api::v1::{Board, BoardWaitingJob, Brief, Error, Job, JobPage, JobQuery, JobState};

use super::questions::{OFTEN, page_query};
use super::{in_one_line, refuse, say};
use crate::text;
use crate::top::call::{Action, Data, LogPiece, NewSize, Question, Topic};
use crate::top::state::{Asked, Caller, Log, MOST_EVENTS, MOST_LOG, PAGE, State};

/// Takes an answer, or its absence.
pub fn take(state: &mut State, question: Question, answer: Result<Data, Error>) {
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
        | Question::JobEvents(job)
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

fn take_page(state: &mut State, page: usize, query: &JobQuery, answer: &JobPage) {
    if Some(query) != page_query(state, page).as_ref() {
        return;
    }
    let rows = answer.jobs.iter().take(PAGE).map(pending);
    state.waiting.pages.insert(page, rows.collect());
    state.waiting.total = Some(answer.total);
    state.waiting.items = Some(answer.items);
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
        folded: job.folded.clone(),
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
        (Question::JobEvents(job), Data::Events(events)) if *job == page.job => {
            page.events = Some(events);
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
pub fn add_output(log: &mut Log, piece: LogPiece) -> bool {
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

/// Takes the result of an action.
pub fn finish(state: &mut State, action: &Action, result: Result<Box<Job>, Error>) {
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
