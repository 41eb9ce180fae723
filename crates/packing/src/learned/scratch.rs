//! What a request would leave of a node's GPUs.

use super::table::Free;
use crate::node::{GpuFree, Node, Shape};

/// GPUs of a node after a request, and room to rank them.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    gpus: Vec<GpuFree>,
    ranked: Vec<(GpuFree, usize)>,
}

impl Scratch {
    /// Puts what the best fit leaves of the node's GPUs into `gpus`. Returns the thousandths that it leaves on the GPUs
    /// that it takes, or `None` where the request does not fit. The same GPUs as [`Node::best_fit`].
    pub(super) fn place(&mut self, node: &Node, shape: &Shape) -> Option<u32> {
        if shape.cpu_milli > node.cpu_milli || shape.memory > node.memory {
            return None;
        }
        self.gpus.clear();
        self.gpus.extend_from_slice(&node.gpus);
        if shape.gpus == 0 {
            return Some(0);
        }
        let part = node.part(shape)?;
        let fitting = node.gpus.iter().enumerate();
        let fitting = fitting.filter(|(_, free)| free.holds(part));
        if shape.gpus == 1 {
            let (taken, _) = fitting.min_by_key(|(at, free)| (**free, *at))?;
            return Some(self.take(taken, part));
        }
        self.ranked.clear();
        self.ranked.extend(fitting.map(|(at, free)| (*free, at)));
        self.ranked.sort_unstable();
        let asked = usize::try_from(shape.gpus).ok()?;
        if self.ranked.len() < asked {
            return None;
        }
        let mut left = 0;
        for rank in 0..asked {
            left += self.take(self.ranked[rank].1, part);
        }
        Some(left)
    }

    /// Takes the part of this GPU. Returns the thousandths left on it.
    fn take(&mut self, gpu: usize, part: GpuFree) -> u32 {
        let free = &mut self.gpus[gpu];
        *free = free.without(part);
        free.milli()
    }

    /// What is free of the node after the request.
    pub(super) fn free(&self, node: &Node, shape: &Shape) -> Free<'_> {
        Free {
            cpu_milli: node.cpu_milli - shape.cpu_milli,
            memory: node.memory.saturating_sub(shape.memory),
            gpus: &self.gpus,
        }
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::{Bytes, Share};

    use super::*;
    use crate::node::{Choice, Cluster, NodeSpec};
    use crate::random::Random;

    /// The decision and the score must be about the same GPUs.
    #[test]
    fn the_gpus_are_those_of_the_best_fit() {
        let mut random = Random::seeded(5);
        let mut scratch = Scratch::default();
        let mut taken = 0;
        for gpu_memory in [None, Some(Bytes::mib(1000))] {
            for _ in 0..40 {
                let mut cluster = Cluster::new([NodeSpec {
                    name: "n".to_owned(),
                    cpu_milli: 8000,
                    memory: Bytes::mib(8000),
                    gpus: 4,
                    model: 0,
                    gpu_memory,
                }]);
                for _ in 0..12 {
                    let number = |below, random: &mut Random| random.below(below) as u16;
                    let shape = Shape {
                        cpu_milli: random.below(1500) as u64,
                        memory: Bytes::mib(random.below(1500) as u64),
                        gpus: number(4, &mut random).into(),
                        share: Share::from_thousandths(1 + number(1000, &mut random)),
                        gpu_memory: [None, Some(300), Some(700)][random.below(3)].map(Bytes::mib),
                        ..Shape::default()
                    };
                    let node = &cluster.nodes()[0];
                    let left = scratch.place(node, &shape);
                    let best = node.best_fit(&shape);
                    assert_eq!(left.is_some(), best.is_some(), "{shape:?} {node:?}");
                    let Some(gpus) = best else {
                        continue;
                    };
                    assert!(cluster.take(
                        &shape,
                        &Choice {
                            node: 0,
                            gpus: gpus.clone()
                        }
                    ));
                    let node = &cluster.nodes()[0];
                    assert_eq!(scratch.gpus, node.gpus, "{shape:?}");
                    let sum: u32 = gpus.iter().map(|gpu| node.gpus[*gpu].milli()).sum();
                    assert_eq!(left, Some(sum));
                    taken += 1;
                }
            }
        }
        assert!(taken > 300, "{taken}");
    }
}
