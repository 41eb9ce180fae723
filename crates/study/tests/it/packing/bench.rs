//! Figures of packing, printed: run with `--ignored --nocapture` in a release build. `LISTS`, `ORDERS`, `POLICIES` and
//! `RUNS` choose among them.

use std::time::{Duration, Instant};

use divvy_packing::{Choice, Cluster, NodePolicy, Shape};
use divvy_study::engine::departures::{self, Drawn};
use divvy_study::engine::fill::{self, AT};
use divvy_study::engine::policy_name::PolicyName;
use divvy_study::engine::workload::Order;

use super::openb;
use super::small::built;

fn chosen(variable: &str, default: &str) -> Vec<String> {
    let text = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    text.split(',').map(str::to_owned).collect()
}

fn runs(default: u64) -> u64 {
    std::env::var("RUNS").map_or(default, |runs| runs.parse().unwrap())
}

/// A policy with the time of each of its decisions.
struct Measured {
    policy: Box<dyn NodePolicy>,
    times: Vec<Duration>,
}

impl NodePolicy for Measured {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        let start = Instant::now();
        let choice = self.policy.choose(cluster, shape);
        self.times.push(start.elapsed());
        choice
    }

    fn arrived(&mut self, cluster: &Cluster, shape: &Shape) {
        self.policy.arrived(cluster, shape);
    }
}

#[test]
#[ignore = "minutes of an optimised build"]
fn fills() {
    let Some(folder) = openb::folder() else {
        return;
    };
    println!("unallocated % at {AT:?} % asked for, p50 and p99 of a decision in µs");
    for list in chosen("LISTS", &openb::LISTS.join(",")) {
        let workload = openb::workload(&folder, &list);
        for order in chosen("ORDERS", "seeded") {
            let order: Order = order.parse().unwrap();
            for policy in chosen("POLICIES", "best-fit,fgd") {
                let policy: PolicyName = policy.parse().unwrap();
                let runs = runs(10);
                let mut means = [0.0; AT.len()];
                let mut times = Vec::new();
                for seed in 42..42 + runs {
                    let arranged = workload.arranged(order, seed);
                    let mut measured = Measured {
                        policy: built(policy, &workload.mix()),
                        times: Vec::new(),
                    };
                    let result = fill::run(&mut measured, &arranged.cluster, &arranged.arrivals);
                    for (mean, at) in means.iter_mut().zip(AT) {
                        *mean += result.unallocated(at).unwrap_or(f64::NAN) / runs as f64;
                    }
                    times.append(&mut measured.times);
                }
                times.sort_unstable();
                let at =
                    |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
                let (p50, p99) = (at(50), at(99));
                println!("{list:12} {order:9} {policy:11} {means:5.2?} {p50:6.1} {p99:6.1}");
            }
        }
    }
}

#[test]
#[ignore = "minutes of an optimised build"]
fn with_departures() {
    let Some(folder) = openb::folder() else {
        return;
    };
    let arrivals = std::env::var("ARRIVALS").map_or(12_000, |text| text.parse().unwrap());
    println!("every 8th node, load 0.9: refused % (of volume for several GPUs), in use %");
    for list in chosen("LISTS", &openb::LISTS.join(",")) {
        let workload = openb::workload(&folder, &list).on_every(8);
        let cluster = Cluster::new(workload.nodes.iter().cloned());
        let mix = workload.mix();
        for policy in chosen("POLICIES", "best-fit,fgd") {
            let policy: PolicyName = policy.parse().unwrap();
            let mut line = String::new();
            for seed in 1..=runs(3) {
                let drawn = Drawn::new(&cluster, &mix, 0.9, seed)
                    .unwrap()
                    .take(arrivals);
                let mut policy = built(policy, &mix);
                let result = departures::run(&mut *policy, &cluster, drawn, arrivals as u64 / 3);
                line += &format!(
                    "  {:5.2} ({:5.2}) {:5.2}",
                    result.refused_percent(),
                    result.refused_several_percent(),
                    result.in_use
                );
            }
            println!("{list:12} {policy:11}{line}");
        }
    }
}
