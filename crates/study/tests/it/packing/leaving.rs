//! Runs where jobs leave.

use divvy_packing::{BestFit, Cluster, Shape};
use divvy_study::engine::departures::{self, Drawn, NoVolume, Timed};
use divvy_study::engine::policy_name::PolicyName;

use super::small::{built, node, shape};

/// Erlang's formula: the part of the requests that find all of so many servers taken.
fn erlang(servers: u32, offered: f64) -> f64 {
    (1..=servers).fold(1.0, |lost, servers| {
        offered * lost / (f64::from(servers) + offered * lost)
    })
}

/// Whole GPUs on one node, with nothing else scarce, are a loss system: theory knows what it refuses.
#[test]
fn whole_gpus_are_refused_as_erlang_says() {
    let cluster = Cluster::new([node("a", 4), node("b", 4)]);
    let whole = shape(1, 1000);
    for (load, within) in [(0.9, 1.0), (0.4, 0.3)] {
        let drawn = Drawn::new(&cluster, &[(whole, 3)], load, 7).unwrap();
        let result = departures::run(&mut BestFit::default(), &cluster, drawn.take(60_000), 1000);
        let lost = erlang(8, 8.0 * load);
        let refused = result.refused_percent();
        assert!((refused - 100.0 * lost).abs() < within, "{refused} {lost}");
        let in_use = 100.0 * load * (1.0 - lost);
        assert!(
            (result.in_use - in_use).abs() < 1.0,
            "{} {in_use}",
            result.in_use
        );
        assert_eq!(result.arrived, 59_000);
        assert_eq!(result.asked.one, 59_000_000);
        assert_eq!(result.refused.one, 1000 * (result.arrived - result.placed));
        assert_eq!(result.refused_several_percent(), 0.0, "none of none");
    }
}

#[test]
fn a_trace_is_served_at_its_times() {
    let cluster = Cluster::new([node("a", 2)]);
    let timed = |at, holding, gpus| Timed {
        at,
        holding,
        shape: shape(gpus, 1000),
    };
    let trace = [
        timed(0.0, 4.0, 1),
        timed(1.0, 5.0, 1),
        timed(2.0, 1.0, 1),  // refused: both are taken until 4
        timed(4.0, 4.0, 1),  // the first leaves at this moment
        timed(7.0, 1.0, 2),  // refused: one is taken until 8
        timed(10.0, 1.0, 2), // all have left
    ];
    let result = departures::run(&mut BestFit::default(), &cluster, trace, 0);
    assert_eq!((result.arrived, result.placed), (6, 4));
    assert_eq!((result.refused.one, result.refused.several), (1000, 2000));
    assert_eq!(result.refused_percent(), 37.5);
    assert_eq!(result.refused_several_percent(), 50.0);
    // 4 + 5 + 4 of 2 GPUs times 10.
    assert!((result.in_use - 65.0).abs() < 1e-9, "{}", result.in_use);
    // Counted from 4 on: 2 + 4 of 2 GPUs times 6, and the jobs of the warm-up hold what they have.
    let result = departures::run(&mut BestFit::default(), &cluster, trace, 3);
    assert_eq!((result.arrived, result.placed), (3, 2));
    assert!((result.in_use - 50.0).abs() < 1e-9, "{}", result.in_use);
}

#[test]
fn arrivals_have_the_mix_and_the_load_that_was_asked_for() {
    let cluster = Cluster::new((0..10).map(|_| node("a", 8)));
    let mix = [(shape(1, 250), 60), (shape(8, 1000), 10), (shape(0, 0), 30)];
    let count = 50_000;
    let drawn: Vec<Timed> = Drawn::new(&cluster, &mix, 0.5, 3)
        .unwrap()
        .take(count)
        .collect();
    for (shape, of_100) in mix {
        let found = drawn.iter().filter(|timed| timed.shape == shape).count();
        assert!(
            found.abs_diff(count / 100 * of_100 as usize) < 600,
            "{shape:?}: {found}"
        );
    }
    let volume: f64 = drawn
        .iter()
        .map(|timed| timed.shape.gpu_milli() as f64 * timed.holding)
        .sum();
    let load = volume / drawn.last().unwrap().at / cluster.capacity_milli() as f64;
    assert!((load - 0.5).abs() < 0.02, "{load}");
    assert!(drawn.is_sorted_by(|a, b| a.at <= b.at));
}

#[test]
fn a_mix_that_asks_for_no_gpu_is_an_error() {
    let cluster = Cluster::new([node("a", 2)]);
    for mix in [&[][..], &[(shape(0, 0), 5)], &[(shape(1, 500), 0)]] {
        assert_eq!(Drawn::new(&cluster, mix, 0.9, 1).err(), Some(NoVolume));
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let cluster = Cluster::new([node("a", 4), node("b", 2), node("c", 8)]);
    let mix: Vec<(Shape, u64)> = [(1, 300), (1, 600), (1, 1000), (4, 1000)]
        .map(|(gpus, share)| (shape(gpus, share), 5))
        .to_vec();
    for name in [PolicyName::BestFit, PolicyName::Fgd] {
        let run = |seed| {
            let drawn = Drawn::new(&cluster, &mix, 0.9, seed).unwrap().take(2000);
            departures::run(&mut *built(name, &mix), &cluster, drawn, 200)
        };
        assert_eq!(run(1), run(1), "{name}");
        assert_ne!(run(1), run(2), "{name}");
    }
}
