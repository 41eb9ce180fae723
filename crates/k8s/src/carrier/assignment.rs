//! The assignment of device ids: which sixteenths kubelet may allocate, and which pod got them. Pure.
//!
//! Kubelet asks for ids and names no pod. So an assignment is only a number of sixteenths of a GPU. Every assigned pod
//! opens one, every claim fills one, and any container with ids of an open one gets it. Assignments of one size on a
//! node are alike, and so are their limits: if two pods swap them, both are served. Kubelet reports a moment later
//! which pod has which ids, and the node records it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::units::{UNITS, Unit};

/// How long kubelet may not show ids that it has asked for: it writes them down as soon as it is answered, and a pod that it
/// then refuses it never shows.
pub const PENDING_GRACE: Duration = Duration::from_secs(10);

/// A pod that is assigned part of a GPU here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignedPod {
    pub gpu: String,
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub units: u8,
}

/// A pod's devices by kubelet's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDevices {
    pub namespace: String,
    pub name: String,
    pub units: BTreeSet<Unit>,
}

/// The agent's claim for some ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentClaim {
    pub claim: String,
    /// UUID.
    pub gpu: String,
    /// The pod's uid, once kubelet has said whose it is.
    pub pod: Option<String>,
    /// Programs of it that use the GPU.
    pub processes: u32,
    pub age: Duration,
}

/// So much of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnfilledAssignment {
    pub gpu: String,
    pub units: u8,
}

/// Why ids are not given out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    #[error("kubelet sent no device IDs")]
    Nothing,
    #[error("{0}")]
    Unknown(String),
    #[error(
        "one container requests sixteenths of {} GPUs: {}; a fraction must be of one GPU", .0.len(), .0.iter().cloned().collect::<Vec<_>>().join(", ")
    )]
    SeveralGpus(BTreeSet<String>),
    #[error(
        "no pod is assigned {units} sixteenths of {gpu}; request fractions with Divvy's annotations, not with this resource"
    )]
    NoneOpen { gpu: String, units: usize },
}

/// Ids of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    pub gpu: String,
    pub numbers: BTreeSet<u8>,
}

impl Ids {
    /// # Errors
    /// They are none, not all ours, or of several GPUs.
    pub fn read(ids: &[String]) -> Result<Self, AllocateError> {
        let units: Vec<Unit> = ids
            .iter()
            .map(|id| {
                id.parse().map_err(|error: super::units::NoUnit| {
                    AllocateError::Unknown(error.to_string())
                })
            })
            .collect::<Result<_, _>>()?;
        let gpus: BTreeSet<String> = units.iter().map(|unit| unit.gpu.clone()).collect();
        if gpus.len() > 1 {
            return Err(AllocateError::SeveralGpus(gpus));
        }
        let gpu = gpus.into_iter().next().ok_or(AllocateError::Nothing)?;
        Ok(Self {
            gpu,
            numbers: units.into_iter().map(|unit| unit.number).collect(),
        })
    }

    /// The claim that stands for exactly these: `carrier-gpu-…-00f0`.
    pub fn claim(&self) -> String {
        let mask = self
            .numbers
            .iter()
            .fold(0_u16, |mask, number| mask | 1 << number);
        format!("{PREFIX}{}-{mask:04x}", self.gpu.to_ascii_lowercase())
    }

    /// How many, 1 to [`UNITS`].
    pub fn units(&self) -> u8 {
        u8::try_from(self.numbers.len()).unwrap_or(UNITS)
    }
}

/// The prefix of claims in carrier mode.
pub const PREFIX: &str = "carrier-";

/// Whether a claim is for ids of these units.
fn is_for(claim: &str, units: &BTreeSet<Unit>) -> bool {
    let ids: Vec<String> = units.iter().map(ToString::to_string).collect();
    Ids::read(&ids).is_ok_and(|ids| ids.claim() == claim)
}

/// How many sixteenths a claim's name says.
pub fn units_of(claim: &str) -> u8 {
    let mask = claim
        .rsplit('-')
        .next()
        .and_then(|text| u16::from_str_radix(text, 16).ok());
    mask.map_or(UNITS, |mask| {
        u8::try_from(mask.count_ones()).unwrap_or(UNITS)
    })
}

impl AgentClaim {
    fn pod_devices<'s>(&self, shown: &'s [PodDevices]) -> Option<&'s PodDevices> {
        shown.iter().find(|pod| is_for(&self.claim, &pod.units))
    }

    /// Whose it is: kubelet's word, else what it said before.
    pub fn holder(&self, seats: &[AssignedPod], shown: &[PodDevices]) -> Option<String> {
        match self.pod_devices(shown) {
            Some(pod) => seats
                .iter()
                .find(|seat| seat.namespace == pod.namespace && seat.name == pod.name)
                .map(|seat| seat.uid.clone()),
            None => self.pod.clone(),
        }
    }

    /// Whether a container has it, or its owner is not known yet.
    fn is_live(&self, seats: &[AssignedPod], shown: &[PodDevices]) -> bool {
        self.pod_devices(shown).is_some()
            || match &self.pod {
                Some(uid) => seats.iter().any(|seat| seat.uid == *uid),
                None => self.age < PENDING_GRACE,
            }
    }

    fn place(&self) -> UnfilledAssignment {
        UnfilledAssignment {
            gpu: self.gpu.clone(),
            units: units_of(&self.claim),
        }
    }
}

