//! The example of queues over fractions, and the placement cases around it, through the real commands.
//!
//! The cases are worded as in ARCHITECTURE.md: free {0: .5, 1: .25} means that half of GPU 0 and a quarter of GPU 1 are free.

use divvy_api::v1::JobState;
use divvy_e2e::{Home, MIB, until};
use serde_json::Value;

/// Queues a job that holds next to nothing until its gate, named like `gate`, opens.
#[track_caller]
fn put(home: &Home, flags: &[&str], gate: &str) -> String {
    home.submit_holder(flags, 2 * MIB, gate)
}

/// Labels of what the job holds, once it runs.
#[track_caller]
fn place(home: &Home, job: &str) -> Vec<String> {
    home.running(job)
        .slices
        .into_iter()
        .map(|slice| slice.label)
        .collect()
}

/// The queues of the example, in their order of priority.
const QUEUES: [&str; 4] = [
    "dual_gpus=2",
    "quarter_gpu=0.25",
    "half_gpu=0.5",
    "single_gpu=1",
];

fn share_in_use(home: &Home) -> Vec<u64> {
    home.items(&["gpus"])
        .iter()
        .map(|gpu| gpu["share_allocated"].as_u64().expect("a figure"))
        .collect()
}

#[test]
fn the_seeds_example_ends_with_two_and_three_quarters_of_three_gpus_in_use() {
    let home = Home::new("a100-80gb:3");
    let _daemon = home.daemon(
        &[
            &["--dynamic-gpus", "--gpus", "0-2", "--queue"],
            &QUEUES[..],
            &["--docker"],
        ]
        .concat(),
    );

    let dual = put(&home, &["-q", "dual_gpus"], "dual");
    let quarter = put(&home, &["-q", "quarter_gpu"], "quarter");
    let half = put(&home, &["-q", "half_gpu"], "half");
    let single = put(&home, &["-q", "single_gpu"], "single");
    assert_eq!(place(&home, &dual), ["gpu0", "gpu1"]);
    assert_eq!(place(&home, &quarter), ["gpu2.25a"]);
    assert_eq!(place(&home, &half), ["gpu2.5a"]);
    let reason = home.waits(&single);
    assert!(reason.contains("2.75 of 3"), "{reason}");
    assert_eq!(share_in_use(&home), [1000, 1000, 750]);

    home.end(&quarter, "quarter");
    until("the plan has seen that the quarter is gone", || {
        home.waits(&single).contains("2.5 of 3").then_some(())
    });
    home.end(&half, "half");
    assert_eq!(place(&home, &single), ["gpu2"]);
    assert_eq!(home.job(&dual).state, JobState::Running);
    home.end(&single, "single");
    home.end(&dual, "dual");
    assert_eq!(share_in_use(&home), [0, 0, 0]);
}

#[test]
fn the_order_of_the_queues_decides_and_not_the_order_of_submission() {
    let home = Home::new("a100-80gb:3");
    let _daemon =
        home.daemon(&[&["--dynamic-gpus", "--gpus", "0-2", "--queue"], &QUEUES[..]].concat());
    let all = put(&home, &["-g", "3"], "all");
    assert_eq!(place(&home, &all), ["gpu0", "gpu1", "gpu2"]);
    let single = put(&home, &["-q", "single_gpu"], "single");
    let half = put(&home, &["-q", "half_gpu"], "half");
    let quarter = put(&home, &["-q", "quarter_gpu"], "quarter");
    let dual = put(&home, &["-q", "dual_gpus"], "dual");
    for job in [&single, &half, &quarter, &dual] {
        home.waits(job);
    }
    home.end(&all, "all");
    assert_eq!(place(&home, &dual), ["gpu0", "gpu1"]);
    assert_eq!(place(&home, &quarter), ["gpu2.25a"]);
    assert_eq!(place(&home, &half), ["gpu2.5a"]);
    home.waits(&single);
}

