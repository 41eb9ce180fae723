//! Queries of nodes that concern memory and child graphs: the parameters that the limiter reads.

use super::{node_handle, to_graph};
use crate::engine::objects::graph::node::Operation;
use crate::engine::objects::result::Done;
use crate::engine::process::process;
use crate::exports::cuda::out;
use divvy_driver::sys::cuda::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdeviceptr, CUgraph, CUgraphNode, CUresult,
};

exports! { cuda {
    cuGraphChildGraphNodeGetGraph: (node, graph) => child_graph;
    cuGraphMemAllocNodeGetParams: (node, parameters) => allocate_parameters;
    cuGraphMemFreeNodeGetParams: (node, address) => freed_address;
} }

/// Writes what `of` reads of a node; `None` from `of` says that the node is of another kind.
fn query<T>(node: CUgraphNode, place: *mut T, of: impl FnOnce(&Operation) -> Option<T>) -> Done {
    let place = out(place)?;
    let objects = process()?.objects();
    let node = objects.graphs.node(node_handle(node))?;
    place.set(of(&node.operation).ok_or(CUresult::INVALID_VALUE)?)
}

fn child_graph(node: CUgraphNode, graph: *mut CUgraph) -> Done {
    query(node, graph, |operation| match operation {
        Operation::Child(child) => Some(to_graph(*child)),
        _ => None,
    })
}

fn allocate_parameters(node: CUgraphNode, parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS) -> Done {
    query(node, parameters, |operation| match operation {
        Operation::Allocate(allocate) => Some(allocate.parameters()),
        _ => None,
    })
}

fn freed_address(node: CUgraphNode, address: *mut CUdeviceptr) -> Done {
    query(node, address, |operation| match operation {
        Operation::Free(freed) => Some(*freed),
        _ => None,
    })
}
