//! Questions: what a change does to the same jobs.

use divvy_core::project::Quota;
use divvy_core::{Bytes, Gpus, Mode, Order, Project, SchedulingClass};
use divvy_study::engine::waits::ask;
use divvy_study::engine::waits::change::Change;
use divvy_study::engine::waits::figures::Answer;
use divvy_study::engine::waits::scene::{Scene, SceneError};
use divvy_study::engine::waits::work::{Draw, Durations, Kind, Source, Submission};

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
