//! The check of a trained policy on the last requests, and the policy that falls back to best fit.

use std::fmt;

use super::mix::{Draw, Mix};
use super::scores::NodeScores;
use super::train::{PART_GPUS, part, sorted};
use super::trial::refused_with_departures;
use super::{Form, Learned};
use crate::best_fit::BestFit;
use crate::node::{Choice, Cluster, NodeSpec, Shape};
use crate::policy::NodePolicy;
use crate::random::Random;

/// The fewest requests on which a check can judge a table. Fewer would judge by chance; more would leave a small
/// cluster with best fit for long.
pub const REQUESTS_NEEDED: u64 = 300;

/// Orders of the last requests that are tried, and the mean holding times that each counts. With one, an unlucky order
/// would decide; each takes as long again.
const TRIALS: usize = 3;
/// As many as [`super::trial`] needs to reach a settled state, and half as many again; more would only take longer.
const HOLDING_TIMES: f64 = 6.0;

/// The part of the volume by which the table may be behind before the check falls back: what orders differ by. A
/// smaller one would fall back by chance.
const TOLERANCE: f64 = 0.001;

/// What the check says.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The table does at least as well as best fit: parts of the volume that each refuses.
    Learned { learned: f64, best_fit: f64 },
    /// Best fit is used.
    BestFit(Fallback),
}

/// Why best fit is used.
#[derive(Clone, Debug, PartialEq)]
pub enum Fallback {
    TooFewRequests {
        seen: u64,
        needed: u64,
    },
    /// The table refuses more of the last requests: parts of the volume.
    BehindBestFit {
        learned: f64,
        best_fit: f64,
    },
    /// None of the last requests with GPUs fits an empty node.
    NothingFits {
        seen: u64,
    },
    /// The table knows the fill alone, and jobs leave.
    TrainedOnFill,
}

impl Verdict {
    pub fn is_learned(&self) -> bool {
        matches!(self, Self::Learned { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learned { learned, best_fit } => write!(
                f,
                "learned: on the last requests it refuses {:.2} % of the volume, best fit {:.2} %",
                100.0 * learned,
                100.0 * best_fit
            ),
            Self::BestFit(fallback) => write!(f, "best fit: {fallback}"),
        }
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewRequests { seen, needed } => {
                write!(
                    f,
                    "the history has {seen} requests, the check needs {needed}"
                )
            }
            Self::BehindBestFit { learned, best_fit } => write!(
                f,
                "on the last requests the table refuses {:.2} % of the volume, best fit {:.2} %",
                100.0 * learned,
                100.0 * best_fit
            ),
            Self::NothingFits { seen } => {
                write!(
                    f,
                    "none of the last {seen} requests with GPUs fits an empty node"
                )
            }
            Self::TrainedOnFill => write!(
                f,
                "the table was trained for a cluster that jobs do not leave"
            ),
        }
    }
}

/// Compares the policy with best fit on fresh orders of the last requests, where jobs come and go.
pub fn check(learned: &Learned, recent: &Mix, nodes: &[NodeSpec], seed: u64) -> Verdict {
    let seen = recent.requests();
    if learned.form == Form::Fill {
        return Verdict::BestFit(Fallback::TrainedOnFill);
    }
    if seen < REQUESTS_NEEDED {
        let needed = REQUESTS_NEEDED;
        return Verdict::BestFit(Fallback::TooFewRequests { seen, needed });
    }
    let nodes = sorted(nodes);
    let cluster = Cluster::new(nodes.iter().cloned());
    let recent = recent.fitting(&cluster).bounded();
    if !recent.asks_for_gpus() {
        return Verdict::BestFit(Fallback::NothingFits { seen });
    }
    let draw = Draw::new(&recent, &cluster);
    let mut random = Random::seeded(seed);
    let (mut refused, mut refused_by_best_fit) = (0.0, 0.0);
    for trial in 0..TRIALS {
        let nodes = part(&nodes, PART_GPUS, trial);
        let how = (HOLDING_TIMES, random.seed());
        let mut fresh = learned.fresh();
        refused += refused_with_departures(&mut fresh, &draw, &nodes, how) / TRIALS as f64;
        let mut best_fit = BestFit::default();
        refused_by_best_fit +=
            refused_with_departures(&mut best_fit, &draw, &nodes, how) / TRIALS as f64;
    }
    let (learned, best_fit) = (refused, refused_by_best_fit);
    if learned > best_fit + TOLERANCE {
        Verdict::BestFit(Fallback::BehindBestFit { learned, best_fit })
    } else {
        Verdict::Learned { learned, best_fit }
    }
}

/// The learned policy while its check holds, best fit otherwise.
#[derive(Clone, Debug)]
pub struct Guarded {
    learned: Learned,
    best_fit: BestFit,
    verdict: Verdict,
}

impl Guarded {
    /// Checks the policy on the last requests.
    pub fn new(learned: Learned, recent: &Mix, nodes: &[NodeSpec], seed: u64) -> Self {
        let verdict = check(&learned, recent, nodes, seed);
        Self {
            learned,
            best_fit: BestFit::default(),
            verdict,
        }
    }

    /// Checks again, with later requests or other nodes.
    pub fn check(&mut self, recent: &Mix, nodes: &[NodeSpec], seed: u64) -> &Verdict {
        self.verdict = check(&self.learned, recent, nodes, seed);
        &self.verdict
    }

    /// Which of the policies is used, and why.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// The scores of candidate nodes, in their order: lower is better, infinite where the request does not fit.
    pub fn scores(&mut self, cluster: &Cluster, shape: &Shape, candidates: &[usize]) -> Vec<f32> {
        if self.verdict.is_learned() {
            self.learned.scores(cluster, shape, candidates)
        } else {
            self.best_fit.scores(cluster, shape, candidates)
        }
    }
}

impl NodePolicy for Guarded {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        if self.verdict.is_learned() {
            self.learned.choose(cluster, shape)
        } else {
            self.best_fit.choose(cluster, shape)
        }
    }
}

impl Learned {
    /// The policy without what it knows of a cluster.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self {
            scores: NodeScores::default(),
            table: self.table.clone(),
            scarce: self.scarce.clone(),
            models: self.models.clone(),
            ..*self
        }
    }
}
