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

use std::collections::{BTreeMap, BTreeSet};

use divvy_k8s::slices::bytes;
use k8s_openapi::api::resource::v1::{
    CapacityRequirements, CounterSet, Device, DeviceCapacity, DeviceClass, DeviceConstraint,
    DeviceSelector, DeviceToleration, ResourceClaimSpec, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::cel;

/// `AllocationResultsMaxSize` of resource.k8s.io/v1.
const MOST_RESULTS: usize = 32;

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

/// A request, or each of its alternatives.
struct Request {
    name: String,
    alternatives: Option<Vec<Exact>>,
    exactly: Option<Exact>,
}

struct Exact {
    /// Of an alternative.
    name: Option<String>,
    class: String,
    count: usize,
    selectors: Vec<DeviceSelector>,
    capacity: Option<CapacityRequirements>,
    tolerations: Vec<DeviceToleration>,
}

fn requests(spec: &ResourceClaimSpec) -> Vec<Request> {
    let requests = spec
        .devices
        .iter()
        .flat_map(|devices| devices.requests.iter().flatten());
    let counted = |mode: &Option<String>, count: Option<i64>| {
        assert!(
            mode.as_deref().is_none_or(|mode| mode == "ExactCount"),
            "the model knows no {mode:?}"
        );
        usize::try_from(count.unwrap_or(1)).unwrap()
    };
    requests
        .map(|request| Request {
            name: request.name.clone(),
            exactly: request.exactly.as_ref().map(|exact| Exact {
                name: None,
                class: exact.device_class_name.clone(),
                count: counted(&exact.allocation_mode, exact.count),
                selectors: exact.selectors.clone().unwrap_or_default(),
                capacity: exact.capacity.clone(),
                tolerations: exact.tolerations.clone().unwrap_or_default(),
            }),
            alternatives: request.first_available.as_ref().map(|all| {
                let one = all.iter().map(|one| Exact {
                    name: Some(one.name.clone()),
                    class: one.device_class_name.clone(),
                    count: counted(&one.allocation_mode, one.count),
                    selectors: one.selectors.clone().unwrap_or_default(),
                    capacity: one.capacity.clone(),
                    tolerations: one.tolerations.clone().unwrap_or_default(),
                });
                one.collect()
            }),
        })
        .collect()
}

/// `distinctAttribute`, and what has it so far: of each request only the last device counts, and of one whose last device was
/// taken back none does (`constraint.go`).
struct Distinct {
    attribute: String,
    requests: Vec<String>,
    seen: BTreeMap<String, String>,
    devices: usize,
}

impl Distinct {
    fn is_for(&self, base: &str, named: &str) -> bool {
        let mut of = self.requests.iter();
        self.requests.is_empty() || of.any(|request| request == base || request == named)
    }
}

fn constraints(spec: &ResourceClaimSpec) -> Vec<Distinct> {
    let all = spec
        .devices
        .iter()
        .flat_map(|devices| devices.constraints.iter().flatten());
    let distinct = |constraint: &DeviceConstraint| Distinct {
        attribute: constraint
            .distinct_attribute
            .clone()
            .expect("the model knows no other constraint"),
        requests: constraint.requests.clone().unwrap_or_default(),
        seen: BTreeMap::new(),
        devices: 0,
    };
    let all: Vec<Distinct> = all.map(distinct).collect();
    assert!(all.len() < 2, "the model knows one constraint of a claim");
    all
}

/// One search for the devices of a pod's claims on one node.
struct Search<'a> {
    cluster: &'a Cluster,
    pools: &'a [Pool<'a>],
    claims: Vec<Vec<Request>>,
    constraints: Vec<Vec<Distinct>>,
    /// Devices that only one has.
    taken: BTreeSet<Id>,
    /// Amounts of devices that several have.
    shared: BTreeMap<Id, Amounts>,
    /// Counters that this search has taken, by pool. Those of earlier ones are known from what is given.
    counted: BTreeMap<String, Counters>,
    result: Vec<Vec<Given>>,
}

