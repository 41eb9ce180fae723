//! Fragmentation of a node: the free GPU that requests of the expected kinds could not use.
//!
//! Sums are of floating point, and in the order of the published program. Its scores are so coarse that a sum which is
//! off in the last bit can choose another node.

use std::collections::BTreeMap;

use divvy_core::{Bytes, Share};
use divvy_packing::{GpuFree, ModelSet, Node, Shape, WHOLE};

/// Request kinds are kept, the most frequent first, until they are this much of all requests, in percent. As in the
/// published measure (FGD), so that figures compare.
const TYPICAL: u64 = 95;

/// A kind in order of size: CPU, share, GPUs, models, memory of each GPU.
type Key = (u64, Option<Share>, u32, Vec<usize>, Option<Bytes>);

/// The request kinds that are expected, each with its part of them. Main memory plays no part.
#[derive(Clone, Debug, Default)]
pub struct Typical {
    kinds: Vec<(Shape, f64)>,
}

impl Typical {
    /// The most frequent kinds of the requests, until 95 % of them are covered. Of equally frequent kinds the larger
    /// comes first: by CPU, then share, then number of GPUs, then models in the order of their indices.
    pub fn of(mix: &[(Shape, u64)]) -> Self {
        let mut counts: BTreeMap<Key, (ModelSet, u64)> = BTreeMap::new();
        for (shape, count) in mix {
            let key = (
                shape.cpu_milli,
                shape.share.filter(|_| shape.gpus > 0),
                shape.gpus,
                shape.models.indices().collect(),
                shape.gpu_memory,
            );
            counts.entry(key).or_insert((shape.models, 0)).1 += count;
        }
        let all: u64 = counts.values().map(|(_, count)| count).sum();
        let mut sorted: Vec<_> = counts.into_iter().rev().collect();
        sorted.sort_by_key(|(_, (_, count))| std::cmp::Reverse(*count));
        let (of, mut covered) = (sorted.len(), 0);
        let mut typical = Self::default();
        for ((cpu_milli, share, gpus, _, gpu_memory), (models, count)) in sorted {
            if covered * 100 >= all * TYPICAL {
                break;
            }
            covered += count;
            let shape = Shape {
                cpu_milli,
                memory: Bytes::ZERO,
                gpus,
                share,
                gpu_memory,
                models,
            };
            typical.kinds.push((shape, count as f64 / all as f64));
        }
        if typical.kinds.len() < of {
            for (_, part) in &mut typical.kinds {
                *part /= covered as f64 / all as f64;
            }
        }
        typical
    }

    /// What the kinds could not use of these GPUs beside this much CPU: thousandths of a GPU, weighted by the kinds'
    /// parts. A kind that the node cannot host, and one without GPUs, can use none of it; another can use the GPUs that
    /// are large enough.
    pub fn unusable(&self, node: &Node, cpu_milli: u64, gpus: &FreeGpus) -> f64 {
        let total = gpus.total();
        if total == 0 {
            return 0.0;
        }
        let mut sums = [0.0; 6];
        for (shape, part) in &self.kinds {
            let (why, amount) = unusable_by(shape, node, cpu_milli, gpus);
            sums[why as usize] += part * amount.unwrap_or(total) as f64;
        }
        sums.iter().fold(0.0, |sum, of_cause| sum + of_cause)
    }
}

/// Why a kind cannot use free GPUs, in the order in which the causes are added up.
#[derive(Clone, Copy)]
enum Cause {
    CpuAndGpu,
    Gpu,
    Cpu,
    /// It asks for no GPU, and its CPU is there.
    NoGpuAsked,
    /// It asks for no GPU, and its CPU is not there.
    NoGpuAskedNorCpu,
    Model,
}

/// The cause, and the thousandths of GPUs that are too small for the request; `None` where it can use none of them.
fn unusable_by(
    shape: &Shape,
    node: &Node,
    cpu_milli: u64,
    gpus: &FreeGpus,
) -> (Cause, Option<u64>) {
    let has_cpu = shape.cpu_milli <= cpu_milli;
    if shape.gpus == 0 {
        return if has_cpu {
            (Cause::NoGpuAsked, None)
        } else {
            (Cause::NoGpuAskedNorCpu, None)
        };
    }
    let Some(part) = node.part(shape) else {
        return (Cause::Model, None);
    };
    let (mut fitting, mut small) = (0, 0);
    for (free, count) in &gpus.0 {
        if free.holds(part) {
            fitting += count
        } else {
            small += u64::from(free.milli()) * u64::from(*count)
        }
    }
    match (fitting >= shape.gpus, has_cpu) {
        (true, true) => (Cause::Gpu, Some(small)),
        (true, false) => (Cause::Cpu, None),
        (false, true) => (Cause::Gpu, None),
        (false, false) => (Cause::CpuAndGpu, None),
    }
}

