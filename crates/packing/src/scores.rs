//! Scores of nodes, kept for each shape and refreshed where a node has changed.

use std::collections::BTreeMap;

use super::node::{Cluster, Node, Shape};

/// Scores that are kept at once. A further shape empties the store. As many as a mix keeps apart, so that a training
/// never empties it.
const MOST_SHAPES: usize = 1024;

/// The scores of one cluster's nodes, by shape.
#[derive(Clone, Debug)]
pub struct Scores<S> {
    by_shape: BTreeMap<Shape, Seen<S>>,
}

#[derive(Clone, Debug)]
struct Seen<S> {
    /// The cluster's change up to which the scores hold.
    change: u64,
    /// `None` where the shape does not fit.
    scores: Vec<Option<S>>,
}

impl<S> Default for Scores<S> {
    fn default() -> Self {
        Self {
            by_shape: BTreeMap::new(),
        }
    }
}

impl<S: Copy + PartialOrd> Scores<S> {
    /// The node with the least score, and that score. Equal scores go to the lowest index; `None` where the shape fits
    /// nowhere. `score` is asked for nodes that have changed since the last call for this shape.
    pub fn least(
        &mut self,
        cluster: &Cluster,
        shape: &Shape,
        score: impl FnMut(&Node) -> Option<S>,
    ) -> Option<(usize, S)> {
        let mut best: Option<(usize, S)> = None;
        for (node, score) in self.refreshed(cluster, shape, score).iter().enumerate() {
            if let Some(score) = *score
                && best.is_none_or(|(_, least)| score < least)
            {
                best = Some((node, score));
            }
        }
        best
    }

    /// The scores of all nodes, by index.
    pub fn refreshed(
        &mut self,
        cluster: &Cluster,
        shape: &Shape,
        mut score: impl FnMut(&Node) -> Option<S>,
    ) -> &[Option<S>] {
        let nodes = cluster.nodes();
        if self.by_shape.len() >= MOST_SHAPES && !self.by_shape.contains_key(shape) {
            self.by_shape.clear();
        }
        let seen = self.by_shape.entry(*shape).or_insert_with(|| Seen {
            change: 0,
            scores: Vec::new(),
        });
        if seen.scores.len() == nodes.len() && seen.change <= cluster.change() {
            for (kept, node) in seen.scores.iter_mut().zip(nodes) {
                if node.changed_since(seen.change) {
                    *kept = score(node);
                }
            }
        } else {
            seen.scores = nodes.iter().map(score).collect();
        }
        seen.change = cluster.change();
        &seen.scores
    }
}
