//! The cluster as the watches show it, as the nodes and free amounts that a policy takes.
//!
//! Only nodes that changed since the last decision are read again. A node that comes, goes, or gets other GPUs makes the
//! whole cluster anew, and with it the scores that policies keep.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use divvy_core::cluster::{Cluster, GpuFree, ModelSet, NodeSpec, Shape};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::ResourceExt as _;

use super::asked::{Amount, Asked};
use super::assumed::{Assumed, Confirmed};
use super::gpus::{self, NodeGpu};
use super::pod::{Key, PodFacts, Requests, allocatable};
use crate::claim::FRACTION_CLASS;
use crate::reservation::node_affinity;

/// Why a pod gets no node from the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShape {
    /// It wants no GPU of Divvy.
    NotOurs,
    /// Its claim is not there yet, or not yet visible.
    UnknownClaim,
    /// Its claim has devices already, so the node is settled.
    Allocated,
    /// It wants a MIG instance; the policy has no layouts.
    Instance,
}

/// A node, without its GPUs.
struct NodeFacts {
    allocatable: Requests,
    /// Its name and labels.
    node: Node,
}

struct ClaimFacts {
    object: ResourceClaim,
    asked: Asked,
    pools: BTreeSet<String>,
}

/// Objects of the cluster, and what follows from them.
#[derive(Default)]
pub struct View {
    nodes: BTreeMap<String, NodeFacts>,
    /// By pool and name: the scheduler goes through slices by name.
    slices: BTreeMap<String, BTreeMap<String, ResourceSlice>>,
    pods: BTreeMap<Key, PodFacts>,
    on_node: BTreeMap<String, BTreeSet<Key>>,
    claims: BTreeMap<Key, ClaimFacts>,
    in_pool: BTreeMap<String, BTreeSet<Key>>,
    /// Extended resources that stand for whole GPUs, by class.
    whole: BTreeMap<String, Vec<String>>,
    pub assumed: Assumed,
    models: Vec<String>,
    cluster: Cluster,
    index: HashMap<String, usize>,
    changed: BTreeSet<String>,
    /// Times that the cluster was made anew.
    epoch: u64,
}

impl View {
    pub fn put_node(&mut self, node: Node) {
        let name = node.name_any();
        let status = node.status.as_ref();
        let list = status.and_then(|status| status.allocatable.as_ref());
        let mut bare = Node::default();
        bare.metadata.name = node.metadata.name;
        bare.metadata.labels = node.metadata.labels;
        let facts = NodeFacts {
            allocatable: list.map(allocatable).unwrap_or_default(),
            node: bare,
        };
        self.nodes.insert(name.clone(), facts);
        self.note(name);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.note(name.to_owned());
    }

    pub fn put_slice(&mut self, slice: ResourceSlice) {
        let (pool, name) = (slice.spec.pool.name.clone(), slice.name_any());
        self.slices
            .entry(pool.clone())
            .or_default()
            .insert(name, slice);
        self.note(pool);
    }

    pub fn remove_slice(&mut self, name: &str) {
        let pools = self.slices.iter_mut();
        let had = pools.filter_map(|(pool, slices)| slices.remove(name).map(|_| pool.clone()));
        let had: Vec<String> = had.collect();
        self.slices.retain(|_, slices| !slices.is_empty());
        self.changed.extend(had);
    }

    pub fn put_class(&mut self, class: &DeviceClass) {
        let name = class.name_any();
        if name != FRACTION_CLASS {
            return;
        }
        let implicit = format!("deviceclass.resource.kubernetes.io/{name}");
        let extended = class.spec.extended_resource_name.clone();
        let names = std::iter::once(implicit).chain(extended).collect();
        self.whole.insert(name, names);
    }

    pub fn remove_class(&mut self, name: &str) {
        self.whole.remove(name);
    }

    /// A pod as it is now. Returns what a binding says of its assumption.
    pub fn put_pod(&mut self, pod: PodFacts) -> Option<Confirmed> {
        let key = pod.key.clone();
        // A pod of the same name may be another one.
        match self.pods.get(&key) {
            // A status of kubelet, say.
            Some(had) if *had == pod => return None,
            Some(had) if had.uid != pod.uid => self.remove_pod(&key),
            _ => {}
        }
        let confirmed = match &pod.node {
            None => None,
            Some(node) => {
                self.on_node
                    .entry(node.clone())
                    .or_default()
                    .insert(key.clone());
                let confirmed = self.assumed.bound(&pod.uid, node);
                self.note(node.clone());
                confirmed
            }
        };
        self.note_all(confirmed.iter().flat_map(|seen| seen.nodes.clone()));
        self.pods.insert(key, pod);
        confirmed
    }

