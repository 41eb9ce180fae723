//! The learned policy: training, scores, files, and the check against best fit.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what goes wrong here fails the test, with figures to look at"
)]

mod check;
mod file;
mod policy;
mod training;

use divvy_core::{Bytes, Share};
use divvy_packing::learned::{Form, Learned, Mix, Training};
use divvy_packing::{ModelSet, NodeSpec, Shape};

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
fn mix() -> Mix {
    Mix::from_iter([
        (shape(2, 1, 700), 40),
        (shape(1, 1, 300), 30),
        (shape(1, 1, 450), 30),
        (shape(3, 1, 1000), 40),
        (shape(14, 1, 1000), 30),
        (shape(6, 2, 1000), 10),
    ])
}

/// Trained on so many nodes.
fn trained(count: usize, form: Form, seed: u64) -> Learned {
    Learned::train(&mix(), &nodes(count), Training { form, seed }, &mut |_| ()).unwrap()
}

/// Trained with departures on two nodes, which is quick.
fn with_departures() -> Learned {
    trained(2, Form::Departures, 7)
}
