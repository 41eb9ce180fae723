//! Every policy over every run, on all CPUs. The distribution to threads changes no figure.

mod figures;
mod filled;

use crate::engine::departures::{self, DeparturesResult, Drawn};
use crate::engine::fill;
use crate::engine::policy_name::PolicyName;
use crate::engine::workload::{Order, UNTIL};
use divvy_packing::{Cluster, Shape};

use super::Study;
use super::policies::{Timed, Trained};
use crate::render::{Packing, PackingScene, Ratio};
use crate::verb::chart::Curve;
use crate::verb::progress::Progress;
use crate::verb::threads::spread;
use divvy_cli::args::Mode;
use divvy_cli::error_output::{Result, usage};
use figures::{curve, packing};
use filled::{Filled, queue_visible};

/// Arrivals between two reports of progress. A report takes a lock, so not at each arrival; a longer step would make
/// the line jump.
const STEP: usize = 256;
/// Of a run with departures, so many tenths warm the cluster up and do not count.
const WARM_UP_TENTHS: u64 = 4;

/// What came of one run of one policy.
struct Run {
    came: Came,
    took: Vec<u64>,
}

enum Came {
    Fill(Filled),
    Departures(DeparturesResult),
}

/// The figures of each policy, and the curves of a fill.
///
/// # Errors
/// Jobs that ask for no GPU of the nodes, so that no rate of arrivals loads them.
pub fn compare(
    study: &Study,
    trained: &Trained,
    scene: PackingScene,
    progress: &Progress,
) -> Result<(Vec<Packing>, Vec<Curve>)> {
    let runs = usize::try_from(study.runs).unwrap_or(1);
    let arranged = |run: usize| {
        let seed = study.seed.wrapping_add(run as u64);
        match study.mode {
            Mode::Fill => study.workload.arranged(study.order, seed),
            _ => study.workload.arranged(Order::Given, seed),
        }
    };
    let first = arranged(0);
    let each = match study.mode {
        Mode::Fill => first.arrivals.len() as u64,
        _ => study.arrivals,
    };
    let mix = study.workload.mix();
    if study.mode == Mode::Departures && study.timed.is_empty() {
        Drawn::new(&first.cluster, &mix, study.load, study.seed)
            .map_err(|error| usage(error.to_string(), "check the nodes and the jobs"))?;
    }
    progress.task("simulating", each * (runs * study.policies.len()) as u64);
    let all = spread(study.policies.len() * runs, |nth| {
        let (name, run) = (study.policies[nth / runs], nth % runs);
        let mut policy = Timed {
            policy: trained.policy(name),
            took: study.timing.then(Vec::new),
        };
        let came = match study.mode {
            Mode::Fill => {
                let arranged = arranged(run);
                let arrivals = reported(arranged.arrivals.iter(), progress);
                let mut filled = match name {
                    PolicyName::QueueVisible => {
                        queue_visible(study, &arranged.cluster, arrivals.copied().collect())
                    }
                    _ => fill::run(&mut policy, &arranged.cluster, arrivals).into(),
                };
                if study.order != Order::Given {
                    filled.end_at(UNTIL);
                }
                Came::Fill(filled)
            }
            _ => Came::Departures(depart(
                study,
                &first.cluster,
                &mix,
                run,
                &mut policy,
                progress,
            )),
        };
        Run {
            came,
            took: policy.took.unwrap_or_default(),
        }
    });
    let of_each: Vec<&[Run]> = all.chunks(runs).collect();
    let figures = study.policies.iter().zip(&of_each).map(|(name, runs)| {
        let baseline = (!std::ptr::eq(*runs, of_each[0])).then_some(of_each[0]);
        let training = trained
            .took
            .filter(|_| study.timing && *name == PolicyName::Learned);
        Packing {
            check: trained.verdict().filter(|_| *name == PolicyName::Learned),
            training_seconds: training.map(|took| Ratio(took.as_secs_f64())),
            ..packing(study, name.name(), runs, baseline, scene.clone())
        }
    });
    let curves = study.policies.iter().zip(&of_each);
    let curves = curves.map(|(name, runs)| curve(name.name(), runs));
    Ok((figures.collect(), curves.collect()))
}

fn depart(
    study: &Study,
    cluster: &Cluster,
    mix: &[(Shape, u64)],
    run: usize,
    policy: &mut Timed,
    progress: &Progress,
) -> DeparturesResult {
    if !study.timed.is_empty() {
        let arrivals = reported(study.timed.iter().copied(), progress);
        return departures::run(policy, cluster, arrivals, 0);
    }
    let seed = study.seed.wrapping_add(run as u64);
    let Ok(drawn) = Drawn::new(cluster, mix, study.load, seed) else {
        // `compare` has drawn from the same mix before.
        return DeparturesResult::default();
    };
    let arrivals = drawn.take(usize::try_from(study.arrivals).unwrap_or(usize::MAX));
    let warm_up = study.arrivals * WARM_UP_TENTHS / 10;
    departures::run(policy, cluster, reported(arrivals, progress), warm_up)
}

fn reported<'a, T>(
    arrivals: impl Iterator<Item = T> + 'a,
    progress: &'a Progress,
) -> impl Iterator<Item = T> + 'a {
    arrivals.enumerate().map(move |(nth, arrival)| {
        if nth % STEP == STEP - 1 {
            progress.add(STEP as u64);
        }
        arrival
    })
}
