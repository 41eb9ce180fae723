//! Questions and forecasts.

use divvy_core::project::Quota;
use divvy_core::simulate::waits::change::Change;
use divvy_core::simulate::waits::figures::Answer;
use divvy_core::simulate::waits::scene::{Scene, SceneError};
use divvy_core::simulate::waits::work::{
    Draw, Durations, Kind, Present, RunningJob, Source, Submission,
};
use divvy_core::simulate::waits::{History, ask, forecast, nodes_now};
use divvy_core::{Bytes, Gpus, Mode, Order, Project, SchedulingClass, SuggestedChange, why};

use super::{drawn, figures, job, node, queue, scene};

fn asked(scene: &Scene, jobs: &[Submission], changes: &[Change]) -> Answer {
    ask(scene, &Source::Listed(jobs.to_vec()), changes, &mut |_| ()).unwrap()
}

fn in_queue(name: &str, job: Submission) -> Submission {
    Submission {
        queue: queue(name),
        ..job
    }
}

#[test]
fn two_more_gpus_shorten_waits_and_change_no_figure_before() {
    let jobs: Vec<Submission> = (0..6).map(|at| job(at, "1", 10)).collect();
    let scene = scene(&[Mode::Shared, Mode::Shared], &["a"]);
    let more = Change::AddNode(node(&[Mode::Shared, Mode::Shared]));
    assert_eq!(more.to_string(), "+2xa100-40gb");
    let answer = asked(&scene, &jobs, &[more]);
    assert_eq!(answer.before, figures(&scene, &jobs));
    // Waits were 0, 0, 8, 8, 16, 16 and are 0, 0, 0, 0, 6, 6.
    assert_eq!(answer.before.all.wait.longest_ms, 16_000);
    assert_eq!(answer.after.all.wait.longest_ms, 6000);
    assert_eq!(
        (answer.all.jobs, answer.all.shorter, answer.all.longer),
        (6, 4, 0)
    );
    assert_eq!(answer.all.mean_ms, -6000.0);
    assert_eq!(answer.all.ci95_ms, None, "one run");
    assert_eq!(asked(&scene, &jobs, &[]).all.mean_ms, 0.0);
}

#[test]
fn a_queue_first_helps_its_jobs_at_the_cost_of_others() {
    let jobs: Vec<Submission> = (0..4)
        .flat_map(|at| [job(at, "1", 10), in_queue("b", job(at, "1", 10))])
        .collect();
    let scene = scene(&[Mode::Shared], &["a"]);
    let answer = asked(&scene, &jobs, &[Change::QueueFirst(queue("b"))]);
    let of = |name: &str| {
        answer
            .queues
            .iter()
            .find(|(queue, _)| queue.as_str() == name)
            .unwrap()
            .1
    };
    assert!(of("b").mean_ms < 0.0 && of("a").mean_ms > 0.0, "{answer:?}");
    let fair = asked(&scene, &jobs, &[Change::Order(Order::Fairness)]);
    let fair_b = fair
        .queues
        .iter()
        .find(|(queue, _)| queue.as_str() == "b")
        .unwrap()
        .1;
    assert!(of("b").mean_ms < fair_b.mean_ms && fair_b.mean_ms < 0.0);
    let absent = ask(
        &scene,
        &Source::Listed(jobs),
        &[Change::QueueFirst(queue("c"))],
        &mut |_| (),
    );
    assert_eq!(absent.unwrap_err().to_string(), "there is no queue c");
}

#[test]
fn eighths_round_up_and_fractions_take_the_place_of_whole_gpus() {
    let jobs = [
        job(0, "0.3", 10),
        job(0, "0.3", 10),
        job(0, "0.3", 10),
        job(1, "0.1", 10),
    ];
    let scene = scene(&[Mode::Shared], &["a"]);
    let answer = asked(&scene, &jobs, &[Change::Eighths]);
    assert_eq!(answer.before.all.wait.longest_ms, 0);
    let shapes: Vec<String> = answer
        .after
        .shapes
        .iter()
        .map(|(_, amount, _)| amount.to_string())
        .collect();
    assert_eq!(shapes, ["0.125", "0.375"]);
    // Two of 0.375 fit. The third waits, and the 0.125 waits behind it.
    assert_eq!(answer.all.longer, 2, "{answer:?}");
    let whole: Vec<Submission> = (0..4)
        .map(|_| Submission {
            used: Some(Bytes::gib(9)),
            ..job(0, "1", 10)
        })
        .collect();
    let answer = asked(&scene, &whole, &[Change::FractionsForWhole]);
    assert_eq!(answer.before.all.wait.longest_ms, 30_000);
    assert_eq!(
        answer.after.all.wait.longest_ms, 0,
        "2 of 8 eighths of 40 GiB each"
    );
    let unknown = asked(&scene, &[job(0, "1", 10)], &[Change::FractionsForWhole]);
    assert_eq!(unknown.after.shapes[0].1.to_string(), "1");
}

