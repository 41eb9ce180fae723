use insta::assert_snapshot;
use proptest::prelude::*;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::draw;
use crate::top::call::{Data, LogPiece, Question, Span};
use crate::top::look::{Colours, Look};
use crate::top::sample;
use crate::top::state::State;
use crate::top::update::tests::{answer, keys, viewed};
use crate::top::update::{Input, update};

/// The text of a screen, without trailing spaces.
fn screen(state: &State) -> String {
    let (width, height) = state.size;
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(state, &mut buffer);
    crate::top::once::text(&buffer)
}

/// The same with a letter for each colour and modifier, one line below each line of text.
fn styles(state: &State) -> Vec<ratatui::style::Style> {
    let (width, height) = state.size;
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(state, &mut buffer);
    buffer
        .content
        .iter()
        .map(ratatui::buffer::Cell::style)
        .collect()
}

fn sized(width: u16, height: u16) -> State {
    let mut state = viewed(sample::board());
    update(&mut state, Input::Resize(width, height));
    for gpu in 0..3 {
        let figures = (0..60)
            .map(|second| f64::from((second * 7 + gpu * 30) % 100))
            .map(Some);
        let history = serde_json::json!({ "of": format!("gpu:{gpu}"), "step_s": 1,
            "from": (sample::now() - jiff::SignedDuration::from_secs(59)).to_string(),
            "figures": [{ "name": "utilization_percent", "values": figures.collect::<Vec<_>>() }] });
        let history = serde_json::from_value(history).unwrap();
        answer(
            &mut state,
            Question::Trend(u32::try_from(gpu).unwrap()),
            Data::History(Box::new(history)),
        );
    }
    let event = |seq: u64, job: &str, kind: &str, text: &str| serde_json::json!({ "seq": seq, "at": sample::now(), "job": job, "kind": kind, "text": text });
    let events = serde_json::json!([
        event(
            88,
            "7",
            "submitted",
            "train requests 0.5 of a GPU in queue half"
        ),
        event(89, "7", "running", "on gpu0.5a"),
        event(
            90,
            "12",
            "memory_refused",
            "its limit refused 2.0 GiB\u{1b}[2J"
        ),
    ]);
    let events = serde_json::from_value(events).unwrap();
    answer(
        &mut state,
        Question::Events { after: 0 },
        Data::Events(events),
    );
    state
}

/// The page of job 7, with each of its answers.
fn on_page(width: u16, height: u16, typed: &str) -> State {
    let mut state = sized(width, height);
    keys(&mut state, typed);
    let gib = f64::from(1 << 30);
    let used =
        (0..600).map(|second| (second > 200).then(|| gib * (10.0 + f64::from(second) / 28.0)));
    let limit = (0..600).map(|second| Some(gib * if second < 300 { 19.8 } else { 39.6 }));
    let curve = serde_json::json!({ "of": "job:7", "step_s": 1,
        "from": (sample::now() - jiff::SignedDuration::from_secs(600)).to_string(),
        "figures": [
            { "name": "memory_used_bytes", "values": used.collect::<Vec<_>>() },
            { "name": "memory_limit_bytes", "values": limit.collect::<Vec<_>>() },
        ] });
    let curve = Box::new(serde_json::from_value(curve).unwrap());
    let job = "7".to_owned();
    let span = Span::TenMinutes;
    answer(
        &mut state,
        Question::Curve {
            job: job.clone(),
            span,
        },
        Data::History(curve),
    );
    let facts = serde_json::json!({ "id": "7", "name": "train", "user": "ana", "queue": "half", "project": "vision",
        "state": "running", "request": {"kind": "share", "thousandths": 500}, "compute": "fair", "slices": [],
        "command": ["python", "train.py"], "cwd": "/home/ana", "runner": "supervisor", "pid": 4711,
        "submitted_at": "2026-01-02T10:00:05Z", "started_at": "2026-01-02T10:00:31Z", "directory": "/j/7" });
    answer(
        &mut state,
        Question::Job(job.clone()),
        Data::Job(Box::new(serde_json::from_value(facts).unwrap())),
    );
    let events = state.events.iter();
    let events = events.filter(|event| event.job.as_deref() == Some("7"));
    let events = events.cloned().collect();
    answer(
        &mut state,
        Question::JobEvents(job.clone()),
        Data::Events(events),
    );
    let output = b"epoch 1\rloss 0.5\rloss 0.25\nepoch 2\n\x1b[31mred\x1b[0m \xff\n".to_vec();
    let piece = LogPiece {
        from: 0,
        end: output.len() as u64,
        bytes: output.into(),
    };
    answer(
        &mut state,
        Question::Log {
            job: job.clone(),
            from: 0,
        },
        Data::Log(piece),
    );
    let oom = serde_json::json!({ "job": "7", "name": "train", "state": "running", "denials": 2, "records": [{
        "number": 0, "at": "2026-01-02T12:03:31Z", "pid": 4711, "program": "python", "api": "cuMemAlloc_v2",
        "cause": "slice_full", "gpu_uuid": "GPU-1", "gpu_index": 0, "asked_bytes": 2u64 << 30, "limit_bytes": 40u64 << 30,
        "used_bytes": 39u64 << 30, "own_bytes": 39u64 << 30, "unaccounted_bytes": 0, "gpu_free_bytes": null,
        "gpu_total_bytes": null, "sufficient_limit_bytes": 41u64 << 30, "skipped": 0, "allocations": 3,
        "largest": [{ "bytes": 13u64 << 30, "count": 3, "kind": "linear" }], "peer_count": 0, "peers": [] }] });
    answer(
        &mut state,
        Question::Oom(job),
        Data::Oom(Box::new(serde_json::from_value(oom).unwrap())),
    );
    state
}

