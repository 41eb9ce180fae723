//! A fill: what stays unallocated by how much has been asked for; also where all jobs wait at once.

use std::collections::BTreeMap;

use crate::engine::fill::FillResult;
use crate::engine::patterns::{self, Waiting};
use crate::engine::volumes::Volumes;
use divvy_packing::{Cluster, Shape};

use crate::verb::packing::Study;

/// A fill, by the percent of the GPUs asked for.
pub struct Filled {
    /// In percent.
    pub unallocated: BTreeMap<u32, f64>,
    pub asked: Volumes,
    pub refused: Volumes,
}

impl Filled {
    /// A drawn order ends before the job that would exceed this percentage, so that its end counts as having reached it.
    pub fn end_at(&mut self, percent: u64) {
        let last = self.unallocated.values().next_back().copied();
        if let (Ok(percent), Some(last)) = (u32::try_from(percent), last) {
            self.unallocated.entry(percent).or_insert(last);
        }
    }

    /// What is unallocated once so much has been asked for; `None` where the arrivals ask for less. On a small cluster
    /// one job may ask for several percent at once: until it arrives, what was unallocated before still is.
    pub fn at(&self, percent: u32) -> Option<f64> {
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

/// A fill of which all jobs wait at once: at each percentage, the jobs that have arrived by then are placed together on
/// the empty cluster. The oldest of them are due, up to the part of the GPUs that `--oldest` names.
pub fn queue_visible(study: &Study, cluster: &Cluster, arrivals: Vec<Shape>) -> Filled {
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
