//! Fill runs: requests arrive one after another, and no job ever leaves.
//!
//! A request that does not fit when it arrives is dropped for good. The figures say how much of the GPUs stays
//! unallocated, by how much has been asked for.

use super::volumes::Volumes;
use divvy_packing::{Cluster, NodePolicy, Shape};

/// Where the published comparison reads a run, in percent of the GPUs asked for.
pub const AT: [u32; 5] = [90, 95, 100, 110, 130];

/// What came of a fill.
#[derive(Clone, Debug, PartialEq)]
pub struct FillResult {
    /// Requests that got their GPUs.
    pub placed: u64,
    /// What the arrivals asked for.
    pub asked: Volumes,
    /// What of it was refused.
    pub refused: Volumes,
    /// By percent of the GPUs asked for: the sum of the unallocated percents, and the arrivals that they are of.
    curve: Vec<(f64, u32)>,
}

impl FillResult {
    /// The GPUs that are unallocated when the arrivals have asked for this much of them, both in percent. It is the
    /// mean over the arrivals after which the percentage asked for rounds to this one; `None` where there is none.
    pub fn unallocated(&self, percent: u32) -> Option<f64> {
        let (sum, count) = self.curve.get(usize::try_from(percent).ok()?)?;
        (*count > 0).then(|| sum / f64::from(*count))
    }

    /// All points of the curve: percent asked for, percent unallocated.
    pub fn curve(&self) -> impl Iterator<Item = (u32, f64)> {
        let points = (0..).zip(&self.curve);
        let points = points.filter(|(_, (_, count))| *count > 0);
        points.map(|(percent, (sum, count))| (percent, sum / f64::from(*count)))
    }
}

/// Lets the requests arrive at the cluster, which is as the caller hands it over, mostly empty. A caller that measures
/// decisions wraps the policy; one that shows progress wraps the iterator.
///
/// In debug builds the run checks after each request that no GPU and no node holds more than it has.
pub fn run<'a>(
    policy: &mut dyn NodePolicy,
    cluster: &Cluster,
    arrivals: impl IntoIterator<Item = &'a Shape>,
) -> FillResult {
    let mut cluster = cluster.clone();
    let capacity = cluster.capacity_milli();
    let mut free = cluster.free_milli();
    let mut result = FillResult {
        placed: 0,
        asked: Volumes::default(),
        refused: Volumes::default(),
        curve: Vec::new(),
    };
    for shape in arrivals {
        result.asked.add(&cluster, shape);
        match policy.choose(&cluster, shape) {
            Some(choice) => {
                let taken = cluster.take(shape, &choice);
                debug_assert!(taken, "{shape:?} does not fit at {choice:?}");
                let node = &cluster.nodes()[choice.node];
                debug_assert!(node.is_sound(), "{node:?}");
                if taken {
                    result.placed += 1;
                    let part = node.part(shape).map_or(0, |part| u64::from(part.milli()));
                    free -= part * choice.gpus.len() as u64;
                }
            }
            None => {
                debug_assert!(
                    !cluster.nodes().iter().any(|node| node.fits(shape)),
                    "the policy refuses {shape:?}, which fits"
                );
                result.refused.add(&cluster, shape);
            }
        }
        policy.arrived(&cluster, shape);
        if capacity > 0 {
            let percent = rounded(result.asked.total() * 100, capacity);
            if result.curve.len() <= percent {
                result.curve.resize(percent + 1, (0.0, 0));
            }
            result.curve[percent].0 += 100.0 * free as f64 / capacity as f64;
            result.curve[percent].1 += 1;
        }
    }
    debug_assert_eq!(free, cluster.free_milli(), "every placement was counted");
    result
}

/// The quotient to the nearest integer; halves to the even one.
fn rounded(dividend: u64, divisor: u64) -> usize {
    let (quotient, rest) = (dividend / divisor, dividend % divisor);
    let up = match (2 * rest).cmp(&divisor) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => quotient % 2 == 1,
        std::cmp::Ordering::Greater => true,
    };
    usize::try_from(quotient + u64::from(up)).unwrap_or(usize::MAX)
}
