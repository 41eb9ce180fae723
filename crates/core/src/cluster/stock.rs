//! The stock Kubernetes scheduler: nodes by CPU and memory, and the first GPUs that fit.
//!
//! Its score knows nothing of GPU parts, and it allocates devices in the order of their names.

use super::node::{Choice, Cluster, GpuFree, Node, Shape};
use super::policy::NodePolicy;
use super::scores::Scores;

/// The strategy of the plugin `NodeResourcesFit`, with CPU and memory at equal weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The scheduler's default: the node with the largest part left.
    LeastAllocated,
    /// The node with the smallest part left.
    MostAllocated,
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Stock {
    strategy: Strategy,
    /// 100 less the plugin's score: the least is the best.
    scores: Scores<u64>,
}

impl Stock {
    pub fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            scores: Scores::default(),
        }
    }
}

impl NodePolicy for Stock {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        let strategy = self.strategy;
        let of_node = |node: &Node| Some(100 - score(strategy, node, shape)?);
        let (node, _) = self.scores.least(cluster, shape, of_node)?;
        let gpus = first_fit(&cluster.nodes()[node], shape)?;
        Some(Choice { node, gpus })
    }
}

/// The mean of the integer scores of CPU and memory, from 0 to 100; `None` where the request does not fit.
fn score(strategy: Strategy, node: &Node, shape: &Shape) -> Option<u64> {
    if !node.fits(shape) {
        return None;
    }
    let of = |free: u64, asked: u64, total: u64| {
        let left = free - asked;
        let part = match strategy {
            Strategy::LeastAllocated => left,
            Strategy::MostAllocated => total - left,
        };
        (part * 100).checked_div(total).unwrap_or(0)
    };
    let cpu = of(node.cpu_milli, shape.cpu_milli, node.spec.cpu_milli);
    let memory = of(node.memory_mib, shape.memory_mib, node.spec.memory_mib);
    Some((cpu + memory) / 2)
}

/// The first GPUs with room.
fn first_fit(node: &Node, shape: &Shape) -> Option<Vec<usize>> {
    let count = usize::try_from(shape.gpus).ok()?;
    let part = match count {
        0 => GpuFree {
            share: 0,
            memory_mib: 0,
        },
        _ => node.part(shape)?,
    };
    let fitting = node.gpus.iter().enumerate();
    let fitting = fitting.filter(|(_, free)| free.holds(part));
    let gpus: Vec<usize> = fitting.map(|(gpu, _)| gpu).take(count).collect();
    (gpus.len() == count).then_some(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::NodeSpec;

    fn cluster() -> Cluster {
        Cluster::new(
            [(8000, 1000), (4000, 4000)].map(|(cpu_milli, memory_mib)| NodeSpec {
                name: "n".to_owned(),
                cpu_milli,
                memory_mib,
                gpus: 3,
                model: 0,
                gpu_memory_mib: 0,
            }),
        )
    }

    fn shape(cpu_milli: u64, memory_mib: u64, gpus: u32, share: u32) -> Shape {
        Shape {
            cpu_milli,
            memory_mib,
            gpus,
            share,
            ..Shape::default()
        }
    }

    #[test]
    fn least_allocated_spreads_and_most_allocated_packs() {
        let cluster = cluster();
        // Left: 75 and 50 % against 50 and 87 %.
        let request = shape(2000, 500, 1, 500);
        let first = &cluster.nodes()[0];
        assert_eq!(score(Strategy::LeastAllocated, first, &request), Some(62));
        assert_eq!(score(Strategy::MostAllocated, first, &request), Some(37));
        let chosen = |strategy| {
            let choice = Stock::new(strategy).choose(&cluster, &request);
            choice.map(|choice| choice.node)
        };
        assert_eq!(chosen(Strategy::LeastAllocated), Some(1));
        assert_eq!(chosen(Strategy::MostAllocated), Some(0));
    }

    #[test]
    fn devices_are_the_first_that_fit_and_equal_scores_go_to_the_first_node() {
        let mut cluster = cluster();
        let mut stock = Stock::new(Strategy::LeastAllocated);
        let half = shape(0, 0, 1, 500);
        for gpu in [0, 0, 1] {
            let choice = stock.choose(&cluster, &half).unwrap();
            assert_eq!((choice.node, &choice.gpus[..]), (0, &[gpu][..]));
            assert!(cluster.take(&half, &choice));
        }
        let whole = shape(0, 0, 1, 1000);
        let choice = stock.choose(&cluster, &whole).unwrap();
        assert_eq!(
            choice.gpus,
            [2],
            "the best fit would be the same, the first is not idle"
        );
        let none = shape(0, 0, 4, 1000);
        assert_eq!(stock.choose(&cluster, &none), None);
    }
}
