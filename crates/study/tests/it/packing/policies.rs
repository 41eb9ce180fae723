//! The policies themselves: what they choose, and what holds for all of them.

use divvy_core::{Bytes, Share};
use divvy_packing::{BestFit, Choice, Cluster, ModelSet, NodePolicy, NodeSpec, Shape};
use divvy_study::engine::fgd::Fgd;
use divvy_study::engine::policy_name::PolicyName;
use proptest::prelude::*;

use super::small::{built, node, shape};

const POLICIES: [PolicyName; 2] = [PolicyName::BestFit, PolicyName::Fgd];

fn chosen(policy: &mut dyn NodePolicy, cluster: &Cluster, shape: &Shape) -> (usize, Vec<usize>) {
    let choice = policy.choose(cluster, shape).unwrap();
    (choice.node, choice.gpus)
}

fn take(cluster: &mut Cluster, shape: &Shape, node: usize, gpus: &[usize]) {
    let gpus = gpus.to_vec();
    assert!(cluster.take(shape, &Choice { node, gpus }), "{shape:?}");
}

#[test]
fn best_fit_takes_the_node_with_the_least_left_of_cpu_and_gpus() {
    let mut cluster = Cluster::new([node("a", 8), node("b", 4), node("c", 4)]);
    let mut policy = BestFit::default();
    let half = shape(1, 500);
    assert_eq!(chosen(&mut policy, &cluster, &half), (1, vec![0]));
    take(&mut cluster, &half, 2, &[3]);
    assert_eq!(chosen(&mut policy, &cluster, &half), (2, vec![3]));
    // 16 cores count as much as one GPU does: 7.5 GPUs and 1 core against 3.5 GPUs and 63 or 71 cores.
    for (cores, expected) in [(64, 1), (72, 0)] {
        let mut specs = [node("a", 8), node("b", 4)];
        specs[0].cpu_milli = 2000;
        specs[1].cpu_milli = cores * 1000;
        let cluster = Cluster::new(specs);
        let (node, _) = chosen(&mut BestFit::default(), &cluster, &half);
        assert_eq!(node, expected, "{cores} cores");
    }
}

#[test]
fn fgd_keeps_gpus_usable_for_the_kinds_that_it_expects() {
    let mut cluster = Cluster::new([node("a", 2)]);
    take(&mut cluster, &shape(1, 400), 0, &[0]);
    take(&mut cluster, &shape(1, 300), 0, &[1]);
    let request = shape(1, 200);
    // 600 and 700 are free. On the first GPU 400 would stay, too little for a half.
    let mut policy = Fgd::new(&[(shape(1, 500), 10)]);
    assert_eq!(chosen(&mut policy, &cluster, &request), (0, vec![1]));
    let mut policy = Fgd::new(&[(shape(1, 400), 10)]);
    assert_eq!(chosen(&mut policy, &cluster, &request), (0, vec![0]));
    let mut policy = BestFit::default();
    assert_eq!(chosen(&mut policy, &cluster, &request), (0, vec![0]));
}

#[test]
fn fgd_avoids_nodes_that_others_can_use_in_whole() {
    let mut cluster = Cluster::new([node("a", 8), node("b", 2)]);
    take(&mut cluster, &shape(1, 500), 1, &[0]);
    let mut policy = Fgd::new(&[(shape(8, 1000), 60), (shape(1, 500), 40)]);
    assert_eq!(chosen(&mut policy, &cluster, &shape(1, 500)), (1, vec![0]));
}

#[test]
fn equal_scores_go_to_the_first_node_whatever_the_policy() {
    let cluster = Cluster::new([node("z", 4), node("a", 4)]);
    for name in POLICIES {
        for request in [shape(1, 300), shape(1, 1000), shape(2, 1000), shape(0, 0)] {
            let mut policy = built(name, &[(shape(1, 300), 1)]);
            let choice = policy.choose(&cluster, &request).unwrap();
            assert_eq!(choice.node, 0, "{name} {request:?}");
            assert_eq!(choice.gpus, (0..request.gpus as usize).collect::<Vec<_>>());
        }
    }
}

fn spec() -> impl Strategy<Value = NodeSpec> {
    let gpu_memory = prop_oneof![Just(None), Just(Some(16_000)), Just(Some(80_000))];
    (0_u32..5, 1_u64..9, 1_u64..5, 0_usize..2, gpu_memory).prop_map(
        |(gpus, cores, memory, model, gpu_memory)| NodeSpec {
            name: format!("{gpus}-{cores}"),
            cpu_milli: cores * 2000,
            memory: Bytes::gib(memory * 4),
            gpus,
            model,
            gpu_memory: gpu_memory.map(Bytes::mib),
        },
    )
}

fn request() -> impl Strategy<Value = Shape> {
    let amount = prop_oneof![
        1 => Just((0, 0, None)),
        4 => (1_u16..=1000).prop_map(|share| (1, share, None)),
        2 => (1_u64..20_000).prop_map(|memory| (1, 0, Some(memory))),
        1 => (1_u16..500, 1_u64..20_000).prop_map(|(share, memory)| (1, share, Some(memory))),
        2 => (1_u32..4).prop_map(|gpus| (gpus, 1000, None)),
        1 => (2_u32..4, 1_u16..900).prop_map(|(gpus, share)| (gpus, share, None)),
    ];
    let models = prop_oneof![
        3 => Just(ModelSet::ANY),
        1 => (0_usize..2).prop_map(|model| ModelSet::ANY.with(model)),
    ];
    (amount, 0_u64..4, 0_u64..3, models).prop_map(
        |((gpus, share, gpu_memory), cores, memory, models)| Shape {
            cpu_milli: cores * 1000,
            memory: Bytes::gib(memory),
            gpus,
            share: Share::from_thousandths(share),
            gpu_memory: gpu_memory.map(Bytes::mib),
            models,
        },
    )
}

proptest! {
    /// Requests come and jobs leave. A policy places whatever fits; what it chooses can be taken; and scores that it
    /// has kept choose as fresh ones do.
    #[test]
    fn a_policy_refuses_nothing_that_fits_and_keeps_no_stale_score(
        specs in prop::collection::vec(spec(), 1..7),
        kinds in prop::collection::vec(request(), 1..5),
        steps in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<bool>(), any::<prop::sample::Index>()),
            1..40,
        ),
    ) {
        let mix: Vec<(Shape, u64)> = kinds.iter().copied().zip(1..).collect();
        for name in POLICIES {
            let mut cluster = Cluster::new(specs.clone());
            let mut kept = built(name, &mix);
            let mut jobs: Vec<(Shape, Choice)> = Vec::new();
            for (kind, leaves, which) in &steps {
                let shape = *kind.get(&kinds);
                let choice = kept.choose(&cluster, &shape);
                prop_assert_eq!(&built(name, &mix).choose(&cluster, &shape), &choice, "{}", name);
                let fits = cluster.nodes().iter().any(|node| node.fits(&shape));
                prop_assert_eq!(choice.is_some(), fits, "{} {:?}", name, shape);
                if let Some(choice) = choice {
                    prop_assert!(cluster.take(&shape, &choice), "{} {:?}", name, choice);
                    jobs.push((shape, choice));
                }
                kept.arrived(&cluster, &shape);
                if *leaves && !jobs.is_empty() {
                    let (shape, choice) = jobs.swap_remove(which.index(jobs.len()));
                    cluster.release(&shape, &choice);
                }
            }
            for (shape, choice) in jobs {
                cluster.release(&shape, &choice);
            }
            let empty = Cluster::new(specs.clone());
            prop_assert_eq!(cluster.free_milli(), empty.free_milli());
        }
    }
}