    pub fn remove_pod(&mut self, key: &Key) {
        let Some(pod) = self.pods.remove(key) else {
            return;
        };
        let freed = self.assumed.forget(&pod.uid);
        self.note_all(freed);
        if let Some(node) = pod.node {
            if let Some(pods) = self.on_node.get_mut(&node) {
                pods.remove(key);
            }
            self.on_node.retain(|_, pods| !pods.is_empty());
            self.note(node);
        }
    }

    pub fn put_claim(&mut self, claim: ResourceClaim) {
        let key = (claim.namespace().unwrap_or_default(), claim.name_any());
        self.remove_claim(&key);
        let pools = gpus::pools(&claim);
        for pool in &pools {
            self.in_pool
                .entry(pool.clone())
                .or_default()
                .insert(key.clone());
            self.note(pool.clone());
        }
        if let Some(node) = pools.first() {
            for uid in gpus::consumers(&claim) {
                let seen = self.assumed.allocated(&uid, node);
                self.note_all(seen.into_iter().flat_map(|seen| seen.nodes));
            }
        }
        let asked = Asked::of(&claim);
        // A claim of another driver is known, and has nothing to place: its object is not kept.
        let is_ours = asked != Asked::default() || !pools.is_empty();
        let facts = ClaimFacts {
            object: if is_ours {
                claim
            } else {
                ResourceClaim::default()
            },
            asked,
            pools,
        };
        self.claims.insert(key, facts);
    }

    pub fn remove_claim(&mut self, key: &Key) {
        let Some(claim) = self.claims.remove(key) else {
            return;
        };
        for pool in claim.pools {
            if let Some(claims) = self.in_pool.get_mut(&pool) {
                claims.remove(key);
            }
            self.note(pool);
        }
        self.in_pool.retain(|_, claims| !claims.is_empty());
    }

    /// Pods that are not bound, for the history of requests.
    pub fn pods(&self) -> impl Iterator<Item = &PodFacts> {
        self.pods.values()
    }

    /// Whether a pod of this UID is there and waits for a node.
    pub fn is_waiting(&self, key: &Key, uid: &str) -> bool {
        let pod = self.pods.get(key);
        pod.is_some_and(|pod| pod.uid == uid && pod.node.is_none())
    }

    /// What a pod asks for, if it has no devices yet.
    ///
    /// # Errors
    /// The policy has nothing to choose for it.
    pub fn shape(&self, pod: &PodFacts) -> Result<Shape, NoShape> {
        match self.request(pod)? {
            (_, true) => Err(NoShape::Allocated),
            (shape, false) => Ok(shape),
        }
    }

    /// What a pod asks for, and whether it has its devices.
    ///
    /// # Errors
    /// It asks for no part of a GPU, or it is not known of what.
    pub fn request(&self, pod: &PodFacts) -> Result<(Shape, bool), NoShape> {
        let mut asked = Asked::default();
        let mut is_allocated = false;
        for key in &pod.claims {
            let claim = self.claims.get(key).ok_or(NoShape::UnknownClaim)?;
            asked.add(claim.asked.clone());
            is_allocated |= !claim.pools.is_empty();
        }
        let whole = self.whole.values().flatten();
        let whole: u64 = whole.filter_map(|name| pod.extended.get(name)).sum();
        if whole > 0 {
            asked.add(Asked::whole(whole));
        }
        let models = self.models_for(pod, &asked);
        match asked.shape(pod.requests, models) {
            _ if pod.claims_to_come => Err(NoShape::UnknownClaim),
            _ if asked.instances => Err(NoShape::Instance),
            None => Err(NoShape::NotOurs),
            Some(shape) => Ok((shape, is_allocated)),
        }
    }

    /// The models of GPU that a pod accepts, by sizes and by labels of nodes; any, where it accepts all.
    fn models_for(&self, pod: &PodFacts, asked: &Asked) -> ModelSet {
        // Alternatives for every size accept every GPU.
        let sizes = match asked.amount {
            Some(Amount::Share(_)) | None => &[][..],
            Some(_) => &asked.sizes,
        };
        if pod.selection.is_none() && sizes.is_empty() {
            return ModelSet::ANY;
        }
        let (mut all, mut accepted) = (BTreeSet::new(), BTreeSet::new());
        for node in self.cluster.nodes() {
            let spec = &node.spec;
            all.insert(spec.model);
            let size = spec.gpu_memory_mib;
            let is_sized = sizes.is_empty()
                || sizes
                    .iter()
                    .any(|(least, most)| (*least..=*most).contains(&size));
            if !is_sized || accepted.contains(&spec.model) {
                continue;
            }
            let facts = self.nodes.get(&spec.name);
            let is_selected = match (&pod.selection, facts) {
                (None, _) => true,
                (Some(selection), Some(facts)) => node_affinity::fits(selection, &facts.node),
                (Some(_), None) => false,
            };
            if is_selected {
                accepted.insert(spec.model);
            }
        }
        match accepted == all {
            true => ModelSet::ANY,
            false => accepted.into_iter().fold(ModelSet::ANY, ModelSet::with),
        }
    }

