//! Every policy over every run, on all CPUs. The distribution to threads changes no figure.

use std::collections::{BTreeMap, BTreeSet};

use divvy_core::cluster::patterns::{self, Waiting};
use divvy_core::cluster::{Cluster, PolicyName, Shape};
use divvy_core::simulate::Estimate;
use divvy_core::simulate::departures::{self, DeparturesResult, Drawn, Timed as Arrival};
use divvy_core::simulate::fill::{self, FillResult};
use divvy_core::simulate::volumes::Volumes;
use divvy_core::simulate::workload::{Order, UNTIL, Workload};

use super::Study;
use super::policies::{Timed, Trained};
use crate::args::Mode;
use crate::error_output::{Result, usage};
use crate::render::{
    Figure, Packing, PackingKinds, PackingPoint, PackingScene, PackingTiming, Ratio, Spread,
};
use crate::verbs::simulate::chart::Curve;
use crate::verbs::simulate::count_of;
use crate::verbs::simulate::input::Job;
use crate::verbs::simulate::pool::spread;
use crate::verbs::simulate::progress::Progress;

/// Arrivals between two reports of progress.
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

/// A fill, by the percent of the GPUs asked for.
struct Filled {
    /// In percent.
    unallocated: BTreeMap<u32, f64>,
    asked: Volumes,
    refused: Volumes,
}

impl Filled {
    /// A drawn order ends before the job that would exceed this percentage, so that its end counts as having reached it.
    fn end_at(&mut self, percent: u64) {
        let last = self.unallocated.values().next_back().copied();
        if let (Ok(percent), Some(last)) = (u32::try_from(percent), last) {
            self.unallocated.entry(percent).or_insert(last);
        }
    }

    /// What is unallocated once so much has been asked for; `None` where the arrivals ask for less. On a small cluster
    /// one job may ask for several percent at once: until it arrives, what was unallocated before still is.
    fn at(&self, percent: u32) -> Option<f64> {
        let reached = self.unallocated.keys().next_back()? >= &percent;
        let before = self.unallocated.range(..=percent).next_back();
        before.filter(|_| reached).map(|(_, value)| *value)
    }
}

impl From<FillResult> for Filled {
    fn from(fill: FillResult) -> Self {
        Self {
            unallocated: fill.curve().collect(),
            asked: fill.asked,
            refused: fill.refused,
        }
    }
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

/// A fill of which all jobs wait at once: at each percentage, the jobs that have arrived by then are placed together on
/// the empty cluster. The oldest of them are due, up to the part of the GPUs that `--oldest` names.
fn queue_visible(study: &Study, cluster: &Cluster, arrivals: Vec<Shape>) -> Filled {
    let capacity = cluster.capacity_milli();
    let due_milli = (study.oldest * capacity as f64) as u64;
    let mut filled = Filled {
        unallocated: BTreeMap::new(),
        asked: Volumes::default(),
        refused: Volumes::default(),
    };
    let mut asked = 0;
    let mut waiting: Vec<Waiting> = Vec::with_capacity(arrivals.len());
    // How many jobs have asked for at most each percentage.
    let mut points = study
        .at
        .iter()
        .map(|percent| (*percent, 0))
        .collect::<Vec<_>>();
    for shape in arrivals {
        asked += cluster.asked_milli(&shape);
        filled.asked.add(cluster, &shape);
        waiting.push(Waiting {
            shape,
            is_due: asked <= due_milli,
        });
        for (percent, jobs) in &mut points {
            if asked * 100 <= capacity * u64::from(*percent) {
                *jobs = waiting.len();
            }
        }
    }
    points.push((0, waiting.len()));
    for (percent, jobs) in points {
        let waiting = &waiting[..jobs];
        let mut cluster = cluster.clone();
        let mut has_started = vec![false; jobs];
        for started in patterns::start(&cluster, waiting) {
            has_started[started.waiting] =
                cluster.take(&waiting[started.waiting].shape, &started.choice);
        }
        if percent > 0 {
            let free = 100.0 * cluster.free_milli() as f64 / capacity.max(1) as f64;
            filled.unallocated.insert(percent, free);
            continue;
        }
        let refused = waiting
            .iter()
            .zip(has_started)
            .filter(|(_, started)| !started);
        for (waiting, _) in refused {
            filled.refused.add(&cluster, &waiting.shape);
        }
    }
    filled
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

/// The jobs of the pods, each with its pod's shape and its own times, in seconds from the first; with a load, closer together or further apart.
///
/// # Errors
/// Jobs without times, and a load for jobs that bring none.
pub fn timed(jobs: &[&Job], workload: &Workload, load: Option<f64>) -> Result<Vec<Arrival>> {
    let mut arrivals = Vec::new();
    let (mut volume, mut without) = (0.0, 0_usize);
    let cluster = Cluster::new(workload.nodes.iter().cloned());
    for (job, pod) in jobs.iter().zip(&workload.pods) {
        let (Some(submitted), Some(ran)) = (job.submitted, job.ran_ms()) else {
            without += 1;
            continue;
        };
        let holding = ran as f64 / 1000.0;
        volume += holding * cluster.asked_milli(&pod.shape) as f64;
        arrivals.push((submitted, holding, pod.shape));
    }
    if without > 0 {
        let jobs = count_of(without, "job");
        crate::output::say(&format!("skipped {jobs} without start and end"));
    }
    arrivals.sort_by_key(|(submitted, _, _)| *submitted);
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
        return Err(usage(
            "--order given: no job has a submission, a start and an end",
            "omit --order, so that jobs arrive at random",
        ));
    };
    let (start, span) = (first.0, (last.0 - first.0) as f64 / 1000.0);
    let brought = volume / span / cluster.capacity_milli() as f64;
    let scale = match load {
        None => 1.0,
        Some(load) if brought.is_finite() && brought > 0.0 => brought / load,
        Some(_) => {
            return Err(usage(
                "--load is not possible: all jobs arrive at once or have duration 0",
                "omit --load",
            ));
        }
    };
    let arrival = |(submitted, holding, shape): (i64, f64, _)| Arrival {
        at: (submitted - start) as f64 / 1000.0 * scale,
        holding,
        shape,
    };
    Ok(arrivals.into_iter().map(arrival).collect())
}

fn packing(
    study: &Study,
    policy: &'static str,
    runs: &[Run],
    baseline: Option<&[Run]>,
    scene: PackingScene,
) -> Packing {
    let point = |percent: &u32| {
        let values = |runs: &[Run]| -> Vec<f64> {
            let of = |run: &Run| match &run.came {
                Came::Fill(fill) => fill.at(*percent).map(|value| value / 100.0),
                Came::Departures(_) => None,
            };
            runs.iter().filter_map(of).collect()
        };
        let own = values(runs);
        Some(PackingPoint {
            arrived_percent: *percent,
            unallocated: Spread::of(&own)?,
            difference: baseline.and_then(|baseline| difference(&own, &values(baseline))),
        })
    };
    let refused = |runs: &[Run]| -> Vec<f64> { runs.iter().map(Run::refused).collect() };
    let in_use: Vec<f64> = runs.iter().filter_map(Run::in_use).collect();
    let is_fill = study.mode == Mode::Fill;
    Packing {
        policy,
        scene,
        points: study.at.iter().filter_map(point).collect(),
        refused: Spread::of(&refused(runs)).unwrap_or_default(),
        difference: baseline
            .filter(|_| !is_fill)
            .and_then(|baseline| difference(&refused(runs), &refused(baseline))),
        kinds: kinds(runs),
        in_use: Spread::of(&in_use),
        check: None,
        timing: study.timing.then(|| timing(runs)).flatten(),
        training_seconds: None,
    }
}

fn difference(own: &[f64], baseline: &[f64]) -> Option<Figure> {
    Estimate::of_differences(own, baseline).map(Figure::from)
}

impl Run {
    fn volumes(&self) -> (&Volumes, &Volumes) {
        match &self.came {
            Came::Fill(fill) => (&fill.refused, &fill.asked),
            Came::Departures(run) => (&run.refused, &run.asked),
        }
    }

