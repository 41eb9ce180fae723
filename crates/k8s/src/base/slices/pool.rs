//! The resource pool of a node: its devices, divided into ResourceSlices.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sha2::{Digest, Sha256};

use super::offer::{Gpu, Health, Offer, Withheld};
use super::{counters, device, name, order};
use crate::base::claim::DRIVER;
use crate::base::cluster::MANAGED_BY;
use crate::base::role::Role;

/// `ResourceSliceMaxDevices` of resource.k8s.io/v1.
const MOST_DEVICES: usize = 128;
/// `ResourceSliceMaxDevicesWithAdvancedFeatures`: with counters or taints.
const MOST_ADVANCED: usize = 64;
/// `ResourceSliceMaxCounterSets`.
const MOST_SETS: usize = 8;

/// The node that a pool is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// With the node its slices go.
    pub uid: String,
}

/// Whether the cluster knows taints of devices (`DRADeviceTaints`, on from 1.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taints {
    Known,
    /// A GPU that is not well is left out instead.
    Unknown,
}

/// The published devices of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    /// In the order in which they are to be given out.
    pub devices: Vec<Device>,
    pub counters: Vec<CounterSet>,
    /// GPUs, by number, of which nothing is published.
    pub withheld: Vec<(u32, Withheld)>,
}

/// The pool for these GPUs of a node with this role.
pub fn pool(gpus: &[Gpu], role: &Role, taints: Taints) -> Pool {
    let mut pool = Pool::default();
    let mut places = Vec::new();
    for gpu in order::in_order(gpus) {
        if taints == Taints::Unknown && gpu.health != Health::Well {
            continue;
        }
        let Some(gpu_name) = name::gpu(&gpu.uuid) else {
            let why = Withheld::NoName(gpu.uuid.clone());
            pool.withheld.push((gpu.index, why));
            continue;
        };
        let carving = match &gpu.offer {
            Offer::Nothing(why) => {
                pool.withheld.push((gpu.index, why.clone()));
                continue;
            }
            Offer::Whole => {
                pool.devices.push(device::whole(gpu, &gpu_name));
                continue;
            }
            Offer::Instances(_) if !role.is_dynamic_mig() => {
                pool.withheld.push((gpu.index, Withheld::NoRole));
                continue;
            }
            Offer::Instances(carving) => carving,
            Offer::Parts(carving) => {
                let carving = carving.as_ref().filter(|_| role.is_dynamic_mig());
                pool.devices.push(device::fraction(gpu, &gpu_name, carving));
                let Some(carving) = carving else { continue };
                carving
            }
        };
        let has = counters::of(&carving.table);
        pool.counters.push(counters::set(gpu_name.clone(), has));
        for place in order::places(carving) {
            if let Some(profile) = carving.table.profile(place.profile) {
                let device = device::place(gpu, &gpu_name, carving, profile, place);
                places.push((order::by_size(profile), device));
            }
        }
    }
    // Stable: what is of one size stays in the order of its GPUs.
    places.sort_by_key(|(size, _)| *size);
    pool.devices
        .extend(places.into_iter().map(|(_, device)| device));
    pool.withheld.sort_by_key(|(index, _)| *index);
    pool
}

impl Pool {
    /// Its slices, all of one generation. None where there is nothing to give out.
    ///
    /// Their names are in the order of their devices, for the scheduler goes by name. Counters are in slices of their own, since
    /// a slice has devices or counters.
    pub fn slices(&self, node: &Node, generation: i64) -> Vec<ResourceSlice> {
        if self.devices.is_empty() {
            return Vec::new();
        }
        let devices = chunks(&self.devices).into_iter().map(|devices| Contents {
            devices: Some(devices.to_vec()),
            counters: None,
        });
        let counters = self.counters.chunks(MOST_SETS).map(|sets| Contents {
            devices: None,
            counters: Some(sets.to_vec()),
        });
        let contents: Vec<Contents> = devices.chain(counters).collect();
        let count = i64::try_from(contents.len()).expect("a node has few slices");
        let slice = |(at, contents): (usize, Contents)| ResourceSlice {
            metadata: ObjectMeta {
                name: Some(slice_name(&node.name, at)),
                labels: Some(managed()),
                owner_references: Some(vec![owner(node)]),
                ..ObjectMeta::default()
            },
            spec: ResourceSliceSpec {
                driver: DRIVER.to_owned(),
                node_name: Some(node.name.clone()),
                pool: ResourcePool {
                    name: node.name.clone(),
                    generation,
                    resource_slice_count: count,
                },
                devices: contents.devices,
                shared_counters: contents.counters,
                ..ResourceSliceSpec::default()
            },
        };
        contents.into_iter().enumerate().map(slice).collect()
    }
}

/// The label of what this program makes.
pub(super) fn managed() -> BTreeMap<String, String> {
    let (key, value) = MANAGED_BY;
    [(key.to_owned(), value.to_owned())].into()
}

struct Contents {
    devices: Option<Vec<Device>>,
    counters: Option<Vec<CounterSet>>,
}

/// As many to a slice as it may have, in order.
fn chunks(devices: &[Device]) -> Vec<&[Device]> {
    let mut chunks = Vec::new();
    let mut rest = devices;
    while !rest.is_empty() {
        let plain = rest
            .iter()
            .take(MOST_DEVICES)
            .take_while(|one| !advanced(one));
        let plain = plain.count();
        // Devices of the first kind stand together, so that hardly a slice is cut short.
        let most = match plain {
            plain if plain >= MOST_ADVANCED => plain,
            _ => MOST_ADVANCED,
        };
        let (chunk, after) = rest.split_at(most.min(rest.len()));
        chunks.push(chunk);
        rest = after;
    }
    chunks
}

fn advanced(device: &Device) -> bool {
    device.consumes_counters.is_some() || device.taints.is_some()
}

/// `DNS1123SubdomainMaxLength`, less what follows a node's name.
const LONGEST_NODE: usize = 253 - "-gpu.divvy.dev-000".len();

/// `NODE-gpu.divvy.dev-000`; what is too long ends in a digest of itself.
fn slice_name(node: &str, at: usize) -> String {
    let digest;
    let node = if node.len() <= LONGEST_NODE {
        node
    } else {
        let hash = Sha256::digest(node.as_bytes());
        let hex: String = hash[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let cut = LONGEST_NODE - hex.len() - 1;
        // A node's name is ASCII; a label of a name ends in a letter or a digit.
        let kept = node.get(..cut).unwrap_or_default();
        digest = format!("{}-{hex}", kept.trim_end_matches(['.', '-']));
        &digest
    };
    format!("{node}-{DRIVER}-{at:03}")
}

fn owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name.clone(),
        uid: node.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}
