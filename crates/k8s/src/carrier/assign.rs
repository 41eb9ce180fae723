//! The assignment planner: which pod gets which part of which GPU, and which reservation pods exist. Pure: a look at
//! the cluster in, steps out.
//!
//! ```text
//!   a pod     gated ── Assign ──► in a share's list ── Lift ──► the scheduler's ──► over, or gone ── Drop ──► out of the list
//!   a GPU     free ── Carry ──► a reservation pod waits ──► the share names it ──► empty for a while ── Drain ──► Delete
//! ```
//! Steps are taken in their order; after a failed one, none for the same pod or of the same share ([`Failed`]), and the
//! cluster is observed again. Each step is idempotent. An assignment is written before its gate is lifted, so a running
//! pod always has one. A share is drained before its reservation pod is deleted, so no pod is assigned to a GPU that is
//! being released. Writes to a share name the observed version. Memory is not assigned again before the node has
//! released it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_core::units::Bytes;
use jiff::Timestamp;

use super::pod::reservation_pod_name;
use super::units::{UNITS, memory};

/// How long a GPU without pods stays ours: a lazy carrier spares the next pod its start. Half would end carriers
/// between the pods of a pipeline; double would keep the GPU from other tenants of the device plugin.
pub const LINGER: Duration = Duration::from_secs(120);

/// A pod of carrier mode, gated or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FractionPod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Sixteenths.
    pub units: u8,
    /// Its requested memory, if it asked for memory.
    pub min_memory: Bytes,
    pub gated: bool,
    /// Where it was put.
    pub node: Option<String>,
    /// It has ended.
    pub over: bool,
    /// Its placement constraints.
    pub placement_key: String,
    /// Nodes it may go to, as far as it and they say.
    pub feasible_nodes: BTreeSet<String>,
    pub created: Timestamp,
}

/// A GPU's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGpu {
    pub name: String,
    pub node: String,
    pub memory: Bytes,
    /// The pod that holds it for us.
    pub carrier: Option<String>,
    pub draining: bool,
    pub assigned: Vec<PodUnits>,
    /// The node's held claims, assigned or not.
    pub held: Vec<PodUnits>,
}

/// So much of a GPU, for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodUnits {
    pub uid: String,
    pub units: u8,
}

/// A pod that is to hold a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationPod {
    pub name: String,
    pub placement_key: String,
    pub scheduled: bool,
    /// It is being deleted.
    pub going: bool,
    /// It has ended, and holds nothing.
    pub over: bool,
}

/// A look at the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    pub seekers: Vec<FractionPod>,
    pub shares: Vec<SharedGpu>,
    pub carriers: Vec<ReservationPod>,
    /// Nodes that there are.
    pub nodes: BTreeSet<String>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationStep {
    /// Takes a pod out of a share's list.
    Unassign { share: String, uid: String },
    /// Puts a pod into a share's list.
    Assign { share: String, seeker: FractionPod },
    /// Takes the gate off a pod, which may go to this node.
    Ungate { seeker: FractionPod, node: String },
    /// Makes a carrier where this pod may go.
    Reserve { name: String, seeker: FractionPod },
    /// Sets whether a share takes no further pods.
    Drain { share: String, draining: bool },
    /// Deletes a carrier.
    Delete { carrier: String },
    /// Deletes the record of a GPU whose node is gone.
    DeleteShare { share: String },
}

/// Steps that must be skipped after a failed one: those of the same pod, and those that rely on it.
#[derive(Clone, Debug, Default)]
pub struct Failed {
    shares: BTreeSet<String>,
    pods: BTreeSet<String>,
}

impl Failed {
    pub fn add(&mut self, step: &ReservationStep) {
        self.shares.extend(step.share().map(str::to_owned));
        self.pods.extend(step.pod().map(str::to_owned));
    }

    /// Whether a step must not be taken; then it has failed too.
    pub fn stops(&mut self, step: &ReservationStep) -> bool {
        let stops = step
            .share()
            .is_some_and(|share| self.shares.contains(share))
            || step.pod().is_some_and(|pod| self.pods.contains(pod));
        if stops {
            self.add(step);
        }
        stops
    }
}

impl ReservationStep {
    /// The record that it writes.
    fn share(&self) -> Option<&str> {
        match self {
            Self::Unassign { share, .. }
            | Self::Assign { share, .. }
            | Self::Drain { share, .. }
            | Self::DeleteShare { share } => Some(share),
            Self::Ungate { .. } | Self::Reserve { .. } | Self::Delete { .. } => None,
        }
    }

