//! What a pod asks for, as a shape that a policy places.

use std::collections::BTreeSet;

use divvy_packing::{ModelSet, Shape};

use super::{NoShape, View};
use crate::carrier::node_affinity;
use crate::extender::asked::{Amount, Asked};
use crate::extender::pod::PodFacts;

impl View {
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
        let count = self.models.len().min(ModelSet::MOST);
        let mut accepted = BTreeSet::new();
        for node in self.cluster.nodes() {
            let spec = &node.spec;
            let size = spec.gpu_memory.unwrap_or_default();
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
            // Most pods accept every model, and a few nodes show that.
            if accepted.len() == count {
                return ModelSet::ANY;
            }
        }
        accepted.into_iter().fold(ModelSet::ANY, ModelSet::with)
    }
}
