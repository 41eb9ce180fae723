//! Graphs: creating, cloning and destroying them, and listing their nodes. Nodes by their kind, executable graphs and
//! memory are in the submodules.

mod exec;
mod memory;
mod node;
mod parameters;
mod user;

use super::{name, out};
use crate::engine::objects::graph::node::{Dependency, Edge, Node};
use crate::engine::objects::graph::{Graph, Graphs, Owner};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeType, CUresult};
use std::ffi::c_char;
use std::fmt::Write;
use std::ptr::{null, null_mut, without_provenance_mut};

exports! { cuda {
    cuGraphCreate: (graph, flags) => create;
    cuGraphDestroy: (graph) => destroy;
    cuGraphClone: (clone, original) => clone;
    cuGraphGetNodes: (graph, nodes, count) => nodes;
    cuGraphGetEdges: (graph, from, to, count) => edges;
    cuGraphGetEdges_v2: (graph, from, to, data, count) => edges_with_data;
    cuGraphAddDependencies: (graph, from, to, count) => add_edges;
    cuGraphAddDependencies_v2: (graph, from, to, data, count) => add_edges_with_data;
    cuGraphRemoveDependencies: (graph, from, to, count) => remove_edges;
    cuGraphRemoveDependencies_v2: (graph, from, to, data, count) => remove_edges_with_data;
    cuGraphNodeGetDependencies: (node, nodes, count) => before;
    cuGraphNodeGetDependencies_v2: (node, nodes, data, count) => before_with_data;
    cuGraphNodeGetDependentNodes: (node, nodes, count) => after;
    cuGraphNodeGetDependentNodes_v2: (node, nodes, data, count) => after_with_data;
    cuGraphNodeGetType: (node, kind) => kind;
    cuGraphNodeFindInClone: (found, node, clone) => find_in_clone;
    cuGraphDestroyNode: (node) => destroy_node;
    cuGraphDebugDotPrint: (graph, path, flags) => print;
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

/// Writes a list where the caller has room for `*count` entries, and `rest` where more room than entries. Without a
/// place it writes the number alone.
fn fill<T: Copy>(place: *mut T, count: *mut usize, values: &[T], rest: T) -> Done {
    let total = out(count)?;
    if place.is_null() {
        return total.set(values.len());
    }
    // SAFETY: not null; the caller's number.
    let room = unsafe { *count };
    for at in 0..room {
        // SAFETY: the caller says there is room for so many.
        unsafe { place.add(at).write(values.get(at).copied().unwrap_or(rest)) };
    }
    total.set(values.len().min(room))
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

fn nodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Done {
    let objects = process()?.objects();
    let all = &objects.graphs.get(graph_handle(graph))?.nodes;
    let list: Vec<CUgraphNode> = all.iter().map(|node| to_node(*node)).collect();
    fill(nodes, count, &list, null_mut())
}

fn edges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, count: *mut usize) -> Done {
    edges_with_data(graph, from, to, null_mut(), count)
}

fn edges_with_data(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    let objects = process()?.objects();
    let edges = objects.graphs.edges_of(graph_handle(graph))?;
    if from.is_null() != to.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let ends: Vec<CUgraphNode> = edges.iter().map(|(to, _)| to_node(*to)).collect();
    let dependencies: Vec<Dependency> = edges.iter().map(|(_, on)| *on).collect();
    // The number of entries there is room for is read by each list.
    // SAFETY: not null, as `fill` finds out if it is not.
    let room = (!count.is_null()).then(|| unsafe { *count });
    list_edges(&dependencies, from, data, count)?;
    let mut room = room.unwrap_or(0);
    fill(to, &raw mut room, &ends, null_mut())
}

fn list_edges(
    edges: &[Dependency],
    nodes: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    if nodes.is_null() && !data.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let is_lossy = edges.iter().any(|edge| !edge.edge.is_ordinary());
    if is_lossy && !nodes.is_null() && data.is_null() {
        return Err(CUresult::LOSSY_QUERY);
    }
    if !data.is_null() {
        out(count)?;
        let written: Vec<CUgraphEdgeData> = edges.iter().map(|on| on.edge.written()).collect();
        // SAFETY: not null; the caller's number.
        let mut room = unsafe { *count };
        fill(data, &raw mut room, &written, CUgraphEdgeData::default())?;
    }
    let list: Vec<CUgraphNode> = edges.iter().map(|on| to_node(on.on)).collect();
    fill(nodes, count, &list, null_mut())
}

/// `from` and `to` at corresponding places.
unsafe fn pairs(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Done<Vec<(Handle<Node>, Dependency)>> {
    if count > 0 && to.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: the caller's lists.
    let on = unsafe { dependencies(from, data, count) }?;
    let pairs = on.into_iter().enumerate().map(|(at, on)| {
        // SAFETY: as above, and not null.
        (node_handle(unsafe { *to.add(at) }), on)
    });
    Ok(pairs.collect())
}

/// Adds or removes edges of a graph, all or none.
type ChangeEdges = fn(&mut Graphs, Handle<Graph>, &[(Handle<Node>, Dependency)]) -> Done;

unsafe fn change_edges(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    change: ChangeEdges,
) -> Done {
    // SAFETY: the caller's lists.
    let edges = unsafe { pairs(from, to, data, count) }?;
    let graphs = &mut process()?.objects().graphs;
    graphs.get(graph_handle(graph))?;
    change(graphs, graph_handle(graph), &edges)
}

unsafe fn add_edges(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    // SAFETY: the caller's lists.
    unsafe { add_edges_with_data(graph, from, to, null(), count) }
}

unsafe fn add_edges_with_data(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Done {
    // SAFETY: the caller's lists.
    unsafe { change_edges(graph, from, to, data, count, Graphs::add_edges) }
}

unsafe fn remove_edges(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    // SAFETY: the caller's lists.
    unsafe { remove_edges_with_data(graph, from, to, null(), count) }
}

unsafe fn remove_edges_with_data(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Done {
    // SAFETY: the caller's lists.
    unsafe { change_edges(graph, from, to, data, count, Graphs::remove_edges) }
}

fn before(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) -> Done {
    before_with_data(node, nodes, null_mut(), count)
}

fn before_with_data(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    let objects = process()?.objects();
    let node = objects.graphs.node(node_handle(node))?;
    list_edges(&node.dependencies, nodes, data, count)
}

fn after(node: CUgraphNode, nodes: *mut CUgraphNode, count: *mut usize) -> Done {
    after_with_data(node, nodes, null_mut(), count)
}

fn after_with_data(
    node: CUgraphNode,
    nodes: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    let objects = process()?.objects();
    let handle = node_handle(node);
    let graph = objects.graphs.node(handle)?.graph;
    let edges = objects.graphs.edges_of(graph)?;
    let from_here = edges.iter().filter(|(_, on)| on.on == handle);
    let turned: Vec<Dependency> = from_here
        .map(|(to, on)| Dependency { on: *to, ..*on })
        .collect();
    list_edges(&turned, nodes, data, count)
}

fn kind(node: CUgraphNode, kind: *mut CUgraphNodeType) -> Done {
    let (process, kind) = (process()?, out(kind)?);
    let objects = process.objects();
    kind.set(objects.graphs.node(node_handle(node))?.operation.kind())
}

fn find_in_clone(found: *mut CUgraphNode, node: CUgraphNode, clone: CUgraph) -> Done {
    let (process, found) = (process()?, out(found)?);
    let graphs = &process.objects().graphs;
    let copy = graphs.find_in_clone(node_handle(node), graph_handle(clone))?;
    found.set(to_node(copy))
}

fn destroy_node(node: CUgraphNode) -> Done {
    process()?.objects().destroy_node(node_handle(node))
}

/// Writes nodes and edges in the language of Graphviz. Flags ask for more detail, which there is not.
fn print(graph: CUgraph, path: *const c_char, _flags: u32) -> Done {
    let (process, path) = (process()?, name(path)?);
    let mut text = String::from("digraph dot {\n");
    let objects = process.objects();
    let graphs = &objects.graphs;
    let id = graphs.get(graph_handle(graph))?.id;
    let label = |node: &Node| format!("graph_{id}_node_{}", node.local_id);
    for (_, node) in graphs.nodes_of(graph_handle(graph))? {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "\"{}\" [label=\"{:?}\"];",
            label(node),
            node.operation.kind()
        );
    }
    for (to, dependency) in graphs.edges_of(graph_handle(graph))? {
        let (from, to) = (graphs.node(dependency.on)?, graphs.node(to)?);
        let _ = writeln!(text, "\"{}\" -> \"{}\";", label(from), label(to));
    }
    text.push_str("}\n");
    drop(objects);
    std::fs::write(path, text).map_err(|_| CUresult::OPERATING_SYSTEM)
}