    /// The uid of the pod that it is for.
    fn pod(&self) -> Option<&str> {
        match self {
            Self::Unassign { uid, .. } => Some(uid),
            Self::Assign { seeker, .. }
            | Self::Ungate { seeker, .. }
            | Self::Reserve { seeker, .. } => Some(&seeker.uid),
            Self::Drain { .. } | Self::Delete { .. } | Self::DeleteShare { .. } => None,
        }
    }
}

impl SharedGpu {
    /// Free sixteenths: neither assigned nor still held by the node.
    pub fn free(&self) -> u8 {
        let mut taken: BTreeMap<&str, u8> = BTreeMap::new();
        for part in self.assigned.iter().chain(&self.held) {
            let units = taken.entry(&part.uid).or_default();
            *units = part.units.max(*units);
        }
        let sum = taken
            .values()
            .fold(0_u8, |sum, units| sum.saturating_add(*units));
        UNITS.saturating_sub(sum)
    }

    fn holds(&self, uid: &str) -> bool {
        self.held.iter().any(|part| part.uid == uid)
    }

    fn has(&self, uid: &str) -> bool {
        self.assigned.iter().any(|part| part.uid == uid)
    }
}

/// The next steps. `empty_since` has the shares that were empty before, and since when.
pub fn plan(
    world: &ClusterState,
    empty_since: &BTreeMap<String, Timestamp>,
    now: Timestamp,
) -> Vec<ReservationStep> {
    let mut shares: BTreeMap<&str, SharedGpu> = world
        .shares
        .iter()
        .map(|share| (share.name.as_str(), share.clone()))
        .collect();
    let mut steps = move_over(world, &mut shares);
    steps.extend(leave(world, &mut shares));
    let mut waiting = Vec::new();
    let mut gated: Vec<&FractionPod> = world
        .seekers
        .iter()
        .filter(|one| one.gated && !one.over)
        .collect();
    gated.sort_by_key(|one| (one.created, &one.namespace, &one.name, &one.uid));
    for seeker in gated {
        let has = shares.values().find(|share| share.has(&seeker.uid));
        let node = match has {
            Some(share) => share.node.clone(),
            None => match best(&mut shares, world, seeker) {
                Some(share) => {
                    let part = PodUnits {
                        uid: seeker.uid.clone(),
                        units: seeker.units,
                    };
                    share.assigned.push(part);
                    steps.push(ReservationStep::Assign {
                        share: share.name.clone(),
                        seeker: seeker.clone(),
                    });
                    share.node.clone()
                }
                None => {
                    waiting.push(seeker);
                    continue;
                }
            },
        };
        steps.push(ReservationStep::Ungate {
            seeker: seeker.clone(),
            node,
        });
    }
    reserve_gpus(world, &waiting, &mut steps);
    drain_idle(world, &shares, empty_since, now, &mut steps);
    steps
}

/// Pods that took another seat of their node than theirs, which is kubelet's choice: they are assigned where they are. That
/// counts already.
fn move_over(world: &ClusterState, shares: &mut BTreeMap<&str, SharedGpu>) -> Vec<ReservationStep> {
    let mut steps = Vec::new();
    for pod in world.seekers.iter().filter(|pod| !pod.gated && !pod.over) {
        let assigned = shares.values().any(|share| share.has(&pod.uid));
        let sits = shares
            .values_mut()
            .find(|share| share.holds(&pod.uid) && !share.has(&pod.uid));
        if let Some(share) = sits.filter(|_| assigned) {
            let part = PodUnits {
                uid: pod.uid.clone(),
                units: pod.units,
            };
            share.assigned.push(part);
            steps.push(ReservationStep::Assign {
                share: share.name.clone(),
                seeker: pod.clone(),
            });
        }
    }
    steps
}

/// Assignments of pods that are over, gone, or elsewhere, and all but one of a pod that has several. While it is gated it keeps
/// them all, for another controller may be about to lift the gate to any of them.
fn leave(world: &ClusterState, shares: &mut BTreeMap<&str, SharedGpu>) -> Vec<ReservationStep> {
    let pods: BTreeMap<&str, &FractionPod> = world
        .seekers
        .iter()
        .map(|pod| (pod.uid.as_str(), pod))
        .collect();
    let seats: BTreeMap<&str, String> = pods
        .iter()
        .filter_map(|(uid, pod)| Some((*uid, seat(pod, shares)?.to_owned())))
        .collect();
    let mut steps = Vec::new();
    for share in shares.values_mut() {
        let name = share.name.clone();
        share.assigned.retain(|part| {
            let pod = pods.get(part.uid.as_str());
            let stays = pod.is_some_and(|pod| {
                let undecided = pod.gated && !pod.over;
                undecided || seats.get(part.uid.as_str()) == Some(&name)
            });
            if !stays {
                steps.push(ReservationStep::Unassign {
                    share: name.clone(),
                    uid: part.uid.clone(),
                });
            }
            stays
        });
    }
    steps
}

