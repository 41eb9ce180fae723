use divvy_api::v1::{Board, ErrorCode, Event, Folded, Node, NodeCaller};
use jiff::tz::TimeZone;
use proptest::prelude::*;
use serde_json::json;

use super::super::call::LogPiece;
use super::super::draw::draw;
use super::super::look::{Colours, Look};
use super::super::sample;
use super::super::state::{Log, MOST_EVENTS, MOST_LOG, Options};
use super::answers::add_output;
use super::questions::page_query;
use super::*;

pub fn options() -> Options {
    Options {
        is_readonly: false,
        interval: SignedDuration::from_secs(1),
        look: Look::new(false, Colours::Many),
        zone: || TimeZone::UTC,
        is_once: false,
    }
}

/// A view of 80x24 that has this board.
pub fn viewed(board: Board) -> State {
    let mut state = State::new(options(), sample::now(), (80, 24));
    answer(&mut state, Question::Board, Data::Board(Box::new(board)));
    state
}

pub fn answer(state: &mut State, question: Question, data: Data) -> Vec<Call> {
    update(state, Input::Answer(question, Ok(data)))
}

fn node(user: &str, role: &str) -> Data {
    let node = json!({ "hostname": "lab1", "version": "0", "pid": 1, "driver_version": "570", "simulated": null,
        "order": "strict", "backfill": false, "home": "/" });
    let node: Node = serde_json::from_value(node).unwrap();
    let caller = NodeCaller {
        user: user.to_owned(),
        role: role.to_owned(),
    };
    let caller = Some(caller);
    Data::Node(Box::new(Node { caller, ..node }))
}

/// Presses a key for each letter; `\n` is Enter, `\t` Tab, `\u{1b}` Escape.
pub fn keys(state: &mut State, typed: &str) -> Vec<Call> {
    let key = |letter| match letter {
        '\n' => Key::Enter,
        '\t' => Key::Tab,
        '\u{1b}' => Key::Escape,
        letter => Key::Char(letter),
    };
    let calls = typed
        .chars()
        .flat_map(|letter| update(state, Input::Key(key(letter))));
    calls.collect()
}

fn later(state: &mut State, seconds: i64) -> Vec<Call> {
    let now = state.now + SignedDuration::from_secs(seconds);
    update(state, Input::Tick(now))
}

fn asked(calls: &[Call]) -> Vec<Topic> {
    let topics = calls.iter().filter_map(|call| match call {
        Call::Ask(question) => Some(question.topic()),
        _ => None,
    });
    topics.collect()
}

fn acts(calls: &[Call]) -> Vec<&Action> {
    let acts = calls.iter().filter_map(|call| match call {
        Call::Act(action) => Some(action),
        _ => None,
    });
    acts.collect()
}

fn notice(state: &State) -> &str {
    state.notice.as_ref().map_or("", |notice| &notice.text)
}

fn no_daemon() -> Error {
    Error::new(ErrorCode::NoDaemon, "no daemon answers on /x").hint("start one")
}

#[test]
fn an_action_asks_once_with_its_command() {
    let mut state = viewed(sample::board());
    assert_eq!(acts(&keys(&mut state, "x")), Vec::<&Action>::new());
    assert_eq!(state.mode, Mode::Confirm(Action::Cancel("7".to_owned())));
    let calls = keys(&mut state, "y");
    assert_eq!(acts(&calls), [&Action::Cancel("7".to_owned())]);
    // Any other key declines.
    for typed in ["xn", "x\n", "x\u{1b}", "xx", "xq"] {
        let calls = keys(&mut state, typed);
        assert_eq!(acts(&calls), Vec::<&Action>::new(), "{typed:?}");
        assert_eq!(notice(&state), "nothing was done: divvy cancel 7");
        assert!(!calls.contains(&Call::Quit));
    }
}

