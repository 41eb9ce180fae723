//! Episodes: a part of the cluster fills up under the current table, and each visited cell learns what stayed unused.

use super::events::{Event, Events};
use super::learner::Learner;
use super::mix::{Asked, Draw};
use super::scores::NodeScores;
use super::state::Values;
use super::table::{Free, GpuKind, Table};
use crate::node::{Choice, Cluster, NodeSpec, Shape};
use crate::policy::NodePolicy;
use crate::random::Random;

/// The part of moves of an episode that go to any node. Our choice: without any, nodes that the first table values too
/// little would never be seen; more would blur what is learned.
const EXPLORATION: f64 = 0.01;

/// The volume that is asked for in a mean holding time, as a part of the capacity, where jobs come and go. With less,
/// every policy would place nearly all; with more, the queue would decide.
pub(super) const LOAD: f64 = 0.9;

/// Mean holding times before an episode with departures begins. A queue has forgotten its start after about five. So
/// one more than that.
const WARM_UP: f64 = 6.0;

/// An episode ends at the latest when so many times the capacity has been asked for.
const MOST_ASKED: u64 = 3;

/// Which state of the cluster tells what stayed unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// When requests for the whole capacity have arrived.
    End,
    /// The mean of that and of the moment when 3 % of the capacity have been refused.
    EndAndRefused,
    /// After arrivals and departures, no job leaves: the mean of the moments when 1 % and 3 % have been refused.
    Refused,
}

impl Target {
    /// Percentages of the capacity whose refusal is a moment to look at.
    fn refused_percent(self) -> &'static [u64] {
        match self {
            Self::End => &[],
            Self::EndAndRefused => &[3],
            Self::Refused => &[1, 3],
        }
    }
}

/// A policy of a table that is being trained.
pub(super) struct Player<'a> {
    values: Values<'a>,
    scores: NodeScores,
}

impl<'a> Player<'a> {
    pub(super) fn new(values: Values<'a>) -> Self {
        Self {
            values,
            scores: NodeScores::default(),
        }
    }
}

impl NodePolicy for Player<'_> {
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice> {
        let node = self.scores.least(self.values, cluster, shape)?;
        let gpus = cluster.nodes()[node].best_fit(shape)?;
        Some(Choice { node, gpus })
    }
}

/// Takes what the policy chooses. Returns the place, or `None` where the request is refused.
pub(super) fn place(
    policy: &mut dyn NodePolicy,
    cluster: &mut Cluster,
    shape: &Shape,
) -> Option<Choice> {
    let choice = policy.choose(cluster, shape);
    let choice = choice.filter(|choice| cluster.take(shape, choice));
    policy.arrived(cluster, shape);
    choice
}

/// Takes the best fit on a random node. Returns the place, or `None` where the request fits nowhere.
fn place_anywhere(cluster: &mut Cluster, shape: &Shape, random: &mut Random) -> Option<Choice> {
    let nodes = cluster.nodes().iter().enumerate();
    let fitting: Vec<usize> = nodes
        .filter(|(_, node)| node.fits(shape))
        .map(|(at, _)| at)
        .collect();
    if fitting.is_empty() {
        return None;
    }
    let node = fitting[random.below(fitting.len())];
    let gpus = cluster.nodes()[node].best_fit(shape)?;
    let choice = Choice { node, gpus };
    cluster.take(shape, &choice).then_some(choice)
}

/// Thousandths of GPUs that requests have asked for, and that the policy has refused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Volume {
    pub(super) asked_milli: u64,
    pub(super) refused_milli: u64,
}

