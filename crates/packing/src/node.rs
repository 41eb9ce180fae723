//! The nodes of a cluster, what is free on each, and what a request takes.

mod allocate;

use divvy_core::rank::{LeftOver, tightest_first};
use divvy_core::{Bytes, Share};

/// Thousandths of a whole GPU: sums over several GPUs are no [`Share`]. The unit must be [`Share`]'s.
pub const WHOLE: u32 = 1000;

/// GPU models that a request accepts, as bits by the model's index; an empty set accepts every model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelSet(u64);

impl ModelSet {
    /// Every model.
    pub const ANY: Self = Self(0);

    /// The number of models that a cluster can have. So a set of them fits one word.
    pub const MOST: usize = 64;

    /// The set with this model as well. The index must be below [`ModelSet::MOST`].
    #[must_use]
    pub fn with(self, model: usize) -> Self {
        debug_assert!(model < Self::MOST, "model {model}");
        Self(self.0 | 1 << model)
    }

    /// Whether the set names models at all.
    pub fn is_bound(self) -> bool {
        self.0 != 0
    }

    /// The set as bits by the model's index; 0 for every model.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The set with these bits.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The models that the set names, in order.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..Self::MOST).filter(move |model| self.0 >> model & 1 == 1)
    }

    pub fn accepts(self, model: usize) -> bool {
        self.0 == 0 || self.0 >> model & 1 == 1
    }
}

/// What one request asks of one node. Requests with equal shapes are interchangeable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory: Bytes,
    /// Different GPUs; 0 for a request of CPU only.
    pub gpus: u32,
    /// The part of each of these GPUs; a full one needs an idle GPU. `None`: what `gpu_memory` is of the node's GPU,
    /// rounded up.
    pub share: Option<Share>,
    /// Memory on each of these GPUs. `None`: the same part of the memory as of the share, rounded down to MiB.
    pub gpu_memory: Option<Bytes>,
    pub models: ModelSet,
}

impl Shape {
    /// Thousandths of GPUs in all, where the share is given.
    pub fn gpu_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(milli(self.share))
    }

    pub fn is_whole(&self) -> bool {
        self.share == Some(Share::FULL)
    }
}

/// A node as it is when empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    pub name: String,
    pub cpu_milli: u64,
    pub memory: Bytes,
    pub gpus: u32,
    /// The index of the GPUs' model.
    pub model: usize,
    /// Memory of each GPU; `None` where it is unknown, and then only shares count.
    pub gpu_memory: Option<Bytes>,
}

/// What is free of one GPU, or taken of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuFree {
    /// `None` for no part at all.
    pub share: Option<Share>,
    /// `None` where the GPU's memory is unknown.
    pub memory: Option<Bytes>,
}

/// Thousandths of a share; none are 0.
fn milli(share: Option<Share>) -> u32 {
    share.map_or(0, |share| u32::from(share.thousandths()))
}

/// The share of so many thousandths; `None` for none, and for more than a GPU.
pub(crate) fn share(thousandths: u64) -> Option<Share> {
    let thousandths = u16::try_from(thousandths).ok();
    thousandths.and_then(Share::from_thousandths)
}

/// A node, and what is free of it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub spec: NodeSpec,
    pub cpu_milli: u64,
    pub memory: Bytes,
    pub gpus: Vec<GpuFree>,
    /// The cluster's change after which the node was last changed.
    changed: u64,
}

impl Node {
    fn empty(spec: NodeSpec) -> Self {
        let free = spec.whole_gpu();
        Self {
            cpu_milli: spec.cpu_milli,
            memory: spec.memory,
            gpus: vec![free; usize::try_from(spec.gpus).unwrap_or(0)],
            changed: 0,
            spec,
        }
    }

    /// What the request takes of each GPU here; `None` where the node's GPUs cannot give it.
    pub fn part(&self, shape: &Shape) -> Option<GpuFree> {
        if !shape.models.accepts(self.spec.model) {
            return None;
        }
        let total = self.spec.gpu_memory;
        let share = match shape.share {
            Some(share) => share,
            None => {
                let total = total.filter(|total| *total > Bytes::ZERO)?;
                let asked = shape.gpu_memory?.get().checked_mul(u64::from(WHOLE))?;
                share(asked.div_ceil(total.get()))?
            }
        };
        let memory = total.map(|total| shape.gpu_memory.unwrap_or_else(|| part_of(total, share)));
        let share = Some(share);
        (memory <= total).then_some(GpuFree { share, memory })
    }

    /// Whether the request fits now.
    pub fn fits(&self, shape: &Shape) -> bool {
        if shape.cpu_milli > self.cpu_milli || shape.memory > self.memory {
            return false;
        }
        if shape.gpus == 0 {
            return true;
        }
        let Some(part) = self.part(shape) else {
            return false;
        };
        let fitting = self.gpus.iter().filter(|free| free.holds(part)).count();
        u32::try_from(fitting).is_ok_and(|fitting| fitting >= shape.gpus)
    }

    /// Thousandths of GPUs that are free, over all GPUs.
    pub fn free_milli(&self) -> u64 {
        self.gpus.iter().map(|free| u64::from(free.milli())).sum()
    }

