//! What users read, recorded: every view in its forms, from fixed values. A change shows up as a diff to review.

use crate::fixtures;

use divvy_api::v1::{Error, ErrorCode, Why};
use divvy_cli::args::{self, Format};
use divvy_cli::colour::Palette;
use divvy_cli::error_output;
use divvy_cli::render::{self, Item, View};
use insta::assert_snapshot;
use jiff::tz::TimeZone;

fn view(width: usize) -> View {
    View {
        wide: false,
        width: Some(width),
        now: fixtures::now(),
        zone: || jiff::tz::TimeZone::UTC,
        palette: Default::default(),
    }
}

fn list<T: Item>(
    items: &[T],
    format: Format,
    width: usize,
    table: impl FnOnce(&[T], View) -> String,
) -> String {
    render::list(items, format, view(width), table).expect("API types are JSON")
}

#[test]
fn ps() {
    let jobs = fixtures::jobs();
    assert_snapshot!(
        "ps_table_120",
        list(&jobs, Format::Table, 120, render::jobs)
    );
    assert_snapshot!("ps_table_80", list(&jobs, Format::Table, 80, render::jobs));
    assert_snapshot!("ps_table_60", list(&jobs, Format::Table, 60, render::jobs));
    assert_snapshot!(
        "ps_table_200",
        list(&jobs, Format::Table, 200, render::jobs)
    );
    for width in [60, 80, 120, 200] {
        assert_snapshot!(
            format!("ps_all_{width}"),
            list(&jobs, Format::Table, width, render::past_jobs)
        );
    }
    let coloured = View {
        palette: Palette::Many,
        ..view(120)
    };
    assert_snapshot!(
        "ps_colours",
        render::past_jobs(&jobs, coloured).replace('\u{1b}', "^")
    );
    assert_snapshot!("ps_wide", list(&jobs, Format::Wide, 80, render::jobs));
    assert_snapshot!("ps_json", list(&jobs[1..2], Format::Json, 80, render::jobs));
    assert_snapshot!(
        "ps_ndjson",
        list(&jobs[1..3], Format::Ndjson, 80, render::jobs)
    );
    assert_snapshot!("ps_name", list(&jobs, Format::Name, 80, render::jobs));
}

#[test]
fn gpus() {
    let gpus = fixtures::gpus();
    assert_snapshot!(
        "gpus_table_120",
        list(&gpus, Format::Table, 120, render::gpus)
    );
    assert_snapshot!(
        "gpus_table_80",
        list(&gpus, Format::Table, 80, render::gpus)
    );
    assert_snapshot!(
        "gpus_table_60",
        list(&gpus, Format::Table, 60, render::gpus)
    );
    assert_snapshot!(
        "gpus_table_200",
        list(&gpus, Format::Table, 200, render::gpus)
    );
    let mut bare = gpus.clone();
    bare[1].temperature_celsius = Some(64);
    bare[1].power_watts = Some(251);
    for width in [60, 120] {
        assert_snapshot!(
            format!("gpus_without_daemon_{width}"),
            list(&bare, Format::Table, width, render::unmanaged_gpus)
        );
    }
    assert_snapshot!(
        "gpus_footer_60",
        render::gpus_footer(&gpus, &fixtures::node(), view(60))
    );
    assert_snapshot!("gpus_wide", list(&gpus, Format::Wide, 80, render::gpus));
    assert_snapshot!(
        "gpus_json",
        list(&gpus[2..], Format::Json, 80, render::gpus)
    );
    assert_snapshot!("gpus_name", list(&gpus, Format::Name, 80, render::gpus));
    assert_snapshot!(
        "gpus_footer",
        render::gpus_footer(&gpus, &fixtures::node(), view(200))
    );
}