/// Lets jobs come and go until so many have arrived. The first `skipped` of them are not counted.
pub(super) fn come_and_go(
    policy: &mut dyn NodePolicy,
    cluster: &mut Cluster,
    draw: &Draw,
    events: &mut Events,
    (arrivals, skipped): (usize, usize),
) -> Volume {
    let mut present: Vec<(Shape, Option<Choice>)> = Vec::new();
    let mut volume = Volume::default();
    let mut arrived = 0;
    while arrived < arrivals {
        match events.next(draw) {
            Event::Arrival(asked) => {
                let choice = place(policy, cluster, &asked.shape);
                if arrived >= skipped {
                    volume.asked_milli += asked.gpu_milli;
                    if choice.is_none() {
                        volume.refused_milli += asked.gpu_milli;
                    }
                }
                present.push((asked.shape, choice));
                arrived += 1;
            }
            Event::Departure(place) => {
                if let (shape, Some(choice)) = present.swap_remove(place) {
                    cluster.release(&shape, &choice);
                }
            }
        }
    }
    volume
}

/// Plays an episode on these nodes, and teaches the learner.
pub(super) fn play(
    values: Values<'_>,
    draw: &Draw,
    specs: &[NodeSpec],
    (target, seed): (Target, u64),
    learner: &mut Learner,
) {
    let mut cluster = Cluster::new(specs.iter().cloned());
    let mut player = Player::new(values);
    let mut random = Random::seeded(seed);
    let capacity = cluster.capacity_milli();
    if target == Target::Refused {
        let mut events = Events::new(draw, capacity, LOAD, random.seed());
        let arrivals = (WARM_UP * events.rate()) as usize;
        let counted = (arrivals, arrivals);
        come_and_go(&mut player, &mut cluster, draw, &mut events, counted);
    }
    let mut visits = Visits::new(values.table, &cluster);
    let mut moments = Vec::new();
    let mut volume = Volume::default();
    let until = match target {
        Target::End | Target::EndAndRefused => capacity,
        Target::Refused => MOST_ASKED * capacity,
    };
    let moments_due = target.refused_percent();
    while volume.asked_milli < until
        && (target != Target::Refused || moments.len() < moments_due.len())
    {
        let Asked { shape, gpu_milli } = draw.next(&mut random);
        let choice = if random.unit() < EXPLORATION {
            place_anywhere(&mut cluster, &shape, &mut random)
        } else {
            place(&mut player, &mut cluster, &shape)
        };
        volume.asked_milli += gpu_milli;
        if let Some(choice) = choice {
            visits.add(values.table, &cluster, choice.node);
            continue;
        }
        volume.refused_milli += gpu_milli;
        let is_due = |percent: &u64| volume.refused_milli * 100 >= percent * capacity;
        while moments_due.get(moments.len()).is_some_and(is_due) {
            moments.push(free_shares(&cluster));
        }
    }
    if target != Target::Refused || moments.is_empty() {
        moments.push(free_shares(&cluster));
    }
    for (cell, gpu) in visits.seen {
        let sum: f32 = moments.iter().map(|free| free[gpu] as f32).sum();
        learner.observe(cell, sum / moments.len() as f32);
    }
}

/// What is free of each GPU of the cluster, in thousandths.
fn free_shares(cluster: &Cluster) -> Vec<u32> {
    let gpus = cluster.nodes().iter().flat_map(|node| &node.gpus);
    gpus.map(|gpu| gpu.milli()).collect()
}

/// Cells in which GPUs were, with the GPU's number in the cluster.
struct Visits {
    seen: Vec<(usize, usize)>,
    first_gpu: Vec<usize>,
}

impl Visits {
    /// Every GPU as it is now.
    fn new(table: &Table, cluster: &Cluster) -> Self {
        let mut next = 0;
        let first_gpu = cluster.nodes().iter().map(|node| {
            let first = next;
            next += node.gpus.len();
            first
        });
        let mut visits = Self {
            first_gpu: first_gpu.collect(),
            seen: Vec::new(),
        };
        for node in 0..cluster.nodes().len() {
            visits.add(table, cluster, node);
        }
        visits
    }

    /// The GPUs of a node that has changed.
    fn add(&mut self, table: &Table, cluster: &Cluster, at: usize) {
        let node = &cluster.nodes()[at];
        let first = self.first_gpu[at];
        table.cells(GpuKind::of(&node.spec), Free::of(node), |cell, gpu| {
            self.seen.push((cell, first + gpu));
        });
    }
}
