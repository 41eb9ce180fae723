//! The cluster as the watches show it, as the nodes and free amounts that a policy takes.
//!
//! Only nodes that changed since the last decision are read again. A node that comes, goes, or gets other GPUs makes the
//! whole cluster anew, and with it the scores that policies keep.

mod nodes;
mod request;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use divvy_packing::Cluster;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::ResourceExt as _;

use super::asked::Asked;
use super::assumed::{Assumed, Confirmed};
use super::gpus;
use super::pod::{Key, PodFacts, Requests, allocatable};
use crate::base::claim::FRACTION_CLASS;
use crate::base::slices::stripped;
use crate::controller::capacity::ClaimFacts;

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

/// A claim. One of another driver is known, and has nothing to place.
struct KnownClaim {
    /// `None` for a claim of another driver.
    facts: Option<ClaimFacts>,
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
    claims: BTreeMap<Key, KnownClaim>,
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
            .insert(name, stripped(slice));
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
        let facts = ClaimFacts::of(&claim);
        let held = facts.iter().flat_map(|facts| &facts.devices);
        let pools: BTreeSet<String> = held.map(|held| held.pool.clone()).collect();
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
        let known = KnownClaim {
            facts,
            asked: Asked::of(&claim),
            pools,
        };
        self.claims.insert(key, known);
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

    fn note(&mut self, node: String) {
        self.changed.insert(node);
    }

    pub fn note_all(&mut self, nodes: impl IntoIterator<Item = String>) {
        self.changed.extend(nodes);
    }
}
