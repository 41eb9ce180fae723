//! Training: what it needs, when there is nothing to train, and parts of the cluster to train on.

use super::lesson::Lesson;
use super::mix::{Draw, Mix};
use super::scarce::scarce;
use super::{Form, Learned};
use crate::node::{Cluster, ModelSet, NodeSpec};

/// Nodes that a table can be trained for. More than Kubernetes supports (5,000) by far; so a wrong figure is found.
pub const MOST_NODES: usize = 100_000;

/// GPUs of the part of the cluster on which an episode, or a trial with departures, is played. Trials of fills take
/// twice as many.
pub(super) const PART_GPUS: usize = 1550;

/// The part of the volume for several GPUs from which on many requests ask for them. Our choice: below it whole nodes
/// stay free by themselves, so that prices for them would only hinder small requests.
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
            let memory = (spec.gpu_memory, spec.memory);
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

pub(super) fn all_gpus(nodes: &[NodeSpec]) -> usize {
    nodes.iter().map(|spec| spec.gpus as usize).sum()
}
