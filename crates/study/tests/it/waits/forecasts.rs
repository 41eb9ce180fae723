//! Forecasts: when a job starts that is submitted now.

use divvy_core::Mode;
use divvy_study::engine::waits::scene::SceneError;
use divvy_study::engine::waits::work::{Draw, Present, RunningJob, Submission};
use divvy_study::engine::waits::{History, forecast};

use super::{drawn, job, queue, scene};

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
fn running_jobs_that_do_not_fit_on_the_gpus_are_refused() {
    let scene = scene(&[Mode::Shared, Mode::Shared], &["a"]);
    let running = |ran_s: u64, gpu| RunningJob {
        job: job(0, "1", 0),
        ran_ms: ran_s * 1000,
        gpus: vec![gpu],
    };
    let present = Present {
        now_ms: 1_000_000,
        running: vec![running(5, 1), running(1, 1)],
        waiting: Vec::new(),
    };
    let asked = job(0, "1", 0);
    let error = forecast(
        &scene,
        &present,
        &asked,
        &history(),
        None,
        (1, 1),
        &mut |_| (),
    );
    assert_eq!(error.unwrap_err(), SceneError::Running { job: 1 });
}
