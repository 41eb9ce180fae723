//! The stock scheduler's way with claims, as of Kubernetes 1.36.2: which devices a pod's claims are given.
//!
//! Written after what `structured/internal/incubating` of k8s.io/dynamic-resource-allocation 0.36.2 does (that is the
//! implementation that default feature gates choose), for claims such as ours: exact counts, alternatives, selectors, amounts of
//! a capacity, `distinctAttribute`. Pools go by driver and name, slices by name, devices as they are listed, and the first
//! solution of an exhaustive search is taken. Two of its faults are here on purpose, since pods meet them: within one search
//! counters of a shared device are not given back when it is tried in vain, nor those of a device that was refused
//! after they had been counted.
//!
//! Nodes are tried by name, where the real one weighs them; no pod is ever preempted, by either.

mod amount;
mod claim;
mod search;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{
    CounterSet, Device, DeviceClass, ResourceClaimSpec, ResourceSlice,
};

use claim::{constraints, requests};
use search::Search;

/// A device, by pool and name; there is one driver.
pub type Id = (String, String);
/// Amounts by name.
type Amounts = BTreeMap<String, u64>;
/// Counters by set and name.
type Counters = BTreeMap<String, BTreeMap<String, i64>>;

/// A device that a claim was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// `gpu-0`, or `gpu-0/part` of alternatives.
    pub request: String,
    pub pool: String,
    pub device: String,
    /// `consumedCapacity`: of devices that can be given to several.
    pub consumed: Option<Amounts>,
}

#[derive(Clone, Debug, Default)]
struct Claim {
    spec: ResourceClaimSpec,
    node: Option<String>,
    given: Vec<Given>,
    pods: BTreeSet<String>,
}

/// What the scheduler knows.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub slices: Vec<ResourceSlice>,
    pub classes: Vec<DeviceClass>,
    claims: BTreeMap<String, Claim>,
}

/// Why a search ended without an answer.
enum Stop {
    /// As with an expression that asks for what a device does not have: the pod waits, wherever there is room.
    Error(String),
    TooMany,
}

impl Cluster {
    pub fn new(slices: Vec<ResourceSlice>, classes: Vec<DeviceClass>) -> Self {
        Self {
            slices,
            classes,
            claims: BTreeMap::new(),
        }
    }

    /// A pod with a claim of its own. `None` while it is pending.
    ///
    /// # Errors
    /// The search ended in an error.
    pub fn pod(
        &mut self,
        pod: &str,
        spec: &ResourceClaimSpec,
    ) -> Result<Option<Vec<Given>>, String> {
        self.claims.insert(
            pod.to_owned(),
            Claim {
                spec: spec.clone(),
                ..Claim::default()
            },
        );
        self.bind(pod, &[pod])
    }

    /// A pod that asks for so many of a resource, which a class serves.
    pub fn plain(
        &mut self,
        pod: &str,
        resource: &str,
        count: i64,
    ) -> Result<Option<Vec<Given>>, String> {
        let serves =
            |class: &&DeviceClass| class.spec.extended_resource_name.as_deref() == Some(resource);
        let Some(class) = self.classes.iter().find(serves) else {
            return Ok(None);
        };
        let class = class.metadata.name.clone().unwrap();
        // The scheduler's name for it; an extended resource becomes an exact request.
        let request = serde_json::json!({
            "name": "container-0-request-0",
            "exactly": { "deviceClassName": class, "count": count, "allocationMode": "ExactCount" },
        });
        let spec = serde_json::json!({ "devices": { "requests": [request] } });
        self.pod(pod, &serde_json::from_value(spec).unwrap())
    }

    /// A claim that pods name.
    pub fn claim(&mut self, name: &str, spec: &ResourceClaimSpec) {
        let claim = Claim {
            spec: spec.clone(),
            ..Claim::default()
        };
        self.claims.insert(name.to_owned(), claim);
    }

