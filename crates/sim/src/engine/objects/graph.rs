//! Graphs as a program builds them: nodes, the edges between them, clones and child graphs.
//!
//! ```text
//! graph ─ its nodes, in the order they were added ─ each with what it does and what it depends on      (node)
//!   └─ instantiated: a plan of its own, which later changes of the graph do not reach                   (exec, plan)
//! capture fills a graph from a stream; memory is what allocation nodes take; graphs keep user objects (user)
//! ```

pub mod exec;
pub mod memory;
pub mod node;
pub mod plan;
pub mod user;

use crate::engine::objects::Objects;
use crate::engine::objects::capture::Capture;
use crate::engine::objects::graph::exec::Exec;
use crate::engine::objects::graph::memory::GraphMemory;
use crate::engine::objects::graph::node::{Dependency, Edge, Node, Operation};
use crate::engine::objects::graph::plan::Plan;
use crate::engine::objects::graph::user::{References, UserObject};
use crate::engine::objects::handles::{Handle, Handles};
use crate::engine::objects::result::Done;
use divvy_driver::sys::cuda::CUresult;
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct Graph {
    /// Number in the process.
    pub id: u32,
    pub nodes: Vec<Handle<Node>>,
    pub owner: Owner,
    /// A stream is being captured into it.
    pub filling: bool,
    /// The graph it is a clone of.
    original: Option<Handle<Graph>>,
    next_local_id: u32,
    pub users: References,
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
    pub users: Handles<UserObject>,
    pub captures: Handles<Capture>,
    pub memory: GraphMemory,
    next_id: u32,
}

impl Default for Graphs {
    fn default() -> Self {
        Graphs {
            graphs: Handles::new(0x71),
            nodes: Handles::new(0x72),
            execs: Handles::new(0x73),
            users: Handles::new(0x74),
            captures: Handles::new(0x75),
            memory: GraphMemory::default(),
            next_id: 0,
        }
    }
}

/// What the API answers for a graph or node that is not there.
const GONE: CUresult = CUresult::INVALID_VALUE;

