//! GPU utilisation of processes, queried from the driver once in a sampling period.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use divvy_api::sync::lock;
use divvy_core::GpuUuid;
use divvy_driver::nvml::{Device, ProcessUse};

use crate::host::clock::Instant;
use crate::model::usage::meter::{ReportedUtilisation, UtilisationSample};

/// How often the driver is asked: its samples are of up to a second (nvml.h, `nvmlUtilization_t`).
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The driver's last samples do not reach further back: two idle observation intervals, and a little. A longer one
/// would be asked without a gain.
const MAX_SPAN: Duration = Duration::from_secs(5);

/// What was asked before.
#[derive(Debug, Default)]
pub struct UtilizationSampler(Mutex<BTreeMap<GpuUuid, LastQuery>>);

#[derive(Clone, Copy, Debug)]
struct LastQuery {
    at: Instant,
    /// The driver's time of the last sample.
    last_sample_us: u64,
}

impl UtilizationSampler {
    /// What was done on the GPU since it was last asked for; nothing when that is too short a time ago, the first time,
    /// and where the driver does not tell. Nothing but figures rests on it, so an error is no more than that.
    pub fn sample(
        &self,
        device: &Device<'_>,
        gpu: &GpuUuid,
        percent: Option<u32>,
    ) -> Option<UtilisationSample> {
        let mut all = lock(&self.0);
        let (before, now) = (all.get(gpu).copied(), Instant::now());
        let passed = before.map(|asked| now.saturating_duration_since(asked.at));
        if passed.is_some_and(|passed| passed < SAMPLE_INTERVAL) {
            return None;
        }
        let mut last = before.map_or(0, |asked| asked.last_sample_us);
        let samples = device.process_utilization(last).ok().flatten();
        for sample in samples.iter().flatten() {
            last = last.max(sample.at_us);
        }
        all.insert(
            gpu.clone(),
            LastQuery {
                at: now,
                last_sample_us: last,
            },
        );
        drop(all);
        let who = match samples {
            Some(samples) => ReportedUtilisation::PerProcess(mean_utilization(&samples)),
            None => ReportedUtilisation::Total(percent?),
        };
        let spoken_of = passed.map(|passed| match passed > MAX_SPAN {
            true => SAMPLE_INTERVAL,
            false => passed,
        })?;
        Some(UtilisationSample {
            micros: u64::try_from(spoken_of.as_micros()).unwrap_or(u64::MAX),
            utilisation: who,
        })
    }
}

/// By pid; a process may have several samples, which are taken to be of one length (inferred: nvml.h does not say).
fn mean_utilization(samples: &[ProcessUse]) -> BTreeMap<u32, u32> {
    let mut sums = BTreeMap::<u32, (u64, u64)>::new();
    for sample in samples {
        let (sum, count) = sums.entry(sample.pid).or_default();
        *sum += u64::from(sample.sm_percent);
        *count += 1;
    }
    let mean = |(sum, count): (u64, u64)| u32::try_from(sum / count).unwrap_or(100);
    sums.into_iter().map(|(pid, of)| (pid, mean(of))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_samples_of_a_process_are_taken_together() {
        let sample = |pid, sm_percent| ProcessUse {
            pid,
            at_us: 1,
            sm_percent,
        };
        let found = mean_utilization(&[sample(7, 100), sample(8, 3), sample(7, 50)]);
        assert_eq!(found, BTreeMap::from([(7, 75), (8, 3)]));
    }
}
