//! Scores of nodes under a value table and prices: kept for each shape, refreshed where a node has changed.
//!
//! A score is the table's part plus the prices of the slots that the request takes away. Prices are never negative, so the
//! search for the least score computes them only where the table's part alone is below the least score so far.

use std::collections::BTreeMap;

use super::mix::MOST_KINDS;
use super::state::{State, Values};
use crate::node::{Cluster, Node, Shape};

/// Scores of one cluster's nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeScores {
    state: State,
    kinds: BTreeMap<Shape, Kind>,
    calls: u64,
}

/// The scores for one shape.
#[derive(Clone, Debug)]
struct Kind {
    /// The table's part of each node's score; infinite where the shape does not fit.
    table: Vec<f32>,
    /// The scores, or NaN where only the table's part is known.
    scores: Vec<f32>,
    /// Where in the log of changes the scores end.
    logged: usize,
    resets: u64,
    adopted: u64,
    last_call: u64,
    /// The node of the last call: with a score to beat, most others need no prices.
    last_node: usize,
}

impl NodeScores {
    /// The node with the least score, the lowest index where several are equal; `None` where the shape fits nowhere.
    pub(super) fn least(
        &mut self,
        values: Values<'_>,
        cluster: &Cluster,
        shape: &Shape,
    ) -> Option<usize> {
        let nodes = cluster.nodes();
        let (state, kind) = self.refreshed(values, cluster, shape);
        let mut best = None;
        let mut least = f32::INFINITY;
        for at in std::iter::once(kind.last_node).chain(0..nodes.len()) {
            let table = *kind.table.get(at)?;
            if table > least || table == f32::INFINITY {
                continue;
            }
            let score = kind.score(state, values, nodes, at, shape);
            if score < least || (score == least && best.is_some_and(|best| at < best)) {
                least = score;
                best = Some(at);
            }
        }
        kind.last_node = best.unwrap_or(kind.last_node);
        best
    }

    /// The scores of these nodes, in their order: infinite where the shape does not fit.
    pub(super) fn of(
        &mut self,
        values: Values<'_>,
        cluster: &Cluster,
        shape: &Shape,
        candidates: &[usize],
    ) -> Vec<f32> {
        let nodes = cluster.nodes();
        let (state, kind) = self.refreshed(values, cluster, shape);
        let scores = candidates.iter().map(|at| match nodes.get(*at) {
            Some(_) => kind.score(state, values, nodes, *at, shape),
            None => f32::INFINITY,
        });
        scores.collect()
    }

    /// The shape's scores, with the table's part known for every node.
    fn refreshed(
        &mut self,
        values: Values<'_>,
        cluster: &Cluster,
        shape: &Shape,
    ) -> (&mut State, &mut Kind) {
        self.state.observe(values, cluster);
        self.calls += 1;
        if !self.kinds.contains_key(shape) {
            self.evict();
        }
        let state = &mut self.state;
        let kind = self.kinds.entry(*shape).or_insert_with(|| Kind {
            table: Vec::new(),
            scores: Vec::new(),
            logged: 0,
            resets: 0,
            adopted: 0,
            last_call: 0,
            last_node: 0,
        });
        kind.last_call = self.calls;
        kind.refresh(state, values, cluster.nodes(), shape);
        (state, kind)
    }

    /// Makes room for another shape.
    fn evict(&mut self) {
        if self.kinds.len() >= MOST_KINDS {
            let oldest = self.kinds.iter().min_by_key(|(_, kind)| kind.last_call);
            if let Some(shape) = oldest.map(|(shape, _)| *shape) {
                self.kinds.remove(&shape);
            }
        }
    }
}

impl Kind {
    fn refresh(&mut self, state: &mut State, values: Values<'_>, nodes: &[Node], shape: &Shape) {
        let end = state.dropped + state.log.len();
        let follows = self.resets == state.resets
            && self.logged >= state.dropped
            && end - self.logged < nodes.len();
        if follows {
            if self.adopted != state.adopted {
                self.scores.fill(f32::NAN);
            }
            for entry in self.logged - state.dropped..state.log.len() {
                let at = state.log[entry] as usize;
                self.table[at] = state.table_part(values, &nodes[at], at, shape);
                self.scores[at] = f32::NAN;
            }
        } else {
            let parts = nodes.iter().enumerate();
            let parts = parts.map(|(at, node)| state.table_part(values, node, at, shape));
            self.table.clear();
            self.table.extend(parts);
            self.scores.clear();
            self.scores.resize(nodes.len(), f32::NAN);
        }
        self.logged = end;
        self.resets = state.resets;
        self.adopted = state.adopted;
        self.last_node = self.last_node.min(nodes.len().saturating_sub(1));
    }

    fn score(
        &mut self,
        state: &mut State,
        values: Values<'_>,
        nodes: &[Node],
        at: usize,
        shape: &Shape,
    ) -> f32 {
        if self.table[at] == f32::INFINITY {
            return f32::INFINITY;
        }
        if self.scores[at].is_nan() {
            self.scores[at] = self.table[at] + state.price_part(values, &nodes[at], at, shape);
        }
        self.scores[at]
    }
}