#[test]
fn an_action_is_about_the_picked_job() {
    let mut state = viewed(sample::board());
    update(&mut state, Input::Key(Key::Down));
    assert_eq!(
        acts(&keys(&mut state, "sy")),
        [&Action::Suspend("12".to_owned())]
    );
    assert_eq!(
        acts(&keys(&mut state, "3xy")),
        [&Action::Cancel("31".to_owned())]
    );
    update(&mut state, Input::Key(Key::End));
    assert_eq!(
        acts(&keys(&mut state, "xy")),
        [&Action::Cancel("34".to_owned())]
    );
    update(&mut state, Input::Key(Key::Up));
    assert_eq!(
        acts(&keys(&mut state, "xy")),
        [&Action::Cancel("33_0".to_owned())]
    );
}

#[test]
fn the_picked_job_stays_picked_when_rows_move() {
    let mut state = viewed(sample::board());
    keys(&mut state, "jj");
    assert_eq!(state.picked().unwrap().job, "14");
    let mut board = sample::board();
    board.jobs.remove(0);
    answer(&mut state, Question::Board, Data::Board(Box::new(board)));
    assert_eq!(state.picked().unwrap().job, "14");
    keys(&mut state, "oN");
    assert_eq!(state.picked().unwrap().job, "14");
    // The next one takes the place of a job that ended.
    let mut board = sample::board();
    board.jobs.retain(|job| job.id != "14");
    answer(&mut state, Question::Board, Data::Board(Box::new(board)));
    assert!(state.picked().is_some());
}

#[test]
fn a_pending_job_keeps_the_selection_when_a_job_ahead_starts() {
    let mut state = viewed(sample::board());
    keys(&mut state, "3jj");
    assert_eq!(state.picked().unwrap().job, "33_0");
    let mut board = sample::board();
    board.waiting.first.remove(0);
    board.waiting.count = 3;
    answer(&mut state, Question::Board, Data::Board(Box::new(board)));
    assert_eq!(
        (state.picked().unwrap().job.as_str(), state.waiting_row),
        ("33_0", 1)
    );
}

#[test]
fn a_size_is_checked_before_the_command_is_confirmed() {
    let mut state = viewed(sample::board());
    keys(&mut state, "rhalf\n");
    assert!(matches!(state.mode, Mode::Size { .. }));
    assert!(
        state.notice.as_ref().unwrap().is_refusal,
        "{}",
        notice(&state)
    );
    update(&mut state, Input::Key(Key::Control('u')));
    keys(&mut state, "12G\n");
    let Mode::Confirm(action) = &state.mode else {
        panic!("{:?}", state.mode)
    };
    assert_eq!(action.command(), "divvy resize 7 --gpu-memory 12G");
    assert_eq!(acts(&keys(&mut state, "y")).len(), 1);
}

#[test]
fn a_refusal_is_shown_with_its_hint_and_a_success_can_be_copied() {
    let mut state = viewed(sample::board());
    let action = Action::Cancel("7".to_owned());
    assert_eq!(
        keys(&mut state, "y")
            .iter()
            .filter(|call| matches!(call, Call::Copy(_)))
            .count(),
        0
    );
    let error = Error::new(ErrorCode::NotAllowed, "ana may not\u{1b}[2J").hint("ask an admin");
    update(&mut state, Input::Done(action.clone(), Err(error)));
    assert_eq!(
        notice(&state),
        r"divvy cancel 7: ana may not\u{1b}[2J; hint: ask an admin"
    );
    assert!(state.notice.as_ref().unwrap().is_refusal);
    assert_eq!(state.done, None);
    let job = json!({ "id": "7", "name": "train", "user": "ana", "queue": "half", "state": "stopping",
        "request": {"kind": "whole", "count": 1}, "compute": "fair", "slices": [], "command": ["true"], "cwd": "/",
        "runner": "supervisor", "submitted_at": "2026-01-02T03:04:05Z", "directory": "/" });
    let job = Box::new(serde_json::from_value(job).unwrap());
    update(&mut state, Input::Done(action, Ok(job)));
    assert_eq!(
        notice(&state),
        "divvy cancel 7: #7 is stopping  (y copies the command)"
    );
    let calls = keys(&mut state, "y");
    assert!(
        calls.contains(&Call::Copy("divvy cancel 7".to_owned())),
        "{calls:?}"
    );
}

