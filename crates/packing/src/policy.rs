//! Policies: which node a request goes to.

use super::node::{Choice, Cluster, Shape};

/// A way to choose a node, and GPUs of it.
///
/// A policy may keep scores of nodes from call to call, so each value serves one cluster: build a new one for another.
pub trait NodePolicy {
    /// The node and GPUs for this shape; `None` where it fits nowhere. Equal scores go to the node with the lowest
    /// index. A policy never refuses what fits, and changes nothing in the cluster: the caller takes the choice.
    fn choose(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Choice>;

    /// A request has arrived, and was placed or refused: for policies that learn from arrivals. The cluster is as the
    /// request has left it.
    fn arrived(&mut self, _cluster: &Cluster, _shape: &Shape) {}
}
