//! GPU capacity of the nodes, free and allocated, from ResourceSlices and ResourceClaims.
//!
//! A summary for people, who want to know why a pod waits. The scheduler alone decides.

use std::collections::BTreeMap;

use divvy_core::mig::MigProfile;
use divvy_core::units::Bytes;
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};
use kube::ResourceExt as _;

use super::classes::classes_of;
use crate::base::claim::{DRIVER, limited_to};
use crate::base::objects::allocated;
use crate::base::slices::{FRACTION, MEMORY, MIG, TYPE, bytes};

/// A GPU that is given out in parts, or as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuCapacity {
    pub node: String,
    pub device: String,
    /// `None` for one that is only given out whole.
    pub memory: Option<Bytes>,
    pub taken: u64,
    pub held: Vec<GpuAllocation>,
    /// No new allocation goes there, even if it has free capacity.
    pub withdrawn: bool,
}

/// A place of a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigPlacementState {
    pub node: String,
    pub device: String,
    pub profile: MigProfile,
    pub memory: Bytes,
    pub free: bool,
}

/// The part of a GPU that a claim has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuAllocation {
    pub namespace: String,
    /// The pod that the claim is for, else the claim.
    pub name: String,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    pub gpus: Vec<GpuCapacity>,
    pub places: Vec<MigPlacementState>,
}

impl GpuCapacity {
    /// Bytes that are free for a new claim.
    pub fn room(&self) -> u64 {
        match self.memory {
            Some(memory) if !self.withdrawn => memory.get().saturating_sub(self.taken),
            _ => 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        !self.withdrawn && self.held.is_empty()
    }
}

/// What Divvy needs of a ResourceClaim: the devices that it holds, and the classes and GPU sizes that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    pub namespace: String,
    /// The pod that the claim is for, else the claim.
    pub holder: String,
    pub devices: Vec<HeldDevice>,
    /// Divvy's classes alone.
    pub classes: Vec<String>,
    /// Smallest and largest in MiB, of each alternative that is limited to such GPUs.
    pub sizes: Vec<(u64, u64)>,
}

/// A device of Divvy that a claim holds, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDevice {
    pub pool: String,
    pub device: String,
    pub bytes: u64,
}

impl ClaimFacts {
    /// `None` for a claim that neither holds nor requests a device of Divvy.
    pub fn of(claim: &ResourceClaim) -> Option<Self> {
        let spec = claim.spec.devices.as_ref();
        let requests = || {
            spec.into_iter()
                .flat_map(|all| all.requests.iter().flatten())
        };
        let classes: Vec<String> = requests().flat_map(classes_of).collect();
        let ours = allocated(claim).filter(|result| result.driver == DRIVER);
        let held = ours.map(|result| {
            let consumed = result.consumed_capacity.as_ref();
            let memory = consumed.and_then(|all| all.get(MEMORY));
            HeldDevice {
                pool: result.pool.clone(),
                device: result.device.clone(),
                bytes: memory.and_then(bytes).map_or(u64::MAX, Bytes::get),
            }
        });
        let devices: Vec<HeldDevice> = held.collect();
        if classes.is_empty() && devices.is_empty() {
            return None;
        }
        Some(Self {
            namespace: claim.namespace().unwrap_or_default(),
            holder: holder(claim),
            devices,
            classes,
            sizes: requests().flat_map(limited_to).collect(),
        })
    }
}

/// The facts of claims that were read whole.
pub fn held<'c>(claims: impl IntoIterator<Item = &'c ResourceClaim>) -> Vec<ClaimFacts> {
    claims.into_iter().filter_map(ClaimFacts::of).collect()
}

/// A device by pool and name, a counter by pool, set and name.
type Of<'a> = (&'a str, &'a str);
type Counters<'a> = BTreeMap<(&'a str, &'a str, &'a str), u64>;

/// Of each pool the newest generation counts.
pub fn capacity<'s>(
    slices: impl IntoIterator<Item = &'s ResourceSlice>,
    claims: impl IntoIterator<Item = &'s ClaimFacts>,
) -> Capacity {
    let slices: Vec<&ResourceSlice> = newest(slices);
    let mut given: BTreeMap<Of<'_>, Vec<GpuAllocation>> = BTreeMap::new();
    for claim in claims {
        for one in &claim.devices {
            let held = given.entry((&one.pool, &one.device)).or_default();
            held.push(GpuAllocation {
                namespace: claim.namespace.clone(),
                name: claim.holder.clone(),
                bytes: one.bytes,
            });
        }
    }
    let left = counters(&slices, &given);
    let mut offered = Capacity::default();
    for slice in &slices {
        let pool = slice.spec.pool.name.as_str();
        for device in slice.spec.devices.iter().flatten() {
            let held = given
                .get(&(pool, device.name.as_str()))
                .cloned()
                .unwrap_or_default();
            add(&mut offered, pool, device, held, &left);
        }
    }
    offered
}

