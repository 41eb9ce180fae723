//! Figures of a policy over its runs.

use std::collections::BTreeSet;

use crate::engine::estimate::Estimate;
use crate::engine::volumes::Volumes;

use super::filled::Filled;
use super::{Came, Run};
use crate::render::{
    Figure, Packing, PackingKinds, PackingPoint, PackingScene, PackingTiming, Ratio, Spread,
};
use crate::verb::chart::Curve;
use crate::verb::packing::Study;
use divvy_cli::args::Mode;

/// The figures of one policy, compared with the first one.
pub fn packing(
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
pub fn curve(policy: &'static str, runs: &[Run]) -> Curve {
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