#[test]
fn eighty_by_twenty_four() {
    let screen = screen(&sized(80, 24));
    let page = include_str!("../../../../../docs/top.md");
    assert!(page.contains(&screen), "docs/top.md shows another screen");
    assert_snapshot!(screen);
}

#[test]
fn a_hundred_and_twenty_by_forty() {
    assert_snapshot!(screen(&sized(120, 40)));
}

#[test]
fn two_hundred_by_sixty_with_the_page_beside() {
    assert_snapshot!(screen(&on_page(200, 60, "")));
}

#[test]
fn sixty_by_twenty() {
    assert_snapshot!(screen(&sized(60, 20)));
}

#[test]
fn twenty_by_five_says_what_is_too_small() {
    assert_snapshot!(screen(&sized(20, 5)), @"20x5: need 40x10");
}

#[test]
fn eight_gpus_and_ten_thousand_waiting_jobs() {
    let mut state = viewed(sample::large(8, 10_000));
    update(&mut state, Input::Resize(80, 24));
    assert_snapshot!(screen(&state));
    keys(&mut state, "1jjj");
    assert_snapshot!("picked_gpu", screen(&state));
}

#[test]
fn ascii_without_colour() {
    let mut state = sized(80, 24);
    state.options.look = Look::new(true, Colours::None);
    let text = screen(&state);
    assert!(text.is_ascii(), "{text}");
    assert_snapshot!(text);
    for style in styles(&state) {
        let colour = [style.fg, style.bg].into_iter().flatten();
        assert!(
            colour
                .into_iter()
                .all(|colour| colour == ratatui::style::Color::Reset)
        );
    }
    let mut state = on_page(80, 24, "\n");
    state.options.look = Look::new(true, Colours::None);
    let text = screen(&state);
    assert!(text.is_ascii(), "{text}");
    assert_snapshot!("ascii_page", text);
}

#[test]
fn the_page_of_a_job() {
    assert_snapshot!("page_log", screen(&on_page(80, 24, "\n")));
    assert_snapshot!("page_oom", screen(&on_page(80, 24, "oo")));
    assert_snapshot!("page_events", screen(&on_page(80, 24, "\ne")));
}

#[test]
fn what_keys_show() {
    let mut state = sized(80, 24);
    keys(&mut state, "?");
    assert_snapshot!("help", screen(&state));
    let last = |typed: &str| {
        let mut state = sized(80, 24);
        keys(&mut state, typed);
        screen(&state).lines().last().unwrap().to_owned()
    };
    assert_eq!(last("x"), "divvy cancel 7  y/N  train of ana");
    assert_eq!(last("xn"), "nothing was done: divvy cancel 7");
    assert_eq!(
        last("r12G"),
        "divvy resize 7 to: 12G   12G, 0.5 or fair=0.25; Enter, Esc"
    );
    assert_eq!(
        last("r12G\n"),
        "divvy resize 7 --gpu-memory 12G  y/N  train of ana"
    );
    assert_eq!(
        last("/user:ana"),
        "/user:ana   user: queue: project: gpu: state: text; Enter, Esc"
    );
    let events = {
        let mut state = sized(80, 24);
        keys(&mut state, "4");
        screen(&state)
    };
    assert_snapshot!("events", events);
    let mut state = sized(80, 24);
    keys(&mut state, "5");
    assert_snapshot!("shares", screen(&state));
    let mut state = sized(80, 24);
    keys(&mut state, "t");
    assert_snapshot!("tree", screen(&state));
}

#[test]
fn actions_that_the_role_lacks_are_in_parentheses() {
    let mut state = sized(120, 24);
    state.options.is_readonly = true;
    let text = screen(&state);
    assert!(
        text.ends_with("(r resize)  (s suspend)  (x cancel)  / filter  ? help  q leave\n"),
        "{text}"
    );
}