impl Search<'_> {
    /// The next device of the request, and then all that follows. `from` is the pool and the device to begin with.
    fn next(
        &mut self,
        claim: usize,
        request: usize,
        alternative: Option<usize>,
        device: usize,
        from: (usize, usize),
    ) -> Result<bool, Stop> {
        if claim >= self.claims.len() {
            return Ok(true);
        }
        if request >= self.claims[claim].len() {
            return match self.next(claim + 1, 0, None, 0, (0, 0)) {
                Err(Stop::TooMany) => Ok(false),
                other => other,
            };
        }
        if alternative.is_none() {
            let count = self.claims[claim][request]
                .alternatives
                .as_ref()
                .map(Vec::len);
            if let Some(count) = count {
                let mut too_many = true;
                for at in 0..count {
                    match self.next(claim, request, Some(at), 0, (0, 0)) {
                        Err(Stop::TooMany) => continue,
                        Ok(true) => return Ok(true),
                        Ok(false) => too_many = false,
                        Err(error) => return Err(error),
                    }
                }
                return if too_many {
                    Err(Stop::TooMany)
                } else {
                    Ok(false)
                };
            }
        }
        let exact = self.exact(claim, request, alternative);
        let count = exact.count;
        if device >= count {
            return self.next(claim, request + 1, None, 0, (0, 0));
        }
        if self.result[claim].len() + count - device > MOST_RESULTS {
            return Err(Stop::TooMany);
        }
        for pool in from.0..self.pools.len() {
            let start = if pool == from.0 { from.1 } else { 0 };
            for at in start..self.pools[pool].devices.len() {
                let place = (claim, request, alternative);
                if !self.is_candidate(place, pool, at)? {
                    continue;
                }
                let Some(undo) = self.give(place, pool, at) else {
                    continue;
                };
                let done = self.next(claim, request, alternative, device + 1, (pool, at + 1));
                if let Ok(true) = done {
                    return Ok(true);
                }
                self.take_back(claim, pool, at, undo);
                done?;
            }
        }
        Ok(false)
    }

    fn exact(&self, claim: usize, request: usize, alternative: Option<usize>) -> &Exact {
        let request = &self.claims[claim][request];
        match alternative {
            Some(at) => &request.alternatives.as_ref().unwrap()[at],
            None => request
                .exactly
                .as_ref()
                .expect("the model knows exact requests"),
        }
    }

    /// Free, selected, and with room for the amounts.
    fn is_candidate(
        &self,
        (claim, request, alternative): (usize, usize, Option<usize>),
        pool: usize,
        at: usize,
    ) -> Result<bool, Stop> {
        let (driver, device) = self.pools[pool].devices[at];
        let id = (self.pools[pool].name.clone(), device.name.clone());
        if self.taken.contains(&id) {
            return Ok(false);
        }
        let exact = self.exact(claim, request, alternative);
        let class = self
            .cluster
            .classes
            .iter()
            .find(|class| class.metadata.name.as_deref() == Some(&exact.class));
        let class = class.ok_or_else(|| Stop::Error(format!("no class {}", exact.class)))?;
        let of_class = class.spec.selectors.iter().flatten();
        for selector in of_class.chain(&exact.selectors) {
            let expression = &selector.cel.as_ref().expect("CEL").expression;
            if !cel::selects(expression, driver, device).map_err(Stop::Error)? {
                return Ok(false);
            }
        }
        Ok(self.has_room(&id, device, exact))
    }

    /// Whether what is asked of the device's capacities is there, over and above what others have.
    fn has_room(&self, id: &Id, device: &Device, exact: &Exact) -> bool {
        let has = device.capacity.clone().unwrap_or_default();
        let asked = asked(exact);
        if asked.keys().any(|name| !has.contains_key(name)) {
            return false;
        }
        has.iter().all(|(name, capacity)| {
            let consumed = consumed(asked.get(name).copied(), capacity);
            let others = self.shared.get(id).and_then(|all| all.get(name));
            !violates(consumed, capacity)
                && consumed + others.copied().unwrap_or(0) <= amount(&capacity.value)
        })
    }

    /// Gives the device, if its counters are there, nothing keeps it away and no constraint speaks against it.
    fn give(
        &mut self,
        (claim, request, alternative): (usize, usize, Option<usize>),
        pool: usize,
        at: usize,
    ) -> Option<Given> {
        let (driver, device) = self.pools[pool].devices[at];
        let id = (self.pools[pool].name.clone(), device.name.clone());
        let is_shared = device.allow_multiple_allocations == Some(true);
        let is_counted = is_shared && self.shared.contains_key(&id);
        if !is_counted && !self.count(pool, device) {
            return None;
        }
        let exact = self.exact(claim, request, alternative);
        let kept_away = device.taints.iter().flatten().any(|taint| {
            let known = ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str());
            let tolerated = exact.tolerations.iter().any(|toleration| {
                let key = toleration.key.as_ref().is_none_or(|key| *key == taint.key);
                let effect = toleration.effect.as_ref();
                key && effect.is_none_or(|effect| *effect == taint.effect)
            });
            known && !tolerated
        });
        if kept_away {
            return None;
        }
        let base = self.claims[claim][request].name.clone();
        let named = match &exact.name {
            Some(name) => format!("{base}/{name}"),
            None => base.clone(),
        };
        let consumed = is_shared.then(|| {
            let asked = asked(exact);
            let has = device.capacity.iter().flatten();
            has.map(|(name, capacity)| (name.clone(), consumed(asked.get(name).copied(), capacity)))
                .collect::<Amounts>()
        });
        for constraint in &mut self.constraints[claim] {
            if !constraint.is_for(&base, &named) {
                continue;
            }
            let value = attribute(driver, device, &constraint.attribute)?;
            let is_new = constraint.seen.values().all(|seen| *seen != value);
            if constraint.devices > 0 && !is_new {
                return None;
            }
            constraint.seen.insert(base.clone(), value);
            constraint.devices += 1;
        }
        match &consumed {
            Some(consumed) => self.consume(id.clone(), consumed),
            None => {
                self.taken.insert(id.clone());
            }
        }
        let given = Given {
            request: named,
            pool: id.0,
            device: id.1,
            consumed,
        };
        self.result[claim].push(given.clone());
        Some(given)
    }

    fn take_back(&mut self, claim: usize, pool: usize, at: usize, given: Given) {
        let (_, device) = self.pools[pool].devices[at];
        self.result[claim].pop();
        let base = given.request.split('/').next().unwrap_or_default();
        for constraint in &mut self.constraints[claim] {
            if constraint.is_for(base, &given.request) {
                constraint.seen.remove(base);
                constraint.devices -= 1;
            }
        }
        let id = (given.pool, given.device);
        match given.consumed {
            Some(consumed) => {
                let amounts = self.shared.get_mut(&id).expect("it was consumed");
                for (name, amount) in consumed {
                    *amounts.get_mut(&name).unwrap() -= amount;
                }
                if amounts.values().all(|amount| *amount == 0) {
                    self.shared.remove(&id);
                }
                // Its counters stay counted to the end of this search.
            }
            None => {
                self.taken.remove(&id);
                self.uncount(pool, device);
            }
        }
    }

    fn consume(&mut self, id: Id, amounts: &Amounts) {
        let all = self.shared.entry(id).or_default();
        for (name, amount) in amounts {
            *all.entry(name.clone()).or_default() += amount;
        }
    }

    /// Counts what the device takes, unless that is more than there is.
    fn count(&mut self, pool: usize, device: &Device) -> bool {
        if device.consumes_counters.is_none() {
            return true;
        }
        let counted = self
            .counted
            .entry(self.pools[pool].name.clone())
            .or_default();
        add(counted, device, 1);
        let mut available: Counters = self.pools[pool]
            .sets
            .iter()
            .map(|(name, set)| {
                let counters = set.counters.iter();
                let counted = counters.map(|(name, counter)| {
                    (name.clone(), i64::try_from(amount(&counter.value)).unwrap())
                });
                ((*name).to_owned(), counted.collect())
            })
            .collect();
        let name = &self.pools[pool].name;
        let earlier: BTreeSet<&str> = self
            .cluster
            .given()
            .filter(|given| given.pool == *name)
            .map(|given| given.device.as_str())
            .collect();
        for (_, device) in &self.pools[pool].devices {
            // Once, however many have a part of it.
            if earlier.contains(device.name.as_str()) {
                add(&mut available, device, -1);
            }
        }
        let counted = &self.counted[name];
        let is_there = available.iter().all(|(set, counters)| {
            let taken = counted.get(set);
            counters.iter().all(|(name, available)| {
                let taken = taken.and_then(|taken| taken.get(name));
                *available >= taken.copied().unwrap_or(0)
            })
        });
        if !is_there {
            self.uncount(pool, device);
        }
        is_there
    }

    fn uncount(&mut self, pool: usize, device: &Device) {
        let counted = self
            .counted
            .entry(self.pools[pool].name.clone())
            .or_default();
        add(counted, device, -1);
    }
}