impl Graphs {
    pub fn create(&mut self, owner: Owner) -> Handle<Graph> {
        self.next_id += 1;
        self.graphs.insert(Graph {
            id: self.next_id,
            nodes: Vec::new(),
            owner,
            filling: false,
            original: None,
            next_local_id: 0,
            users: References::default(),
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

    pub fn node_mut(&mut self, node: Handle<Node>) -> Done<&mut Node> {
        self.nodes.get_mut(node).ok_or(GONE)
    }

    /// Nodes of a graph, which the graph's own list makes sure are there.
    pub fn nodes_of(
        &self,
        graph: Handle<Graph>,
    ) -> Done<impl Iterator<Item = (Handle<Node>, &Node)>> {
        let nodes = self.get(graph)?.nodes.iter();
        Ok(nodes.filter_map(|handle| Some((*handle, self.nodes.get(*handle)?))))
    }

    /// `(from, edge)` for all edges to a node of the graph, in the order of its nodes.
    pub fn edges_of(&self, graph: Handle<Graph>) -> Done<Vec<(Handle<Node>, Dependency)>> {
        let nodes = self.nodes_of(graph)?;
        let edges = nodes.flat_map(|(to, node)| node.dependencies.iter().map(move |on| (to, *on)));
        Ok(edges.collect())
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
        let owner = self.get_mut(graph)?;
        let local_id = owner.next_local_id;
        owner.next_local_id += 1;
        let node = self.nodes.insert(Node {
            graph,
            local_id,
            operation: operation.clone(),
            dependencies,
            original: None,
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

    /// Adds edges, all or none.
    pub fn add_edges(
        &mut self,
        graph: Handle<Graph>,
        edges: &[(Handle<Node>, Dependency)],
    ) -> Done {
        for (at, (to, dependency)) in edges.iter().enumerate() {
            let node = self.node(*to)?;
            let known = node
                .dependencies
                .iter()
                .any(|other| other.on == dependency.on);
            let twice = edges[..at]
                .iter()
                .any(|(other, before)| (other, before.on) == (to, dependency.on));
            if known || twice || node.graph != graph || dependency.on == *to {
                return Err(CUresult::INVALID_VALUE);
            }
            self.check_dependencies(graph, &[*dependency], &node.operation)?;
        }
        for (to, dependency) in edges {
            self.node_mut(*to)?.dependencies.push(*dependency);
        }
        Ok(())
    }

    /// Removes edges that are there as described, all or none.
    pub fn remove_edges(
        &mut self,
        graph: Handle<Graph>,
        edges: &[(Handle<Node>, Dependency)],
    ) -> Done {
        if !edges.is_empty() && self.touches_allocations(graph)? {
            return Err(CUresult::INVALID_VALUE);
        }
        for (to, dependency) in edges {
            let node = self.node(*to)?;
            if node.graph != graph || !node.dependencies.contains(dependency) {
                return Err(CUresult::INVALID_VALUE);
            }
        }
        for (to, dependency) in edges {
            let dependencies = &mut self.node_mut(*to)?.dependencies;
            dependencies.retain(|other| other != dependency);
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

    /// The nodes in topological order, otherwise as they were added; or one node of a cycle.
    pub fn order(&self, graph: Handle<Graph>) -> Done<Result<Vec<Handle<Node>>, Handle<Node>>> {
        let mut waiting: Vec<(Handle<Node>, &Node)> = self.nodes_of(graph)?.collect();
        let mut order = Vec::with_capacity(waiting.len());
        let mut placed = BTreeSet::new();
        while !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain(|(handle, node)| {
                let depends = |on: &Dependency| placed.contains(&on.on.value());
                let ready = node.dependencies.iter().all(depends);
                if ready {
                    placed.insert(handle.value());
                    order.push(*handle);
                }
                !ready
            });
            if waiting.len() == before {
                return Ok(Err(waiting[0].0));
            }
        }
        Ok(Ok(order))
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
        let plan = Plan::of(self, graph)?.map_err(|_| CUresult::INVALID_VALUE)?;
        let users = self.get(graph)?.users.clone();
        users.retain_all(&mut self.users);
        let clone = self.copy(&plan, owner);
        let made = self.get_mut(clone)?;
        (made.original, made.users) = (Some(graph), users);
        Ok(clone)
    }

    /// A graph that does what a plan does.
    pub fn copy(&mut self, plan: &Plan, owner: Owner) -> Handle<Graph> {
        let graph = self.create(owner);
        let mut copies = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            let node = self.nodes.insert(Node {
                graph,
                local_id: copies.len() as u32,
                operation: if step.is_enabled {
                    step.operation.clone()
                } else {
                    Arc::new(Operation::Empty)
                },
                dependencies: Vec::new(),
                original: Some(step.node),
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
            made.next_local_id = copies.len() as u32;
            made.nodes = copies;
        }
        graph
    }

    /// The copy of `node` in a clone of its graph.
    pub fn find_in_clone(&self, node: Handle<Node>, clone: Handle<Graph>) -> Done<Handle<Node>> {
        let graph = self.node(node)?.graph;
        if self.get(clone)?.original != Some(graph) {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut copies = self.nodes_of(clone)?;
        let found = copies.find(|(_, copy)| copy.original == Some(node));
        found
            .map(|(handle, _)| handle)
            .ok_or(CUresult::INVALID_VALUE)
    }
}

impl Objects {
    /// Removes one node and the edges to and from it.
    pub fn destroy_node(&mut self, handle: Handle<Node>) -> Done {
        let graph = self.graphs.node(handle)?.graph;
        let owner = self.graphs.get(graph)?;
        if owner.filling || self.graphs.touches_allocations(graph)? {
            return Err(CUresult::INVALID_VALUE);
        }
        self.end_node(handle);
        if let Ok(owner) = self.graphs.get_mut(graph) {
            owner.nodes.retain(|other| *other != handle);
            for other in owner.nodes.clone() {
                if let Ok(other) = self.graphs.node_mut(other) {
                    other
                        .dependencies
                        .retain(|dependency| dependency.on != handle);
                }
            }
        }
        Ok(())
    }

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
        if graph.owner != Owner::Program || graph.filling {
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
        graph.users.release_all(&mut self.graphs.users);
    }
}
