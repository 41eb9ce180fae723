//! Parameters of graph nodes: queries and changes.

use super::node::{made, set_member};
use super::{node_handle, to_graph};
use crate::engine::objects::graph::node::Operation;
use crate::engine::objects::kernel::Geometry;
use crate::engine::objects::launch::Launch;
use crate::engine::objects::result::Done;
use crate::engine::objects::transfer::Move;
use crate::engine::process::process;
use crate::exports::cuda::context::from_handle as to_context;
use crate::exports::cuda::out;
use divvy_driver::sys::cuda::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_HOST_NODE_PARAMS_v2,
    CUDA_KERNEL_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUevent, CUgraph, CUgraphChildGraphNodeOwnership,
    CUgraphNode, CUgraphNodeParams, CUkernelNodeAttrID, CUkernelNodeAttrValue, CUresult,
};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

exports! { cuda {
    cuGraphNodeGetParams: (node, parameters) => any_parameters;
    cuGraphNodeSetParams: (node, parameters) => set_any;
    cuGraphNodeSetParams_v2: (node, parameters) => set_any;
    cuGraphKernelNodeGetParams_v2: (node, parameters) => kernel_parameters;
    cuGraphKernelNodeGetAttribute: (node, attribute, value) => kernel_attribute;
    cuGraphMemcpyNodeGetParams: (node, parameters) => copy_parameters;
    cuGraphMemsetNodeGetParams: (node, parameters) => fill_parameters;
    cuGraphHostNodeGetParams: (node, parameters) => host_parameters;
    cuGraphChildGraphNodeGetGraph: (node, graph) => child_graph;
    cuGraphEventRecordNodeGetEvent: (node, event) => recorded_event;
    cuGraphEventWaitNodeGetEvent: (node, event) => awaited_event;
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

/// A kernel's attributes stay when its parameters change.
pub(super) fn keep_attributes(old: &Operation, new: &mut Operation) {
    if let (Operation::Kernel(old), Operation::Kernel(new)) = (old, new) {
        new.attributes = old.attributes.clone();
        new.shape.cooperative = old.shape.cooperative;
    }
}

fn described(launch: &Launch) -> CUDA_KERNEL_NODE_PARAMS {
    let Geometry { grid, block } = launch.shape.geometry;
    let function = launch.shape.function.value();
    CUDA_KERNEL_NODE_PARAMS {
        func: without_provenance_mut(if launch.as_kernel { 0 } else { function }),
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: launch.shape.shared,
        kernelParams: launch.arguments.pointers(),
        extra: null_mut(),
        kern: without_provenance_mut(if launch.as_kernel { function } else { 0 }),
        ctx: to_context(launch.context),
    }
}

unsafe fn any_parameters(node: CUgraphNode, parameters: *mut CUgraphNodeParams) -> Done {
    out(parameters)?.set(CUgraphNodeParams::default())?;
    let objects = process()?.objects();
    let node = objects.graphs.node(node_handle(node))?;
    // SAFETY: not null; each arm writes the member of the kind it names.
    unsafe {
        (*parameters).type_ = node.operation.kind();
        match &*node.operation {
            Operation::Kernel(launch) => set_member(parameters, described(launch)),
            Operation::Move(Move::Copy(copy)) => {
                let given = CUDA_MEMCPY_NODE_PARAMS {
                    copyParams: *copy,
                    ..CUDA_MEMCPY_NODE_PARAMS::default()
                };
                set_member(parameters, given);
            }
            Operation::Move(Move::Fill(fill)) => set_member(parameters, *fill),
            Operation::Host(call) => {
                let given = CUDA_HOST_NODE_PARAMS_v2 {
                    fn_: Some(call.function),
                    userData: call.data,
                    ..CUDA_HOST_NODE_PARAMS_v2::default()
                };
                set_member(parameters, given);
            }
            Operation::Child(graph) => {
                let (graph, ownership) = (to_graph(*graph), CUgraphChildGraphNodeOwnership(!0));
                set_member(
                    parameters,
                    CUDA_CHILD_GRAPH_NODE_PARAMS { graph, ownership },
                );
            }
            Operation::Empty => {}
            Operation::Wait(event) | Operation::Record(event) => {
                let event: CUevent = without_provenance_mut(event.value());
                set_member(parameters, event);
            }
            Operation::Allocate(allocate) => set_member(parameters, allocate.parameters()),
            Operation::Free(dptr) => set_member(parameters, *dptr),
        }
    }
    Ok(())
}

/// Gives a node other parameters of the same kind.
unsafe fn set_any(node: CUgraphNode, parameters: *mut CUgraphNodeParams) -> Done {
    out(parameters)?;
    let process = process()?;
    let mut objects = process.objects();
    let node = node_handle(node);
    let old = objects.graphs.node(node)?.operation.clone();
    // SAFETY: the caller's structure. What belongs to a graph cannot be exchanged.
    let mut new = unsafe { made(process, &mut objects, None, parameters) }?;
    if old.kind() != new.kind() {
        return Err(CUresult::INVALID_VALUE);
    }
    keep_attributes(&old, &mut new);
    objects.graphs.node_mut(node)?.operation = Arc::new(new);
    Ok(())
}

fn kernel_parameters(node: CUgraphNode, parameters: *mut CUDA_KERNEL_NODE_PARAMS) -> Done {
    query(node, parameters, |operation| match operation {
        Operation::Kernel(launch) => Some(described(launch)),
        _ => None,
    })
}

fn kernel_attribute(
    node: CUgraphNode,
    attribute: CUkernelNodeAttrID,
    value: *mut CUkernelNodeAttrValue,
) -> Done {
    query(node, value, |operation| match operation {
        Operation::Kernel(launch) => launch
            .attributes
            .get(&attribute.0)
            .copied()
            .or(Some([0; 8])),
        _ => None,
    })
}

fn copy_parameters(node: CUgraphNode, parameters: *mut CUDA_MEMCPY3D) -> Done {
    query(node, parameters, |operation| match operation {
        Operation::Move(Move::Copy(copy)) => Some(*copy),
        _ => None,
    })
}

fn fill_parameters(node: CUgraphNode, parameters: *mut CUDA_MEMSET_NODE_PARAMS) -> Done {
    query(node, parameters, |operation| match operation {
        Operation::Move(Move::Fill(fill)) => Some(*fill),
        _ => None,
    })
}

fn host_parameters(node: CUgraphNode, parameters: *mut CUDA_HOST_NODE_PARAMS) -> Done {
    query(node, parameters, |operation| match operation {
        Operation::Host(call) => Some(CUDA_HOST_NODE_PARAMS {
            fn_: Some(call.function),
            userData: call.data,
        }),
        _ => None,
    })
}

fn child_graph(node: CUgraphNode, graph: *mut CUgraph) -> Done {
    query(node, graph, |operation| match operation {
        Operation::Child(child) => Some(to_graph(*child)),
        _ => None,
    })
}

fn recorded_event(node: CUgraphNode, event: *mut CUevent) -> Done {
    query(node, event, |operation| match operation {
        Operation::Record(event) => Some(without_provenance_mut(event.value())),
        _ => None,
    })
}

fn awaited_event(node: CUgraphNode, event: *mut CUevent) -> Done {
    query(node, event, |operation| match operation {
        Operation::Wait(event) => Some(without_provenance_mut(event.value())),
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
