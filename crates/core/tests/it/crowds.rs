//! Large nodes: what may be asked about them is bounded, and says where it ends.

use crate::node;

use divvy_core::{Request, Share, plan, why};
use node::{Node, amount};

const CUT: &str = "too many jobs to try all of them";

/// 64 GPUs full of parts, and 1000 jobs that wait.
fn crowd(different: bool, backfill: bool) -> (Node, u64) {
    let mut node = Node::new(64, "");
    node.snapshot.backfill = backfill;
    let parts = ["0.25", "0.125", "0.375", "0.25"];
    for part in parts.iter().cycle().take(300) {
        node.ask(part);
    }
    node.start();
    let mut last = 0;
    for nth in 0..1000_u16 {
        let share = if different {
            Share::from_thousandths(400 + nth % 500).expect("a share")
        } else {
            Share::from_thousandths(900).expect("a share")
        };
        last = node.submit_request("default", Request::from(divvy_core::Amount::Share(share)));
    }
    (node, last)
}

#[test]
fn a_large_node_is_explained_in_full() {
    let (mut node, _) = crowd(false, false);
    let whole = node.submit_request("default", amount("1").into());
    let why = why(&node.snapshot, divvy_core::JobId(whole)).expect("it waits");
    assert!(
        !why.suggestions
            .iter()
            .any(|sooner| sooner.text.contains(CUT)),
        "{:?}",
        why.suggestions
    );
    assert_eq!(why.gpus.len(), 64);
    assert!(why.jobs_ahead.len() >= 1000);
}

#[test]
fn where_too_many_wait_for_too_many_amounts_the_explanation_says_that_it_is_cut_short() {
    let (node, last) = crowd(true, true);
    let why = why(&node.snapshot, divvy_core::JobId(last)).expect("it waits");
    assert!(
        why.suggestions
            .last()
            .is_some_and(|sooner| sooner.text.contains(CUT)),
        "{:?}",
        why.suggestions
    );
}

#[test]
fn ten_thousand_that_wait_all_have_a_reason() {
    let (mut node, _) = crowd(true, true);
    for _ in 0..9000 {
        node.ask("1");
    }
    let plan = plan(&node.snapshot);
    let waiting: usize = node
        .snapshot
        .queues
        .iter()
        .map(|queue| queue.waiting.len())
        .sum();
    assert_eq!(plan.waits.len() + plan.starts.len(), waiting);
}
