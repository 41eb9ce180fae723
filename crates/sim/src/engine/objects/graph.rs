//! Graphs as a program builds them: nodes, the edges between them, clones and child graphs.
//!
//! ```text
//! graph ─ its nodes, in the order they were added ─ each with what it does and what it depends on      (node)
//!   └─ instantiated: a plan of its own, which later changes of the graph do not reach                   (exec, plan)
//! capture fills a graph from a stream; memory is what allocation nodes take
//! ```

pub mod exec;
pub mod memory;
pub mod node;
pub mod plan;

use crate::engine::objects::Objects;
use crate::engine::objects::capture::Capture;
use crate::engine::objects::graph::exec::Exec;
use crate::engine::objects::graph::memory::GraphMemory;
use crate::engine::objects::graph::node::{Dependency, Edge, Node, Operation};
use crate::engine::objects::graph::plan::Plan;
use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::CUresult;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct Graph {
    pub nodes: Vec<Handle<Node>>,
    pub owner: Owner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Program,
    /// The node it is the child graph of.
    Node(Handle<Node>),
    /// The capture that makes it, until that has ended.
    Capture,
}

pub struct Graphs {
    graphs: Handles<Graph>,
    nodes: Handles<Node>,
    pub execs: Handles<Exec>,
    pub captures: Handles<Capture>,
    pub memory: GraphMemory,
}

impl Default for Graphs {
    fn default() -> Self {
        Graphs {
            graphs: Handles::new(0x71),
            nodes: Handles::new(0x72),
            execs: Handles::new(0x73),
            captures: Handles::new(0x75),
            memory: GraphMemory::default(),
        }
    }
}

/// What the API answers for a graph or node that is not there.
const GONE: CUresult = CUresult::INVALID_VALUE;

impl Graphs {
    pub fn create(&mut self, owner: Owner) -> Handle<Graph> {
        self.graphs.insert(Graph {
            nodes: Vec::new(),
            owner,
        })
    }

    pub fn get(&self, graph: Handle<Graph>) -> Done<&Graph> {
        self.graphs.get(graph).ok_or(GONE)
    }

    pub fn get_mut(&mut self, graph: Handle<Graph>) -> Done<&mut Graph> {
        self.graphs.get_mut(graph).ok_or(GONE)
    }

    pub fn node(&self, node: Handle<Node>) -> Done<&Node> {
        self.nodes.get(node).ok_or(GONE)
    }

    /// Nodes of a graph, which the graph's own list makes sure are there.
    pub fn nodes_of(
        &self,
        graph: Handle<Graph>,
    ) -> Done<impl Iterator<Item = (Handle<Node>, &Node)>> {
        let nodes = self.get(graph)?.nodes.iter();
        Ok(nodes.filter_map(|handle| Some((*handle, self.nodes.get(*handle)?))))
    }

    /// Adds a node. A child graph becomes the node's, and an allocation the graph's.
    pub fn add(
        &mut self,
        graph: Handle<Graph>,
        dependencies: Vec<Dependency>,
        operation: Operation,
    ) -> Done<Handle<Node>> {
        self.check_dependencies(graph, &dependencies, &operation)?;
        if let Operation::Free(address) = &operation {
            self.memory.may_be_freed_in(*address, graph)?;
        }
        let operation = Arc::new(operation);
        let node = self.nodes.insert(Node {
            graph,
            operation: operation.clone(),
            dependencies,
        });
        self.get_mut(graph)?.nodes.push(node);
        match &*operation {
            Operation::Child(child) => self.get_mut(*child)?.owner = Owner::Node(node),
            Operation::Allocate(allocate) => self.memory.will_allocate(allocate.address()),
            Operation::Free(address) => self.memory.will_free(*address, graph),
            _ => {}
        }
        Ok(node)
    }

