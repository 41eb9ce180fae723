//! Queue simulations: against a formula, against the planner of one node asked step by step, and question by question.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what goes wrong here fails the test, with figures to look at"
)]

use divvy_core::mig::ProfileTable;
use divvy_core::{Bytes, Mode, QueueName, QueueSpec, Request, SchedulingClass};
use divvy_study::engine::waits::figures::Figures;
use divvy_study::engine::waits::scene::{Scene, SceneGpu, SceneNode};
use divvy_study::engine::waits::work::{Draw, Durations, Kind, Source, Submission};
use divvy_study::engine::waits::{Progress, simulate};

use crate::node::amount;

mod changes;
mod exhaustive;
mod forecasts;
mod nodes;
mod oracle;

pub fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

pub fn gpu(mode: Mode) -> SceneGpu {
    SceneGpu {
        model: "a100-40gb".to_owned(),
        mode,
        memory: Bytes::gib(40),
        table: ProfileTable::of_model("a100-40gb"),
    }
}

pub fn node(gpus: &[Mode]) -> SceneNode {
    SceneNode {
        gpus: gpus.iter().map(|mode| gpu(*mode)).collect(),
        ..SceneNode::default()
    }
}

/// One node with these GPUs, and these queues.
pub fn scene(gpus: &[Mode], queues: &[&str]) -> Scene {
    Scene {
        nodes: vec![node(gpus)],
        queues: queues
            .iter()
            .map(|name| QueueSpec::open(queue(name)))
            .collect(),
        ..Scene::default()
    }
}

/// A job of queue `a`.
pub fn job(at_s: u64, asks: &str, runs_s: u64) -> Submission {
    Submission {
        at_ms: at_s * 1000,
        queue: queue("a"),
        request: Request::from(amount(asks)),
        models: Vec::new(),
        cpu_milli: 0,
        memory: Bytes::ZERO,
        runs_ms: runs_s * 1000,
        limit_ms: None,
        owner: SchedulingClass::default(),
        used: None,
    }
}

pub fn figures(scene: &Scene, jobs: &[Submission]) -> Figures {
    simulate(scene, &Source::Listed(jobs.to_vec()), &mut |_| ()).unwrap()
}

fn drawn(kinds: &[(&str, f64)], gap_ms: f64, mean_ms: f64, jobs: u32, runs: u32) -> Draw {
    let kind = |(asks, weight): &(&str, f64)| Kind {
        job: job(0, asks, 0),
        weight: *weight,
        durations: Durations::Exponential { mean_ms },
    };
    Draw {
        kinds: kinds.iter().map(kind).collect(),
        gap_ms,
        jobs,
        runs,
        seed: 7,
    }
}

/// Erlang's formula: the mean wait of a queue with several servers, in mean durations.
fn erlang(servers: u32, load: f64) -> f64 {
    let offered = load * f64::from(servers);
    // The blocking of a system without a queue, by its recursion.
    let blocked = (1..=servers).fold(1.0, |blocked, server| {
        offered * blocked / (f64::from(server) + offered * blocked)
    });
    let waits = blocked / (1.0 - load * (1.0 - blocked));
    waits / (f64::from(servers) * (1.0 - load))
}

#[test]
fn the_mean_wait_for_whole_gpus_is_erlangs() {
    for (servers, load) in [(1_u32, 0.5), (2, 0.7), (4, 0.8)] {
        let gpus = vec![Mode::Exclusive; servers as usize];
        let gap_ms = 1_000_000.0 / (load * f64::from(servers));
        let source = Source::Drawn(drawn(&[("1", 1.0)], gap_ms, 1_000_000.0, 10_000, 4));
        let figures = simulate(&scene(&gpus, &["a"]), &source, &mut |_| ()).unwrap();
        let expected = erlang(servers, load) * 1_000_000.0;
        let mean = figures.all.wait.mean_ms;
        println!("{servers} GPUs, load {load}: {mean} ms, {expected} ms expected");
        assert!(
            (mean / expected - 1.0).abs() < 0.08,
            "{servers} GPUs: {mean} {expected}"
        );
        assert!((figures.in_use - load).abs() < 0.02, "{}", figures.in_use);
    }
}

#[test]
fn the_same_seed_gives_the_same_figures_and_progress_ends_at_the_whole() {
    let source = Source::Drawn(drawn(&[("0.5", 2.0), ("0.25", 1.0)], 900.0, 3000.0, 600, 2));
    let scene = scene(&[Mode::Shared], &["a"]);
    let mut reports: Vec<Progress> = Vec::new();
    let first = simulate(&scene, &source, &mut |progress| reports.push(progress)).unwrap();
    assert_eq!(first, simulate(&scene, &source, &mut |_| ()).unwrap());
    assert!(
        reports.is_sorted_by_key(|progress| progress.done),
        "{reports:?}"
    );
    let last = reports.last().unwrap();
    assert_eq!((last.done, last.of), (1200, 1200));
    let Source::Drawn(draw) = source else {
        unreachable!()
    };
    let other = Source::Drawn(Draw { seed: 8, ..draw });
    assert_ne!(first, simulate(&scene, &other, &mut |_| ()).unwrap());
}
