//! `oom`, `advise` and `resize` as users read them, recorded from fixed values.

#[allow(dead_code, reason = "each test file uses its part")]
use crate::fixtures;

use divvy_api::v1::{
    Advice, Amount, Job, JobState, Oom, OomAllocation, OomCause, OomKind, OomPeer, OomRecord,
};
use divvy_cli::args::Format;
use divvy_cli::render::{self, View};
use insta::assert_snapshot;
use jiff::SignedDuration;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn view(width: usize) -> View {
    View {
        wide: false,
        width: Some(width),
        now: fixtures::now(),
        zone: || jiff::tz::TimeZone::UTC,
        palette: Default::default(),
    }
}

fn record(number: u64) -> OomRecord {
    let live = |bytes, count, kind| OomAllocation { bytes, count, kind };
    OomRecord {
        number,
        at: fixtures::now() - SignedDuration::from_secs(90),
        pid: 8812,
        program: "python3".into(),
        api: "cuMemAlloc_v2".into(),
        cause: OomCause::SliceFull,
        gpu_uuid: Some("GPU-0".into()),
        gpu_index: Some(0),
        asked_bytes: 512 * MIB,
        limit_bytes: 8 * GIB,
        used_bytes: 8 * GIB - 100 * MIB,
        own_bytes: 7 * GIB,
        unaccounted_bytes: 60 * MIB,
        gpu_free_bytes: Some(19 * GIB),
        gpu_total_bytes: Some(80 * GIB),
        sufficient_limit_bytes: Some(8 * GIB + 412 * MIB),
        skipped: 0,
        allocations: 57,
        largest: vec![
            live(2 * GIB, 3, OomKind::Pool),
            live(256 * MIB, 1, OomKind::Context),
        ],
        peer_count: 3,
        peers: vec![OomPeer {
            pid: 8813,
            used_bytes: 800 * MIB,
        }],
    }
}

fn oom() -> Oom {
    let gpu_full = OomRecord {
        cause: OomCause::GpuFull,
        api: "cuMemAllocManaged".into(),
        gpu_free_bytes: Some(3 * MIB),
        sufficient_limit_bytes: None,
        used_bytes: 2 * GIB,
        peers: Vec::new(),
        peer_count: 0,
        unaccounted_bytes: 0,
        skipped: 12,
        ..record(9)
    };
    let elsewhere = OomRecord {
        cause: OomCause::NotInSlice,
        gpu_uuid: None,
        gpu_index: None,
        gpu_free_bytes: None,
        gpu_total_bytes: None,
        asked_bytes: 0,
        sufficient_limit_bytes: None,
        largest: Vec::new(),
        ..record(10)
    };
    Oom {
        job: "7".into(),
        name: "train.py".into(),
        state: JobState::Running,
        denials: 14,
        records: vec![record(0), gpu_full, elsewhere],
        suggested: Some(Amount::Memory { bytes: 17 * GIB }),
    }
}

fn oom_text(oom: &Oom) -> String {
    render::oom(oom, view(100))
}

#[test]
fn a_refusal_is_explained_with_every_figure_and_what_to_do() {
    assert_snapshot!("oom_running", oom_text(&oom()));
    let ended = Oom {
        state: JobState::Ended,
        denials: 1,
        records: vec![record(0)],
        ..oom()
    };
    assert_snapshot!("oom_ended", oom_text(&ended));
    let json = |all: &[Oom]| {
        let drawn = |_: &[Oom], _| String::new();
        render::list(all, Format::Json, view(80), drawn).expect("API types are JSON")
    };
    assert_snapshot!("oom_json", json(&[ended]));
}

#[test]
fn a_job_that_was_refused_nothing_says_so() {
    let none = Oom {
        denials: 0,
        records: Vec::new(),
        ..oom()
    };
    assert_eq!(oom_text(&none), "#7 train.py: no GPU memory was refused\n");
    let elsewhere = Oom {
        denials: 0,
        records: oom().records.split_off(2),
        suggested: None,
        ..oom()
    };
    assert_snapshot!("oom_not_the_limit", oom_text(&elsewhere));
}