/// So many times what the device takes.
fn add(counters: &mut Counters, device: &Device, times: i64) {
    for consumption in device.consumes_counters.iter().flatten() {
        let set = counters.entry(consumption.counter_set.clone()).or_default();
        for (name, counter) in &consumption.counters {
            let taken = i64::try_from(amount(&counter.value)).unwrap();
            *set.entry(name.clone()).or_default() += times * taken;
        }
    }
}

fn asked(exact: &Exact) -> Amounts {
    let requests = exact
        .capacity
        .iter()
        .flat_map(|all| all.requests.iter().flatten());
    requests
        .map(|(name, quantity)| (name.clone(), amount(quantity)))
        .collect()
}

/// What a request takes of a capacity: what it asks, rounded up as the device's policy says.
fn consumed(asked: Option<u64>, capacity: &DeviceCapacity) -> u64 {
    let policy = capacity.request_policy.as_ref();
    let Some(asked) = asked else {
        let default = policy.and_then(|policy| policy.default.as_ref());
        return amount(default.unwrap_or(&capacity.value));
    };
    let Some(range) = policy.and_then(|policy| policy.valid_range.as_ref()) else {
        return asked;
    };
    let min = amount(&range.min);
    match &range.step {
        _ if asked < min => min,
        None => asked,
        Some(step) => min + (asked - min).next_multiple_of(amount(step)),
    }
}

/// Whether the device's policy forbids it.
fn violates(consumed: u64, capacity: &DeviceCapacity) -> bool {
    let policy = capacity.request_policy.as_ref();
    let range = policy.and_then(|policy| policy.valid_range.as_ref());
    range.is_some_and(|range| {
        let most = range.max.as_ref().map(amount);
        let step = range.step.as_ref().map(amount);
        let default = policy
            .and_then(|policy| policy.default.as_ref())
            .map(amount);
        default != Some(consumed)
            && (most.is_some_and(|most| consumed > most)
                || step.is_some_and(|step| (consumed - amount(&range.min)) % step != 0))
    })
}

fn attribute(driver: &str, device: &Device, name: &str) -> Option<String> {
    let own = name
        .strip_prefix(driver)
        .and_then(|rest| rest.strip_prefix('/'));
    let attributes = device.attributes.as_ref()?;
    let found = attributes.get(name).or_else(|| attributes.get(own?))?;
    found.string.clone()
}

fn amount(quantity: &Quantity) -> u64 {
    bytes(quantity).expect("a whole number").get()
}