    /// Of the GPU volume asked for, the part that was refused.
    fn refused(&self) -> f64 {
        let (refused, asked) = self.volumes();
        part(refused.total(), asked.total())
    }

    fn in_use(&self) -> Option<f64> {
        match &self.came {
            Came::Fill(_) => None,
            Came::Departures(run) => Some(run.in_use / 100.0),
        }
    }
}

fn part(some: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        _ => some as f64 / all as f64,
    }
}

/// Refused volume by kind of request, over all runs.
fn kinds(runs: &[Run]) -> PackingKinds {
    let of = |volume: fn(&Volumes) -> u64| {
        let all = runs.iter().map(Run::volumes);
        let (refused, asked) = all.fold((0, 0), |sum, (refused, asked)| {
            (sum.0 + volume(refused), sum.1 + volume(asked))
        });
        (asked > 0).then(|| Ratio(part(refused, asked)))
    };
    PackingKinds {
        fraction: of(|volumes| volumes.fraction),
        one: of(|volumes| volumes.one),
        several: of(|volumes| volumes.several),
        cpu_only: of(|volumes| volumes.cpu_only),
    }
}

fn timing(runs: &[Run]) -> Option<PackingTiming> {
    let mut all: Vec<u64> = runs
        .iter()
        .flat_map(|run| run.took.iter().copied())
        .collect();
    all.sort_unstable();
    let at = |percent: usize| {
        let nth = (all.len() * percent).div_ceil(100).max(1) - 1;
        all.get(nth).map(|nanos| Ratio(*nanos as f64 / 1000.0))
    };
    Some(PackingTiming {
        decisions: all.len(),
        p50_us: at(50)?,
        p99_us: at(99)?,
        max_us: at(100)?,
    })
}

/// The mean over the runs at each percentage that all of them reach.
fn curve(policy: &'static str, runs: &[Run]) -> Curve {
    let fills: Vec<&Filled> = runs
        .iter()
        .filter_map(|run| match &run.came {
            Came::Fill(fill) => Some(fill),
            Came::Departures(_) => None,
        })
        .collect();
    let percents: BTreeSet<u32> = fills
        .iter()
        .flat_map(|fill| fill.unallocated.keys().copied())
        .collect();
    let mean = |percent: u32| -> Option<(u32, f64)> {
        let values: Option<Vec<f64>> = fills.iter().map(|fill| fill.at(percent)).collect();
        let values = values?;
        Some((percent, values.iter().sum::<f64>() / values.len() as f64))
    };
    Curve {
        name: policy,
        points: percents.into_iter().filter_map(mean).collect(),
    }
}
