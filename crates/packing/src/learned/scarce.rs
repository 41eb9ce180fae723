//! Scarce shapes: requests for which few nodes have room, and the prices that keep the room for them.

use std::collections::BTreeMap;

use divvy_core::Bytes;

use super::mix::Mix;
use super::table::Free;
use crate::node::{Cluster, GpuFree, ModelSet, Node, Shape, share};

/// Scarce shapes that are priced; beyond, shapes of equal GPUs and models count as one.
pub(super) const MOST_SCARCE: usize = 48;

/// A price is adopted when it has moved by more than a fifth and by more than this, in thousandths of a GPU.
const LEAST_MOVE: f32 = 5.0;

/// Half of a MiB in bytes. It rounds to whole MiB, so it must be half of one.
const HALF_MIB: f32 = 524_288.0;

/// A shape that needs several GPUs, or a model of GPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scarce {
    pub(super) shape: Shape,
    /// Thousandths of GPUs that the shape takes.
    pub(super) gpu_milli: u64,
    /// Its part of all requests.
    pub(super) part: f64,
}

/// The scarce shapes of a mix, in a fixed order.
pub(super) fn scarce(mix: &Mix, cluster: &Cluster) -> Vec<Scarce> {
    let requests = mix.requests().max(1) as f64;
    let mut groups: BTreeMap<Group, Sum> = BTreeMap::new();
    for (shape, count) in mix.iter() {
        if let Some(group) = Group::of(shape) {
            groups.entry(group).or_default().add(shape, count);
        }
    }
    if groups.len() > MOST_SCARCE {
        let joined = std::mem::take(&mut groups);
        for (group, sum) in joined {
            groups.entry(group.coarser()).or_default().join(&sum);
        }
    }
    let mut scarce: Vec<Scarce> = groups
        .into_values()
        .map(|sum| {
            let shape = sum.mean();
            Scarce {
                gpu_milli: cluster.asked_milli(&shape),
                part: sum.count as f64 / requests,
                shape,
            }
        })
        .collect();
    // The most volume first: what is cut off then matters least.
    scarce.sort_by(|a, b| {
        let volume = |scarce: &Scarce| scarce.part * scarce.gpu_milli as f64;
        volume(b).total_cmp(&volume(a)).then(a.shape.cmp(&b.shape))
    });
    scarce.truncate(MOST_SCARCE);
    scarce
}

/// Shapes that share a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Several GPUs: each shape by itself.
    Several(Shape),
    /// One GPU of certain models, by size: at most a half, less than one, one.
    Bound(ModelSet, u8),
    /// Several GPUs, where there are too many shapes: by models, GPUs and whether they are whole.
    Joined(ModelSet, u32, bool),
}

impl Group {
    fn of(shape: &Shape) -> Option<Self> {
        match shape.gpus {
            0 => None,
            1 if shape.models.is_bound() => {
                let size = match shape.gpu_milli() {
                    0..=500 => 0,
                    _ if shape.is_whole() => 2,
                    _ => 1,
                };
                Some(Self::Bound(shape.models, size))
            }
            1 => None,
            _ => Some(Self::Several(*shape)),
        }
    }

    fn coarser(self) -> Self {
        match self {
            Self::Several(shape) => Self::Joined(shape.models, shape.gpus, shape.is_whole()),
            Self::Bound(..) | Self::Joined(..) => self,
        }
    }
}

/// Sums over the requests of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    gpus: u32,
    models: ModelSet,
    cpu_milli: u128,
    memory: u128,
    share_milli: u128,
    gpu_memory: u128,
}

impl Sum {
    fn add(&mut self, shape: &Shape, count: u64) {
        let times = |value: u64| u128::from(value) * u128::from(count);
        self.count += count;
        self.gpus = shape.gpus;
        self.models = shape.models;
        self.cpu_milli += times(shape.cpu_milli);
        self.memory += times(shape.memory.get());
        let share = shape.share.map_or(0, |share| share.thousandths());
        self.share_milli += times(u64::from(share));
        self.gpu_memory += times(shape.gpu_memory.map_or(0, Bytes::get));
    }

    fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.gpus = other.gpus;
        self.models = other.models;
        self.cpu_milli += other.cpu_milli;
        self.memory += other.memory;
        self.share_milli += other.share_milli;
        self.gpu_memory += other.gpu_memory;
    }

    fn mean(&self) -> Shape {
        let mean = |sum: u128| {
            u64::try_from(sum.div_ceil(u128::from(self.count.max(1)))).unwrap_or(u64::MAX)
        };
        // Whole MiB, as a table's file has them: a table that is read again gives the same scores.
        let mean_memory = |sum: u128| Bytes::new(mean(sum)).round_up(Bytes::MIB);
        Shape {
            cpu_milli: mean(self.cpu_milli),
            memory: mean_memory(self.memory),
            gpus: self.gpus,
            share: share(mean(self.share_milli)),
            gpu_memory: Some(mean_memory(self.gpu_memory)).filter(|memory| *memory > Bytes::ZERO),
            models: self.models,
        }
    }
}

/// How many requests of a scarce shape fit a node of one kind: divisors, prepared once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    per_cpu: f64,
    per_memory: f64,
    gpus: f64,
    several: bool,
    part: GpuFree,
    per_share: f32,
    per_gpu_memory: Option<f32>,
}

impl Slots {
    /// `None` where nodes like this one never have room.
    pub(super) fn of(shape: &Shape, node: &Node) -> Option<Self> {
        let part = node.part(shape)?;
        let memory = part.memory.filter(|memory| *memory > Bytes::ZERO);
        Some(Self {
            per_cpu: 1.0 / shape.cpu_milli as f64,
            per_memory: 1.0 / shape.memory.get() as f64,
            gpus: 1.0 / f64::from(shape.gpus),
            several: shape.gpus > 1,
            part,
            per_share: 1.0 / part.milli() as f32,
            per_gpu_memory: memory.map(|memory| 1.0 / memory.get() as f32),
        })
    }

    /// Requests that fit there now, if nothing else comes.
    pub(super) fn count(&self, free: Free<'_>) -> u32 {
        // Half a unit more, of memory half a MiB, keeps each quotient away from whole numbers: the product then rounds as
        // the division would.
        let cpu = ((free.cpu_milli as f64 + 0.5) * self.per_cpu) as u32;
        let memory = ((free.memory.get() as f64 + f64::from(HALF_MIB)) * self.per_memory) as u32;
        let most = cpu.min(memory);
        if most == 0 {
            return 0;
        }
        let gpus = if self.several || self.part.is_idle() {
            let fitting = free.gpus.iter().filter(|gpu| gpu.holds(self.part)).count();
            ((fitting as f64 + 0.5) * self.gpus) as u32
        } else {
            let each = free.gpus.iter().map(|gpu| {
                let shares = ((gpu.milli() as f32 + 0.5) * self.per_share) as u32;
                let memory = gpu.memory.map_or(0, Bytes::get) as f32 + HALF_MIB;
                let by_memory = self.per_gpu_memory.map(|per| (memory * per) as u32);
                by_memory.map_or(shares, |parts| shares.min(parts))
            });
            each.sum()
        };
        most.min(gpus)
    }
}

/// Thousandths of a GPU that a slot of each scarce shape is worth.
pub(super) fn prices(scarce: &[Scarce], weight: f32, expected: f64, slots: &[u64]) -> Vec<f32> {
    let price = |(scarce, slots): (&Scarce, &u64)| {
        let asked = scarce.part * expected;
        let scarcity = if *slots == 0 {
            1.0
        } else {
            (asked / *slots as f64).min(1.0)
        };
        weight * scarce.gpu_milli as f32 * scarcity as f32
    };
    scarce.iter().zip(slots).map(price).collect()
}

/// Whether one of the prices has moved enough to score all nodes anew.
pub(super) fn have_moved(old: &[f32], new: &[f32]) -> bool {
    let moved = |(old, new): (&f32, &f32)| {
        let by = (old - new).abs();
        by > LEAST_MOVE && by > 0.2 * old.max(0.0)
    };
    old.len() != new.len() || old.iter().zip(new).any(moved)
}
