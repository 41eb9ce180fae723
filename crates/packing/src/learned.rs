//! The learned policy: a table of what will stay unused of a GPU, and prices for scarce shapes.
//!
//! ```text
//!  Mix ──► train ──► Learned ──► scores of nodes ──► Choice
//!  NodeSpecs          (table, scarce shapes)
//! ```
//! The value of a node is the sum over its GPUs of the table, less the prices of the scarce shapes that it has room for.
//! A request goes where it lowers the value of what is left least. The table is learned by self-play on the counts of
//! requests; the training mixes in requests that the history may lack.
//!
//! Pure and seeded: sums of f32 in a fixed order, so equal input gives equal bytes.

mod broad;
mod cells;
mod check;
mod episode;
mod events;
mod file;
mod learner;
mod lesson;
mod mix;
mod models;
mod scarce;
mod scores;
mod scratch;
mod state;
mod table;
mod train;
mod trial;

pub use check::{Fallback, Guarded, REQUESTS_NEEDED, Verdict, check};
pub use file::{MOST_BYTES, TableError};
pub use mix::{MOST_KINDS, Mix};
pub use train::{MOST_NODES, Progress, Training, TrainingError};

use self::episode::Target;
use self::scarce::Scarce;
use self::scores::NodeScores;
use self::state::{Values, Weights};
use self::table::Table;
use super::node::{Choice, Cluster, NodeSpec, Shape};
use super::policy::NodePolicy;

/// What a table is trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Requests arrive and stay, as in the published comparison.
    Fill,
    /// Jobs come and go: the form to use on a cluster.
    Departures,
}

impl Form {
    /// What the training tries: targets, each with the weights of prices and of spread. A low price is tried only where
    /// many requests ask for several GPUs. Where few do it looks good as well, but it leaves no room for more of them:
    /// default, used on multigpu40, would leave 5.4 %.
    fn attempts(self, many_ask_for_several: bool) -> &'static [(Target, Weights)] {
        const fn fill(target: Target, price: f32) -> (Target, Weights) {
            let spread = 0.0;
            (target, Weights { price, spread })
        }
        const REFUSED: (Target, Weights) = (
            Target::Refused,
            Weights {
                price: 1.5,
                spread: 2.0,
            },
        );
        match self {
            Self::Fill if many_ask_for_several => {
                const {
                    &[
                        fill(Target::End, 0.15),
                        fill(Target::EndAndRefused, 0.15),
                        fill(Target::End, 0.03),
                        fill(Target::EndAndRefused, 0.03),
                    ]
                }
            }
            Self::Fill => const { &[fill(Target::End, 0.15), fill(Target::EndAndRefused, 0.15)] },
            Self::Departures => &[REFUSED],
        }
    }

    /// Episodes of an iteration.
    fn episodes(self) -> usize {
        match self {
            Self::Fill => 1,
            Self::Departures => 2,
        }
    }
}

/// A trained policy. It keeps scores of the nodes of one cluster; clone a fresh one for another.
#[derive(Clone, Debug)]
pub struct Learned {
    form: Form,
    weights: Weights,
    /// Requests that it was trained on.
    requests: u64,
    table: Table,
    scarce: Vec<Scarce>,
    /// Thousandths of GPUs of a request, on average.
    mean_milli: f64,
    /// Names of the GPU models, by index; empty where the caller gave none.
    models: Vec<String>,
    scores: NodeScores,
}

impl Learned {
    /// Trains a policy for requests like these on nodes like these. Same input, same policy, byte for byte.
    ///
    /// # Errors
    /// No node has a GPU, no request fits one, there are more than [`MOST_NODES`] nodes, or the index of a model is not
    /// below [`ModelSet::MOST`](super::ModelSet::MOST).
    pub fn train(
        mix: &Mix,
        nodes: &[NodeSpec],
        training: Training,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, TrainingError> {
        train::train(mix, nodes, training, progress)
    }

    pub fn form(&self) -> Form {
        self.form
    }

    /// Requests that the policy was trained on.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The scores of candidate nodes, in their order: lower is better, infinite where the request does not fit.
    pub fn scores(&mut self, cluster: &Cluster, shape: &Shape, candidates: &[usize]) -> Vec<f32> {
        let (scores, values) = self.parts();
        scores.of(values, cluster, shape, candidates)
    }

    fn parts(&mut self) -> (&mut NodeScores, Values<'_>) {
        let values = Values {
            table: &self.table,
            scarce: &self.scarce,
            mean_milli: self.mean_milli,
            weights: self.weights,
        };
        (&mut self.scores, values)
    }
}

impl NodePolicy for Learned {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        let (scores, values) = self.parts();
        let node = scores.least(values, cluster, shape)?;
        let gpus = cluster.nodes()[node].best_fit(shape)?;
        Some(Choice { node, gpus })
    }
}