#[test]
fn projects() {
    let projects = fixtures::projects();
    assert_snapshot!(
        "projects_table_120",
        list(&projects, Format::Table, 120, render::projects)
    );
    assert_snapshot!(
        "projects_table_80",
        list(&projects, Format::Table, 80, render::projects)
    );
    let wide = View {
        wide: true,
        ..view(80)
    };
    assert_snapshot!("projects_wide", render::projects(&projects, wide));
    assert_snapshot!(
        "projects_json",
        list(&projects[1..], Format::Json, 80, render::projects)
    );
    assert_snapshot!(
        "projects_name",
        list(&projects, Format::Name, 80, render::projects)
    );
    assert_eq!(render::entitled(&projects[0]), "quota 2.5, limit 4");
    assert_eq!(
        render::entitled(&projects[1]),
        "quota 0.5, no limit, weight 3"
    );
}

#[test]
fn where_a_job_stands_that_is_to_be_confirmed_is_described() {
    use divvy_api::v1::{Confirmation, JobState};
    let mut job = fixtures::jobs().remove(0);
    assert!(!render::describe(&job, view(80)).contains("confirmed"));
    job.labels = [("clearml.task".to_owned(), "4f2".to_owned())].into();
    for (state, confirmation, words) in [
        (
            JobState::Queued,
            Confirmation::NotPlaced,
            "not yet: it has no slice",
        ),
        (JobState::Starting, Confirmation::Awaiting, "not yet"),
        (JobState::Running, Confirmation::Confirmed, "yes"),
        (JobState::Ended, Confirmation::NotPlaced, "no"),
    ] {
        (job.state, job.confirmation) = (state, Some(confirmation));
        let described = render::describe(&job, view(80));
        let line = described.lines().find(|line| line.starts_with("confirmed"));
        assert!(
            line.is_some_and(|line| line.ends_with(words)),
            "{described}"
        );
        assert!(described.contains("clearml.task=4f2"), "{described}");
    }
}

#[test]
fn what_is_said_of_a_jobs_terms_is_described() {
    let mut job = fixtures::jobs().remove(0);
    job.priority = 5;
    job.preemptible = true;
    job.time_limit_s = Some(5400);
    job.after = vec![divvy_api::v1::After {
        job: "3".into(),
        ok: true,
    }];
    job.retries = 2;
    job.runs_before = 1;
    job.secrets = vec!["TOKEN".into()];
    let described = render::describe(&job, view(80));
    assert!(
        described.contains("priority 5, preemptible, time limit 1h 30m, after #3 if it exits with 0, retries 2, run 2"),
        "{described}"
    );
    assert!(described.contains("TOKEN"), "{described}");

    let mut waits = fixtures::jobs().remove(3);
    waits.latest_start = Some(fixtures::now() + jiff::SignedDuration::from_mins(90));
    let words = "would start in 1h30m at the latest, if no other job is submitted";
    let told = render::submitted(&waits, true, fixtures::now());
    assert!(told.contains(words), "{told}");
    let words = "in 1h30m at the latest, if no other job is submitted";
    assert!(render::describe(&waits, view(80)).contains(words));
    waits.expected_start = Some(fixtures::now() + jiff::SignedDuration::from_mins(40));
    let words = "in about 40m00s, in 1h30m at the latest, if no other job is submitted";
    let described = render::describe(&waits, view(80));
    assert!(described.contains(words), "{described}");

    let mut newer = fixtures::jobs().remove(0);
    assert!(!render::describe(&newer, view(80)).contains("uncounted"));
    newer.uncounted_calls = Some(3);
    let described = render::describe(&newer, view(80));
    assert!(
        described.contains("uncounted:   the limiter let 3 calls through without accounting"),
        "{described}"
    );

    let mut held = fixtures::jobs().remove(0);
    held.suspended = true;
    assert!(list(&[held], Format::Table, 120, render::jobs).contains("suspended"));
}