#[test]
fn a_mode_a_quota_and_backfill_can_be_changed() {
    let whole_and_part = [job(0, "0.5", 10), job(1, "1", 10), job(2, "0.25", 5)];
    let mut two = scene(&[Mode::Shared, Mode::Exclusive], &["a"]);
    let exclusive = asked(
        &two,
        &whole_and_part,
        &[Change::GpuMode {
            gpu: 0,
            mode: Mode::Exclusive,
        }],
    );
    assert_eq!(
        (exclusive.before.all.refused, exclusive.after.all.refused),
        (0, 2)
    );
    let mig = asked(
        &two,
        &[job(0, "1g.5gb", 5)],
        &[Change::GpuMode {
            gpu: 1,
            mode: Mode::Mig,
        }],
    );
    assert_eq!((mig.before.all.refused, mig.after.all.refused), (1, 0));
    let absent = ask(
        &two,
        &Source::Listed(Vec::new()),
        &[Change::GpuMode {
            gpu: 2,
            mode: Mode::Mig,
        }],
        &mut |_| (),
    );
    assert_eq!(absent.unwrap_err(), SceneError::NoGpu { gpu: 2, count: 2 });

    two.projects = vec![Project {
        quota: Quota {
            gpus: Gpus::whole(1),
            memory: None,
        },
        ..Project::new("team".parse().unwrap())
    }];
    let of_team = |at| Submission {
        owner: SchedulingClass {
            project: Some("team".parse().unwrap()),
            ..SchedulingClass::default()
        },
        ..job(at, "1", 10)
    };
    let quota = Change::Quota {
        project: "team".parse().unwrap(),
        gpus: Gpus::whole(2),
    };
    let answer = asked(&two, &[of_team(0), of_team(0)], &[quota]);
    assert_eq!(
        (
            answer.before.all.wait.longest_ms,
            answer.after.all.wait.longest_ms
        ),
        (10_000, 0)
    );
    let absent = Change::Quota {
        project: "other".parse().unwrap(),
        gpus: Gpus::ZERO,
    };
    let absent = ask(&two, &Source::Listed(Vec::new()), &[absent], &mut |_| ());
    assert_eq!(absent.unwrap_err().to_string(), "there is no project other");

    // The head waits for the first GPU; the quarter fits beside the half on the second only with backfill.
    let one = scene(&[Mode::Exclusive, Mode::Shared], &["a"]);
    let jobs = [
        job(0, "1", 20),
        job(0, "0.5", 20),
        job(1, "2", 5),
        job(2, "0.25", 1),
    ];
    let backfill = asked(&one, &jobs, &[Change::Backfill(true)]);
    assert_eq!(backfill.all.jobs, 4);
    let head_only = [job(0, "1", 20), job(1, "3g.20gb", 5), job(2, "0.25", 1)];
    let mut cut = scene(&[Mode::Mig, Mode::Shared], &["a"]);
    cut.nodes[0].gpus.truncate(2);
    let taken = [
        job(0, "7g.40gb", 20),
        head_only[1].clone(),
        head_only[2].clone(),
    ];
    let answer = asked(&cut, &taken, &[Change::Backfill(true)]);
    assert_eq!(
        (answer.all.shorter, answer.all.longer),
        (1, 0),
        "{answer:?}"
    );
}

#[test]
fn drawn_work_gives_an_interval_of_the_difference() {
    let draw = drawn(&[("0.5", 1.0), ("0.25", 1.0)], 1000.0, 4000.0, 400, 4);
    let scene = scene(&[Mode::Shared; 2], &["a"]);
    let more = [Change::AddNode(node(&[Mode::Shared]))];
    let source = Source::Drawn(draw.clone());
    let answer = ask(&scene, &source, &more, &mut |_| ()).unwrap();
    assert_eq!(
        answer.before.all.submitted,
        4 * 360,
        "the first tenth warms up"
    );
    let within = answer.all.ci95_ms.unwrap();
    assert!(answer.all.mean_ms + within < 0.0, "{answer:?}");
    assert_eq!(answer, ask(&scene, &source, &more, &mut |_| ()).unwrap());
    let refused = |draw: Draw| {
        ask(&scene, &Source::Drawn(draw), &[], &mut |_| ())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(Draw {
            runs: 0,
            ..draw.clone()
        }),
        "the scene has no runs"
    );
    assert_eq!(
        refused(Draw {
            jobs: 0,
            ..draw.clone()
        }),
        "the scene has no jobs"
    );
    assert!(
        refused(Draw {
            gap_ms: 0.0,
            ..draw.clone()
        })
        .contains("must be above zero")
    );
    assert!(
        refused(Draw {
            gap_ms: f64::NAN,
            ..draw.clone()
        })
        .contains("must be above zero")
    );
    assert!(
        refused(Draw {
            kinds: Vec::new(),
            ..draw.clone()
        })
        .contains("weights")
    );
    assert!(
        refused(Draw {
            runs: 100_000,
            ..draw.clone()
        })
        .contains("in all runs")
    );
    let empty = Kind {
        durations: Durations::Of(Vec::new()),
        ..draw.kinds[0].clone()
    };
    assert_eq!(
        refused(Draw {
            kinds: vec![empty],
            ..draw
        }),
        "the scene has no durations"
    );
}