/// The one share that a pod is to stay with: where it sits, where its node is, else where it may go (a lifted gate names the node), else the
/// first.
fn seat<'s>(pod: &FractionPod, shares: &BTreeMap<&'s str, SharedGpu>) -> Option<&'s str> {
    let has = shares.iter().filter(|(_, share)| {
        let here = pod.node.as_ref().is_none_or(|node| *node == share.node);
        share.has(&pod.uid) && !pod.over && here
    });
    has.min_by_key(|(name, share)| {
        let sits = share.holds(&pod.uid);
        (!sits, !pod.feasible_nodes.contains(&share.node), **name)
    })
    .map(|(name, _)| *name)
}

/// The share with the least left over, by name where that is equal.
fn best<'s>(
    shares: &'s mut BTreeMap<&str, SharedGpu>,
    world: &ClusterState,
    seeker: &FractionPod,
) -> Option<&'s mut SharedGpu> {
    let able = shares.values_mut().filter(|share| {
        is_carried(share, world)
            && !share.draining
            && share.free() >= seeker.units
            && memory(seeker.units, share.memory) >= seeker.min_memory
            && seeker.feasible_nodes.contains(&share.node)
    });
    able.min_by_key(|share| (share.free() - seeker.units, share.name.clone()))
}

/// Whether a living carrier holds the GPU.
fn is_carried(share: &SharedGpu, world: &ClusterState) -> bool {
    let name = share.carrier.as_ref();
    let mut carriers = world.carriers.iter();
    name.is_some_and(|name| carriers.any(|one| one.name == *name && !one.going && !one.over))
}

/// Creates reservation pods for pods without a GPU, as few as hold them; starting ones count, and unneeded ones are
/// deleted.
fn reserve_gpus(world: &ClusterState, waiting: &[&FractionPod], steps: &mut Vec<ReservationStep>) {
    let known: BTreeSet<&String> = world
        .shares
        .iter()
        .filter_map(|share| share.carrier.as_ref())
        .collect();
    let mut bins: Vec<(String, String, u8)> = world
        .carriers
        .iter()
        .filter(|one| !one.going && !one.over && !known.contains(&one.name))
        .map(|one| (one.name.clone(), one.placement_key.clone(), UNITS))
        .collect();
    let names: BTreeSet<&String> = world.carriers.iter().map(|one| &one.name).collect();
    for seeker in waiting {
        let bin = bins
            .iter_mut()
            .find(|(_, place, left)| *place == seeker.placement_key && *left >= seeker.units);
        if let Some((_, _, left)) = bin {
            *left -= seeker.units;
            continue;
        }
        let name = reservation_pod_name(&seeker.uid);
        // One that ends or has ended has the name: it is waited for.
        if names.contains(&name) {
            continue;
        }
        steps.push(ReservationStep::Reserve {
            name: name.clone(),
            seeker: (*seeker).clone(),
        });
        bins.push((name, seeker.placement_key.clone(), UNITS - seeker.units));
    }
    for carrier in world.carriers.iter().filter(|one| !one.going) {
        let unused = bins
            .iter()
            .any(|(name, _, left)| *name == carrier.name && *left == UNITS);
        if carrier.over || (unused && !carrier.scheduled) {
            steps.push(ReservationStep::Delete {
                carrier: carrier.name.clone(),
            });
        }
    }
}

fn drain_idle(
    world: &ClusterState,
    shares: &BTreeMap<&str, SharedGpu>,
    empty_since: &BTreeMap<String, Timestamp>,
    now: Timestamp,
    steps: &mut Vec<ReservationStep>,
) {
    for share in shares.values() {
        if !world.nodes.contains(&share.node) {
            if share.assigned.is_empty() {
                steps.push(ReservationStep::DeleteShare {
                    share: share.name.clone(),
                });
            }
            continue;
        }
        let drain = |draining| ReservationStep::Drain {
            share: share.name.clone(),
            draining,
        };
        let empty = is_empty(share);
        match (&share.carrier, share.draining) {
            (None, true) => steps.push(drain(false)),
            (Some(_), true) if !empty => steps.push(drain(false)),
            (Some(name), true) if is_carried(share, world) => {
                steps.push(ReservationStep::Delete {
                    carrier: name.clone(),
                });
            }
            (Some(_), false) if empty && is_carried(share, world) => {
                let lingered = empty_since
                    .get(&share.name)
                    .is_some_and(|since| now.duration_since(*since).unsigned_abs() >= LINGER);
                if lingered {
                    steps.push(drain(true));
                }
            }
            _ => {}
        }
    }
}

/// Whether no pod has a part of it.
pub fn is_empty(share: &SharedGpu) -> bool {
    share.assigned.is_empty() && share.held.is_empty()
}

#[cfg(test)]
mod tests;
