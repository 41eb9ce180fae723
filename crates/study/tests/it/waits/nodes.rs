//! Several nodes: a job stays on one, with its CPU, its memory and a GPU model that it accepts.

use divvy_core::{Bytes, Mode};
use divvy_study::engine::waits::scene::MOST_JOBS;
use divvy_study::engine::waits::scene::{MOST_GPUS, Scene, SceneError, SceneNode};
use divvy_study::engine::waits::simulate;
use divvy_study::engine::waits::work::{Source, Submission};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{figures, job, node, scene};

/// Waits in seconds of jobs that ask for different amounts, each for its own.
fn waits(scene: &Scene, jobs: &[Submission]) -> Vec<Option<u64>> {
    let found = figures(scene, jobs);
    let wait = |job: &Submission| {
        let mut shapes = found.shapes.iter();
        let (.., of) = shapes
            .find(|(_, amount, _)| *amount == job.request.amount)
            .unwrap();
        assert_eq!(of.submitted, 1, "the amounts differ");
        (of.wait.jobs == 1).then_some(of.wait.longest_ms / 1000)
    };
    jobs.iter().map(wait).collect()
}

fn two_nodes(first: &[Mode], second: &[Mode]) -> Scene {
    let mut scene = scene(first, &["a"]);
    scene.nodes.push(node(second));
    scene
}

#[test]
fn a_job_never_spans_nodes() {
    const S: Mode = Mode::Shared;
    let scene = two_nodes(&[S, S], &[S, S]);
    // One GPU of each node is taken; a job for two waits, though two are free.
    let jobs = [
        job(0, "2", 10),
        job(0, "1", 30),
        job(1, "1", 30),
        job(12, "2", 5),
        job(13, "3", 5),
    ];
    let found = figures(&scene, &jobs);
    assert_eq!(found.all.refused, 1, "three GPUs are on no node");
    let spread = [job(0, "1", 30), job(0, "0.5", 30), job(1, "2", 5)];
    assert_eq!(
        figures(&scene, &spread).all.wait.longest_ms,
        0,
        "both on the first node"
    );
    let parts = [job(0, "3x0.5", 5)];
    assert_eq!(figures(&scene, &parts).all.refused, 1);
}

#[test]
fn cpu_and_memory_of_a_node_bound_its_jobs() {
    let mut scene = two_nodes(&[Mode::Shared], &[Mode::Shared]);
    for node in &mut scene.nodes {
        node.cpu_milli = Some(8000);
        node.memory = Some(Bytes::gib(64));
    }
    let with = |at, cpu_milli, gib, runs| Submission {
        cpu_milli,
        memory: Bytes::gib(gib),
        ..job(at, "0.25", runs)
    };
    let by_cpu = [
        with(0, 6000, 1, 10),
        with(0, 6000, 1, 20),
        with(1, 6000, 1, 5),
    ];
    assert_eq!(figures(&scene, &by_cpu).all.wait.longest_ms, 9000);
    let by_memory = [with(0, 1, 40, 10), with(0, 1, 40, 20), with(1, 1, 40, 5)];
    assert_eq!(figures(&scene, &by_memory).all.wait.longest_ms, 9000);
    assert_eq!(figures(&scene, &[with(0, 8001, 1, 1)]).all.refused, 1);
    assert_eq!(figures(&scene, &[with(0, 8000, 64, 1)]).all.refused, 0);
}

#[test]
fn a_job_runs_on_a_model_that_it_accepts() {
    let mut scene = two_nodes(&[Mode::Shared], &[Mode::Shared]);
    scene.nodes[1].gpus[0].model = "h200-141gb".to_owned();
    let on = |models: &[&str], at| Submission {
        models: models.iter().map(|model| (*model).to_owned()).collect(),
        ..job(at, ["1", "0.9", "0.8"][usize::try_from(at).unwrap()], 10)
    };
    let jobs = [on(&["h200-141gb"], 0), on(&["h200-141gb"], 1), on(&[], 2)];
    assert_eq!(
        waits(&scene, &jobs),
        [Some(0), Some(9), Some(8)],
        "in order of age"
    );
    assert_eq!(figures(&scene, &[on(&["b200"], 0)]).all.refused, 1);
    assert_eq!(
        figures(&scene, &[on(&["b200", "a100-40gb"], 0)])
            .all
            .refused,
        0
    );
}

