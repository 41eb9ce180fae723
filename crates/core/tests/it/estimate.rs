//! When a waiting job starts, by what is known of the others.

use crate::node;

use std::collections::BTreeMap;

use divvy_core::estimate::estimate_start;
use divvy_core::{JobId, Project, SchedulingClass};
use node::Node;

fn starts(node: &Node, job: u64, left: &[(u64, u64)]) -> Option<u64> {
    let left: BTreeMap<JobId, u64> = left
        .iter()
        .map(|(job, seconds)| (JobId(*job), *seconds))
        .collect();
    estimate_start(&node.snapshot, JobId(job), &left)
}

#[test]
fn a_job_starts_when_enough_of_those_before_it_have_ended() {
    let mut node = Node::new(2, "");
    let (a, b) = (node.ask("1"), node.ask("1"));
    node.start();
    let pair = node.ask("2");
    let half = node.ask("0.5");
    assert_eq!(starts(&node, pair, &[(a, 100), (b, 30)]), Some(100));
    assert_eq!(
        starts(&node, half, &[(a, 100), (b, 30)]),
        None,
        "nobody knows how long the pair runs"
    );
    assert_eq!(
        starts(&node, half, &[(a, 100), (b, 30), (pair, 50)]),
        Some(150)
    );
    assert_eq!(starts(&node, pair, &[(a, 100)]), None, "one has no limit");
}

#[test]
fn a_job_with_room_starts_now_and_one_that_is_not_there_never() {
    let mut node = Node::new(1, "");
    let first = node.ask("0.5");
    assert_eq!(starts(&node, first, &[]), Some(0));
    assert_eq!(starts(&node, 99, &[]), None);
}

#[test]
fn a_job_over_quota_is_preempted_at_once() {
    let mut node = Node::new(1, "");
    let project = |name: &str, gpus| {
        let mut project = Project::new(name.parse().expect("a name"));
        project.quota.gpus = divvy_core::Gpus::whole(gpus);
        project
    };
    node.snapshot.projects = vec![project("a", 0), project("b", 1)];
    let owner = |name: &str| SchedulingClass {
        project: Some(name.parse().expect("a name")),
        priority: 0,
        preemptible: true,
        user: None,
    };
    node.ask_as("1", owner("a"));
    node.start();
    let within = node.ask_as("1", owner("b"));
    assert_eq!(starts(&node, within, &[]), Some(0));
}
