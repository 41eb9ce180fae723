//! The learned policy against best fit, with departures.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what goes wrong here fails the test, with figures to look at"
)]

use divvy_core::{Bytes, Share};
use divvy_packing::learned::{Form, Learned, Mix, Training};
use divvy_packing::{BestFit, Cluster, ModelSet, NodePolicy, NodeSpec, Shape};
use divvy_study::engine::departures::{self, Drawn};

const TRAINING: Training = Training {
    form: Form::Departures,
    seed: 7,
};

/// Nodes of two GPUs, half of them with much CPU.
fn nodes(count: usize) -> Vec<NodeSpec> {
    let node = |nth: usize| NodeSpec {
        name: format!("n{nth}"),
        cpu_milli: if nth.is_multiple_of(2) { 32_000 } else { 8_000 },
        memory: Bytes::gib(256),
        gpus: 2,
        model: nth % 2,
        gpu_memory: None,
    };
    (0..count).map(node).collect()
}

fn shape(cpu: u64, gpus: u32, share: u16) -> Shape {
    Shape {
        cpu_milli: 1000 * cpu,
        memory: Bytes::gib(4),
        gpus,
        share: Share::from_thousandths(share),
        gpu_memory: None,
        models: ModelSet::ANY,
    }
}

/// Parts that do not divide each other, and whole GPUs with little and much CPU.
const MIX: [(u64, u32, u16, u64); 6] = [
    (2, 1, 700, 40),
    (1, 1, 300, 30),
    (1, 1, 450, 30),
    (3, 1, 1000, 40),
    (14, 1, 1000, 30),
    (6, 2, 1000, 10),
];

/// What the table is for: the same arrivals, and less of them refused.
#[test]
fn it_refuses_less_than_best_fit() {
    let cluster = Cluster::new(nodes(8));
    let counts = MIX.map(|(cpu, gpus, share, count)| (shape(cpu, gpus, share), count));
    let mix: Mix = counts.into_iter().collect();
    let refused = |policy: &mut dyn NodePolicy| {
        let drawn = Drawn::new(&cluster, &counts, 0.9, 3).unwrap().take(12_000);
        departures::run(policy, &cluster, drawn, 500).refused_percent()
    };
    let learned = refused(&mut Learned::train(&mix, &nodes(8), TRAINING, &mut |_| ()).unwrap());
    let best_fit = refused(&mut BestFit::default());
    println!("refused: learned {learned:.2} %, best fit {best_fit:.2} %");
    assert!(learned < best_fit, "{learned} {best_fit}");
}

/// Share and memory are two axes: requests for much of one go beside requests for much of the other.
#[test]
fn requests_for_share_join_requests_for_memory() {
    let node = |nth| NodeSpec {
        name: format!("n{nth}"),
        gpu_memory: Some(Bytes::mib(80_000)),
        cpu_milli: 64_000,
        ..nodes(1)[0].clone()
    };
    let nodes: Vec<NodeSpec> = (0..6).map(node).collect();
    let part = |share, gpu_memory| Shape {
        gpu_memory: Some(Bytes::mib(gpu_memory)),
        ..shape(1, 1, share)
    };
    let counts = [
        (part(600, 16_000), 30),
        (part(200, 48_000), 30),
        (part(400, 32_000), 20),
        (shape(1, 1, 1000), 10),
    ];
    let learned = Learned::train(&counts.into_iter().collect(), &nodes, TRAINING, &mut |_| ());
    let cluster = Cluster::new(nodes.iter().cloned());
    let refused = |policy: &mut dyn NodePolicy| {
        let drawn = Drawn::new(&cluster, &counts, 0.9, 5).unwrap().take(8000);
        departures::run(policy, &cluster, drawn, 500).refused_percent()
    };
    let (learned, best_fit) = (
        refused(&mut learned.unwrap()),
        refused(&mut BestFit::default()),
    );
    println!("refused: learned {learned:.2} %, best fit {best_fit:.2} %");
    assert!(learned < best_fit, "{learned} {best_fit}");
}
