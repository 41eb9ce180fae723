//! GPUs that other daemons of the machine hold, in full or in part.

use divvy_core::{AllocatedJob, Bytes, HeldElsewhere, JobId, QueueName, Snapshot, plan, why};

use crate::node::{Node, cut};

fn held(share: u64, gib: u64, used: u64) -> HeldElsewhere {
    HeldElsewhere {
        holder: "ana's daemon".to_owned(),
        share,
        memory: Bytes::gib(gib),
        used: Bytes::gib(used),
    }
}

/// One GPU with these amounts elsewhere, and a job that requests `text`.
fn one(elsewhere: &[HeldElsewhere], unmanaged: u64, text: &str) -> Snapshot {
    let mut node = Node::new(1, "q=1");
    node.snapshot.gpus[0].elsewhere = elsewhere.to_vec();
    node.snapshot.gpus[0].unmanaged = Bytes::gib(unmanaged);
    node.ask(text);
    node.snapshot
}

/// What the job gets, or why it waits.
fn outcome(snapshot: &Snapshot) -> String {
    let plan = plan(snapshot);
    match plan.starts.first() {
        Some(start) => start.grants[0].label.clone(),
        None => plan.waits[0].reason.to_string(),
    }
}

#[test]
fn the_rest_of_a_gpu_is_free_and_the_holder_of_more_is_named() {
    let half = [held(500, 40, 0)];
    assert_eq!(outcome(&one(&half, 0, "0.5")), "gpu0.5a");
    assert_eq!(
        outcome(&one(&half, 0, "0.75")),
        "needs 0.75 of a GPU; 0.5 of 1 GPU in use, at most 0.5 free on one GPU; gpu 0: 0.5 (40.0 GiB) held by ana's \
         daemon"
    );
    assert_eq!(
        outcome(&one(&half, 0, "1")),
        "needs 1 whole GPU; 0.5 of 1 GPU in use; gpu 0: 0.5 (40.0 GiB) held by ana's daemon"
    );
    let two = [held(500, 40, 0), held(500, 40, 0)];
    let full = outcome(&one(&two, 0, "0.25"));
    assert!(
        full.ends_with("1 (80.0 GiB) held by ana's daemon and 1 more"),
        "{full}"
    );
    let why = why(&one(&half, 0, "1"), JobId(1)).unwrap();
    assert_eq!(why.gpus[0].failed, ["0.5 (40.0 GiB) held by ana's daemon"]);
}

#[test]
fn memory_alone_or_share_alone_can_be_what_is_taken() {
    assert_eq!(outcome(&one(&[held(900, 8, 0)], 0, "0.1")), "gpu0.1a");
    assert!(outcome(&one(&[held(900, 8, 0)], 0, "20GiB")).contains("held by"));
    assert!(outcome(&one(&[held(100, 72, 0)], 0, "20GiB")).contains("held by"));
}

#[test]
fn memory_that_its_jobs_use_is_counted_once() {
    // 30 of the 40 GiB are in use, and this daemon sees them as unmanaged.
    let using = [held(500, 40, 30)];
    assert_eq!(outcome(&one(&using, 30, "0.5")), "gpu0.5a");
    let stranger = outcome(&one(&using, 31, "0.5"));
    assert!(
        stranger.contains("processes outside Divvy hold 1.0 GiB"),
        "{stranger}"
    );
    // A daemon that claims more use than it holds hides no memory of others.
    let liar = [held(500, 40, 80)];
    assert!(outcome(&one(&liar, 60, "0.5")).contains("hold 20.0 GiB"));
}

#[test]
fn amounts_beyond_a_gpu_are_a_gpu() {
    let hostile = [held(u64::MAX, u64::MAX >> 30, 0), held(1000, 80, 0)];
    let full = outcome(&one(&hostile, 0, "0.001"));
    assert!(full.contains("gpu 0: 1 (80.0 GiB) held by"), "{full}");
}

#[test]
fn a_gpu_in_mig_mode_has_one_daemon() {
    let mut snapshot = one(&[held(1000, 40, 0)], 0, "0.125");
    cut(&mut snapshot.gpus[0], "a100-40gb");
    assert!(outcome(&snapshot).contains("held by ana's daemon"));
    snapshot.gpus[0].elsewhere.clear();
    assert!(outcome(&snapshot).starts_with("gpu0."));
}

#[test]
fn backfill_waits_for_room_that_another_daemon_may_release() {
    let mut node = Node::new(1, "q=1");
    node.snapshot.backfill = true;
    node.snapshot.gpus[0].elsewhere = vec![held(500, 40, 0)];
    node.ask("0.75");
    node.ask("0.25");
    // Once ana's daemon has released 0.25, there is room for the first job alone.
    assert_eq!(plan(&node.snapshot).starts, []);
    let grants = {
        let mut own = Node::new(1, "q=1");
        own.ask("0.5");
        plan(&own.snapshot).starts.remove(0).grants
    };
    node.snapshot.gpus[0].elsewhere.clear();
    let held = AllocatedJob::new(JobId(9), QueueName::default_queue(), grants);
    node.snapshot.held.push(held);
    // A job of this daemon releases all of its half at once, so both fit then.
    assert_eq!(plan(&node.snapshot).starts.len(), 1);
}
