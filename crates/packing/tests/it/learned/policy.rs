//! Decisions of a trained policy.

use std::sync::OnceLock;

use divvy_core::Bytes;
use divvy_packing::learned::{Learned, MOST_KINDS};
use divvy_packing::{Choice, Cluster, ModelSet, NodePolicy, Shape};
use proptest::prelude::*;

use super::{nodes, shape, with_departures};

/// One training for all cases.
fn table() -> Learned {
    static TRAINED: OnceLock<Learned> = OnceLock::new();
    TRAINED.get_or_init(with_departures).fresh()
}

fn any_shape() -> impl Strategy<Value = Shape> {
    let shares = prop_oneof![Just(1000), Just(700), Just(300), 1..1000_u16];
    (0..16_u64, 0..3_u32, shares, 0..3_u64).prop_map(|(cpu, gpus, share, models)| Shape {
        models: ModelSet::from_bits(models),
        ..shape(cpu, gpus, if gpus == 0 { 0 } else { share })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The policy takes the least score, at the lowest index, and refuses what fits nowhere and nothing else.
    #[test]
    fn the_choice_is_the_least_of_the_scores(
        events in prop::collection::vec((any_shape(), any::<prop::sample::Index>(), 0..3), 1..60)
    ) {
        let mut cluster = Cluster::new(nodes(8));
        let mut learned = table();
        let mut held: Vec<(Shape, Choice)> = Vec::new();
        let all: Vec<usize> = (0..8).collect();
        for (shape, index, leaves) in events {
            if leaves == 0 && !held.is_empty() {
                let (shape, choice) = held.swap_remove(index.index(held.len()));
                cluster.release(&shape, &choice);
            }
            // A clone scores in the other order: first the nodes, then the choice.
            let mut other = learned.clone();
            let scores = other.scores(&cluster, &shape, &all);
            for (node, score) in cluster.nodes().iter().zip(&scores) {
                prop_assert_eq!(score.is_finite(), node.fits(&shape));
            }
            let choice = learned.choose(&cluster, &shape);
            prop_assert_eq!(&choice, &other.choose(&cluster, &shape));
            let least = scores.iter().copied().fold(f32::INFINITY, f32::min);
            let first = scores.iter().position(|score| *score == least && least.is_finite());
            prop_assert_eq!(choice.as_ref().map(|choice| choice.node), first);
            if let Some(choice) = choice {
                let gpus = cluster.nodes()[choice.node].best_fit(&shape);
                prop_assert_eq!(Some(&choice.gpus), gpus.as_ref());
                prop_assert!(cluster.take(&shape, &choice));
                held.push((shape, choice));
            }
        }
    }
}

#[test]
fn a_policy_follows_to_another_cluster() {
    let mut used = table();
    let (mut small, large) = (Cluster::new(nodes(2)), Cluster::new(nodes(8)));
    let part = shape(1, 1, 300);
    for _ in 0..4 {
        let choice = used.choose(&small, &part).unwrap();
        assert!(small.take(&part, &choice));
    }
    let all: Vec<usize> = (0..9).collect();
    let scores = used.scores(&large, &part, &all);
    assert_eq!(scores, table().scores(&large, &part, &all));
    assert_eq!(scores[8], f32::INFINITY, "there is no such node");
    let empty = Cluster::new([]);
    assert_eq!(used.choose(&empty, &part), None);
}

#[test]
fn more_shapes_than_are_kept_have_right_scores() {
    let mut learned = with_departures();
    let cluster = Cluster::new(nodes(3));
    let nth = |nth: u64| Shape {
        memory: Bytes::mib(nth),
        ..shape(1, 1, 300)
    };
    let first = learned.scores(&cluster, &nth(0), &[0, 1, 2]);
    for other in 1..=MOST_KINDS as u64 {
        learned.scores(&cluster, &nth(other), &[0]);
    }
    assert_eq!(learned.scores(&cluster, &nth(0), &[0, 1, 2]), first);
}

/// A part goes to the node with little CPU, which keeps the other for requests with much.
#[test]
fn a_part_with_little_cpu_stays_off_the_node_with_much() {
    let mut learned: Learned = with_departures();
    let cluster = Cluster::new(nodes(2));
    assert_eq!(learned.choose(&cluster, &shape(1, 1, 300)).unwrap().node, 1);
    assert_eq!(
        learned.choose(&cluster, &shape(14, 1, 1000)).unwrap().node,
        0
    );
}