#[test]
fn a_caller_that_may_not_act_is_not_asked() {
    for (user, role, own, others) in [
        ("ana", "viewer", false, false),
        ("ana", "user", true, false),
        ("ana", "operator", true, true),
        ("ana", "role-of-tomorrow", true, true),
    ] {
        let mut state = viewed(sample::board());
        answer(&mut state, Question::Node, node(user, role));
        assert_eq!(
            acts(&keys(&mut state, "xy")).len(),
            usize::from(own),
            "{role}"
        );
        keys(&mut state, "jx");
        assert_eq!(state.mode != Mode::Normal, others, "{role}");
        assert_eq!(
            notice(&state).contains("the role"),
            !others,
            "{role}: {}",
            notice(&state)
        );
    }
    let mut state = viewed(sample::board());
    state.options.is_readonly = true;
    assert!(acts(&keys(&mut state, "xysyRyr1\ny")).is_empty());
    assert_eq!(
        notice(&state),
        "nothing to copy: no command was run here yet"
    );
}

#[test]
fn only_own_jobs_are_shown_with_m() {
    let mut state = viewed(sample::board());
    keys(&mut state, "m");
    assert!(!state.is_mine && notice(&state).starts_with("your user is not known"));
    answer(&mut state, Question::Node, node("ana", "user"));
    keys(&mut state, "m");
    let rows: Vec<&str> = state
        .job_rows()
        .iter()
        .map(|row| row.job.id.as_str())
        .collect::<Vec<_>>();
    assert_eq!(rows, ["7", "21"]);
    assert_eq!(state.waiting_count(), 1);
    keys(&mut state, "\u{1b}");
    assert_eq!(state.job_rows().len(), 6);
}

#[test]
fn a_filter_is_in_force_while_it_is_typed_and_escape_restores_the_former() {
    let mut state = viewed(sample::board());
    keys(&mut state, "/user:lee\n");
    assert_eq!((state.job_rows().len(), state.waiting_count()), (1, 1));
    keys(&mut state, "/q\u{1b}");
    assert_eq!(state.typed_filter, "user:lee");
    keys(&mut state, "/");
    // Letters that are keys elsewhere are text here.
    assert!(acts(&keys(&mut state, "xyq")).is_empty());
    assert_eq!(state.typed_filter, "user:leexyq");
    (0..200).for_each(|_| drop(keys(&mut state, "a")));
    assert_eq!(state.typed_filter.chars().count(), filter::LONGEST);
}

#[test]
fn o_sorts_by_a_letter_and_a_second_o_opens_the_report() {
    let mut state = viewed(sample::board());
    keys(&mut state, "oG");
    assert_eq!(
        (state.sort.by, state.sort.is_reversed),
        (rows::Key::Memory, true)
    );
    let calls = keys(&mut state, "oo");
    let page = state.page.as_ref().unwrap();
    assert_eq!(
        (page.job.as_str(), page.section, page.is_open),
        ("7", Section::Oom, true)
    );
    assert!(asked(&calls).contains(&Topic::Oom), "{calls:?}");
    // On a page nothing is sorted, so that one o is enough.
    keys(&mut state, "lo");
    assert_eq!(state.page.as_ref().unwrap().section, Section::Oom);
    assert!(!keys(&mut state, "q").contains(&Call::Quit));
    assert!(state.page.is_none());
    assert!(keys(&mut state, "q").contains(&Call::Quit));
}

#[test]
fn one_board_is_asked_for_in_an_interval_and_never_two_at_once() {
    let mut state = State::new(options(), sample::now(), (80, 24));
    assert_eq!(asked(&later(&mut state, 0)), [Topic::Board]);
    for _ in 0..20 {
        assert_eq!(asked(&later(&mut state, 1)), [], "the daemon is slow");
    }
    assert!(!state.is_stale(), "there is nothing to be stale");
    answer(
        &mut state,
        Question::Board,
        Data::Board(Box::new(sample::board())),
    );
    assert!(!asked(&later(&mut state, 0)).contains(&Topic::Board));
    assert!(asked(&later(&mut state, 1)).contains(&Topic::Board));
    later(&mut state, 9);
    assert!(state.is_stale());
    assert_eq!(state.lateness(), Some(SignedDuration::from_secs(10)));
}

