//! Patterns: behind a head, jobs that fill a GPU exactly start first, among jobs that yield.

use divvy_core::{JobId, PendingJob, Plan, Request, Snapshot, plan, starts_now, why};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::node::{Node, amount};
use crate::plan_props::what_would_start_a_job_does;

fn on(indices: &[u32], text: &str) -> Request {
    Request {
        on: indices.to_vec(),
        ..amount(text).into()
    }
}

/// GPU 0 is held, and the head asks for all of it; the others are for later jobs.
fn behind_a_head(others: u32) -> Node {
    let mut node = Node::new(1 + others, "").backfilling();
    node.yields = 1;
    node.submit_request("default", on(&[0], "0.5"));
    node.start();
    node.submit_request("default", on(&[0], "1"));
    node
}

fn started(plan: &Plan) -> Vec<u64> {
    plan.starts.iter().map(|start| start.job.0).collect()
}

#[test]
fn jobs_that_fill_a_gpu_start_before_an_older_one_that_leaves_a_gap() {
    let mut node = behind_a_head(1);
    let (large, half, other) = (node.ask("0.7"), node.ask("0.5"), node.ask("0.5"));
    assert_eq!(started(&plan(&node.snapshot)), [half, other]);
    // Without yielding, the oldest goes first.
    for waiting in &mut node.snapshot.queues[0].waiting {
        waiting.yields = false;
    }
    assert_eq!(started(&plan(&node.snapshot)), [large]);
}

#[test]
fn the_oldest_job_that_fills_a_gpu_with_others_is_not_passed() {
    let mut node = behind_a_head(1);
    let (quarter, whole, three) = (node.ask("0.25"), node.ask("1"), node.ask("0.75"));
    assert_eq!(started(&plan(&node.snapshot)), [quarter, three]);
    assert!(!starts_now(&node.snapshot, JobId(whole)));
    assert!(starts_now(&node.snapshot, JobId(three)));
}

#[test]
fn a_job_that_no_longer_yields_is_not_passed_and_passes_none() {
    let mut node = behind_a_head(1);
    let (first, old) = (node.ask("0.3"), node.ask("0.7"));
    let (_, _) = (node.ask("0.5"), node.ask("0.5"));
    node.snapshot.queues[0].waiting[2].yields = false;
    // The first could fill the GPU with the old one, which does not take part. It starts in its turn.
    assert_eq!(started(&plan(&node.snapshot)), [first, old]);
    node.snapshot.queues[0].waiting[1].yields = false;
    assert_eq!(started(&plan(&node.snapshot)), [first, old]);
}

#[test]
fn an_end_that_starts_another_job_in_its_place_is_no_way_to_start_it() {
    let mut node = behind_a_head(1);
    let holder = node.ask("1");
    node.start();
    let large = node.ask("0.875");
    // Once the holder ends, the large job would start, did a later one not fill the GPU.
    let says = |node: &Node| {
        let why = why(&node.snapshot, JobId(large)).expect("a pending job");
        let end = format!("would start when #{holder} ends");
        why.suggestions.iter().any(|other| other.text == end)
    };
    assert!(says(&node));
    node.ask("1");
    assert!(!says(&node));
}

#[test]
fn thirds_and_memory_fill_a_gpu_whose_last_thousandths_are_left() {
    let mut node = behind_a_head(1);
    let large = node.ask("0.5");
    let thirds = [node.ask("0.333"), node.ask("0.333"), node.ask("0.333")];
    assert_eq!(started(&plan(&node.snapshot)), thirds);
    let mut node = behind_a_head(1);
    let (share, memory) = (node.ask("0.3"), node.ask("0.4"));
    let parts = [node.ask("60GiB"), node.ask("20GiB")];
    assert_eq!(
        started(&plan(&node.snapshot)),
        parts,
        "{large} {share} {memory}"
    );
}

#[test]
fn a_set_that_could_delay_the_head_does_not_start() {
    let mut node = Node::new(1, "").backfilling();
    node.yields = 1;
    // Holders of 0.5 and 0.25: the head fits once the 0.5 ends, beside no more than 0.25.
    let _ = (node.ask("0.5"), node.ask("0.25"));
    node.start();
    node.ask("0.75");
    let (_, _) = (node.ask("0.125"), node.ask("0.125"));
    assert_eq!(started(&plan(&node.snapshot)), Vec::<u64>::new());
}

