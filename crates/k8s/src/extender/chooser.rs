//! The policy in use: learned, or best fit with the reason why.

use std::fmt;

use divvy_packing::learned::{Fallback, Learned, TrainingError};
use divvy_packing::{BestFit, Cluster, Shape};

/// Why best fit chooses.
#[derive(Clone, Debug, PartialEq)]
pub enum BestFitReason {
    /// `--policy best-fit`.
    Configured,
    /// There are too few requests, or on the last ones the table is behind.
    Check(Fallback),
    /// The first table is being trained.
    Training,
    /// There is nothing to train on.
    Untrainable(TrainingError),
    /// The cluster has other GPU models than at the training.
    OtherModels,
}

impl BestFitReason {
    /// The value of the metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Check(Fallback::TooFewRequests { .. }) => "little-history",
            Self::Check(Fallback::BehindBestFit { .. }) => "behind",
            Self::Check(Fallback::NothingFits { .. } | Fallback::TrainedOnFill)
            | Self::Untrainable(_) => "untrainable",
            Self::Training => "training",
            Self::OtherModels => "other-models",
        }
    }

    pub const LABELS: [&str; 6] = [
        "configured",
        "little-history",
        "training",
        "behind",
        "untrainable",
        "other-models",
    ];
}

impl fmt::Display for BestFitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("--policy best-fit is set"),
            Self::Check(fallback) => fallback.fmt(f),
            Self::Training => f.write_str("the first table is being trained"),
            Self::Untrainable(error) => write!(f, "no table can be trained: {error}"),
            Self::OtherModels => {
                f.write_str("the nodes' GPU models have changed since the training")
            }
        }
    }
}

/// A table with the GPU models that it is for.
#[derive(Clone, Debug)]
pub struct Table {
    pub learned: Learned,
    pub models: Vec<String>,
}

/// The outcome of a training.
#[derive(Clone, Debug)]
pub enum Verdict {
    Use(Box<Table>),
    BestFit(BestFitReason),
}

/// Scores candidates by the policy in use.
pub struct Chooser {
    verdict: Verdict,
    /// Scores of the present cluster; the verdict's own table stays without any.
    learned: Option<Learned>,
    best_fit: BestFit,
    epoch: u64,
}

impl Chooser {
    pub fn new(reason: BestFitReason) -> Self {
        Self {
            verdict: Verdict::BestFit(reason),
            learned: None,
            best_fit: BestFit::default(),
            epoch: 0,
        }
    }

    /// Why best fit chooses; `None` while the learned table does.
    pub fn reason(&self) -> Option<&BestFitReason> {
        match &self.verdict {
            Verdict::Use(_) => None,
            Verdict::BestFit(reason) => Some(reason),
        }
    }

    /// Gives another reason, while best fit chooses.
    pub fn explain(&mut self, reason: BestFitReason) {
        if let Verdict::BestFit(known) = &mut self.verdict {
            *known = reason;
        }
    }

    /// Uses what a training has come to from now on.
    pub fn adopt(&mut self, verdict: Verdict) {
        self.verdict = verdict;
        self.start_anew();
    }

    fn start_anew(&mut self) {
        self.best_fit = BestFit::default();
        self.learned = match &self.verdict {
            Verdict::Use(table) => Some(table.learned.clone()),
            Verdict::BestFit(_) => None,
        };
    }

    /// The candidate with the best score, of equals the first node; `None` where the shape fits on none of them.
    pub fn choose(
        &mut self,
        cluster: &Cluster,
        epoch: u64,
        models: &[String],
        shape: &Shape,
        candidates: &[usize],
    ) -> Option<usize> {
        if self.epoch != epoch {
            self.epoch = epoch;
            if let Verdict::Use(table) = &self.verdict
                && table.models != models
            {
                self.verdict = Verdict::BestFit(BestFitReason::OtherModels);
            }
            self.start_anew();
        }
        let scores = match &mut self.learned {
            Some(learned) => learned.scores(cluster, shape, candidates),
            None => self.best_fit.scores(cluster, shape, candidates),
        };
        least(candidates, &scores)
    }
}

/// The candidate with the least score; infinite ones do not fit.
fn least(candidates: &[usize], scores: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (node, score) in candidates.iter().zip(scores) {
        let is_better = |(at, least): (usize, f32)| *score < least || *score == least && *node < at;
        if score.is_finite() && best.is_none_or(is_better) {
            best = Some((*node, *score));
        }
    }
    best.map(|(node, _)| node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_candidates_the_first_node_is_chosen_whatever_their_order() {
        assert_eq!(least(&[2, 0, 1], &[1.0, 1.0, 0.5]), Some(1));
        assert_eq!(least(&[2, 0, 1], &[1.0, 1.0, 2.0]), Some(0));
        assert_eq!(least(&[2, 1], &[f32::INFINITY, 3.0]), Some(1));
        assert_eq!(least(&[2], &[f32::INFINITY]), None);
    }

    #[test]
    fn every_reason_has_a_series_of_its_own() {
        let (learned, best_fit) = (0.031, 0.02);
        let behind = BestFitReason::Check(Fallback::BehindBestFit { learned, best_fit });
        assert!(behind.to_string().contains("3.10 %"), "{behind}");
        for reason in [
            behind,
            BestFitReason::Configured,
            BestFitReason::Training,
            BestFitReason::OtherModels,
            BestFitReason::Untrainable(TrainingError::NoGpus),
            BestFitReason::Check(Fallback::TooFewRequests { seen: 1, needed: 2 }),
        ] {
            assert!(BestFitReason::LABELS.contains(&reason.label()), "{reason}");
        }
    }
}
