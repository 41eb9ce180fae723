//! Mixes of requests: how often each shape is asked for.

use std::collections::BTreeMap;

use divvy_core::Bytes;

use super::broad;
use crate::node::{Cluster, Shape};
use crate::random::Random;

/// Shapes that a mix keeps apart. Above, requests of nearly the same CPU and memory count as one. So a training's time
/// has a bound; real clusters have fewer.
pub const MOST_KINDS: usize = 1024;

/// One request in this many is drawn from the broad mix. A tenth, so that a rare request is no surprise; half of the
/// requests would train for what never comes (docs/kubernetes-packing.md).
const ONE_BROAD_IN: u64 = 10;

/// How often each shape is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    counts: BTreeMap<Shape, u64>,
}

impl FromIterator<Shape> for Mix {
    fn from_iter<I: IntoIterator<Item = Shape>>(shapes: I) -> Self {
        shapes.into_iter().map(|shape| (shape, 1)).collect()
    }
}

impl FromIterator<(Shape, u64)> for Mix {
    fn from_iter<I: IntoIterator<Item = (Shape, u64)>>(counts: I) -> Self {
        let mut mix = Self::default();
        for (shape, count) in counts {
            if count > 0 {
                *mix.counts.entry(shape).or_default() += count;
            }
        }
        mix
    }
}

impl Mix {
    /// Requests in all.
    pub fn requests(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Different shapes.
    pub fn kinds(&self) -> usize {
        self.counts.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Shape, u64)> {
        self.counts.iter().map(|(shape, count)| (shape, *count))
    }

    /// The shapes that fit a node of this cluster.
    pub(super) fn fitting(&self, cluster: &Cluster) -> Self {
        let fits = |shape: &Shape| cluster.nodes().iter().any(|node| node.fits(shape));
        let fitting = self.iter().filter(|(shape, _)| fits(shape));
        fitting.map(|(shape, count)| (*shape, count)).collect()
    }

    pub(super) fn asks_for_gpus(&self) -> bool {
        self.counts.keys().any(|shape| shape.gpus > 0)
    }

    /// The part of the volume that requests for several GPUs ask for.
    pub(super) fn part_for_several(&self, cluster: &Cluster) -> f64 {
        let (mut several, mut all) = (0.0, 0.0);
        for (shape, count) in self.iter() {
            let volume = cluster.asked_milli(shape) as f64 * count as f64;
            all += volume;
            several += if shape.gpus > 1 { volume } else { 0.0 };
        }
        several / f64::max(all, 1.0)
    }

    /// The mix with a tenth of requests from the broad mix, so that the training sees requests that the history lacks.
    #[must_use]
    pub(super) fn broadened(&self) -> Self {
        let broad = broad::mix();
        let (own, other) = (self.requests().max(1), broad.requests());
        let own_counts = self.iter().map(|(shape, count)| {
            let weighted = count.saturating_mul(other * (ONE_BROAD_IN - 1));
            (*shape, weighted)
        });
        let broad_counts = broad.counts.iter();
        let broad_counts = broad_counts.map(|(shape, count)| (*shape, count.saturating_mul(own)));
        own_counts.chain(broad_counts).collect()
    }

    /// At most [`MOST_KINDS`] shapes: CPU and memory are rounded up, to ever coarser steps, until the shapes are few enough.
    #[must_use]
    pub(super) fn bounded(self) -> Self {
        let mut mix = self;
        // A coarser step leaves at most half of the values of CPU and memory, so this ends.
        for bits in (0..=4).rev() {
            if mix.kinds() <= MOST_KINDS {
                return mix;
            }
            let rounded = mix.counts.iter().map(|(shape, count)| {
                let coarse = Shape {
                    cpu_milli: coarsened(shape.cpu_milli, bits),
                    memory: Bytes::new(coarsened(shape.memory.get(), bits)),
                    ..*shape
                };
                (coarse, *count)
            });
            mix = rounded.collect();
        }
        // Still too many: shares and models differ too. The most frequent shapes stand for the rest.
        let mut counts: Vec<(Shape, u64)> = mix.counts.into_iter().collect();
        counts.sort_by_key(|(shape, count)| (std::cmp::Reverse(*count), *shape));
        counts.truncate(MOST_KINDS);
        counts.into_iter().collect()
    }
}

/// The value rounded up to this many binary digits after the first.
fn coarsened(value: u64, bits: u32) -> u64 {
    let digits = u64::BITS - value.leading_zeros();
    let step = 1_u64 << digits.saturating_sub(bits + 1);
    value.div_ceil(step).saturating_mul(step)
}

/// Draws requests as often as a mix has them.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    shapes: Vec<Asked>,
    /// The sums of the counts up to each shape.
    up_to: Vec<u64>,
}

/// A shape, with the thousandths of GPUs that it takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) shape: Shape,
    pub(super) gpu_milli: u64,
}

impl Draw {
    pub(super) fn new(mix: &Mix, cluster: &Cluster) -> Self {
        let mut sum = 0;
        let mut draw = Self {
            shapes: Vec::new(),
            up_to: Vec::new(),
        };
        for (shape, count) in mix.iter() {
            sum += count;
            draw.up_to.push(sum);
            draw.shapes.push(Asked {
                shape: *shape,
                gpu_milli: cluster.asked_milli(shape),
            });
        }
        draw
    }

    pub(super) fn next(&self, random: &mut Random) -> Asked {
        let total = self.up_to.last().copied().unwrap_or(0);
        let drawn = random.below(usize::try_from(total).unwrap_or(usize::MAX)) as u64;
        self.shapes[self.up_to.partition_point(|sum| *sum <= drawn)]
    }

    /// Thousandths of GPUs of a request, on average.
    pub(super) fn mean_milli(&self) -> f64 {
        let mut sum = 0.0;
        let mut before = 0;
        for (asked, up_to) in self.shapes.iter().zip(&self.up_to) {
            sum += asked.gpu_milli as f64 * (up_to - before) as f64;
            before = *up_to;
        }
        sum / before.max(1) as f64
    }
}
