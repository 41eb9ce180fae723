//! Measured rates of checkpoints: how fast the driver copies the memory of each GPU to host memory and back.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_core::{Bytes, GpuUuid};

use crate::checkpoint::Direction;
use crate::model::job::Job;

/// A smaller copy shows the fixed cost of the steps, up to a second, and not a rate.
const LEAST_MEASURED: Bytes = Bytes::gib(1);

/// Bytes a second of the last copy of each GPU since the daemon's start.
#[derive(Default)]
pub struct CopyRates {
    out: BTreeMap<GpuUuid, f64>,
    back: BTreeMap<GpuUuid, f64>,
}

impl CopyRates {
    fn of(&self, direction: Direction) -> &BTreeMap<GpuUuid, f64> {
        match direction {
            Direction::Offload => &self.out,
            Direction::Restore => &self.back,
        }
    }

    /// Notes a copy of a job's memory.
    pub fn measure(&mut self, job: &Job, direction: Direction, bytes: Bytes, took_s: f64) {
        if bytes < LEAST_MEASURED || took_s <= 0.0 {
            return;
        }
        let rates = match direction {
            Direction::Offload => &mut self.out,
            Direction::Restore => &mut self.back,
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
        let rate = bytes.get() as f64 / took_s;
        let grants = job.state.grants().iter();
        rates.extend(grants.map(|grant| (grant.gpu.clone(), rate)));
    }

    /// How long a copy takes at the rate of the slowest of the job's GPUs; `None` without a measurement.
    pub fn predict(&self, job: &Job, direction: Direction, bytes: Bytes) -> Option<Duration> {
        let rates = self.of(direction);
        let grants = job.state.grants().iter();
        let rates: Option<Vec<f64>> = grants.map(|grant| rates.get(&grant.gpu).copied()).collect();
        let slowest = rates?.into_iter().reduce(f64::min)?;
        #[expect(clippy::cast_precision_loss, reason = "a rate is an estimate")]
        let seconds = bytes.get() as f64 / slowest;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Both copies of a park and its wake; nothing for one that was not measured.
    pub fn there_and_back(&self, job: &Job, bytes: Bytes) -> Duration {
        [Direction::Offload, Direction::Restore]
            .map(|direction| self.predict(job, direction, bytes).unwrap_or_default())
            .into_iter()
            .sum()
    }
}