#[test]
fn backfill_takes_neither_a_node_nor_cpu_from_a_head_and_uses_other_nodes() {
    let mut scene = two_nodes(&[Mode::Shared, Mode::Shared], &[Mode::Shared]);
    scene.backfill = true;
    // The head needs both GPUs of the first node. The second node can never serve it.
    let jobs = [job(0, "2", 20), job(1, "2x0.9", 5), job(2, "0.5", 1)];
    assert_eq!(waits(&scene, &jobs), [Some(0), Some(19), Some(0)]);
    scene.backfill = false;
    assert_eq!(waits(&scene, &jobs), [Some(0), Some(19), Some(18)]);
    let mut cpu = two_nodes(&[Mode::Shared], &[]);
    cpu.nodes.truncate(1);
    cpu.backfill = true;
    cpu.nodes[0].cpu_milli = Some(10_000);
    let with = |at, asks, cpu_milli, runs| Submission {
        cpu_milli,
        ..job(at, asks, runs)
    };
    // The head lacks CPU, not GPU. A small job would take CPU that the head waits for.
    let head = [
        with(0, "0.25", 6000, 10),
        with(1, "0.3", 8000, 5),
        with(2, "0.2", 3000, 100),
    ];
    assert_eq!(waits(&cpu, &head), [Some(0), Some(9), Some(13)]);
}

#[test]
fn what_cannot_be_simulated_is_refused_with_its_figures() {
    let run = |scene: &Scene, jobs: Vec<Submission>| {
        simulate(scene, &Source::Listed(jobs), &mut |_| ()).unwrap_err()
    };
    let nothing = run(&Scene::default(), vec![job(0, "1", 1)]);
    assert_eq!(nothing.to_string(), "the scene has no GPUs");
    let mut many = scene(&[], &["a"]);
    many.nodes = vec![node(&[Mode::Shared; 8]); MOST_GPUS / 8 + 1];
    assert_eq!(
        run(&many, Vec::new()).to_string(),
        "16392 GPUs: at most 16384 can be simulated"
    );
    let jobs = vec![job(0, "1", 1); MOST_JOBS + 1];
    let error = run(&scene(&[Mode::Shared], &["a"]), jobs);
    assert_eq!(
        error.to_string(),
        "200001 jobs: at most 200000 can be simulated"
    );
    let mut bare = scene(&[Mode::Mig], &["a"]);
    bare.nodes[0].gpus[0].table = None;
    assert_eq!(run(&bare, Vec::new()), SceneError::NoProfiles(0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Nothing is lost on several nodes: every job that fits somewhere ends, under each rule.
    #[test]
    fn every_job_that_fits_a_node_starts(
        nodes in vec((1..4_usize, 4..17_u64), 1..5),
        jobs in vec((0..60_u64, select(vec!["0.25", "0.5", "0.3", "1", "2", "1-2", "10GiB"]), 1..40_u64, 0..6_u64), 1..50),
        backfill in any::<bool>(),
    ) {
        let nodes = nodes.into_iter().map(|(gpus, cores)| SceneNode {
            cpu_milli: Some(cores * 1000),
            ..node(&vec![Mode::Shared; gpus])
        });
        let scene = Scene {
            nodes: nodes.collect(),
            backfill,
            yields_for_ms: Some(20_000),
            ..scene(&[], &["a"])
        };
        let jobs: Vec<Submission> = jobs.into_iter().map(|(at, asks, runs, cores)| Submission {
            cpu_milli: cores * 1000,
            ..job(at, asks, runs)
        }).collect();
        let found = figures(&scene, &jobs);
        prop_assert_eq!(found.all.stuck, 0);
        prop_assert_eq!(found.all.wait.jobs + found.all.refused, jobs.len() as u64);
        prop_assert!(found.in_use <= 1.0);
    }
}
