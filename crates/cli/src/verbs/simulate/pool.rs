//! Thread pool of `simulate`: every policy over every run, on all CPUs. The distribution to threads changes no figure.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use divvy_core::simulate::{
    Arrival, Arrivals, Demand, Estimate, Policy, Pool, PoolError, RunResult, rate,
};

use super::placement::GpuSet;
use crate::error_output::{Result, usage};
use crate::render::{Figure, ProfileFigures, Ratio, Scene, Simulation};

/// Source of the requests.
pub enum Requests<'a> {
    /// Drawn as the scene says: as many, in as many runs, from its seed.
    Drawn,
    Given(&'a [Arrival]),
}

/// Results of each policy with the same requests.
pub fn compare(
    place: &GpuSet,
    demand: &Demand,
    policies: &[Policy],
    requests: &Requests<'_>,
    scene: Scene,
) -> Result<Vec<Simulation>> {
    let pool = |policy: &Policy| Pool::new(&place.table, place.gpus, demand, *policy);
    let pools: Vec<Pool<'_>> = policies
        .iter()
        .map(pool)
        .collect::<Result<_, _>>()
        .map_err(refused)?;
    let runs = usize::try_from(scene.runs.unwrap_or(1)).unwrap_or(usize::MAX);
    let all = spread(pools.len() * runs, |nth| {
        let (pool, run) = (&pools[nth / runs], nth % runs);
        match requests {
            Requests::Given(arrivals) => pool.run(arrivals.iter().copied(), 0),
            Requests::Drawn => {
                let count = scene.arrivals.unwrap_or(0);
                let rate = rate(&place.table, demand, place.gpus, scene.load.0);
                let seed = scene.seed.unwrap_or(0).wrapping_add(run as u64);
                let arrivals = Arrivals::new(demand, rate, seed);
                pool.run(
                    arrivals.take(usize::try_from(count).unwrap_or(usize::MAX)),
                    count / 10,
                )
            }
        }
    });
    let of_each: Vec<&[RunResult]> = all.chunks(runs).collect();
    let told = |(policy, runs): (&Policy, &&[RunResult])| {
        let baseline = (!std::ptr::eq(*runs, of_each[0])).then_some(of_each[0]);
        simulation(place, demand, *policy, runs, baseline, scene.clone())
    };
    Ok(policies.iter().zip(&of_each).map(told).collect())
}

fn refused(error: PoolError) -> divvy_api::v1::Error {
    let hint = match error {
        PoolError::OneGpu(_) => "use --exact with one GPU, or remove it from --policy",
        PoolError::NoBound(_) => "remove it from --policy",
    };
    usage(error.to_string(), hint)
}

/// The answers of `task` to 0, 1, …, in that order.
pub fn spread<T: Send>(count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= count {
                        return;
                    }
                    let answer = task(nth);
                    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    done.push((nth, answer));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, answer)| answer).collect()
}

fn simulation(
    place: &GpuSet,
    demand: &Demand,
    policy: Policy,
    runs: &[RunResult],
    baseline: Option<&[RunResult]>,
    scene: Scene,
) -> Simulation {
    let values =
        |runs: &[RunResult], of: fn(&RunResult) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let figure = |of: fn(&RunResult) -> f64| {
        let estimate = Estimate::of(&values(runs, of));
        Figure::from(estimate.expect("no runs"))
    };
    let difference = |baseline: &[RunResult]| {
        let refused = |runs| values(runs, RunResult::refused_part);
        Estimate::of_differences(&refused(runs), &refused(baseline)).map(Figure::from)
    };
    let arrived: u64 = runs.iter().map(RunResult::arrived).sum();
    let profile = |(at, (profile, _)): (usize, (&divvy_core::mig::Profile, f64))| {
        let of = runs.iter().map(|run| run.profiles[at]);
        let (asked, refused) = of.fold((0, 0), |(asked, refused), tally| {
            (asked + tally.arrived, refused + tally.refused)
        });
        ProfileFigures {
            profile: profile.name.to_string(),
            asked: ratio(asked, arrived),
            refused: ratio(refused, asked),
        }
    };
    Simulation {
        policy: policy.name(),
        scene,
        refused: figure(RunResult::refused_part),
        by_layout: (policy != Policy::FreeRepack).then(|| figure(RunResult::by_layout_part)),
        in_use: figure(|run| run.in_use),
        difference: baseline.and_then(difference),
        reused: policy.keeps_idle().then(|| figure(RunResult::reused_part)),
        blocked: None,
        first_by_layout: None,
        profiles: demand
            .parts(&place.table)
            .enumerate()
            .map(profile)
            .collect(),
    }
}

fn ratio(some: u64, all: u64) -> Ratio {
    Ratio(if all == 0 {
        0.0
    } else {
        some as f64 / all as f64
    })
}

/// Work that the requests bring from the first arrival to the last, as a part of the GPUs' compute slices; `None` where
/// that is no number.
pub fn load(place: &GpuSet, arrivals: &[Arrival]) -> Option<f64> {
    let span = arrivals.last()?.at - arrivals.first()?.at;
    let work = |arrival: &Arrival| {
        let profile = place.table.profile(arrival.profile)?;
        Some(f64::from(profile.compute_slices) * arrival.holding)
    };
    let work: f64 = arrivals.iter().filter_map(work).sum();
    let slices = f64::from(place.gpus) * f64::from(place.table.compute_slices);
    (span > 0.0 && work > 0.0).then(|| work / span / slices)
}