/// A node with a head that some GPUs cannot serve, and jobs behind it.
fn crowds() -> impl Strategy<Value = (Node, u64)> {
    let sizes = select(vec![
        "0.125", "0.25", "0.3", "0.333", "0.375", "0.4", "0.5", "0.6", "0.625", "0.7", "0.75", "1",
        "2", "10GiB", "24GiB", "2x0.5",
    ]);
    (
        1..4_u32,
        vec(sizes.clone(), 0..6),
        vec((sizes, 0..3_i32), 2..14),
    )
        .prop_map(|(others, held, jobs)| {
            let mut node = behind_a_head(others);
            let head = 2;
            node.snapshot.backfill = false;
            for size in held {
                let all: Vec<u32> = (1..=others).collect();
                node.submit_request("default", on(&all, size));
            }
            // Holders that started before the head came.
            let head_waits = node.snapshot.queues[0].waiting.remove(0);
            node.start();
            node.snapshot.queues[0].waiting.clear();
            node.snapshot.queues[0].waiting.push(head_waits);
            node.snapshot.backfill = true;
            for (size, priority) in jobs {
                node.ask(size);
                let waiting = node.snapshot.queues[0]
                    .waiting
                    .last_mut()
                    .expect("just asked");
                waiting.owner.priority = -priority;
            }
            divvy_core::order_key::sort_queue(&mut node.snapshot.queues[0].waiting);
            (node, head)
        })
}

fn without_yielding(snapshot: &Snapshot) -> Snapshot {
    let mut plain = snapshot.clone();
    for waiting in plain.queues.iter_mut().flat_map(|queue| &mut queue.waiting) {
        waiting.yields = false;
    }
    plain
}

/// Thousandths that a plan starts.
fn fills(snapshot: &Snapshot) -> u64 {
    let starts = plan(snapshot).starts.into_iter();
    let grants = starts.flat_map(|start| start.grants);
    grants
        .map(|grant| u64::from(grant.share.thousandths()))
        .sum()
}

proptest! {
    #[test]
    fn without_backfill_yielding_changes_nothing((node, _) in crowds()) {
        let snapshot = Snapshot { backfill: false, ..node.snapshot };
        prop_assert_eq!(plan(&snapshot), plan(&without_yielding(&snapshot)));
    }

    /// Whether it starts depends on no later job of its priority.
    #[test]
    fn a_job_that_does_not_yield_is_not_passed((node, _) in crowds(), nth in 0..14_usize) {
        let mut snapshot = node.snapshot;
        let waiting = &mut snapshot.queues[0].waiting;
        let nth = nth % waiting.len();
        for one in &mut waiting[..=nth] {
            one.yields = false;
        }
        let job = waiting[nth].job;
        let mut alone = snapshot.clone();
        alone.queues[0].waiting.truncate(nth + 1);
        let starts = |snapshot: &Snapshot| {
            plan(snapshot).starts.iter().find(|start| start.job == job).map(|start| start.grants.clone())
        };
        prop_assert_eq!(starts(&snapshot), starts(&alone));
        prop_assert_eq!(starts_now(&snapshot, job), starts(&snapshot).is_some());
    }

    /// A job of higher priority gets what it would have got.
    #[test]
    fn no_job_is_passed_by_one_of_lower_priority((node, _) in crowds()) {
        let snapshot = node.snapshot;
        let least = snapshot.queues[0].waiting.iter().map(|one| one.owner.priority).min();
        let mut above = snapshot.clone();
        above.queues[0].waiting.retain(|one: &PendingJob| Some(one.owner.priority) != least);
        let kept: Vec<JobId> = above.queues[0].waiting.iter().map(|one| one.job).collect();
        let starts = |snapshot: &Snapshot| {
            let starts = plan(snapshot).starts.into_iter();
            starts.filter(|start| kept.contains(&start.job)).collect::<Vec<_>>()
        };
        prop_assert_eq!(starts(&snapshot), starts(&above));
    }

    /// Also where a job that follows would pass it.
    #[test]
    fn what_why_says_of_a_job_that_yields_is_true((node, _) in crowds()) {
        what_would_start_a_job_does(&node.snapshot)?;
    }

    #[test]
    fn every_job_that_a_plan_starts_starts_now((node, _) in crowds()) {
        let plan = plan(&node.snapshot);
        let waiting = node.snapshot.queues[0].waiting.iter();
        for job in waiting.map(|waiting| waiting.job) {
            let starts = plan.starts.iter().any(|start| start.job == job);
            prop_assert_eq!(starts_now(&node.snapshot, job), starts);
        }
    }
}

/// Over many small nodes, patterns start at least as much as the order of age does.
#[test]
fn patterns_fill_at_least_as_much_on_average() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut with, mut without, mut more, mut less) = (0, 0, 0, 0);
    for _ in 0..600 {
        let tree = crowds().new_tree(&mut runner).expect("a node");
        let snapshot = tree.current().0.snapshot;
        let (patterns, plain) = (fills(&snapshot), fills(&without_yielding(&snapshot)));
        with += patterns;
        without += plain;
        more += u32::from(patterns > plain);
        less += u32::from(patterns < plain);
    }
    let said = format!(
        "{with} thousandths with patterns, {without} without; more on {more} nodes, less on {less}"
    );
    assert!(with > without && more > 2 * less, "{said}");
    assert!(more > 0, "{said}");
    println!("{said}");
}
