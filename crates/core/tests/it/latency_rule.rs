//! How much of a GPU jobs with a latency goal have together.

use divvy_core::{Compute, Request};

use crate::node::{Node, amount};

/// A node with so many GPUs, and jobs of these amounts and compute modes, in order of submission.
fn node(gpus: u32, jobs: &[(&str, &str)]) -> (Node, Vec<u64>) {
    let mut node = Node::new(gpus, "q=1");
    let mut all = Vec::new();
    for (size, compute) in jobs {
        let compute: Compute = compute.parse().expect("a compute mode");
        let request = Request {
            compute,
            ..Request::from(amount(size))
        };
        let job = node.submit_request("q", request);
        if compute.latency.is_some() {
            let id = divvy_core::JobId(job);
            node.snapshot.latency.jobs.insert(id, compute.share);
        }
        all.push(job);
    }
    (node, all)
}

#[test]
fn the_shares_of_jobs_with_a_latency_goal_add_up_to_half_of_a_gpu_at_most() {
    const GOAL: &str = "fair,latency=20ms";
    let quarter = ("0.25", GOAL);
    let (mut one, jobs) = node(1, &[quarter, quarter, quarter]);
    assert_eq!(one.start(), jobs[..2]);
    assert_eq!(
        one.reason(jobs[2]),
        "needs 0.25 of a GPU; 0.5 of 1 GPU in use, at most 0.5 free on one GPU; gpu 0: jobs with a latency goal have 0.5 \
         of its compute time, 0.25 needed, at most 0.5 for all of them"
    );
    // It starts when one of the two has ended.
    one.end(jobs[0]);
    assert_eq!(one.start(), jobs[2..]);

    // A share of its own counts instead of that of the memory, and another GPU has room.
    let small = ("0.25", "fair=0.1,latency=20ms");
    let (mut shared, jobs) = node(1, &[quarter, small, small, ("0.25", "fair")]);
    assert_eq!(shared.start(), jobs);
    let (mut two, jobs) = node(2, &[quarter, quarter, quarter]);
    assert_eq!(two.start(), jobs);
    // A whole GPU has no neighbours.
    let (mut whole, jobs) = node(1, &[("1", GOAL)]);
    assert_eq!(whole.start(), jobs);
}
