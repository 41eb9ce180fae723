//! Training: self-play on parts of the cluster, then a choice among the tables that it went through.

use super::episode::{Player, Target, play};
use super::learner::Learner;
use super::mix::{Draw, Mix};
use super::scarce::{Scarce, scarce};
use super::state::{Values, Weights};
use super::table::Table;
use super::trial::{refused_with_departures, unused_after_fill};
use super::{Form, Learned};
use crate::cluster::node::{Cluster, ModelSet, NodeSpec};
use crate::cluster::random::Random;

/// Nodes that a table can be trained for.
pub const MOST_NODES: usize = 100_000;

/// GPUs of the part of the cluster on which an episode, or a trial with departures, is played. Trials of fills take
/// twice as many.
pub(super) const PART_GPUS: usize = 1550;

/// Episodes of an iteration at most, on a cluster that is smaller than such a part.
const MOST_EPISODES: usize = 20;

const ITERATIONS: usize = 40;

/// Tables are candidates from this iteration on, each so many iterations.
const FIRST_CANDIDATE: usize = 16;
const EACH_CANDIDATE: usize = 6;

/// Orders on which each candidate is tried.
const TRIALS: usize = 3;

/// Multiples of the price weight that are tried with the best table. None is lower, for the reason that
/// [`Form::attempts`] gives.
const PRICES: [f32; 2] = [2.0, 4.0];

/// The part of the volume for several GPUs from which on many requests ask for them.
const MANY: f64 = 0.15;

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Training {
    pub form: Form,
    pub seed: u64,
}

/// How far a training is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub done: usize,
    pub of: usize,
}

/// Why there is nothing to train.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrainingError {
    #[error("no node has a GPU")]
    NoGpus,
    #[error("none of {requests} requests asks for a GPU and fits an empty node")]
    NothingFits { requests: u64 },
    #[error("node {node} has a GPU of model {model}: a table has at most {most} models", most = ModelSet::MOST)]
    TooManyModels { node: String, model: usize },
    #[error("{nodes} nodes: a table can be trained for at most {most}", most = MOST_NODES)]
    TooManyNodes { nodes: usize },
}

/// Trains a table for requests like these on nodes like these.
pub(super) fn train(
    mix: &Mix,
    specs: &[NodeSpec],
    training: Training,
    progress: &mut dyn FnMut(Progress),
) -> Result<Learned, TrainingError> {
    let nodes = sorted(specs);
    if nodes.is_empty() {
        return Err(TrainingError::NoGpus);
    }
    if nodes.len() > MOST_NODES {
        return Err(TrainingError::TooManyNodes { nodes: nodes.len() });
    }
    if let Some(spec) = nodes.iter().find(|spec| spec.model >= ModelSet::MOST) {
        return Err(TrainingError::TooManyModels {
            node: spec.name.clone(),
            model: spec.model,
        });
    }
    let cluster = Cluster::new(nodes.iter().cloned());
    let own = mix.fitting(&cluster).bounded();
    if !own.asks_for_gpus() {
        return Err(TrainingError::NothingFits {
            requests: mix.requests(),
        });
    }
    let broad = own.broadened().fitting(&cluster);
    let lesson = Lesson {
        scarce: scarce(&broad, &cluster),
        broad: Draw::new(&broad, &cluster),
        own: Draw::new(&own, &cluster),
        many_ask_for_several: own.part_for_several(&cluster) >= MANY,
        nodes,
        training,
    };
    let (table, weights) = lesson.best_table(progress);
    let mean_milli = lesson.broad.mean_milli();
    Ok(Learned {
        form: training.form,
        weights,
        requests: mix.requests(),
        mean_milli: mean_milli.max(1.0),
        scarce: lesson.scarce,
        models: Vec::new(),
        table,
        scores: Default::default(),
    })
}