    fn check_dependencies(
        &self,
        graph: Handle<Graph>,
        dependencies: &[Dependency],
        operation: &Operation,
    ) -> Done {
        self.get(graph)?;
        let kernel = |operation: &Operation| matches!(operation, Operation::Kernel(_));
        let mut seen = BTreeSet::new();
        for Dependency { on, edge } in dependencies {
            let before = self.node(*on)?;
            let fits = edge.is_ordinary() || kernel(operation) && kernel(&before.operation);
            if before.graph != graph || !fits || !seen.insert(on.value()) {
                return Err(CUresult::INVALID_VALUE);
            }
        }
        Ok(())
    }

    /// Whether the graph or a child of it allocates or frees.
    pub fn touches_allocations(&self, graph: Handle<Graph>) -> Done<bool> {
        for (_, node) in self.nodes_of(graph)? {
            let touches = match &*node.operation {
                Operation::Child(child) => self.touches_allocations(*child)?,
                other => other.touches_allocations(),
            };
            if touches {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `ends` and all nodes that come before one of them.
    pub fn ancestors(&self, ends: &[Handle<Node>]) -> Vec<Handle<Node>> {
        let mut seen = BTreeSet::new();
        let mut found = Vec::new();
        let mut open: Vec<Handle<Node>> = ends.to_vec();
        while let Some(at) = open.pop() {
            if let (true, Ok(node)) = (seen.insert(at.value()), self.node(at)) {
                open.extend(node.dependencies.iter().map(|dependency| dependency.on));
                found.push(at);
            }
        }
        found
    }

    /// A copy of the graph with copies of its child graphs. What allocates or frees cannot be copied.
    pub fn clone_graph(&mut self, graph: Handle<Graph>, owner: Owner) -> Done<Handle<Graph>> {
        if self.touches_allocations(graph)? {
            return Err(CUresult::INVALID_VALUE);
        }
        let plan = Plan::of(self, graph)?;
        Ok(self.copy(&plan, owner))
    }

    /// A graph that does what a plan does.
    pub fn copy(&mut self, plan: &Plan, owner: Owner) -> Handle<Graph> {
        let graph = self.create(owner);
        let mut copies = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            let node = self.nodes.insert(Node {
                graph,
                operation: step.operation.clone(),
                dependencies: Vec::new(),
            });
            if let Some(child) = &step.child {
                let child = self.copy(child, Owner::Node(node));
                if let Some(node) = self.nodes.get_mut(node) {
                    node.operation = Arc::new(Operation::Child(child));
                }
            }
            copies.push(node);
        }
        for (step, copy) in plan.steps.iter().zip(&copies) {
            let on = |(at, edge): &(usize, Edge)| Dependency {
                on: copies[*at],
                edge: *edge,
            };
            if let Some(copy) = self.nodes.get_mut(*copy) {
                copy.dependencies = step.dependencies.iter().map(on).collect();
            }
        }
        if let Some(made) = self.graphs.get_mut(graph) {
            made.nodes = copies;
        }
        graph
    }
}

impl Objects {
    fn end_node(&mut self, handle: Handle<Node>) {
        let Some(node) = self.graphs.nodes.remove(handle) else {
            return;
        };
        match &*node.operation {
            Operation::Child(child) => self.end_graph(*child),
            Operation::Allocate(allocate) => self.let_go(allocate.address()),
            Operation::Free(address) => self.graphs.memory.will_not_free(*address, node.graph),
            _ => {}
        }
    }

    /// Ends a graph the program made or got; child graphs and those still being captured belong to others.
    pub fn destroy_graph(&mut self, handle: Handle<Graph>) -> Done {
        let graph = self.graphs.get(handle)?;
        if graph.owner != Owner::Program {
            return Err(CUresult::INVALID_VALUE);
        }
        self.end_graph(handle);
        Ok(())
    }

    pub fn end_graph(&mut self, handle: Handle<Graph>) {
        let Some(graph) = self.graphs.graphs.remove(handle) else {
            return;
        };
        for node in graph.nodes {
            self.end_node(node);
        }
    }
}