#[test]
fn frozen_figures_are_not_renewed() {
    let mut state = viewed(sample::board());
    keys(&mut state, "f");
    assert_eq!(asked(&later(&mut state, 60)), []);
    assert!(!state.is_stale());
    assert!(asked(&keys(&mut state, "f")).contains(&Topic::Board));
}

#[test]
fn the_interval_has_five_steps() {
    let mut state = viewed(sample::board());
    let interval = |state: &State| i64::try_from(state.options.interval.as_millis()).unwrap();
    keys(&mut state, "--");
    assert_eq!(interval(&state), 500);
    keys(&mut state, "+++++++");
    assert_eq!(interval(&state), 10_000);
    keys(&mut state, "-");
    assert_eq!(interval(&state), 5000);
}

#[test]
fn a_lost_daemon_keeps_the_last_figures_and_comes_back() {
    let mut state = viewed(sample::board());
    later(&mut state, 1);
    // The other questions were answered.
    let others = state
        .asked
        .iter_mut()
        .filter(|(topic, _)| **topic != Topic::Board);
    others.for_each(|(_, asked)| asked.is_open = false);
    let calls = update(&mut state, Input::Answer(Question::Board, Err(no_daemon())));
    assert_eq!(asked(&calls), [], "it is asked again after a pause");
    assert!(state.is_stale() && state.board.is_some());
    assert_eq!(
        state.trouble.as_deref(),
        Some("no daemon answers on /x; hint: start one")
    );
    assert_eq!(
        asked(&later(&mut state, 1)),
        [Topic::Board],
        "and for nothing else"
    );
    let calls = answer(
        &mut state,
        Question::Board,
        Data::Board(Box::new(sample::board())),
    );
    assert!(!state.is_stale());
    assert!(
        asked(&calls).contains(&Topic::Trend(0)),
        "figures of the time between: {calls:?}"
    );
    assert!(
        asked(&calls).contains(&Topic::Node),
        "roles may have changed: {calls:?}"
    );
}

#[test]
fn events_are_asked_for_when_there_are_new_ones() {
    let event = |seq| Event {
        seq,
        at: sample::now(),
        job: Some("7".to_owned()),
        kind: "running".to_owned(),
        text: "x".to_owned(),
    };
    let mut state = viewed(sample::board());
    assert!(state.is_open(Topic::Events));
    let question = Question::Events { after: 0 };
    answer(
        &mut state,
        question,
        Data::Events((1..=90).map(event).collect()),
    );
    later(&mut state, 2);
    assert!(!state.is_open(Topic::Events), "90 is the last one");
    let mut board = sample::board();
    board.last_event = 100_000;
    later(&mut state, 2);
    let calls = answer(&mut state, Question::Board, Data::Board(Box::new(board)));
    let after = 100_000 - u64::try_from(MOST_EVENTS).unwrap();
    assert!(
        calls.contains(&Call::Ask(Question::Events { after })),
        "{calls:?}"
    );
    answer(
        &mut state,
        Question::Events { after },
        Data::Events((90..2000).map(event).collect()),
    );
    assert_eq!(state.events.len(), MOST_EVENTS);
    assert_eq!(state.events.front().unwrap().seq, 1700);
}

