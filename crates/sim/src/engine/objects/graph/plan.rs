//! The plan of an executable graph, apart from the graph it came from: its own copy of the operations, in an order in
//! which they can run.

use crate::engine::objects::graph::node::{Edge, Node, Operation};
use crate::engine::objects::graph::{Graph, Graphs};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::{CUdeviceptr, CUgraphExecUpdateResult as Verdict, CUresult};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps in the order their nodes were added.
#[derive(Default)]
pub struct Plan {
    pub steps: Vec<PlanStep>,
    /// Indices of the steps, each after those it depends on.
    order: Vec<usize>,
}

pub struct PlanStep {
    /// The node it was made of.
    pub node: Handle<Node>,
    pub operation: Arc<Operation>,
    /// The plan of a child graph.
    pub child: Option<Plan>,
    /// Indices of steps, with what the edges say.
    pub dependencies: Vec<(usize, Edge)>,
    pub is_enabled: bool,
}

/// Why a plan cannot be changed to what another graph says: the node of that graph, and for an edge the one it comes
/// from.
#[derive(Clone, Copy)]
pub struct Mismatch {
    pub verdict: Verdict,
    pub node: Option<Handle<Node>>,
    pub from: Option<Handle<Node>>,
}

impl Plan {
    /// The plan of a graph, or a node of a cycle.
    pub fn of(graphs: &Graphs, graph: Handle<Graph>) -> Done<Result<Plan, Handle<Node>>> {
        let order = match graphs.order(graph)? {
            Ok(order) => order,
            Err(node) => return Ok(Err(node)),
        };
        let places = graphs.get(graph)?.nodes.iter().zip(0..);
        let places: BTreeMap<usize, usize> = places.map(|(node, at)| (node.value(), at)).collect();
        let place = |node: &Handle<Node>| places.get(&node.value()).copied();
        let mut steps = Vec::with_capacity(order.len());
        for (handle, node) in graphs.nodes_of(graph)? {
            let child = match &*node.operation {
                Operation::Child(child) => match Plan::of(graphs, *child)? {
                    Ok(plan) => Some(plan),
                    Err(node) => return Ok(Err(node)),
                },
                _ => None,
            };
            let on = node.dependencies.iter();
            steps.push(PlanStep {
                node: handle,
                operation: node.operation.clone(),
                child,
                dependencies: on
                    .filter_map(|dependency| Some((place(&dependency.on)?, dependency.edge)))
                    .collect(),
                is_enabled: true,
            });
        }
        let order = order.iter().filter_map(place).collect();
        Ok(Ok(Plan { steps, order }))
    }

    /// Shows every step that does something, in an order in which they can run, those of child graphs in the place of
    /// their node.
    pub fn visit<'a>(&'a self, show: &mut impl FnMut(&'a PlanStep)) {
        for at in &self.order {
            let step = &self.steps[*at];
            match &step.child {
                _ if !step.is_enabled => {}
                Some(child) => child.visit(show),
                None => show(step),
            }
        }
    }

    /// Whether a launch ends with this address freed.
    pub fn frees(&self, address: CUdeviceptr) -> bool {
        let mut freed = false;
        self.visit(&mut |step| match &*step.operation {
            Operation::Allocate(allocate) if allocate.address() == address => freed = false,
            Operation::Free(other) if *other == address => freed = true,
            _ => {}
        });
        freed
    }

    /// The step made of a node, in this plan or a child's.
    pub fn step_of(&mut self, node: Handle<Node>) -> Option<&mut PlanStep> {
        self.steps.iter_mut().find_map(|step| {
            if step.node == node {
                return Some(step);
            }
            step.child.as_mut()?.step_of(node)
        })
    }

    /// Whether the plan can be changed to do what `new` does: nodes are compared in the order they were added.
    pub fn compare(&self, new: &Plan) -> Result<(), Mismatch> {
        let mismatch = |verdict, node: Option<&PlanStep>, from: Option<&PlanStep>| Mismatch {
            verdict,
            node: node.map(|step| step.node),
            from: from.map(|step| step.node),
        };
        if self.steps.len() != new.steps.len() {
            let verdict = Verdict::ERROR_TOPOLOGY_CHANGED;
            return Err(mismatch(verdict, None, None));
        }
        for (old, step) in self.steps.iter().zip(&new.steps) {
            if old.operation.kind() != step.operation.kind() {
                let verdict = Verdict::ERROR_NODE_TYPE_CHANGED;
                return Err(mismatch(verdict, Some(step), None));
            }
            if old.dependencies != step.dependencies {
                let both = old.dependencies.iter().zip(&step.dependencies);
                let differing = both.clone().find(|(old, new)| old != new);
                let same_count = old.dependencies.len() == step.dependencies.len();
                let from = differing
                    .filter(|_| same_count)
                    .map(|(_, (from, _))| &new.steps[*from]);
                let verdict = Verdict::ERROR_TOPOLOGY_CHANGED;
                return Err(mismatch(verdict, Some(step), from));
            }
            if !old.operation.may_become(&step.operation) {
                let verdict = match &*step.operation {
                    Operation::Kernel(_) => Verdict::ERROR_UNSUPPORTED_FUNCTION_CHANGE,
                    Operation::Allocate(_) | Operation::Free(_) => Verdict::ERROR_NOT_SUPPORTED,
                    _ => Verdict::ERROR_PARAMETERS_CHANGED,
                };
                return Err(mismatch(verdict, Some(step), None));
            }
            if let (Some(old), Some(new)) = (&old.child, &step.child) {
                old.compare(new)?;
            }
        }
        Ok(())
    }

    /// Takes over what a plan does that [`compare`](Self::compare) has found to fit. Steps stay those of the nodes they
    /// were made of.
    pub fn adopt(&mut self, new: Plan) {
        for (old, step) in self.steps.iter_mut().zip(new.steps) {
            old.operation = step.operation;
            if let (Some(old), Some(new)) = (&mut old.child, step.child) {
                old.adopt(new);
            }
        }
    }
}

impl PlanStep {
    /// Gives the step other parameters.
    pub fn change(&mut self, operation: Operation) -> Done {
        if !self.operation.may_become(&operation) {
            return Err(CUresult::INVALID_VALUE);
        }
        self.operation = Arc::new(operation);
        Ok(())
    }
}