    /// GPUs of which nothing is taken.
    pub fn idle_gpus(&self) -> u32 {
        let idle = self.gpus.iter().filter(|free| free.is_idle()).count();
        u32::try_from(idle).unwrap_or(u32::MAX)
    }

    /// Whether nothing is free that the node does not have. Quantities are unsigned, so nothing is below 0.
    pub fn is_sound(&self) -> bool {
        let most = self.spec.whole_gpu();
        self.cpu_milli <= self.spec.cpu_milli
            && self.memory <= self.spec.memory
            && self.gpus.iter().all(|free| most.holds(*free))
    }

    /// Whether the node has changed after the cluster's change of this number.
    pub fn changed_since(&self, change: u64) -> bool {
        self.changed > change
    }

    /// The GPUs that the best fit takes: the least share left, then the least memory, then the lowest index. `None`
    /// where the request does not fit.
    pub fn best_fit(&self, shape: &Shape) -> Option<Vec<usize>> {
        if !self.fits(shape) {
            return None;
        }
        if shape.gpus == 0 {
            return Some(Vec::new());
        }
        let part = self.part(shape)?;
        let gpus = 0..self.gpus.len();
        let mut fitting: Vec<usize> = gpus.filter(|gpu| self.gpus[*gpu].holds(part)).collect();
        tightest_first(&mut fitting, |gpu| {
            let left = self.gpus[*gpu].without(part);
            LeftOver {
                share: u64::from(left.milli()),
                memory: left.memory.map_or(0, Bytes::get),
            }
        });
        fitting.truncate(usize::try_from(shape.gpus).ok()?);
        Some(fitting)
    }
}

/// The share's part of a GPU's memory, rounded down to MiB. Choices were recorded with such parts, and finer ones would
/// leave other amounts free.
fn part_of(total: Bytes, share: Share) -> Bytes {
    Bytes::mib(total.whole_mib() * u64::from(share.thousandths()) / u64::from(WHOLE))
}

impl NodeSpec {
    /// What is free of each GPU that serves nothing.
    fn whole_gpu(&self) -> GpuFree {
        GpuFree {
            share: Some(Share::FULL),
            memory: self.gpu_memory,
        }
    }
}

impl GpuFree {
    /// The part of a request without GPUs.
    pub const NOTHING: Self = Self {
        share: None,
        memory: None,
    };

    /// Thousandths of the GPU.
    pub fn milli(self) -> u32 {
        milli(self.share)
    }

    /// Whether nothing is taken of the GPU.
    pub fn is_idle(self) -> bool {
        self.share == Some(Share::FULL)
    }

    /// Whether this part fits beside what the GPU's holders have.
    pub fn holds(self, part: Self) -> bool {
        self.share >= part.share && self.memory >= part.memory
    }

    /// What stays once this part is taken, which must fit.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        let taken = part.memory.unwrap_or_default();
        Self {
            share: share(u64::from(self.milli() - part.milli())),
            memory: self.memory.map(|memory| memory.saturating_sub(taken)),
        }
    }

    /// What is there once this part, which was taken, is given back.
    #[must_use]
    fn with(self, part: Self) -> Self {
        let milli = self.milli() + part.milli();
        debug_assert!(milli <= WHOLE, "more free than the GPU has");
        let given = part.memory.unwrap_or_default();
        Self {
            share: share(u64::from(milli.min(WHOLE))),
            memory: self.memory.map(|memory| memory.saturating_add(given)),
        }
    }
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The node's index.
    pub node: usize,
    /// Indices of GPUs of that node, as many as the shape asks for.
    pub gpus: Vec<usize>,
}

/// The nodes, and what is free on each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    nodes: Vec<Node>,
    change: u64,
}

impl Cluster {
    /// An empty cluster. The order of nodes breaks ties.
    pub fn new(specs: impl IntoIterator<Item = NodeSpec>) -> Self {
        Self {
            nodes: specs.into_iter().map(Node::empty).collect(),
            change: 0,
        }
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The number of changes so far; [`Node::changed_since`] compares with it.
    pub fn change(&self) -> u64 {
        self.change
    }

    /// Thousandths of GPUs in all.
    pub fn capacity_milli(&self) -> u64 {
        let nodes = self.nodes.iter();
        nodes
            .map(|node| u64::from(node.spec.gpus) * u64::from(WHOLE))
            .sum()
    }

    /// Thousandths of GPUs that are free.
    pub fn free_milli(&self) -> u64 {
        self.nodes.iter().map(Node::free_milli).sum()
    }

    /// Thousandths of GPUs that the request asks for. One that asks for memory only counts with the least share that
    /// this memory is of a GPU here; 0 where no GPU has so much.
    pub fn asked_milli(&self, shape: &Shape) -> u64 {
        if shape.gpus == 0 || shape.share.is_some() {
            return shape.gpu_milli();
        }
        let parts = self.nodes.iter().filter_map(|node| node.part(shape));
        let least = parts.map(|part| u64::from(part.milli())).min();
        u64::from(shape.gpus) * least.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
