//! The nodes with their free amounts, kept in step with the objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use divvy_packing::{Cluster, GpuFree, ModelSet, NodeSpec};

use super::View;
use crate::extender::gpus::{self, NodeGpu};

impl View {
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
        let (model, gpu_memory) = gpus::model(slices.values())?;
        let gpus = self.gpus(name).len();
        let spec = NodeSpec {
            name: name.to_owned(),
            cpu_milli: facts.allocatable.cpu_milli,
            memory: facts.allocatable.memory,
            gpus: u32::try_from(gpus).ok().filter(|gpus| *gpus > 0)?,
            model: 0,
            gpu_memory,
        };
        Some((spec, model))
    }

    fn gpus(&self, name: &str) -> Vec<NodeGpu> {
        let slices = self.slices.get(name).into_iter().flat_map(BTreeMap::values);
        let claims = self.in_pool.get(name).into_iter().flatten();
        let claims = claims.filter_map(|key| self.claims.get(key));
        gpus::gpus(slices, claims.filter_map(|claim| claim.facts.as_ref()))
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
            left.memory = left.memory.saturating_sub(taken.memory);
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
            .map(|gpu| gpu.free(node.spec.gpu_memory))
            .collect();
        self.cluster
            .set_free(index, left.cpu_milli, left.memory, &free);
    }
}