fn history() -> History {
    let jobs: Vec<Submission> = (1..=10).map(|tens| job(0, "1", tens * 10)).collect();
    History::of(&jobs)
}

fn running(ran_s: u64, gpu: u32) -> RunningJob {
    RunningJob {
        job: job(0, "1", 0),
        ran_ms: ran_s * 1000,
        gpus: vec![gpu],
    }
}

#[test]
fn a_forecast_is_the_rest_of_the_durations_that_are_longer() {
    let scene = scene(&[Mode::Shared], &["a"]);
    let present = Present {
        now_ms: 1_000_000,
        running: vec![running(55, 0)],
        waiting: Vec::new(),
    };
    let new = job(0, "1", 0);
    let found = forecast(
        &scene,
        &present,
        &new,
        &history(),
        None,
        (400, 1),
        &mut |_| (),
    )
    .unwrap();
    // The running job has 60, 70, 80, 90 or 100 s, of which 55 are over.
    assert_eq!((found.wait.p50_ms, found.wait.p90_ms), (25_000, 45_000));
    assert_eq!(
        (found.wait.longest_ms, found.stuck, found.starts_now),
        (45_000, 0, false)
    );
    let mut limited = present.clone();
    limited.running[0].job.limit_ms = Some(56_000);
    let soon = forecast(
        &scene,
        &limited,
        &new,
        &history(),
        None,
        (10, 1),
        &mut |_| (),
    )
    .unwrap();
    assert_eq!(soon.wait.longest_ms, 1000, "its time limit ends it");
    let mut old = present.clone();
    old.running[0].ran_ms = 200_000;
    let again = forecast(&scene, &old, &new, &history(), None, (10, 1), &mut |_| ()).unwrap();
    assert_eq!(again.wait.p50_ms, 200_000, "longer than all: as long again");
    let now = Present {
        running: Vec::new(),
        ..present
    };
    let free = forecast(&scene, &now, &new, &history(), None, (10, 1), &mut |_| ()).unwrap();
    assert!(free.starts_now);
    let large = forecast(
        &scene,
        &now,
        &job(0, "2", 0),
        &history(),
        None,
        (10, 1),
        &mut |_| (),
    )
    .unwrap();
    assert!(large.refused && !large.starts_now);
}

#[test]
fn waiting_and_later_jobs_are_part_of_a_forecast() {
    let scene = scene(&[Mode::Shared], &["b", "a"]);
    let present = Present {
        now_ms: 1_000_000,
        running: vec![running(0, 0)],
        waiting: vec![job(900, "1", 0), job(901, "1", 0)],
    };
    let of = |present: &Present, later: Option<&Draw>| {
        forecast(
            &scene,
            present,
            &job(0, "1", 0),
            &history(),
            later,
            (100, 3),
            &mut |_| (),
        )
        .unwrap()
    };
    let behind = of(&present, None);
    assert!(
        behind.wait.p50_ms > 120_000,
        "three jobs of 55 s on average: {behind:?}"
    );
    let mut short = present.clone();
    short.waiting.pop();
    assert!(of(&short, None).wait.p50_ms < behind.wait.p50_ms);
    let mut draw = drawn(&[("1", 1.0)], 60_000.0, 30_000.0, 20, 1);
    draw.kinds[0].job.queue = queue("b");
    let first = of(&present, Some(&draw));
    assert!(
        first.wait.p50_ms > behind.wait.p50_ms,
        "later jobs of the first queue go first"
    );
    let nothing = History::default();
    let error = forecast(
        &scene,
        &present,
        &job(0, "1", 0),
        &nothing,
        None,
        (1, 1),
        &mut |_| (),
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "the scene has no ended jobs in its history"
    );
}

#[test]
fn the_node_of_now_explains_what_would_start_the_job() {
    let scene = scene(&[Mode::Shared, Mode::Shared], &["a"]);
    let present = Present {
        now_ms: 1_000_000,
        running: vec![
            running(5, 1),
            RunningJob {
                job: job(0, "0.5", 0),
                ran_ms: 1000,
                gpus: vec![0],
            },
        ],
        waiting: Vec::new(),
    };
    let (nodes, new) = nodes_now(&scene, &present, &job(0, "0.75", 0)).unwrap();
    assert_eq!((nodes.len(), new.0), (1, 2));
    assert_eq!(nodes[0].held[1].grants[0].index, 0);
    let why = why(&nodes[0], new).unwrap();
    let smaller =
        |change: &Option<SuggestedChange>| matches!(change, Some(SuggestedChange::Amount(_)));
    assert!(
        why.suggestions
            .iter()
            .any(|suggestion| smaller(&suggestion.change)),
        "{why:?}"
    );
    let mut twice = present.clone();
    twice.running.push(running(1, 1));
    let error = nodes_now(&scene, &twice, &job(0, "1", 0)).unwrap_err();
    assert_eq!(error, SceneError::Running { job: 2 });
}