/// Assignments without a claim.
pub fn unfilled_assignments(
    seats: &[AssignedPod],
    held: &[AgentClaim],
    shown: &[PodDevices],
) -> Vec<UnfilledAssignment> {
    let places = seats.iter().map(|seat| UnfilledAssignment {
        gpu: seat.gpu.clone(),
        units: seat.units,
    });
    let mut open: Vec<UnfilledAssignment> = places.collect();
    for held in held.iter().filter(|held| held.is_live(seats, shown)) {
        let place = held.place();
        if let Some(at) = open.iter().position(|one| *one == place) {
            open.remove(at);
        }
    }
    open
}

/// Whether these ids may be given out.
///
/// # Errors
/// No seat is open for them.
pub fn choose(ids: &Ids, open: &[UnfilledAssignment]) -> Result<(), AllocateError> {
    let fits = |place: &UnfilledAssignment| place.gpu == ids.gpu && place.units == ids.units();
    if open.iter().any(fits) {
        Ok(())
    } else {
        Err(AllocateError::NoneOpen {
            gpu: ids.gpu.clone(),
            units: ids.numbers.len(),
        })
    }
}

/// The ids that a container had best get of those that are free: all of a GPU with an open seat of that size. Empty where there
/// are none, which leaves the choice to kubelet.
pub fn prefer(
    available: &[String],
    must: &[String],
    size: usize,
    open: &[UnfilledAssignment],
) -> Vec<String> {
    let mut free: BTreeMap<String, BTreeSet<u8>> = BTreeMap::new();
    for unit in available.iter().filter_map(|id| id.parse::<Unit>().ok()) {
        free.entry(unit.gpu).or_default().insert(unit.number);
    }
    let musts = Ids::read(must);
    let wanted = open.iter().filter(|place| usize::from(place.units) == size);
    for UnfilledAssignment { gpu, .. } in wanted {
        let Some(numbers) = free.get(gpu).filter(|numbers| numbers.len() >= size) else {
            continue;
        };
        let first: BTreeSet<u8> = match &musts {
            Err(AllocateError::Nothing) => BTreeSet::new(),
            Ok(ids) if ids.gpu == *gpu && ids.numbers.len() <= size => ids.numbers.clone(),
            _ => continue,
        };
        let more = numbers.difference(&first).copied();
        let chosen = first.iter().copied().chain(more).take(size);
        return chosen
            .map(|number| {
                let unit = Unit {
                    gpu: gpu.clone(),
                    number,
                };
                unit.to_string()
            })
            .collect();
    }
    Vec::new()
}

/// Claims without a pod, in which nothing runs. A pod that kubelet does not list may still exist: after a restart
/// kubelet lists none for a moment. A named pod is gone when its assignment is.
pub fn orphaned_claims(
    seats: &[AssignedPod],
    held: &[AgentClaim],
    shown: &[PodDevices],
) -> Vec<String> {
    let over = held
        .iter()
        .filter(|held| held.processes == 0 && !held.is_live(seats, shown));
    over.map(|held| held.claim.clone()).collect()
}

/// The pod that each claim counts for: its own pod if that is assigned this many sixteenths of that GPU, otherwise
/// another such pod, so that two pods that swapped count once each. Without such a pod it counts for itself.
pub fn attribute_claims(
    seats: &[AssignedPod],
    held: &[AgentClaim],
    shown: &[PodDevices],
) -> Vec<(String, String)> {
    let mut free: Vec<&AssignedPod> = seats.iter().collect();
    let mut counted = Vec::new();
    let mut rest = Vec::new();
    for held in held {
        let holder = held.holder(seats, shown);
        let own = free
            .iter()
            .position(|seat| seat.gpu == held.gpu && Some(&seat.uid) == holder.as_ref());
        match own {
            Some(at) => counted.push((held.claim.clone(), free.remove(at).uid.clone())),
            None => rest.push((held, holder)),
        }
    }
    for (held, holder) in rest {
        let place = held.place();
        let like = free
            .iter()
            .position(|seat| seat.gpu == place.gpu && seat.units == place.units);
        let uid = match like {
            Some(at) => free.remove(at).uid.clone(),
            None => holder.unwrap_or_else(|| held.claim.clone()),
        };
        counted.push((held.claim.clone(), uid));
    }
    counted.sort();
    counted
}

#[cfg(test)]
mod tests;
