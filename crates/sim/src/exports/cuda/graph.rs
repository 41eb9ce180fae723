//! Graphs: creating, cloning and destroying them, and listing their nodes. Nodes by their kind, executable graphs and
//! memory are in the submodules.

mod exec;
mod memory;
mod node;
mod parameters;

use super::out;
use crate::engine::objects::graph::node::{Dependency, Edge, Node};
use crate::engine::objects::graph::{Graph, Owner};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeType, CUresult};
use std::ptr::{null_mut, without_provenance_mut};

exports! { cuda {
    cuGraphCreate: (graph, flags) => create;
    cuGraphDestroy: (graph) => destroy;
    cuGraphClone: (clone, original) => clone;
    cuGraphGetNodes: (graph, nodes, count) => nodes;
    cuGraphNodeGetType: (node, kind) => kind;
} }

pub(super) fn graph_handle(graph: CUgraph) -> Handle<Graph> {
    Handle::from_value(graph.addr())
}

pub(super) fn to_graph(graph: Handle<Graph>) -> CUgraph {
    without_provenance_mut(graph.value())
}

fn node_handle(node: CUgraphNode) -> Handle<Node> {
    Handle::from_value(node.addr())
}

fn to_node(node: Handle<Node>) -> CUgraphNode {
    without_provenance_mut(node.value())
}

/// The nodes and edge data a caller passed; without data the edges are ordinary.
///
/// # Safety
/// The lists hold `count` entries; the data may be NULL.
pub(super) unsafe fn dependencies(
    nodes: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Done<Vec<Dependency>> {
    if count > 0 && nodes.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let read = (0..count).map(|at| {
        // SAFETY: by contract.
        let (node, data) = unsafe {
            let data = (!data.is_null()).then(|| *data.add(at));
            (*nodes.add(at), data)
        };
        Ok(Dependency {
            on: node_handle(node),
            edge: data.map_or(Ok(Edge::default()), |data| Edge::read(&data))?,
        })
    });
    read.collect()
}

fn create(graph: *mut CUgraph, flags: u32) -> Done {
    let (process, graph) = (process()?, out(graph)?);
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let made = process.objects().graphs.create(Owner::Program);
    graph.set(to_graph(made))
}

fn destroy(graph: CUgraph) -> Done {
    process()?.objects().destroy_graph(graph_handle(graph))
}

fn clone(clone: *mut CUgraph, original: CUgraph) -> Done {
    let (process, clone) = (process()?, out(clone)?);
    let original = graph_handle(original);
    let graphs = &mut process.objects().graphs;
    clone.set(to_graph(graphs.clone_graph(original, Owner::Program)?))
}

/// Lists the nodes where the caller has room for `*count` of them, NULL where more room than nodes. Without a place it
/// only counts them.
fn nodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Done {
    let objects = process()?.objects();
    let list = &objects.graphs.get(graph_handle(graph))?.nodes;
    let total = out(count)?;
    if nodes.is_null() {
        return total.set(list.len());
    }
    // SAFETY: not null; the caller's number.
    let room = unsafe { *count };
    for at in 0..room {
        let node = list.get(at).map_or(null_mut(), |node| to_node(*node));
        // SAFETY: the caller says there is room for so many.
        unsafe { nodes.add(at).write(node) };
    }
    total.set(list.len().min(room))
}

fn kind(node: CUgraphNode, kind: *mut CUgraphNodeType) -> Done {
    let (process, kind) = (process()?, out(kind)?);
    let objects = process.objects();
    kind.set(objects.graphs.node(node_handle(node))?.operation.kind())
}