pub fn newest<'s>(slices: impl IntoIterator<Item = &'s ResourceSlice>) -> Vec<&'s ResourceSlice> {
    let ours: Vec<_> = slices
        .into_iter()
        .filter(|slice| slice.spec.driver == DRIVER)
        .collect();
    let mut generations: BTreeMap<&str, i64> = BTreeMap::new();
    for slice in &ours {
        let pool = &slice.spec.pool;
        let newest = generations.entry(&pool.name).or_insert(pool.generation);
        *newest = pool.generation.max(*newest);
    }
    let is_newest = |slice: &&ResourceSlice| {
        let pool = &slice.spec.pool;
        generations.get(pool.name.as_str()) == Some(&pool.generation)
    };
    ours.into_iter().filter(is_newest).collect()
}

/// The rest of every counter: an allocated device charges its counters once, however many claims share it.
fn counters<'a>(
    slices: &[&'a ResourceSlice],
    given: &BTreeMap<Of<'_>, Vec<GpuAllocation>>,
) -> Counters<'a> {
    let value =
        |counter: &k8s_openapi::api::resource::v1::Counter| counter.value.0.parse().unwrap_or(0);
    let mut left = Counters::new();
    for slice in slices {
        let pool = slice.spec.pool.name.as_str();
        for set in slice.spec.shared_counters.iter().flatten() {
            let each = set.counters.iter();
            left.extend(
                each.map(|(name, counter)| {
                    ((pool, set.name.as_str(), name.as_str()), value(counter))
                }),
            );
        }
    }
    for slice in slices {
        let pool = slice.spec.pool.name.as_str();
        let devices = slice.spec.devices.iter().flatten();
        for device in devices.filter(|device| given.contains_key(&(pool, device.name.as_str()))) {
            for consumed in device.consumes_counters.iter().flatten() {
                for (name, counter) in &consumed.counters {
                    if let Some(left) =
                        left.get_mut(&(pool, consumed.counter_set.as_str(), name.as_str()))
                    {
                        *left = left.saturating_sub(value(counter));
                    }
                }
            }
        }
    }
    left
}

fn fits(pool: &str, device: &Device, left: &Counters<'_>) -> bool {
    let consumed = device.consumes_counters.iter().flatten();
    let mut needs = consumed.flat_map(|consumed| {
        let each = consumed.counters.iter();
        each.map(move |(name, counter)| (consumed.counter_set.as_str(), name.as_str(), counter))
    });
    needs.all(|(set, name, counter)| {
        let needed = counter.value.0.parse().unwrap_or(0);
        left.get(&(pool, set, name))
            .is_some_and(|left| *left >= needed)
    })
}

fn add(
    offered: &mut Capacity,
    pool: &str,
    device: &Device,
    held: Vec<GpuAllocation>,
    left: &Counters<'_>,
) {
    let text = |name: &str| device.attributes.as_ref()?.get(name)?.string.as_deref();
    let memory = device.capacity.as_ref().and_then(|all| all.get(MEMORY));
    let memory = memory.and_then(|capacity| bytes(&capacity.value));
    let tainted = device.taints.iter().flatten().next().is_some();
    let room = !held.is_empty() || fits(pool, device, left);
    match (text(TYPE), memory) {
        (Some(MIG), Some(memory)) => {
            if let Some(Ok(profile)) = text("profile").map(str::parse) {
                offered.places.push(MigPlacementState {
                    node: pool.to_owned(),
                    device: device.name.clone(),
                    profile,
                    memory,
                    free: held.is_empty() && room && !tainted,
                });
            }
        }
        (Some(MIG), None) => {}
        (kind, memory) => offered.gpus.push(GpuCapacity {
            node: pool.to_owned(),
            device: device.name.clone(),
            memory: memory.filter(|_| kind == Some(FRACTION)),
            taken: held
                .iter()
                .fold(0, |sum: u64, held| sum.saturating_add(held.bytes)),
            held,
            withdrawn: tainted || !room,
        }),
    }
}

fn holder(claim: &ResourceClaim) -> String {
    let reserved = claim
        .status
        .as_ref()
        .and_then(|status| status.reserved_for.as_ref());
    let pod = reserved
        .into_iter()
        .flatten()
        .find(|consumer| consumer.resource == "pods");
    pod.map_or_else(|| claim.name_any(), |pod| pod.name.clone())
}