#[test]
fn a_request_that_exceeds_the_gpu_is_shown_without_its_size_or_a_limit() {
    let absurd = OomRecord {
        cause: OomCause::GpuFull,
        asked_bytes: u64::MAX,
        sufficient_limit_bytes: None,
        ..record(0)
    };
    let text = oom_text(&Oom {
        denials: 0,
        records: vec![absurd],
        suggested: None,
        ..oom()
    });
    assert!(
        text.contains("cuMemAlloc_v2 requested more than a whole GPU"),
        "{text}"
    );
    assert!(
        text.contains(
            "cause    the driver refused it: it is larger than the GPU, so no limit allows it"
        ),
        "{text}"
    );
    assert!(!text.contains("TiB") && !text.contains("passes"), "{text}");
}

#[test]
fn a_program_that_names_itself_badly_moves_no_cursor() {
    let mut bad = oom();
    bad.records[0].program = "\u{1b}[2Jevil".into();
    assert!(!oom_text(&bad).contains('\u{1b}'));
}

fn advice() -> Vec<Advice> {
    let train = Advice {
        name: "train1".into(),
        program: "python train.py".into(),
        gpus: 1,
        runs: 37,
        denied_runs: 0,
        memory_limit_bytes: 40 * GIB,
        memory_peak_median_bytes: 17 * GIB + 200 * MIB,
        memory_peak_bytes: 18 * GIB + 900 * MIB,
        memory_at_least_bytes: 18 * GIB + 900 * MIB,
        memory_bytes: Some(21 * GIB),
        amount: Some(Amount::Memory { bytes: 21 * GIB }),
        command: ["python", "train.py", "--lr", "0.1"]
            .map(str::to_owned)
            .to_vec(),
    };
    let pair = Advice {
        name: "sweep".into(),
        program: "torchrun sweep.py".into(),
        gpus: 2,
        runs: 3,
        denied_runs: 2,
        memory_limit_bytes: 20 * GIB,
        memory_bytes: Some(25 * GIB),
        amount: Some(Amount::Shares {
            count: 2,
            thousandths: 313,
        }),
        ..train.clone()
    };
    let large = Advice {
        program: "python huge.py".into(),
        memory_bytes: Some(100 * GIB),
        amount: None,
        ..train.clone()
    };
    let unknown = Advice {
        program: "python short.py".into(),
        runs: 1,
        denied_runs: 1,
        memory_bytes: None,
        amount: None,
        ..train.clone()
    };
    vec![train, pair, large, unknown]
}

#[test]
fn advice_is_a_row_a_program_and_a_command_to_paste() {
    let table = |format, width| {
        render::list(&advice(), format, view(width), render::advice).expect("API types are JSON")
    };
    assert_snapshot!("advise_table_120", table(Format::Table, 120));
    assert_snapshot!("advise_table_80", table(Format::Table, 80));
    assert_snapshot!("advise_wide", table(Format::Wide, 80));
    assert_snapshot!("advise_json", table(Format::Json, 80));
    assert_snapshot!("advise_name", table(Format::Name, 80));
    let commands: String = advice().iter().map(render::command_of).collect();
    assert_snapshot!("advise_commands", commands);
}

/// The quarter of the fixtures, to hold a gigabyte once it uses no more.
fn shrinking() -> Job {
    let mut job = fixtures::jobs().remove(1);
    job.slices[0].memory_target_bytes = Some(GIB);
    job.slices[0].share_target = Some(13);
    job
}

#[test]
fn a_job_that_is_to_shrink_says_so_wherever_it_is_shown() {
    let jobs = [
        fixtures::jobs().remove(0),
        shrinking(),
        fixtures::jobs().remove(3),
    ];
    let told: String = jobs.iter().map(render::resized).collect();
    assert_snapshot!("resize", told);
    assert_snapshot!("ps_shrinking", render::jobs(&[shrinking()], view(120)));
    assert_snapshot!(
        "describe_shrinking",
        render::describe(&shrinking(), view(80))
    );
}