    /// The cluster with everything that is known now.
    pub fn cluster(&mut self, now: Instant) -> &Cluster {
        let old = self.assumed.expire(now);
        self.note_all(old);
        self.catch_up();
        &self.cluster
    }

    /// The cluster as it was when it was last asked for.
    pub fn last_cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Changes with each cluster that has other nodes, so that kept scores of the last one do not hold.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Names of the GPU models, in the order of their indices.
    pub fn models(&self) -> &[String] {
        &self.models
    }

    pub fn index_of(&self, node: &str) -> Option<usize> {
        self.index.get(node).copied()
    }

    /// Writes the changes since the last call.
    fn catch_up(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let is_other = |name: &String| {
            let known = self
                .index
                .get(name)
                .map(|at| &self.cluster.nodes()[*at].spec);
            match (known, self.spec(name)) {
                (None, None) => false,
                (Some(known), Some((spec, model))) => {
                    let same_model = self.models.get(known.model) == Some(&model);
                    !same_model
                        || NodeSpec {
                            model: known.model,
                            ..spec
                        } != *known
                }
                _ => true,
            }
        };
        if changed.iter().any(is_other) {
            self.rebuild();
            return;
        }
        for name in &changed {
            self.refresh(name);
        }
    }

    fn rebuild(&mut self) {
        let specs = self.slices.keys().filter_map(|name| self.spec(name));
        let specs: Vec<(NodeSpec, String)> = specs.collect();
        let models: BTreeSet<String> = specs.iter().map(|(_, model)| model.clone()).collect();
        self.models = models.into_iter().collect();
        let indexed = specs.into_iter().map(|(mut spec, model)| {
            let model = self.models.binary_search(&model).unwrap_or(0);
            spec.model = model.min(ModelSet::MOST - 1);
            spec
        });
        self.cluster = Cluster::new(indexed);
        let names = self
            .cluster
            .nodes()
            .iter()
            .map(|node| node.spec.name.clone());
        self.index = names.enumerate().map(|(at, name)| (name, at)).collect();
        self.epoch += 1;
        let names: Vec<String> = self.index.keys().cloned().collect();
        for name in &names {
            self.refresh(name);
        }
    }

    /// A node and its GPUs' model; `None` without GPUs that are shared or go whole.
    fn spec(&self, name: &str) -> Option<(NodeSpec, String)> {
        let facts = self.nodes.get(name)?;
        let slices = self.slices.get(name)?;
        let (model, memory_mib) = gpus::model(slices.values())?;
        let gpus = self.gpus(name).len();
        let spec = NodeSpec {
            name: name.to_owned(),
            cpu_milli: facts.allocatable.cpu_milli,
            memory_mib: facts.allocatable.memory_mib,
            gpus: u32::try_from(gpus).ok().filter(|gpus| *gpus > 0)?,
            model: 0,
            gpu_memory_mib: memory_mib,
        };
        Some((spec, model))
    }

    fn gpus(&self, name: &str) -> Vec<NodeGpu> {
        let slices = self.slices.get(name).into_iter().flat_map(BTreeMap::values);
        let claims = self.in_pool.get(name).into_iter().flatten();
        let claims = claims.filter_map(|key| self.claims.get(key));
        gpus::gpus(slices, claims.map(|claim| &claim.object))
    }

    fn refresh(&mut self, name: &str) {
        let (Some(index), Some(facts)) = (self.index_of(name), self.nodes.get(name)) else {
            return;
        };
        let assumed = self.assumed.on(name);
        let pods = self.on_node.get(name).into_iter().flatten();
        let bound = pods.filter_map(|key| Some(self.pods.get(key)?.requests));
        let coming = assumed.iter().map(|pod| pod.requests());
        let mut left = facts.allocatable;
        for taken in bound.chain(coming) {
            left.cpu_milli = left.cpu_milli.saturating_sub(taken.cpu_milli);
            left.memory_mib = left.memory_mib.saturating_sub(taken.memory_mib);
        }
        let mut gpus = self.gpus(name);
        let node = &self.cluster.nodes()[index];
        for pod in assumed.iter().filter(|pod| pod.has_gpus()) {
            if let Some(part) = node.part(&pod.shape) {
                gpus::take_first(&mut gpus, &pod.shape, part);
            }
        }
        let free: Vec<GpuFree> = gpus
            .iter()
            .map(|gpu| gpu.free(node.spec.gpu_memory_mib))
            .collect();
        self.cluster
            .set_free(index, left.cpu_milli, left.memory_mib, &free);
    }

    fn note(&mut self, node: String) {
        self.changed.insert(node);
    }

    pub fn note_all(&mut self, nodes: impl IntoIterator<Item = String>) {
        self.changed.extend(nodes);
    }
}
