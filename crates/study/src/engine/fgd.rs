//! Fragmentation gradient descent, the best published online policy (USENIX ATC 2023), as its artefact computes it.
//!
//! A node's score is an integer from 0 to 100, so that many nodes share the best one, and the first of them gets the
//! request. That packs: with exact scores the policy leaves 7.9 % of the published cluster unused instead of 4.8 %.

use super::fragmentation::{FreeGpus, Typical, score};
use divvy_packing::NodePolicy;
use divvy_packing::scores::Scores;
use divvy_packing::{Choice, Cluster, GpuFree, Node, Shape};

/// The policy, with the request kinds that it expects.
#[derive(Clone, Debug)]
pub struct Fgd {
    typical: Typical,
    /// 100 less the published score: the least is the best.
    scores: Scores<u8>,
}

impl Fgd {
    /// For requests as in this mix: shapes with their counts. The policy looks at the most frequent 95 %.
    pub fn new(mix: &[(Shape, u64)]) -> Self {
        Self {
            typical: Typical::of(mix),
            scores: Scores::default(),
        }
    }
}

impl NodePolicy for Fgd {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        let typical = &self.typical;
        let of_node = |node: &Node| best(typical, node, shape).map(|(score, _)| 100 - score);
        let (node, _) = self.scores.least(cluster, shape, of_node)?;
        let (_, gpus) = best(typical, &cluster.nodes()[node], shape)?;
        Some(Choice { node, gpus })
    }
}

/// The best score of the node, and the GPUs that give it; `None` where the request does not fit. A part of one GPU goes
/// to the first GPU with the best score, other requests to the GPUs of the best fit.
fn best(typical: &Typical, node: &Node, shape: &Shape) -> Option<(u8, Vec<usize>)> {
    if !node.fits(shape) {
        return None;
    }
    let free = FreeGpus::of(&node.gpus);
    let before = typical.unusable(node, node.cpu_milli, &free);
    let cpu_milli = node.cpu_milli - shape.cpu_milli;
    let after_taking = |gpus: &[usize], part: GpuFree| {
        let mut left = free.clone();
        gpus.iter().for_each(|gpu| left.take(node.gpus[*gpu], part));
        let after = typical.unusable(node, cpu_milli, &left);
        score(before, after)
    };
    if shape.gpus == 0 {
        return Some((after_taking(&[], GpuFree::NOTHING), Vec::new()));
    }
    let part = node.part(shape)?;
    if shape.gpus > 1 || shape.is_whole() {
        let chosen = node.best_fit(shape)?;
        return Some((after_taking(&chosen, part), chosen));
    }
    let mut best: Option<(u8, usize)> = None;
    for (gpu, free) in node.gpus.iter().enumerate() {
        // A GPU with as much free as one before it has its score.
        if !free.holds(part) || node.gpus[..gpu].contains(free) {
            continue;
        }
        let score = after_taking(&[gpu], part);
        if best.is_none_or(|(most, _)| score > most) {
            best = Some((score, gpu));
        }
    }
    best.map(|(score, gpu)| (score, vec![gpu]))
}