/// The nodes with GPUs by model, GPUs and CPU, so that every n-th node is a smaller cluster of the same kind.
pub(super) fn sorted(specs: &[NodeSpec]) -> Vec<NodeSpec> {
    let mut nodes: Vec<NodeSpec> = specs.iter().filter(|spec| spec.gpus > 0).cloned().collect();
    nodes.sort_by(|a, b| {
        let key = |spec: &NodeSpec| {
            let memory = (spec.gpu_memory_mib, spec.memory_mib);
            (spec.model, spec.gpus, spec.cpu_milli, memory)
        };
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    nodes
}

/// Every n-th of the nodes, for a part of about so many GPUs.
pub(super) fn part(nodes: &[NodeSpec], gpus: usize, offset: usize) -> Vec<NodeSpec> {
    let parts = ((all_gpus(nodes) + gpus / 2) / gpus).clamp(1, nodes.len());
    let nodes = nodes.iter().skip(offset % parts);
    nodes.step_by(parts).cloned().collect()
}

fn all_gpus(nodes: &[NodeSpec]) -> usize {
    nodes.iter().map(|spec| spec.gpus as usize).sum()
}

/// What all episodes and trials of a training share.
struct Lesson {
    broad: Draw,
    own: Draw,
    scarce: Vec<Scarce>,
    nodes: Vec<NodeSpec>,
    training: Training,
    many_ask_for_several: bool,
}

impl Lesson {
    fn best_table(&self, progress: &mut dyn FnMut(Progress)) -> (Table, Weights) {
        let attempts = self.training.form.attempts(self.many_ask_for_several);
        let candidates = (ITERATIONS - FIRST_CANDIDATE) / EACH_CANDIDATE + 2;
        let of = attempts.len() * (ITERATIONS + candidates) + PRICES.len();
        let mut done = 0;
        let mut step = || {
            done += 1;
            progress(Progress { done, of });
        };
        let mut best = (f64::INFINITY, self.untrained(), attempts[0].1);
        for (target, weights) in attempts {
            for table in self.candidates(*target, *weights, &mut step) {
                let loss = self.loss(&table, *weights);
                if loss < best.0 {
                    best = (loss, table, *weights);
                }
                step();
            }
        }
        let (mut least, table, trained) = best;
        let mut weights = trained;
        for multiple in PRICES {
            let other = Weights {
                price: trained.price * multiple,
                ..trained
            };
            let loss = self.loss(&table, other);
            if loss < least {
                (least, weights) = (loss, other);
            }
            step();
        }
        (table, weights)
    }

    fn untrained(&self) -> Table {
        let models = self.nodes.iter().map(|spec| spec.model + 1).max();
        let two_axes = self.nodes.iter().any(|spec| spec.gpu_memory_mib > 0);
        Table::untrained(models.unwrap_or(0), two_axes)
    }

    fn values<'a>(&'a self, table: &'a Table, weights: Weights) -> Values<'a> {
        Values {
            table,
            scarce: &self.scarce,
            mean_milli: self.broad.mean_milli().max(1.0),
            weights,
        }
    }

    /// Self-play towards one target: tables of the second half, and their mean.
    fn candidates(&self, target: Target, weights: Weights, step: &mut dyn FnMut()) -> Vec<Table> {
        let mut table = self.untrained();
        let mut learner = Learner::new(table.models, table.two_axes);
        let mut mean = vec![0.0_f64; table.values.len()];
        let mut candidates = Vec::new();
        let mut random = Random::seeded(self.training.seed);
        // On a small cluster an iteration has several episodes, so that cells are visited as often.
        let repeats = (PART_GPUS / all_gpus(&self.nodes)).clamp(1, MOST_EPISODES);
        let episodes = repeats * self.training.form.episodes();
        for iteration in 0..ITERATIONS {
            learner.forget_some();
            for episode in 0..episodes {
                let nodes = part(&self.nodes, PART_GPUS, iteration * episodes + episode);
                let values = self.values(&table, weights);
                let how = (target, random.seed());
                play(values, &self.broad, &nodes, how, &mut learner);
            }
            learner.improve(&mut table, iteration);
            if iteration >= ITERATIONS / 2 {
                for (sum, value) in mean.iter_mut().zip(&table.values) {
                    *sum += f64::from(*value);
                }
            }
            let after_first = (iteration + 1).checked_sub(FIRST_CANDIDATE);
            if after_first.is_some_and(|after| after.is_multiple_of(EACH_CANDIDATE)) {
                candidates.push(table.clone());
            }
            step();
        }
        let summed = (ITERATIONS - ITERATIONS / 2) as f64;
        for (value, sum) in table.values.iter_mut().zip(mean) {
            *value = (sum / summed) as f32;
        }
        candidates.push(table);
        candidates
    }

    /// What a table leaves unused, or refuses, on fresh orders that are the same for every table.
    fn loss(&self, table: &Table, weights: Weights) -> f64 {
        let mut random = Random::seeded(self.training.seed ^ 0x00c0_ffee);
        let values = self.values(table, weights);
        let trial = |trial| {
            let seed = random.seed();
            match self.training.form {
                Form::Fill => {
                    let nodes = part(&self.nodes, 2 * PART_GPUS, trial);
                    unused_after_fill(values, &self.own, &nodes, seed)
                }
                Form::Departures => {
                    let nodes = part(&self.nodes, PART_GPUS, trial);
                    let mut player = Player::new(values);
                    refused_with_departures(&mut player, &self.own, &nodes, seed)
                }
            }
        };
        (0..TRIALS).map(trial).sum()
    }
}
