//! The simulation against figures that were computed before it, by other programs.
//!
//! One GPU: an exact Markov chain, solved linearly. Pools: an event simulation in C of 8 runs of 300,000 arrivals for 8 GPUs,
//! whose 95 % confidence intervals are within 0.12 points. GPUs are A100s.

use std::sync::Arc;

use divvy_core::mig::Table;
use divvy_core::simulate::{
    Arrivals, Demand, Estimate, Exact, Mix, OneGpu, Policy, Pool, Run, rate,
};

const UNIFORM: &str = "1g=20,2g=20,3g=20,4g=20,7g=20";
const SMALL: &str = "1g=50,2g=25,3g=15,4g=7,7g=3";
const MIDDLE: &str = "1g=30,2g=30,3g=30,4g=10";
const THIRDS: &str = "1g=33,2g=33,3g=33";

fn scene(mix: &str) -> (Arc<Table>, Demand) {
    let table = Table::of_model("a100-40gb").unwrap();
    let demand = mix.parse::<Mix>().unwrap().on(&table).unwrap();
    (table, demand)
}

fn solve(mix: &str, load: f64, policy: Policy) -> Exact {
    let (table, demand) = scene(mix);
    OneGpu::new(&table, &demand, load).solve(policy)
}

/// In percent, rounded to so many decimals, as the figures are given.
fn percent(part: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (part * 100.0 * scale).round() / scale
}

/// Refused, of it because of the layout, and the part of the time that is blocked.
fn figures(mix: &str, policy: Policy) -> (f64, f64, f64) {
    let exact = solve(mix, 0.8, policy);
    (
        percent(exact.refused, 2),
        percent(exact.by_layout, 2),
        percent(exact.blocked, 1),
    )
}

#[test]
fn first_fit_on_one_gpu_refuses_what_the_chain_says() {
    let first_fit = |mix| figures(mix, Policy::FirstFit);
    assert_eq!(first_fit(UNIFORM), (39.58, 7.36, 35.5));
    assert_eq!(first_fit(SMALL), (25.93, 8.68, 59.2));
    assert_eq!(first_fit(MIDDLE), (32.31, 9.07, 47.9));
    assert_eq!(first_fit(THIRDS), (30.66, 7.54, 21.0));
}

#[test]
fn keeping_most_possible_on_one_gpu_refuses_what_the_chain_says() {
    for policy in [Policy::DriverDefault, Policy::LeastLoss] {
        let figures = |mix| figures(mix, policy);
        assert_eq!(figures(UNIFORM), (37.21, 2.70, 12.8), "{policy}");
        assert_eq!(figures(SMALL), (25.56, 6.88, 39.5), "{policy}");
        assert_eq!(figures(MIDDLE), (31.84, 7.08, 31.4), "{policy}");
        assert_eq!(figures(THIRDS), (30.62, 7.54, 22.4), "{policy}");
    }
}

#[test]
fn the_best_policy_for_one_gpu_refuses_what_the_decision_process_says() {
    let optimal = |mix| figures(mix, Policy::Optimal);
    assert_eq!(optimal(UNIFORM), (37.19, 2.67, 12.6));
    assert_eq!(optimal(SMALL), (24.87, 6.32, 51.0));
    assert_eq!(optimal(MIDDLE), (31.03, 6.18, 37.2));
    assert_eq!(optimal(THIRDS), (29.29, 4.69, 13.7));
}

#[test]
fn moving_instances_at_will_on_one_gpu_refuses_what_the_chain_says() {
    let refused = |mix| figures(mix, Policy::FreeRepack).0;
    assert_eq!(
        [UNIFORM, SMALL, MIDDLE, THIRDS].map(refused),
        [35.73, 23.40, 29.22, 27.74]
    );
}

#[test]
fn at_half_load_the_layout_matters_less() {
    let by_layout = |policy| percent(solve(UNIFORM, 0.5, policy).by_layout, 2);
    assert_eq!(
        [Policy::FirstFit, Policy::DriverDefault, Policy::Optimal].map(by_layout),
        [6.05, 1.52, 1.51]
    );
}

#[test]
fn the_first_refusal_of_a_gpu_that_fills_up_is_the_layouts_as_often_as_computed() {
    let first = |policy| {
        [UNIFORM, SMALL, MIDDLE, THIRDS]
            .map(|mix| percent(solve(mix, 0.8, policy).first_by_layout, 1))
    };
    assert_eq!(first(Policy::FirstFit), [17.9, 23.4, 23.6, 15.8]);
    assert_eq!(first(Policy::DriverDefault), [3.2, 14.1, 13.7, 20.2]);
}

#[test]
fn a_gpu_with_seven_compute_slices_has_298_layouts() {
    assert_eq!(solve(UNIFORM, 0.8, Policy::FirstFit).layouts, 298);
}

/// Runs with the seeds from 1, a tenth of each to warm up.
fn runs(mix: &str, gpus: u32, load: f64, policy: Policy, count: u64, arrivals: u64) -> Vec<Run> {
    let (table, demand) = scene(mix);
    let pool = Pool::new(&table, gpus, &demand, policy).unwrap();
    let rate = rate(&table, &demand, gpus, load);
    let run = |seed| {
        let arrivals_of_run =
            Arrivals::new(&demand, rate, seed).take(usize::try_from(arrivals).unwrap());
        pool.run(arrivals_of_run, arrivals / 10)
    };
    (1..=count).map(run).collect()
}
#[test]
#[ignore]
fn proto() {
    for (gpus, mix, load) in [
        (8, UNIFORM, 0.7),
        (8, UNIFORM, 0.9),
        (8, SMALL, 0.7),
        (8, MIDDLE, 0.9),
        (8, THIRDS, 0.7),
    ] {
        for policy in [
            Policy::FirstFit,
            Policy::Spread,
            Policy::DriverDefault,
            Policy::LeastLoss,
            Policy::DemandWeighted,
            Policy::FreeRepack,
        ] {
            let t = std::time::Instant::now();
            let r = runs(mix, gpus, load, policy, 4, 20000);
            let e = |f: fn(&Run) -> f64| {
                let e = Estimate::of(&r.iter().map(f).collect::<Vec<_>>()).unwrap();
                format!("{:.2}±{:.2}", e.mean * 100., e.within.unwrap() * 100.)
            };
            eprintln!(
                "{gpus} {mix} {load} {policy}: {} ({}) use {} reuse {} {:?}",
                e(Run::refused_part),
                e(Run::by_layout_part),
                e(|r| r.in_use),
                e(Run::reused_part),
                t.elapsed()
            );
        }
    }
}
