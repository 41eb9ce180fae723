//! Executable graphs as objects: the plan of a graph, the memory it needs and its last launch.

use crate::engine::objects::graph::Graph;
use crate::engine::objects::graph::node::Operation;
use crate::engine::objects::graph::plan::Plan;
use crate::engine::objects::graph::user::References;
use crate::engine::objects::handles::Handle;
use std::collections::BTreeMap;

pub struct Exec {
    pub flags: u64,
    /// The graph it was made from, which may be gone.
    pub source: Handle<Graph>,
    pub plan: Plan,
    /// Bytes it needs of each GPU at most.
    pub peak: BTreeMap<usize, u64>,
    /// The same once they have been taken for it, until a trim.
    pub bound: BTreeMap<usize, u64>,
    /// GPU and ticket of its last launch.
    pub last: Option<(usize, u64)>,
    /// The stream of its last launch: what is launched into others at the same time does not share its memory.
    pub stream: Option<usize>,
    /// User objects that it keeps.
    pub users: References,
}

/// Addresses of the plan's allocation nodes.
pub fn allocations(plan: &Plan) -> Vec<u64> {
    let mut addresses = Vec::new();
    plan.visit(&mut |step| {
        if let Operation::Allocate(allocate) = &*step.operation {
            addresses.push(allocate.address());
        }
    });
    addresses
}