#[test]
fn waiting_jobs_beyond_the_board_come_in_pages_that_are_on_the_screen() {
    let mut state = viewed(sample::large(2, 1000));
    assert_eq!(state.waiting_count(), 1000);
    keys(&mut state, "3");
    let pages = |calls: &[Call]| {
        let pages = calls.iter().filter_map(|call| match call {
            Call::Ask(Question::Waiting { page, query }) => {
                Some((*page, query.after.clone(), query.limit))
            }
            _ => None,
        });
        pages.collect::<Vec<_>>()
    };
    let job = |id: usize| {
        json!({ "id": id.to_string(), "name": "n", "user": "ana", "queue": "default", "state": "queued",
            "request": {"kind": "whole", "count": 1}, "compute": "fair", "slices": [], "command": [], "cwd": "/",
            "runner": "supervisor", "submitted_at": "2026-01-02T03:04:05Z", "directory": "/" })
    };
    let page = |from: usize, next: Option<&str>| {
        let jobs = (from..from + PAGE).map(|id| serde_json::from_value(job(id)).unwrap());
        Data::Page(Box::new(divvy_api::v1::JobPage {
            jobs: jobs.collect(),
            total: 1000,
            items: 1000,
            next: next.map(str::to_owned),
        }))
    };
    let calls = update(&mut state, Input::Key(Key::End));
    // The place of no further page is known.
    assert_eq!(state.waiting_row, PAGE - 1);
    assert_eq!(pages(&calls), [(0, None, PAGE)]);
    let Some(query) = page_query(&state, 0).map(Box::new) else {
        panic!("no query")
    };
    let first = Question::Waiting { page: 0, query };
    // The rows around the picked one reach into the next page.
    let calls = answer(&mut state, first, page(0, Some("99")));
    assert_eq!(pages(&calls), [(1, Some("99".to_owned()), PAGE)]);
    update(&mut state, Input::Key(Key::Down));
    assert_eq!(state.waiting_row, PAGE);
    assert!(state.waiting_at(PAGE).is_none() && state.waiting_at(PAGE - 1).is_some());
    // A page of a former filter is dropped.
    let Some(query) = page_query(&state, 1).map(Box::new) else {
        panic!("no query")
    };
    keys(&mut state, "/user:ana\n");
    let late = Question::Waiting { page: 1, query };
    answer(&mut state, late, page(100, None));
    assert!(state.waiting.pages.is_empty());
}

#[test]
fn an_array_is_one_row_until_a_key_unfolds_it() {
    let mut board = sample::board();
    board.waiting.first[2].folded = Some(Folded::of((0..38).collect(), None));
    board.waiting.count = 41;
    let mut state = viewed(board);
    keys(&mut state, "3");
    assert_eq!((state.waiting_count(), state.waiting_jobs()), (4, 41));
    assert_eq!(page_query(&state, 0).map(|query| query.fold), Some(true));
    let is_asked = |calls: &[Call]| {
        let is_page =
            |call: &Call| matches!(call, Call::Ask(Question::Waiting { query, .. }) if !query.fold);
        calls.iter().any(is_page)
    };
    let calls = update(&mut state, Input::Key(Key::Char('a')));
    assert!(is_asked(&calls), "{calls:?}");
    // Each task has a row, of which a page tells.
    assert_eq!((state.waiting_count(), state.waiting_at(0)), (41, None));
    keys(&mut state, "a");
    assert_eq!(state.waiting_count(), 4);
}

#[test]
fn an_action_needs_a_list_of_jobs_in_focus() {
    let mut state = viewed(sample::board());
    keys(&mut state, "1x");
    assert_eq!(state.mode, Mode::Normal);
    assert!(notice(&state).starts_with("cannot cancel: no job is selected"));
    keys(&mut state, "2x");
    assert!(matches!(state.mode, Mode::Confirm(_)));
}

#[test]
fn output_is_kept_up_to_a_bound_and_begins_again_after_a_gap() {
    let piece = |from: u64, text: &[u8]| LogPiece {
        from,
        bytes: text.iter().copied().collect(),
        end: from + text.len() as u64,
    };
    let mut log = Log::default();
    assert!(add_output(&mut log, piece(0, b"abc")));
    assert!(add_output(&mut log, piece(3, b"def")));
    assert!(!add_output(&mut log, piece(6, b"")));
    assert_eq!(log.bytes, b"abcdef");
    assert!(add_output(&mut log, piece(100, b"later")));
    assert_eq!(
        (log.bytes.iter().copied().collect::<Vec<_>>(), log.end),
        (b"later".to_vec(), 105)
    );
    add_output(&mut log, piece(105, &vec![b'x'; 2 * MOST_LOG]));
    assert_eq!(log.bytes.len(), MOST_LOG);
    // The program started again, with an empty log.
    assert!(add_output(&mut log, piece(0, b"again")));
    assert_eq!(log.bytes, b"again");
}

