//! Which task gets which part of which GPU, and when: the seed's example and the rules of placement.

use divvy_e2e::clearml::{Scene, Task};
use divvy_e2e::until;
use serde_json::json;

/// The seed's queues, in its order.
const SEED: [&str; 4] = [
    "dual_gpu=2",
    "quarter_gpu=0.25",
    "half_gpu=0.5",
    "single_gpu=1",
];

/// The seed's example: one task in each of four queues, on three GPUs.
pub fn seeds_example(scene: &Scene) {
    seeds_example_with(scene, &[]);
}

/// The same with more flags for the daemon.
pub fn seeds_example_with(scene: &Scene, flags: &[&str]) {
    // Put there in another order than that of the queues, before anybody looks.
    let [single, half, quarter, dual] = ["single", "half", "quarter", "dual"]
        .map(|size| scene.enqueued(&format!("{size}_gpu"), size));
    let _daemon = scene.daemon("0-2", &SEED, flags);
    assert_eq!(dual.runs_on(), "gpu0,1");
    assert_eq!(quarter.runs_on(), "gpu2.25a");
    assert_eq!(half.runs_on(), "gpu2.5a");
    single.waits();
    assert_eq!(single.status(), "queued");

    quarter.completes("quarter");
    until("the quarter is free", || {
        quarter.jobs().is_empty().then_some(())
    });
    single.waits();
    assert_eq!((single.status().as_str(), single.runs()), ("queued", 0));

    half.completes("half");
    assert_eq!(single.runs_on(), "gpu2");
    assert_eq!(dual.status(), "in_progress");
    single.completes("single");
    dual.completes("dual");
    for task in [single, half, quarter, dual] {
        assert_eq!(task.runs(), 1);
        let log = task.log();
        assert!(
            log.contains(&format!("task {} pulled from", task.id())),
            "{log}"
        );
        assert!(log.contains("here I am"), "{log}");
    }
}

#[test]
fn the_seeds_example_runs_as_the_seed_says() {
    let scene = Scene::new("a100-80gb:3");
    seeds_example(&scene);
    scene.assert_no_complaints();
}

/// A part goes where it leaves least, and whole GPUs stay whole for those who want them.
pub fn parts_go_where_they_leave_least(scene: &Scene) {
    let (half, most) = (
        scene.enqueued("half_gpu", "half"),
        scene.enqueued("most_gpu", "most"),
    );
    let queues = [
        "half_gpu=0.5",
        "most_gpu=0.75",
        "quarter_gpu=0.25",
        "single_gpu=1",
    ];
    let _daemon = scene.daemon("0-2", &queues, &[]);
    assert_eq!(
        (half.runs_on().as_str(), most.runs_on().as_str()),
        ("gpu0.5a", "gpu1.75a")
    );
    assert_eq!(
        scene.enqueued("quarter_gpu", "quarter").runs_on(),
        "gpu1.25a"
    );
    assert_eq!(scene.enqueued("half_gpu", "other").runs_on(), "gpu0.5b");
    assert_eq!(scene.enqueued("single_gpu", "single").runs_on(), "gpu2");
}

#[test]
fn a_part_goes_where_it_leaves_least() {
    let scene = Scene::new("a100-80gb:3");
    parts_go_where_they_leave_least(&scene);
    scene.assert_no_complaints();
}

#[test]
fn a_whole_gpu_is_one_that_no_task_has_a_part_of() {
    let scene = Scene::new("a100-80gb:2");
    let half = scene.enqueued("half_gpu", "half");
    let _daemon = scene.daemon("0-1", &["half_gpu=0.5", "single_gpu=1"], &[]);
    assert_eq!(half.runs_on(), "gpu0.5a");
    assert_eq!(scene.enqueued("single_gpu", "single").runs_on(), "gpu1");
    assert_eq!(scene.enqueued("half_gpu", "second").runs_on(), "gpu0.5b");
}

/// Nobody lower is served while the head of a higher queue does not fit.
pub fn the_first_that_does_not_fit_stops_the_rest(scene: &Scene) {
    let first = scene.enqueued("half_gpu", "first");
    let _daemon = scene.daemon("0", &["single_gpu=1", "half_gpu=0.5"], &[]);
    assert_eq!(first.runs_on(), "gpu0.5a");
    let single = scene.enqueued("single_gpu", "single");
    single.waits();
    let second = scene.enqueued("half_gpu", "second");
    second.waits();
    first.completes("first");
    assert_eq!(single.runs_on(), "gpu0");
    assert_eq!((second.status().as_str(), second.runs()), ("queued", 0));
    single.completes("single");
    assert_eq!(second.runs_on(), "gpu0.5a");
}

#[test]
fn nothing_starts_below_a_head_that_does_not_fit() {
    the_first_that_does_not_fit_stops_the_rest(&Scene::new("a100-80gb:1"));
}