/// GPUs with something free, equal ones counted together.
#[derive(Clone, Debug, Default)]
pub struct FreeGpus(Vec<(GpuFree, u32)>);

impl FreeGpus {
    pub fn of(gpus: &[GpuFree]) -> Self {
        let mut counted = Self::default();
        for free in gpus {
            counted.add(*free);
        }
        counted
    }

    fn add(&mut self, free: GpuFree) {
        match self.0.iter_mut().find(|(known, _)| *known == free) {
            _ if free.share.is_none() => {}
            Some((_, count)) => *count += 1,
            None => self.0.push((free, 1)),
        }
    }

    /// The same once `part` is taken of one of the GPUs with this much free.
    pub fn take(&mut self, free: GpuFree, part: GpuFree) {
        if let Some((_, count)) = self.0.iter_mut().find(|(known, _)| *known == free) {
            *count -= 1;
            self.add(free.without(part));
        }
    }

    fn total(&self) -> u64 {
        let counted = self.0.iter();
        counted
            .map(|(free, count)| u64::from(free.milli()) * u64::from(*count))
            .sum()
    }
}

/// An integer score from 0 to 100 for a change of fragmentation: 100 times the logistic function of the GPUs that become
/// usable, rounded down. Both are in thousandths of a GPU.
pub fn score(before: f64, after: f64) -> u8 {
    let gpus = (before - after) / f64::from(WHOLE);
    // The value is from 0 to 100.
    (1.0 / (1.0 + (-gpus).exp()) * 100.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_packing::{Cluster, NodeSpec};

    fn shape(cpu_milli: u64, gpus: u32, share: u16) -> Shape {
        Shape {
            cpu_milli,
            gpus,
            share: Share::from_thousandths(share),
            ..Shape::default()
        }
    }

    fn cluster(gpus: u32) -> Cluster {
        Cluster::new([NodeSpec {
            name: "n".to_owned(),
            cpu_milli: 8000,
            memory: Bytes::mib(1000),
            gpus,
            model: 2,
            gpu_memory: None,
        }])
    }

    #[test]
    fn kinds_are_kept_until_95_percent_are_covered_whatever_their_memory() {
        let mut with_memory = shape(1000, 1, 500);
        with_memory.memory = Bytes::mib(77);
        let mix = [
            (shape(1000, 1, 500), 40),
            (with_memory, 40),
            (shape(2000, 1, 1000), 14),
            (shape(3000, 0, 0), 3),
            (shape(4000, 8, 1000), 3),
        ];
        let typical = Typical::of(&mix);
        assert_eq!(typical.kinds.len(), 3, "80 + 14 are below 95, 97 are not");
        assert_eq!(typical.kinds[0].0, shape(1000, 1, 500));
        assert_eq!(
            typical.kinds[2].0,
            shape(4000, 8, 1000),
            "of equals, the larger CPU"
        );
        let parts: f64 = typical.kinds.iter().map(|(_, part)| part).sum();
        assert!((parts - 1.0).abs() < 1e-12, "{parts}");
        assert!((typical.kinds[0].1 - 80.0 / 97.0).abs() < 1e-12);
    }

    #[test]
    fn fragmentation_is_what_the_kinds_cannot_use() {
        let bound = Shape {
            models: ModelSet::ANY.with(3),
            ..shape(1000, 1, 100)
        };
        let cluster = cluster(3);
        let node = &cluster.nodes()[0];
        let free = [300, 600, 1000].map(|share| GpuFree {
            share: Share::from_thousandths(share),
            memory: None,
        });
        let of = |shape: Shape, free: &[GpuFree]| {
            Typical::of(&[(shape, 5)]).unusable(node, 8000, &FreeGpus::of(free))
        };
        for (kind, unusable) in [
            (shape(1000, 1, 300), 0.0),
            (shape(1000, 1, 301), 300.0),
            (shape(1000, 1, 1000), 900.0),
            (shape(1000, 2, 1000), 1900.0), // one idle GPU is too few
            (shape(8001, 1, 100), 1900.0),  // too little CPU
            (shape(1000, 0, 0), 1900.0),
            (shape(9000, 0, 0), 1900.0),
            (bound, 1900.0),
        ] {
            assert_eq!(of(kind, &free), unusable, "{kind:?}");
            assert_eq!(of(kind, &[]), 0.0);
        }
    }

    #[test]
    fn scores_are_coarse() {
        assert_eq!(score(0.0, 0.0), 50);
        assert_eq!(score(8000.0, 0.0), 99, "eight GPUs gained");
        assert_eq!(score(0.0, 8000.0), 0);
        // One step is about 40 thousandths of a GPU.
        assert_eq!([score(39.0, 0.0), score(41.0, 0.0)], [50, 51]);
        assert_eq!([score(0.0, 1.0), score(0.0, 41.0)], [49, 48]);
    }
}
