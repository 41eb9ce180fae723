//! Drawn submissions: a Poisson process over kinds of jobs, and durations of like jobs.

use super::scene::{MOST_DRAWN, MOST_JOBS, SceneError};
use super::work::{Draw, Durations, Submission};
use divvy_packing::random::Random;

impl Draw {
    /// # Errors
    /// [`SceneError`], for a draw without kinds or beyond the bounds, and for figures that are not above zero.
    pub(super) fn check(&self) -> Result<(), SceneError> {
        let jobs = usize::try_from(self.jobs).unwrap_or(usize::MAX);
        let runs = usize::try_from(self.runs).unwrap_or(usize::MAX);
        let too_many = |what, count, most| SceneError::TooMany { what, count, most };
        if jobs > MOST_JOBS {
            return Err(too_many("jobs", jobs, MOST_JOBS));
        }
        if jobs.saturating_mul(runs) > MOST_DRAWN {
            let count = jobs.saturating_mul(runs);
            return Err(too_many("jobs in all runs", count, MOST_DRAWN));
        }
        if jobs == 0 {
            return Err(SceneError::Nothing("jobs"));
        }
        if runs == 0 {
            return Err(SceneError::Nothing("runs"));
        }
        let weight: f64 = self.kinds.iter().map(|kind| kind.weight).sum();
        above_zero("the sum of the weights", weight)?;
        above_zero("the time between two jobs", self.gap_ms)?;
        for kind in &self.kinds {
            if kind.weight < 0.0 || kind.weight.is_nan() {
                return Err(SceneError::NotPositive {
                    what: "a weight",
                    value: kind.weight,
                });
            }
            kind.durations.check()?;
        }
        Ok(())
    }

    /// The submissions of one run, from 0. Three numbers are drawn for each: the gap before it, its kind, its duration.
    pub(super) fn run(&self, run: u32) -> Vec<Submission> {
        let mut random = Random::seeded(self.seed.wrapping_add(run.into()));
        let mut sum = 0.0;
        let up_to: Vec<f64> = self
            .kinds
            .iter()
            .map(|kind| {
                sum += kind.weight;
                sum
            })
            .collect();
        let mut now = 0.0;
        let submission = |_| {
            now += random.exponential() * self.gap_ms;
            let drawn = random.unit() * sum;
            let kind = up_to.partition_point(|up_to| *up_to <= drawn);
            let kind = &self.kinds[kind.min(self.kinds.len() - 1)];
            Submission {
                at_ms: whole(now),
                runs_ms: kind.durations.draw(&mut random),
                ..kind.job.clone()
            }
        };
        (0..self.jobs).map(submission).collect()
    }
}

impl Durations {
    fn check(&self) -> Result<(), SceneError> {
        match self {
            Self::Exponential { mean_ms } => above_zero("a mean duration", *mean_ms),
            Self::Of(durations) if durations.is_empty() => Err(SceneError::Nothing("durations")),
            Self::Of(_) => Ok(()),
        }
    }

    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Exponential { mean_ms } => whole(random.exponential() * mean_ms),
            Self::Of(durations) => durations[random.below(durations.len())],
        }
    }
}

fn above_zero(what: &'static str, value: f64) -> Result<(), SceneError> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(SceneError::NotPositive { what, value })
    }
}

/// To a millisecond, rounded down; never negative.
pub(super) fn whole(ms: f64) -> u64 {
    ms as u64
}