#[test]
fn a_wide_screen_shows_the_page_of_the_selection_and_follows_it() {
    let mut state = viewed(sample::board());
    let calls = update(&mut state, Input::Resize(200, 60));
    assert!(asked(&calls).contains(&Topic::Job), "{calls:?}");
    let page = |state: &State| {
        state
            .page
            .as_ref()
            .map(|page| (page.job.clone(), page.is_open))
    };
    assert_eq!(page(&state), Some(("7".to_owned(), false)));
    keys(&mut state, "j");
    assert_eq!(page(&state), Some(("12".to_owned(), false)));
    assert!(
        keys(&mut state, "q").contains(&Call::Quit),
        "the page beside the list is no place to leave"
    );
    update(&mut state, Input::Resize(80, 24));
    assert_eq!(page(&state), None);
}

fn any_key() -> impl Strategy<Value = Key> {
    let letter = prop_oneof![
        8 => proptest::sample::select("qh?oOntugGspmwlexsRryYfnjk/12345+- \u{8a13}".chars().collect::<Vec<_>>()),
        1 => any::<char>(),
    ];
    let others = [
        Key::Up,
        Key::Down,
        Key::Left,
        Key::Right,
        Key::PageUp,
        Key::PageDown,
        Key::Home,
        Key::End,
        Key::Tab,
        Key::BackTab,
        Key::Enter,
        Key::Escape,
        Key::Backspace,
        Key::Control('u'),
        Key::Control('l'),
        Key::Control('c'),
        Key::Control('z'),
    ];
    prop_oneof![4 => letter.prop_map(Key::Char), 2 => proptest::sample::select(others.to_vec())]
}

#[derive(Clone, Debug)]
enum Step {
    Key(Key),
    Size(u16, u16),
    Later(i64),
    Board(u32, u64),
    Sample,
    Lost,
    Role(&'static str),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_key().prop_map(Step::Key),
        1 => (0u16..220, 0u16..60).prop_map(|(width, height)| Step::Size(width, height)),
        1 => (-100i64..100).prop_map(Step::Later),
        1 => (0u32..20, 0u64..300).prop_map(|(gpus, waiting)| Step::Board(gpus, waiting)),
        1 => Just(Step::Sample),
        1 => Just(Step::Lost),
        1 => proptest::sample::select(vec!["viewer", "user", "admin"]).prop_map(Step::Role),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever happens at whatever size: the view draws, and changes nothing that was not confirmed.
    #[test]
    fn no_input_breaks_the_view_and_every_change_was_confirmed(steps in proptest::collection::vec(any_step(), 1..40)) {
        let mut state = viewed(sample::board());
        for step in steps {
            let before = state.mode.clone();
            let (is_yes, input) = match step {
                Step::Key(key) => (matches!(key, Key::Char('y' | 'Y')), Input::Key(key)),
                Step::Size(width, height) => (false, Input::Resize(width, height)),
                Step::Later(seconds) => (false, Input::Tick(state.now + SignedDuration::from_secs(seconds))),
                Step::Board(gpus, waiting) => {
                    let board = Data::Board(Box::new(sample::large(gpus, waiting)));
                    (false, Input::Answer(Question::Board, Ok(board)))
                }
                Step::Sample => (false, Input::Answer(Question::Board, Ok(Data::Board(Box::new(sample::board()))))),
                Step::Lost => (false, Input::Answer(Question::Board, Err(no_daemon()))),
                Step::Role(role) => (false, Input::Answer(Question::Node, Ok(node("ana", role)))),
            };
            let calls = update(&mut state, input);
            for action in acts(&calls) {
                prop_assert!(is_yes);
                prop_assert_eq!(&before, &Mode::Confirm(action.clone()));
            }
            let topics = asked(&calls);
            for (at, topic) in topics.iter().enumerate() {
                prop_assert!(!topics[..at].contains(topic), "{:?}", calls);
            }
            let area = ratatui::layout::Rect::new(0, 0, state.size.0, state.size.1);
            let mut buffer = ratatui::buffer::Buffer::empty(area);
            draw(&state, &mut buffer);
        }
    }
}
