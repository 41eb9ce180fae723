//! Orders of a list.

use std::collections::BTreeMap;

use divvy_packing::{NodeSpec, Shape};
use divvy_study::engine::workload::{Order, Pod, Workload};

use super::small::{node, shape};

/// Nodes and requests in the reverse order of their names.
fn workload(requests: u32, shape_of: impl Fn(u32) -> Shape) -> Workload {
    let pod = |nth: u32| Pod {
        name: format!("pod-{nth:03}"),
        shape: shape_of(nth),
    };
    Workload {
        nodes: (0..50)
            .rev()
            .map(|nth| node(&format!("node-{nth:02}"), 2))
            .collect(),
        pods: (0..requests).rev().map(pod).collect(),
    }
}

/// Each request of its own CPU, so that it can be followed.
fn one_gpu(nth: u32) -> Shape {
    Shape {
        cpu_milli: u64::from(nth),
        ..shape(1, 1000)
    }
}

fn names(nodes: &[NodeSpec]) -> Vec<&str> {
    nodes.iter().map(|node| node.name.as_str()).collect()
}

fn nodes(workload: &Workload, order: Order, seed: u64) -> Vec<NodeSpec> {
    let arranged = workload.arranged(order, seed);
    arranged
        .cluster
        .nodes()
        .iter()
        .map(|node| node.spec.clone())
        .collect()
}

#[test]
fn names_of_orders_are_read_as_they_are_written() {
    for order in Order::ALL {
        assert_eq!(order.to_string().parse(), Ok(order));
        let error = "random".parse::<Order>().unwrap_err().to_string();
        assert!(error.contains(order.name()), "{error}");
    }
}

#[test]
fn a_given_order_is_the_lists() {
    let workload = workload(40, one_gpu);
    let arranged = workload.arranged(Order::Given, 7);
    let listed: Vec<Shape> = workload.pods.iter().map(|pod| pod.shape).collect();
    assert_eq!(arranged.arrivals, listed);
    assert_eq!(nodes(&workload, Order::Given, 7), workload.nodes);
}

#[test]
fn a_drawn_order_is_the_list_shuffled_and_then_draws_from_it_until_130_percent() {
    // 98 of 100 GPUs, as the trace asks for.
    let workload = workload(98, one_gpu);
    let order = Order::Seeded;
    let arrivals = workload.arranged(order, 42).arrivals;
    assert_eq!(arrivals.len(), 130, "{order}");
    let mut first: Vec<Shape> = arrivals[..98].to_vec();
    assert!(!first.is_sorted(), "{order}");
    first.sort_unstable();
    assert_eq!(first, (0..98).map(one_gpu).collect::<Vec<_>>(), "{order}");
    let mut last = arrivals[98..].to_vec();
    last.sort_unstable();
    last.dedup();
    assert!(
        last.len() < 32,
        "{order}: with replacement, some of 32 are equal"
    );
}

#[test]
fn a_list_above_130_percent_loses_requests_at_random() {
    let workload = workload(200, one_gpu);
    let order = Order::Seeded;
    let mut arrivals = workload.arranged(order, 42).arrivals;
    assert_eq!(arrivals.len(), 130, "{order}");
    arrivals.sort_unstable();
    arrivals.dedup();
    assert_eq!(arrivals.len(), 130, "{order}: none twice");
    let early = arrivals
        .iter()
        .filter(|shape| shape.cpu_milli < 100)
        .count();
    assert!(
        (45..85).contains(&early),
        "{order}: {early} of the first half"
    );
}

#[test]
fn a_list_without_gpus_is_only_shuffled() {
    let workload = workload(30, |nth| Shape {
        cpu_milli: u64::from(nth),
        ..shape(0, 0)
    });
    assert_eq!(workload.arranged(Order::Seeded, 1).arrivals.len(), 30);
    assert_eq!(Workload::default().arranged(Order::Seeded, 42).arrivals, []);
}

#[test]
fn drawn_orders_do_not_depend_on_the_lists_order_and_differ_by_seed() {
    let reversed = workload(98, one_gpu);
    let mut sorted = reversed.clone();
    sorted.nodes.reverse();
    sorted.pods.reverse();
    let order = Order::Seeded;
    assert_eq!(reversed.arranged(order, 42), sorted.arranged(order, 42));
    let (first, second) = (nodes(&sorted, order, 42), nodes(&sorted, order, 43));
    assert_ne!(names(&first), names(&second), "{order}");
    let mut again = first.clone();
    again.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(again, sorted.nodes, "{order}: no node is lost");
}

#[test]
fn the_mix_counts_shapes_and_a_part_of_the_cluster_has_every_kind_of_node() {
    let mut workload = workload(9, |nth| shape(1, [100, 200, 300][nth as usize % 3]));
    assert_eq!(
        workload.mix(),
        [(shape(1, 100), 3), (shape(1, 200), 3), (shape(1, 300), 3)]
    );
    for (nth, node) in (0..).zip(&mut workload.nodes) {
        node.gpus = [2, 4, 8][nth % 3];
    }
    // Every third of the list is of one kind.
    let part = workload.on_every(3);
    let mut kinds: BTreeMap<u32, usize> = BTreeMap::new();
    for node in &part.nodes {
        *kinds.entry(node.gpus).or_default() += 1;
    }
    assert_eq!(part.nodes.len(), 17);
    assert!(
        kinds.len() == 3 && kinds.values().all(|count| *count >= 5),
        "{kinds:?}"
    );
}