#[test]
fn a_quarter_goes_where_the_least_is_left_over() {
    // free {0: .5, 1: .25}
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    assert_eq!(
        place(&home, &put(&home, &["-g", "0.5", "--gpus-on", "0"], "a")),
        ["gpu0.5a"]
    );
    assert_eq!(
        place(&home, &put(&home, &["-g", "0.75", "--gpus-on", "1"], "b")),
        ["gpu1.75a"]
    );
    assert_eq!(
        place(&home, &put(&home, &["-g", "0.25"], "c")),
        ["gpu1.25a"]
    );
}

#[test]
fn a_whole_gpu_goes_where_nothing_is_and_a_half_where_something_is() {
    // free {0: .5, 1: 1}
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    assert_eq!(
        place(&home, &put(&home, &["-g", "0.5", "--gpus-on", "0"], "a")),
        ["gpu0.5a"]
    );
    assert_eq!(place(&home, &put(&home, &["-g", "1"], "b")), ["gpu1"]);
    assert_eq!(place(&home, &put(&home, &["-g", "0.5"], "c")), ["gpu0.5b"]);
}

#[test]
fn a_higher_queue_that_does_not_fit_stops_the_lower_ones() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[
        "--dynamic-gpus",
        "--gpus",
        "0",
        "--queue",
        "single=1",
        "half=0.5",
    ]);
    let running = put(&home, &["-q", "half"], "running");
    assert_eq!(place(&home, &running), ["gpu0.5a"]);
    let single = put(&home, &["-q", "single"], "single");
    home.waits(&single);
    let half = put(&home, &["-q", "half"], "half");
    let reason = home.waits(&half);
    assert!(reason.contains(&format!("#{single}")), "{reason}");
    home.end(&running, "running");
    assert_eq!(place(&home, &single), ["gpu0"]);
    home.waits(&half);
    home.end(&single, "single");
    assert_eq!(place(&home, &half), ["gpu0.5a"]);
}

#[test]
fn eight_eighths_fill_a_gpu_and_the_ninth_waits() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&["--dynamic-gpus", "--gpus", "0", "--queue", "eighth=0.125"]);
    let jobs: Vec<String> = (0..9)
        .map(|nth| put(&home, &["-q", "eighth"], &format!("gate{nth}")))
        .collect();
    for (job, letter) in jobs.iter().zip("abcdefgh".chars()) {
        assert_eq!(place(&home, job), [format!("gpu0.125{letter}")]);
    }
    home.waits(&jobs[8]);
    // Whose place is freed, that place is taken.
    home.end(&jobs[2], "gate2");
    assert_eq!(place(&home, &jobs[8]), ["gpu0.125c"]);
}

#[test]
fn three_times_three_eighths_need_two_gpus() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[
        "--dynamic-gpus",
        "--gpus",
        "0,",
        "1",
        "--queue",
        "most=0.375",
    ]);
    let places: Vec<_> = (0..3)
        .flat_map(|nth| place(&home, &put(&home, &["-q", "most"], &format!("gate{nth}"))))
        .collect();
    assert_eq!(places, ["gpu0.375a", "gpu0.375b", "gpu1.375a"]);
}

#[test]
fn two_whole_gpus_wait_while_a_quarter_of_one_is_in_use() {
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[
        "--dynamic-gpus",
        "--gpus",
        "0",
        "1",
        "--queue",
        "dual=2",
        "quarter=0.25",
    ]);
    let blocker = put(&home, &["-g", "0.25", "--gpus-on", "1"], "blocker");
    assert_eq!(place(&home, &blocker), ["gpu1.25a"]);
    let dual = put(&home, &["-q", "dual"], "dual");
    home.waits(&dual);
    let why: Value = home.items(&["why", &dual]).remove(0);
    let unmet = |gpu: usize| why["gpus"][gpu]["unmet"].as_array().map_or(0, Vec::len);
    assert_eq!((unmet(0), unmet(1)), (0, 1), "{why}");
    home.end(&blocker, "blocker");
    assert_eq!(place(&home, &dual), ["gpu0", "gpu1"]);
}