#[test]
fn eight_eighths_fill_a_gpu_and_the_ninth_gets_what_comes_free() {
    let scene = Scene::new("a100-80gb:1");
    let tasks: Vec<Task<'_>> = (0..9)
        .map(|number| scene.enqueued("eighth_gpu", &format!("e{number}")))
        .collect();
    let _daemon = scene.daemon("0", &["eighth_gpu=0.125"], &[]);
    for (task, letter) in tasks[..8].iter().zip('a'..='h') {
        assert_eq!(task.runs_on(), format!("gpu0.125{letter}"));
    }
    tasks[8].waits();
    assert_eq!(scene.stub().waiting("eighth_gpu"), [tasks[8].id()]);
    tasks[3].completes("e3");
    assert_eq!(tasks[8].runs_on(), "gpu0.125d");
}

#[test]
fn three_of_three_eighths_need_two_gpus() {
    let scene = Scene::new("a100-80gb:2");
    let tasks = ["a", "b", "c"].map(|name| scene.enqueued("some_gpu", name));
    let _daemon = scene.daemon("0-1", &["some_gpu=0.375"], &[]);
    let slots = tasks.map(|task| task.runs_on());
    assert_eq!(slots, ["gpu0.375a", "gpu0.375b", "gpu1.375a"]);
}

#[test]
fn two_gpus_are_not_one_and_a_part() {
    let scene = Scene::new("a100-80gb:2");
    let quarter = scene.enqueued("quarter_gpu", "quarter");
    let _daemon = scene.daemon("0-1", &["dual_gpu=2", "quarter_gpu=0.25"], &[]);
    assert_eq!(quarter.runs_on(), "gpu0.25a");
    let dual = scene.enqueued("dual_gpu", "dual");
    dual.waits();
    assert_eq!(dual.status(), "queued");
    quarter.completes("quarter");
    assert_eq!(dual.runs_on(), "gpu0,1");
}

#[test]
fn a_range_takes_the_whole_gpus_that_are_free_and_no_part_of_another() {
    let scene = Scene::new("a100-80gb:3");
    let half = scene.enqueued("half_gpu", "half");
    let _daemon = scene.daemon("0-2", &["range_gpu=1-3", "half_gpu=0.5"], &[]);
    assert_eq!(half.runs_on(), "gpu0.5a");
    let range = scene.enqueued("range_gpu", "range");
    assert_eq!(range.runs_on(), "gpu1,2");
    assert_eq!(scene.enqueued("half_gpu", "other").runs_on(), "gpu0.5b");
    range.completes("range");
}

/// The order in which the programs of tasks began.
fn order(tasks: &[(&'static str, Task<'_>)]) -> Vec<&'static str> {
    let mut begun: Vec<(String, &str)> = Vec::new();
    for (name, task) in tasks {
        task.becomes("completed");
        let notes = task.notes();
        let time = notes[0].split(' ').nth(1).expect("a time");
        begun.push((time.to_owned(), name));
    }
    begun.sort();
    begun.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn the_first_queue_comes_first_again_after_each_start_unless_all_take_turns() {
    for (flags, expected) in [
        (&[][..], ["a1", "a2", "b1", "b2"]),
        (&["--order-fairness"][..], ["a1", "b1", "a2", "b2"]),
    ] {
        let scene = Scene::new("a100-80gb:1");
        let tasks = ["b1", "b2", "a1", "a2"].map(|name| {
            scene.open(name);
            (name, scene.enqueued(&format!("{}_queue", &name[..1]), name))
        });
        let _daemon = scene.daemon("0", &["a_queue=1", "b_queue=1"], flags);
        assert_eq!(order(&tasks), expected, "{flags:?}");
    }
}

/// A queue that is tagged `force_workers:off` is not pulled from, until it is no more.
pub fn a_queue_that_is_switched_off_waits(scene: &Scene) {
    let (off, on) = (
        scene.enqueued("off_queue", "off"),
        scene.enqueued("on_queue", "on"),
    );
    let queue = scene.queue_id("off_queue");
    scene.server.must(
        "queues.update",
        json!({ "queue": queue, "tags": ["force_workers:off"] }),
    );
    let _daemon = scene.daemon("0", &["off_queue=1", "on_queue=1"], &[]);
    // The queue that is off comes first, so this runs only because it is off.
    assert_eq!(on.runs_on(), "gpu0");
    on.completes("on");
    assert_eq!((off.status().as_str(), off.runs()), ("queued", 0));
    scene
        .server
        .must("queues.update", json!({ "queue": queue, "tags": [] }));
    assert_eq!(off.runs_on(), "gpu0");
    off.completes("off");
}

#[test]
fn nothing_is_pulled_from_a_queue_that_is_switched_off() {
    let scene = Scene::new("a100-80gb:1");
    a_queue_that_is_switched_off_waits(&scene);
    scene.assert_no_complaints();
}