    /// A pod that names claims: those that nobody has yet are given out, all of them on one node. A pod that cannot be placed is
    /// as if it had never been, until it is asked again.
    pub fn bind(&mut self, pod: &str, names: &[&str]) -> Result<Option<Vec<Given>>, String> {
        let open: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| self.claims[*name].node.is_none())
            .collect();
        let given = names
            .iter()
            .filter_map(|name| self.claims[*name].node.clone());
        let nodes: BTreeSet<String> = match given.into_iter().next() {
            Some(node) => [node].into(),
            None => self
                .slices
                .iter()
                .filter_map(|s| s.spec.node_name.clone())
                .collect(),
        };
        for node in nodes {
            let specs: Vec<&ResourceClaimSpec> =
                open.iter().map(|name| &self.claims[*name].spec).collect();
            let Some(found) = self.allocate(&node, &specs)? else {
                continue;
            };
            for (name, given) in open.iter().zip(found) {
                let claim = self.claims.get_mut(*name).unwrap();
                claim.node = Some(node.clone());
                claim.given = given;
            }
            let mut all = Vec::new();
            for name in names {
                let claim = self.claims.get_mut(*name).unwrap();
                claim.pods.insert(pod.to_owned());
                all.extend(claim.given.clone());
            }
            return Ok(Some(all));
        }
        Ok(None)
    }

    /// The pod is gone; claims that nobody names any more are free.
    pub fn gone(&mut self, pod: &str) {
        for claim in self.claims.values_mut() {
            if claim.pods.remove(pod) && claim.pods.is_empty() {
                claim.node = None;
                claim.given.clear();
            }
        }
        self.claims.remove(pod);
    }

    /// Everything that is given out.
    pub fn given(&self) -> impl Iterator<Item = &Given> {
        self.claims.values().flat_map(|claim| &claim.given)
    }

    fn allocate(
        &self,
        node: &str,
        claims: &[&ResourceClaimSpec],
    ) -> Result<Option<Vec<Vec<Given>>>, String> {
        let pools = self.pools(node);
        let mut search = Search {
            cluster: self,
            pools: &pools,
            claims: claims.iter().map(|spec| requests(spec)).collect(),
            constraints: claims.iter().map(|spec| constraints(spec)).collect(),
            taken: self
                .given()
                .filter(|given| given.consumed.is_none())
                .map(|given| (given.pool.clone(), given.device.clone()))
                .collect(),
            shared: BTreeMap::new(),
            counted: BTreeMap::new(),
            result: vec![Vec::new(); claims.len()],
        };
        for given in self.given() {
            if let Some(consumed) = &given.consumed {
                search.consume((given.pool.clone(), given.device.clone()), consumed);
            }
        }
        match search.next(0, 0, None, 0, (0, 0)) {
            Ok(true) => Ok(Some(search.result)),
            Ok(false) | Err(Stop::TooMany) => Ok(None),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    /// The pools of a node that are complete and make sense, by name.
    fn pools(&self, node: &str) -> Vec<Pool<'_>> {
        let mut newest: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in &self.slices {
            if slice.spec.node_name.as_deref() != Some(node) {
                continue;
            }
            let slices = newest.entry(&slice.spec.pool.name).or_default();
            let generation = slices.first().map(|one| one.spec.pool.generation);
            match generation.cmp(&Some(slice.spec.pool.generation)) {
                std::cmp::Ordering::Greater => {}
                std::cmp::Ordering::Equal => slices.push(slice),
                std::cmp::Ordering::Less => *slices = vec![slice],
            }
        }
        let pools = newest.into_iter().filter_map(|(name, mut slices)| {
            let count = usize::try_from(slices[0].spec.pool.resource_slice_count).unwrap();
            if slices.len() != count {
                return None;
            }
            slices.sort_by_key(|slice| slice.metadata.name.clone());
            let devices = slices.iter().flat_map(|slice| {
                let devices = slice.spec.devices.iter().flatten();
                devices.map(|device| (slice.spec.driver.as_str(), device))
            });
            let sets = slices
                .iter()
                .flat_map(|s| s.spec.shared_counters.iter().flatten());
            let pool = Pool {
                name: name.to_owned(),
                devices: devices.collect(),
                sets: sets.map(|set| (set.name.as_str(), set)).collect(),
            };
            pool.is_valid().then_some(pool)
        });
        pools.collect()
    }
}

struct Pool<'a> {
    name: String,
    devices: Vec<(&'a str, &'a Device)>,
    sets: BTreeMap<&'a str, &'a CounterSet>,
}

impl Pool<'_> {
    /// Each name once, and every counter that is taken is there.
    fn is_valid(&self) -> bool {
        let names: BTreeSet<&str> = self.devices.iter().map(|(_, d)| d.name.as_str()).collect();
        let counted = |(_, device): &(&str, &Device)| {
            let mut consumptions = device.consumes_counters.iter().flatten();
            consumptions.all(|consumption| {
                let set = self.sets.get(consumption.counter_set.as_str());
                let mut counters = consumption.counters.keys();
                set.is_some_and(|set| counters.all(|name| set.counters.contains_key(name)))
            })
        };
        names.len() == self.devices.len() && self.devices.iter().all(counted)
    }
}
