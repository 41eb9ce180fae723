//! Departure runs: requests arrive and jobs leave, and a request that does not fit at once is lost.
//!
//! Nothing waits, so the figures measure the choice of nodes and not a queue. Arrivals are drawn from a mix, as a Poisson
//! process with exponential holding times of mean 1, or come from a trace with times.

use std::collections::BTreeMap;

use super::volumes::Volumes;
use divvy_packing::random::Random;
use divvy_packing::{Choice, Cluster, NodePolicy, Shape};

/// One request with its times, in a unit of the caller's choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// When it arrives; not before the one before it, and not negative.
    pub at: f64,
    /// How long the job holds what it got; not negative.
    pub holding: f64,
    pub shape: Shape,
}

/// Arrivals without end, drawn from a mix. The same seed draws the same.
#[derive(Clone, Debug)]
pub struct Drawn {
    random: Random,
    rate: f64,
    /// Shapes, each with the number of requests of it and of those before it.
    up_to: Vec<(Shape, u64)>,
    now: f64,
}

/// The mix asks for no GPU of this cluster, so that no arrival rate brings a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mix asks for no GPU of the cluster: no rate of arrivals loads its GPUs")]
pub struct NoVolume;

impl Drawn {
    /// From a mix of shapes with their counts. `load` is the GPU volume that arrives in the mean holding time, as a part
    /// of the cluster's GPUs: 0.9 asks for nine tenths of them.
    ///
    /// # Errors
    /// When the mix asks for no GPU.
    pub fn new(
        cluster: &Cluster,
        mix: &[(Shape, u64)],
        load: f64,
        seed: u64,
    ) -> Result<Self, NoVolume> {
        let (mut requests, mut volume) = (0, 0);
        let up_to = mix.iter().map(|(shape, count)| {
            requests += count;
            volume += cluster.asked_milli(shape) * count;
            (*shape, requests)
        });
        let up_to = up_to.collect();
        if volume == 0 {
            return Err(NoVolume);
        }
        Ok(Self {
            random: Random::seeded(seed),
            rate: load * cluster.capacity_milli() as f64 * requests as f64 / volume as f64,
            up_to,
            now: 0.0,
        })
    }
}

impl Iterator for Drawn {
    type Item = Timed;

    /// Three numbers are drawn for each: the gap before it, its shape, how long it holds.
    fn next(&mut self) -> Option<Timed> {
        self.now += self.random.exponential() / self.rate;
        let requests = usize::try_from(self.up_to.last()?.1).ok()?;
        let drawn = self.random.below(requests) as u64;
        let at = self.up_to.partition_point(|(_, up_to)| *up_to <= drawn);
        Some(Timed {
            at: self.now,
            holding: self.random.exponential(),
            shape: self.up_to[at].0,
        })
    }
}

/// What came of a run, without its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeparturesResult {
    pub arrived: u64,
    /// Requests that got their GPUs.
    pub placed: u64,
    /// What the arrivals asked for.
    pub asked: Volumes,
    /// What of it was refused.
    pub refused: Volumes,
    /// Of the cluster's GPUs, the percentage in use, over the time that counts.
    pub in_use: f64,
}

impl DeparturesResult {
    /// Of the GPU volume asked for, the percentage refused.
    pub fn refused_percent(&self) -> f64 {
        percent(self.refused.total(), self.asked.total())
    }

    /// The same of requests for several GPUs.
    pub fn refused_several_percent(&self) -> f64 {
        percent(self.refused.several, self.asked.several)
    }
}

/// 0 of nothing.
fn percent(some: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        _ => 100.0 * some as f64 / all as f64,
    }
}

/// A time as a key: the order of non-negative numbers is that of their bits.
fn key(time: f64) -> u64 {
    time.max(0.0).to_bits()
}

/// Lets the arrivals come, the first `warm_up` of them to warm up: they are served and not counted.
///
/// In debug builds the run checks after each event that no GPU and no node holds more than it has.
pub fn run(
    policy: &mut dyn NodePolicy,
    cluster: &Cluster,
    arrivals: impl IntoIterator<Item = Timed>,
    warm_up: u64,
) -> DeparturesResult {
    let mut cluster = cluster.clone();
    let capacity = cluster.capacity_milli();
    let mut used = capacity - cluster.free_milli();
    let mut result = DeparturesResult::default();
    // By the time of leaving and the number of the arrival.
    let mut jobs: BTreeMap<(u64, u64), (Shape, Choice)> = BTreeMap::new();
    let (mut now, mut from, mut busy) = (0.0, 0.0, 0.0);
    for (nth, arrival) in (0..).zip(arrivals) {
        while let Some(first) = jobs.first_entry() {
            let leaves = f64::from_bits(first.key().0);
            if leaves > arrival.at {
                break;
            }
            let (shape, choice) = first.remove();
            busy += used as f64 * (leaves - now);
            now = leaves;
            used -= volume(&cluster, &shape, &choice);
            cluster.release(&shape, &choice);
        }
        busy += used as f64 * (arrival.at - now);
        now = arrival.at;
        if nth == warm_up {
            (from, busy) = (now, 0.0);
        }
        let shape = arrival.shape;
        let counted = nth >= warm_up;
        if counted {
            result.arrived += 1;
            result.asked.add(&cluster, &shape);
        }
        match policy.choose(&cluster, &shape) {
            Some(choice) => {
                let taken = cluster.take(&shape, &choice);
                debug_assert!(taken, "{shape:?} does not fit at {choice:?}");
                debug_assert!(cluster.nodes()[choice.node].is_sound());
                if taken {
                    result.placed += u64::from(counted);
                    used += volume(&cluster, &shape, &choice);
                    let leaves = key(now + arrival.holding.max(0.0));
                    jobs.insert((leaves, nth), (shape, choice));
                }
            }
            None => {
                debug_assert!(
                    !cluster.nodes().iter().any(|node| node.fits(&shape)),
                    "the policy refuses {shape:?}, which fits"
                );
                if counted {
                    result.refused.add(&cluster, &shape);
                }
            }
        }
        policy.arrived(&cluster, &shape);
        debug_assert_eq!(used, capacity - cluster.free_milli(), "GPUs in use");
    }
    let time = now - from;
    if time > 0.0 && capacity > 0 {
        result.in_use = 100.0 * busy / time / capacity as f64;
    }
    result
}

/// Thousandths of a GPU that a placed request holds.
fn volume(cluster: &Cluster, shape: &Shape, choice: &Choice) -> u64 {
    let part = cluster.nodes()[choice.node].part(shape);
    part.map_or(0, |part| u64::from(part.milli())) * choice.gpus.len() as u64
}
