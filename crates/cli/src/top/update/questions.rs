//! The questions that are due: for the parts of the state that the screen shows.

use divvy_api::v1::{JobQuery, JobState};
use jiff::SignedDuration;

use crate::top::call::{Question, Span, Topic};
use crate::top::layout;
use crate::top::state::{MOST_EVENTS, PAGE, Pane, Section, State};

/// Pause between two answers of one kind, besides the board. A second is as fast as a user reads; half would double the
/// calls of each open view.
pub const OFTEN: SignedDuration = SignedDuration::from_secs(1);
const SOMETIMES: SignedDuration = SignedDuration::from_secs(5);
/// The daemon plans for the answer. So ten seconds: such an answer costs a round of the planner for each open view.
const SLOWLY: SignedDuration = SignedDuration::from_secs(10);
const RARELY: SignedDuration = SignedDuration::from_secs(30);

/// The questions that are due.
pub fn ask(state: &mut State) -> Vec<Question> {
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
        // A column of the curve is eight seconds or five minutes wide.
        let pause = match span {
            Span::TenMinutes => SOMETIMES,
            Span::SixHours => RARELY,
        };
        let job = job.clone();
        want(state, Question::Curve { job, span }, pause);
    }
    if section == Section::Oom && denials != Some(refusals) {
        want(state, Question::Oom(job.clone()), often);
    }
    if section == Section::Why {
        want(state, Question::Why(job.clone()), SLOWLY);
    }
    if section == Section::Events {
        want(state, Question::JobEvents(job.clone()), pause);
    }
    if section == Section::Log {
        want(state, Question::Log { job, from }, pause);
    }
}

/// The pages of pending jobs that the screen shows, as far as the board lacks them.
fn pages_on_screen(state: &State) -> Vec<usize> {
    let needs_pages = if state.filter().is_empty() {
        !state.has_all_waiting()
    } else {
        !state.has_all_waiting() || state.filter().needs_daemon()
    };
    if !needs_pages || !layout::shows(state, Pane::Waiting) {
        return Vec::new();
    }
    let rows = layout::waiting_rows(state);
    let is_on_board = state.filter().is_empty()
        && !state.is_unfolded
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
pub fn page_query(state: &State, page: usize) -> Option<JobQuery> {
    let after = match page {
        0 => None,
        _ => state.waiting.after.get(page)?.clone(),
    };
    let query = state.filter().query()?;
    Some(JobQuery {
        sort: Some("place".to_owned()),
        fold: !state.is_unfolded,
        limit: PAGE,
        after,
        ..query
    })
}
