//! Best fit over nodes: the node with the least CPU and GPU left.

use super::node::{Choice, Cluster, Node, Shape};
use super::policy::NodePolicy;
use super::scores::Scores;

/// The score of the published comparison: half of the CPU left, of 128 cores, and half of the GPUs left, of 8 GPUs, as
/// an integer from 0 to 100. The GPU inside the node is [`Node::best_fit`].
#[derive(Clone, Debug, Default)]
pub struct BestFit {
    scores: Scores<u64>,
}

impl BestFit {
    /// The scores of candidate nodes, in their order: lower is better, infinite where the request does not fit.
    pub fn scores(&mut self, cluster: &Cluster, shape: &Shape, candidates: &[usize]) -> Vec<f32> {
        let refreshed = self
            .scores
            .refreshed(cluster, shape, |node| left(node, shape));
        let of = |node: &usize| refreshed.get(*node).copied().flatten();
        let scores = candidates.iter().map(of);
        scores
            .map(|score| score.map_or(f32::INFINITY, |score| score as f32))
            .collect()
    }
}

impl NodePolicy for BestFit {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        let (node, _) = self
            .scores
            .least(cluster, shape, |node| left(node, shape))?;
        let gpus = cluster.nodes()[node].best_fit(shape)?;
        Some(Choice { node, gpus })
    }
}

/// What would be left of the node, in hundredths of 128 cores and 8 GPUs, rounded up; `None` where it does not fit.
fn left(node: &Node, shape: &Shape) -> Option<u64> {
    if !node.fits(shape) {
        return None;
    }
    let asked = match shape.gpus {
        0 => 0,
        gpus => u64::from(gpus) * u64::from(node.part(shape)?.milli()),
    };
    let cpu = node.cpu_milli - shape.cpu_milli;
    let gpu = node.free_milli() - asked;
    // cpu / 128,000 / 2 + gpu / 8,000 / 2, times 100.
    Some((cpu + 16 * gpu).div_ceil(2560))
}
