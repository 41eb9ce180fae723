//! Trials: how a policy does on an order that no training has seen.

use super::episode::{LOAD, Player, come_and_go, place};
use super::events::Events;
use super::mix::Draw;
use super::state::Values;
use crate::node::{Cluster, NodeSpec};
use crate::policy::NodePolicy;
use crate::random::Random;

/// Volumes at which a trial reads the unallocated part of a fill, in thousandths of the capacity, and the weight of each
/// reading. Without the first two, a table that refuses large requests early would look good.
const LOOKS: [(u64, f64); 3] = [(900, 0.1), (950, 0.2), (1000, 0.7)];

/// A look is the mean over so many thousandths before and after.
const AROUND: u64 = 5;

/// Mean holding times at the start of a trial with departures that are not counted. A queue has forgotten its start
/// after about five, so most of it; more would double the time of a trial.
const NOT_COUNTED: f64 = 4.0;

/// Arrivals of a trial at least: on a small cluster few arrivals say little. With half, the order would decide more
/// than the policy; double takes twice as long.
const LEAST_ARRIVALS: f64 = 4000.0;

/// What is unused when about the capacity has been asked for, as a part of it.
pub(super) fn unused_after_fill(
    values: Values<'_>,
    draw: &Draw,
    nodes: &[NodeSpec],
    seed: u64,
) -> f64 {
    let mut cluster = Cluster::new(nodes.iter().cloned());
    let mut player = Player::new(values);
    let capacity = cluster.capacity_milli();
    let mut random = Random::seeded(seed);
    let mut asked_milli = 0;
    let mut free = [(0.0, 0_u32); LOOKS.len()];
    while asked_milli * 1000 < capacity * (1000 + AROUND) {
        let asked = draw.next(&mut random);
        place(&mut player, &mut cluster, &asked.shape);
        asked_milli += asked.gpu_milli;
        for ((at, _), (sum, count)) in LOOKS.iter().zip(&mut free) {
            if (asked_milli * 1000).abs_diff(capacity * at) <= capacity * AROUND {
                *sum += cluster.free_milli() as f64 / capacity as f64;
                *count += 1;
            }
        }
    }
    let looks = LOOKS.iter().zip(free);
    let looks = looks.map(|((_, weight), (sum, count))| weight * sum / f64::from(count.max(1)));
    looks.sum()
}

/// The part of the volume asked for that a policy refuses where jobs come and go, and none waits. The trial counts about
/// so many mean holding times. Every policy sees the same arrivals and departures.
pub(super) fn refused_with_departures(
    policy: &mut dyn NodePolicy,
    draw: &Draw,
    nodes: &[NodeSpec],
    (holding_times, seed): (f64, u64),
) -> f64 {
    let mut cluster = Cluster::new(nodes.iter().cloned());
    let mut events = Events::new(draw, cluster.capacity_milli(), LOAD, seed);
    let arrivals = ((NOT_COUNTED + holding_times) * events.rate()).max(LEAST_ARRIVALS);
    let counted = (arrivals as usize, (NOT_COUNTED * events.rate()) as usize);
    let volume = come_and_go(policy, &mut cluster, draw, &mut events, counted);
    volume.refused_milli as f64 / volume.asked_milli.max(1) as f64
}
