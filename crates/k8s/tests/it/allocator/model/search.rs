//! The search itself: candidates one after the other, forward and back.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::Device;

use super::amount::{amount, asked, attribute, consumed, violates};
use super::claim::{Distinct, Exact, Request};
use super::{Amounts, Cluster, Counters, Given, Id, Pool, Stop};
use crate::allocator::cel;

/// `AllocationResultsMaxSize` of resource.k8s.io/v1.
const MOST_RESULTS: usize = 32;

/// One search for the devices of a pod's claims on one node.
pub(super) struct Search<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) pools: &'a [Pool<'a>],
    pub(super) claims: Vec<Vec<Request>>,
    pub(super) constraints: Vec<Vec<Distinct>>,
    /// Devices that only one has.
    pub(super) taken: BTreeSet<Id>,
    /// Amounts of devices that several have.
    pub(super) shared: BTreeMap<Id, Amounts>,
    /// Counters that this search has taken, by pool. Those of earlier ones are known from what is given.
    pub(super) counted: BTreeMap<String, Counters>,
    pub(super) result: Vec<Vec<Given>>,
}

impl Search<'_> {
    /// The next device of the request, and then all that follows. `from` is the pool and the device to begin with.
    pub(super) fn next(
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

    pub(super) fn consume(&mut self, id: Id, amounts: &Amounts) {
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
pub(super) fn add(counters: &mut Counters, device: &Device, times: i64) {
    for consumption in device.consumes_counters.iter().flatten() {
        let set = counters.entry(consumption.counter_set.clone()).or_default();
        for (name, counter) in &consumption.counters {
            let taken = i64::try_from(amount(&counter.value)).unwrap();
            *set.entry(name.clone()).or_default() += times * taken;
        }
    }
}