#[test]
fn old_figures_are_grey_and_say_their_age() {
    let mut state = sized(80, 24);
    let later = state.now + jiff::SignedDuration::from_secs(75);
    update(&mut state, Input::Tick(later));
    let text = screen(&state);
    assert!(
        text.starts_with("divvy top  lab1  ! figures are 1m15s old: the daemon has no"),
        "{text}"
    );
    let body = &styles(&state)[80..80 * 23];
    let is_faint =
        |style: &ratatui::style::Style| style.add_modifier.contains(ratatui::style::Modifier::DIM);
    assert!(body.iter().all(is_faint));
}

#[test]
fn no_text_of_a_user_reaches_the_terminal_as_it_is() {
    for typed in ["", "3", "4", "5", "\n", "t"] {
        let mut state = sized(120, 40);
        keys(&mut state, typed);
        let text = screen(&state);
        let hidden = |c: char| c != '\n' && divvy_core::escape::is_hidden(c);
        assert!(!text.contains(hidden), "{typed:?}: {text:?}");
    }
}

/// A board whose every text is this one.
fn hostile(text: &str) -> divvy_api::v1::Board {
    let mut board = sample::board();
    let text = text.to_owned();
    board.hostname.clone_from(&text);
    for gpu in &mut board.gpus {
        gpu.model.clone_from(&text);
        gpu.problem = Some(text.clone());
        gpu.processes
            .iter_mut()
            .for_each(|process| process.program = Some(text.clone()));
        let instances = gpu.mig.iter_mut().flat_map(|mig| &mut mig.instances);
        instances.for_each(|instance| instance.profile.clone_from(&text));
    }
    for job in &mut board.jobs {
        (job.name, job.user) = (text.clone(), text.clone());
        (job.queue, job.project, job.compute) =
            (Some(text.clone()), Some(text.clone()), Some(text.clone()));
        job.slices
            .iter_mut()
            .for_each(|slice| slice.label.clone_from(&text));
    }
    for job in &mut board.waiting.first {
        (job.name, job.user, job.request) = (text.clone(), text.clone(), text.clone());
        (job.queue, job.reason) = (Some(text.clone()), Some(text.clone()));
    }
    for share in board.users.iter_mut().chain(&mut board.projects) {
        share.name.clone_from(&text);
    }
    board.waiting.reasons.insert(text, 3);
    board
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A daemon of another version, or a user, may send any text.
    #[test]
    fn no_text_breaks_a_line_or_leaves_its_screen(
        text in prop_oneof![any::<String>(), "[訓練é\u{301}\u{202e}\u{1b}a ]{0,80}", Just("x".repeat(5_000))],
        width in 40u16..180, height in 10u16..45, pane in 1u32..6,
    ) {
        let mut state = viewed(hostile(&text));
        update(&mut state, Input::Resize(width, height));
        keys(&mut state, &pane.to_string());
        let screen = screen(&state);
        let hidden = |c: char| c != '\n' && divvy_core::escape::is_hidden(c);
        prop_assert!(!screen.contains(hidden), "{:?}", screen);
        for line in screen.lines() {
            prop_assert!(unicode_width::UnicodeWidthStr::width(line) <= usize::from(width), "{:?}", line);
        }
    }
}

#[test]
fn once_everything_is_drawn_one_below_the_other() {
    let mut state = sized(100, 24);
    state.options.is_once = true;
    state.size.1 = crate::top::layout::whole_height(&state);
    assert_snapshot!(screen(&state));
    // As many lines as there are jobs, and no job twice.
    let mut state = viewed(sample::large(8, 100));
    state.options.is_once = true;
    state.size = (100, 0);
    state.size.1 = crate::top::layout::whole_height(&state);
    let text = screen(&state);
    for job in (100..164).chain(1000..1012) {
        let of_job = text
            .lines()
            .filter(|line| line.trim_start().starts_with(&format!("{job} ")));
        assert_eq!(of_job.count(), 1, "{job}:\n{text}");
    }
}

#[test]
fn an_array_has_one_row_and_leaves_room_for_other_jobs() {
    let mut state = sized(80, 24);
    let mut board = sample::board();
    board.waiting.first[2].folded = Some(divvy_api::v1::Folded::of((2..40).collect(), Some(4)));
    board.waiting.first[2].name = "sweep[2]".to_owned();
    board.waiting.count = 41;
    answer(&mut state, Question::Board, Data::Board(Box::new(board)));
    let text = screen(&state);
    assert!(text.contains("PENDING 41"), "{text}");
    let row = text.lines().find(|line| line.contains("33_[2-39%4]"));
    assert!(row.is_some_and(|row| row.contains("sweep ")), "{text}");
    assert!(text.contains("last"), "{text}");
}
