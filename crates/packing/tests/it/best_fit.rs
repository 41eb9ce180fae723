//! Best fit over nodes against its formula, computed by hand.

use divvy_core::{Bytes, Share};
use divvy_packing::{BestFit, Cluster, ModelSet, NodePolicy, NodeSpec, Shape};

fn node(cpus: u64, gpus: u32) -> NodeSpec {
    NodeSpec {
        name: format!("n{cpus}-{gpus}"),
        cpu_milli: 1000 * cpus,
        memory: Bytes::gib(256),
        gpus,
        model: 0,
        gpu_memory: None,
    }
}

#[test]
fn a_node_has_half_of_its_score_from_the_cpu_left_and_half_from_the_gpus_left() {
    let shape = Shape {
        cpu_milli: 8000,
        memory: Bytes::gib(4),
        gpus: 1,
        share: Share::from_thousandths(500),
        gpu_memory: None,
        models: ModelSet::ANY,
    };
    // Cores, GPUs, and 100 · ((cores − 8) / 128 / 2 + (GPUs − 0.5) / 8 / 2), rounded up.
    let table = [(8, 1, 4.0), (72, 1, 29.0), (8, 8, 47.0), (136, 8, 97.0)];
    let cluster = Cluster::new(table.map(|(cpus, gpus, _)| node(cpus, gpus)));
    let scores = BestFit::default().scores(&cluster, &shape, &[0, 1, 2, 3]);
    assert_eq!(scores, table.map(|(_, _, score)| score));
    let larger = Shape {
        cpu_milli: 9000,
        ..shape
    };
    let choice = BestFit::default().choose(&cluster, &larger);
    assert_eq!(choice.map(|choice| choice.node), Some(1));
}