#[test]
fn the_memory_of_a_suspended_job_is_described_and_a_pending_job_names_the_job_with_the_room() {
    use divvy_api::v1::{JobMemory, MemoryPlace};
    let mut held = fixtures::jobs().remove(0);
    assert!(!render::describe(&held, view(80)).contains("gpu memory"));
    held.suspended = true;
    for (place, words) in [
        (
            MemoryPlace::Gpu,
            "on its GPUs; the driver could not release it",
        ),
        (MemoryPlace::Offloading, "moving to host memory"),
        (MemoryPlace::Host, "in host memory; the job holds no GPU"),
        (
            MemoryPlace::RestorePending,
            "in host memory; room on its GPUs is reserved for it",
        ),
        (MemoryPlace::Restoring, "moving back to its GPUs"),
    ] {
        let since = fixtures::now() - jiff::SignedDuration::from_mins(5);
        held.gpu_memory = Some(JobMemory { place, since });
        let described = render::describe(&held, view(80));
        let line = format!("gpu memory:  {words}, for 5m00s");
        assert!(described.lines().any(|one| one == line), "{described}");
    }
    held.slices.clear();
    held.reason = Some("holds no GPU: its 4.0 GiB of gpu0.25a is in host memory".into());
    let row = list(&[held], Format::Table, 160, render::jobs);
    assert!(
        row.contains("suspended") && row.contains("holds no GPU"),
        "{row}"
    );
    assert!(!row.contains("on gpu"), "{row}");
}

#[test]
fn queues() {
    let queues = fixtures::queues();
    assert_snapshot!(
        "queues_table_120",
        list(&queues, Format::Table, 120, render::queues)
    );
    assert_snapshot!(
        "queues_table_80",
        list(&queues, Format::Table, 80, render::queues)
    );
    assert_snapshot!(
        "queues_json",
        list(&queues[..1], Format::Json, 80, render::queues)
    );
    assert_snapshot!(
        "queues_name",
        list(&queues, Format::Name, 80, render::queues)
    );
}

#[test]
fn events() {
    let events = fixtures::events();
    assert_snapshot!(
        "events_table",
        list(&events, Format::Table, 80, render::events)
    );
    assert_snapshot!(
        "events_wide",
        list(&events, Format::Wide, 80, render::events)
    );
    assert_snapshot!(
        "events_ndjson",
        list(&events, Format::Ndjson, 80, render::events)
    );
    assert_snapshot!(
        "events_name",
        list(&events, Format::Name, 80, render::events)
    );
    let lines: String = events
        .iter()
        .map(|event| render::event_line(event, &TimeZone::UTC))
        .collect();
    assert_snapshot!("events_followed", lines);
}

#[test]
fn describe() {
    for (name, at) in [
        ("running", 1),
        ("past_the_limiter", 2),
        ("queued", 3),
        ("failed", 4),
        ("launch_failed", 5),
    ] {
        assert_snapshot!(
            format!("describe_{name}"),
            render::describe(&fixtures::jobs()[at], view(80))
        );
    }
}

#[test]
fn why() {
    let waits = fixtures::why();
    assert_snapshot!("why_waiting", render::why(&waits, view(80)));
    assert_snapshot!(
        "why_waiting_json",
        list(&[waits], Format::Json, 80, |_, _| String::new())
    );
    let running = Why {
        state: divvy_api::v1::JobState::Running,
        place: None,
        summary: "it runs on gpu2.25a".into(),
        ..fixtures::why()
    };
    let running = Why {
        gpus: Vec::new(),
        behind: Vec::new(),
        suggestions: Vec::new(),
        suggested_changes: Vec::new(),
        reason_code: None,
        ..running
    };
    assert_snapshot!("why_running", render::why(&running, view(80)));
    assert_snapshot!(
        "why_json",
        list(&[running], Format::Json, 80, |_, _| String::new())
    );
}

