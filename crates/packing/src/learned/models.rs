//! Names of GPU models: a table that was trained with one numbering of the models serves a cluster with another.

use super::Learned;
use super::scarce::Scarce;
use super::table::Table;
use crate::node::ModelSet;

impl Learned {
    /// The policy with names for its models, by index. Names beyond the trained models are dropped.
    #[must_use]
    pub fn named(mut self, models: &[String]) -> Self {
        self.models = models.iter().take(self.table.models).cloned().collect();
        self
    }

    /// The names of the models, by index; empty where none were given.
    pub fn models(&self) -> &[String] {
        &self.models
    }

    /// The policy for a cluster whose models have these names, by index. A model that the training did not see has the
    /// mean values over all models. Only [`ModelSet::MOST`] names count.
    #[must_use]
    pub fn renumbered(&self, models: &[String]) -> Self {
        let models = &models[..models.len().min(ModelSet::MOST)];
        let old_of = |name: &String| self.models.iter().position(|old| old == name);
        let row = self.table.row();
        let rows = models
            .iter()
            .map(|name| old_of(name).unwrap_or(self.table.models));
        let rows = rows.chain([self.table.models]);
        let values = rows.flat_map(|old| &self.table.values[old * row..(old + 1) * row]);
        let table = Table {
            models: models.len(),
            two_axes: self.table.two_axes,
            values: values.copied().collect(),
        };
        let scarce = self.scarce.iter().filter_map(|scarce| {
            let mut shape = scarce.shape;
            if shape.models.is_bound() {
                let new = (0..models.len()).filter(|new| {
                    old_of(&models[*new]).is_some_and(|old| shape.models.accepts(old))
                });
                shape.models = new.fold(ModelSet::ANY, ModelSet::with);
                // No node has one of these models, so there is no room to keep.
                shape.models.is_bound().then_some(())?;
            }
            Some(Scarce {
                shape,
                ..scarce.clone()
            })
        });
        Self {
            scarce: scarce.collect(),
            models: models.to_vec(),
            table,
            scores: Default::default(),
            ..*self
        }
    }
}
