//! Fill runs.

use divvy_core::Bytes;
use divvy_packing::{BestFit, Cluster, Shape};
use divvy_study::engine::fill;
use divvy_study::engine::policy_name::PolicyName;
use divvy_study::engine::volumes::Volumes;
use divvy_study::engine::workload::{Order, Pod, Workload};

use super::small::{built, node, shape};

#[test]
fn what_does_not_fit_is_dropped_and_the_curve_says_what_stays_free() {
    let cluster = Cluster::new([node("a", 2)]);
    let arrivals = [
        shape(1, 600),
        shape(1, 600),
        shape(1, 1000),
        shape(1, 400),
        shape(2, 1000),
        shape(0, 0),
    ];
    let result = fill::run(&mut BestFit::default(), &cluster, &arrivals);
    assert_eq!(result.placed, 4);
    let asked = Volumes {
        fraction: 1600,
        one: 1000,
        several: 2000,
        cpu_only: 1,
    };
    assert_eq!(result.asked, asked);
    let refused = Volumes {
        one: 1000,
        several: 2000,
        ..Volumes::default()
    };
    assert_eq!(result.refused, refused);
    let curve: Vec<(u32, f64)> = result.curve().collect();
    assert_eq!(
        curve,
        [
            (30, 70.0),
            (60, 40.0),
            (110, 40.0),
            (130, 20.0),
            (230, 20.0)
        ]
    );
    assert_eq!(result.unallocated(110), Some(40.0));
    assert_eq!(result.unallocated(111), None);
    assert_eq!(result.unallocated(9999), None);
}

/// Of 1,000 GPUs' thousandths, 2 make a fifth of a percent: five arrivals round to each percentage.
#[test]
fn a_point_of_the_curve_is_the_mean_over_the_arrivals_that_round_to_it() {
    let cluster = Cluster::new([node("a", 1)]);
    let result = fill::run(&mut BestFit::default(), &cluster, &[shape(1, 2); 10]);
    // 0.2 and 0.4 round to 0, 0.6 to 1.4 to 1, and 1.6 to 2.0 to 2.
    let near = |percent: u32, free: f64| {
        let got = result.unallocated(percent).unwrap();
        assert!((got - free).abs() < 1e-9, "{percent}: {got}");
    };
    near(0, 99.7);
    near(1, 99.0);
    near(2, 98.2);
}

/// A request by memory counts with the share that the memory is.
#[test]
fn requests_by_memory_have_a_volume() {
    let mut spec = node("a", 2);
    spec.gpu_memory = Some(Bytes::mib(80_000));
    let cluster = Cluster::new([spec]);
    let by_memory = Shape {
        gpu_memory: Some(Bytes::mib(20_000)),
        ..shape(1, 0)
    };
    let result = fill::run(&mut BestFit::default(), &cluster, &[by_memory; 9]);
    assert_eq!(
        (result.asked.fraction, result.refused.fraction),
        (2250, 250)
    );
    assert_eq!(result.unallocated(100), Some(0.0));
}

#[test]
fn equal_seeds_give_equal_runs_and_others_do_not() {
    let sizes = [
        shape(1, 810),
        shape(1, 250),
        shape(1, 470),
        shape(1, 1000),
        shape(2, 1000),
    ];
    let pods = (0..40).zip(sizes.into_iter().cycle());
    let workload = Workload {
        nodes: (0..6)
            .map(|nth| node(&format!("n{nth}"), 1 + nth))
            .collect(),
        pods: pods
            .map(|(nth, shape)| Pod {
                name: format!("p{nth}"),
                shape,
            })
            .collect(),
    };
    for name in [PolicyName::BestFit, PolicyName::Fgd] {
        let run = |seed| {
            let arranged = workload.arranged(Order::Seeded, seed);
            let mut policy = built(name, &workload.mix());
            fill::run(&mut *policy, &arranged.cluster, &arranged.arrivals)
        };
        assert_eq!(run(42), run(42), "{name}");
        assert_ne!(run(42), run(43), "{name}");
    }
}