#[test]
fn why_says_when_as_far_as_it_is_known() {
    let starts = |expected: Option<i64>, latest: Option<i64>, usual: Option<i64>| {
        let at = |minutes| fixtures::now() + jiff::SignedDuration::from_mins(minutes);
        let why = Why {
            expected_start: expected.map(at),
            latest_start: latest.map(at),
            usual_start: usual.map(at),
            ..fixtures::why()
        };
        let told = render::why(&why, view(200));
        let lines = told
            .lines()
            .skip_while(|line| !line.starts_with("  starts"));
        let lines = lines.take_while(|line| !line.starts_with("  behind"));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(starts(None, None, None), "");
    let certain = "in about 40m00s, in 1h30m at the latest, if no other job is submitted";
    assert_eq!(
        starts(Some(40), Some(90), None),
        format!("  starts  {certain}")
    );
    let usual =
        "in about 12m00s, if no other job is submitted and the jobs ahead take their usual time";
    assert_eq!(starts(None, None, Some(12)), format!("  starts  {usual}"));
    assert_eq!(
        starts(Some(40), Some(90), Some(12)),
        format!("  starts  {usual}\n          {certain}")
    );
    // What is no sooner says nothing.
    assert_eq!(
        starts(Some(40), Some(90), Some(40)),
        format!("  starts  {certain}")
    );
}

#[test]
fn why_names_a_few_of_the_jobs_with_unknown_ends() {
    let mut why = fixtures::why();
    why.gpus.truncate(1);
    let many = (1..=20).map(|job| fixtures::holder(&job.to_string(), "q", 50));
    why.gpus[0].held_by = many.collect();
    let told = render::why(&why, view(200));
    let words =
        "unknown for #1, #2, #3, #4, #5, #6, #7, #8 and 12 more: no time limit, no earlier runs\n";
    assert!(told.contains(words), "{told}");
}

#[test]
fn submit() {
    let jobs = fixtures::jobs();
    let told: String = [1, 3]
        .map(|at| render::submitted(&jobs[at], false, fixtures::now()))
        .concat();
    assert_snapshot!("submit", told);
    let told: String = [1, 3]
        .map(|at| render::submitted(&jobs[at], true, fixtures::now()))
        .concat();
    assert_snapshot!("submit_dry_run", told);
}

#[test]
fn help() {
    let mut command = args::command().term_width(100);
    assert_snapshot!("help", command.render_help());
    command.build();
    help_of(&command, "help");
}

/// The help of each verb below, and of what is below that.
fn help_of(command: &clap::Command, name: &str) {
    let verbs = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
    for verb in verbs {
        let name = format!("{name}_{}", verb.get_name());
        assert_snapshot!(name.clone(), verb.clone().render_help());
        help_of(verb, &name);
    }
}

#[test]
fn failures() {
    let error = Error::new(
        ErrorCode::NeverFits,
        "8 whole GPUs can never fit: this node has 3",
    )
    .hint("the nearest that can: -g 3")
    .details(serde_json::json!({"gpus": 3, "nearest": "3"}));
    assert_snapshot!("failure_text", error_output::render(&error, false));
    assert_snapshot!("failure_json", error_output::render(&error, true));
}

/// Nobody's name, reason or command may move the cursor of who reads the table.
#[test]
fn control_characters_of_others_are_shown_and_not_sent() {
    let mut job = fixtures::jobs().remove(4);
    for text in [
        &mut job.name,
        &mut job.user,
        &mut job.queue,
        &mut job.command[0],
        &mut job.cwd,
    ] {
        *text = "a\u{1b}[2Jb".into();
    }
    job.reason = Some("line\nbreak\u{7}".into());
    job.project = Some("\u{9b}31m".into());
    let mut event = fixtures::events().remove(0);
    event.text = "\u{1b}]0;title\u{7}".into();
    let mut error = Error::new(ErrorCode::NotFound, "no job is named \u{1b}[31m");
    error.hint = Some("\u{8}".into());
    let texts = [
        render::jobs(
            &[job.clone()],
            View {
                wide: true,
                ..view(80)
            },
        ),
        render::describe(&job, view(80)),
        render::submitted(&job, false, fixtures::now()),
        render::event_line(&event, &TimeZone::UTC),
        error_output::render(&error, false),
    ];
    for text in texts {
        assert!(
            !text.replace('\n', "").chars().any(char::is_control),
            "{text:?}"
        );
    }
}

#[test]
fn tables_fit_the_terminal() {
    for width in [80, 100, 120, 200] {
        let tables = [
            list(&fixtures::jobs(), Format::Table, width, render::jobs),
            list(&fixtures::gpus(), Format::Table, width, render::gpus),
            list(&fixtures::queues(), Format::Table, width, render::queues),
            list(&fixtures::events(), Format::Table, width, render::events),
        ];
        for line in tables.iter().flat_map(|table| table.lines()) {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
}
