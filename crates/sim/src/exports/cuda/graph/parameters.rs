//! Parameters of nodes: asking for them and changing them.

use super::node::{event, given, host, kernel, made, newer_of, older, set_member, transfer};
use super::{node_handle, to_graph};
use crate::engine::graph::node::Operation;
use crate::engine::kernel::Geometry;
use crate::engine::launch::Launch;
use crate::engine::process::{Done, Objects, Process, process};
use crate::engine::transfer::Move;
use crate::exports::cuda::context::from_handle as to_context;
use crate::exports::cuda::out;
use divvy_driver::sys::cuda::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_HOST_NODE_PARAMS_v2,
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUevent, CUgraph,
    CUgraphChildGraphNodeOwnership, CUgraphNode, CUgraphNodeParams, CUkernelNodeAttrID,
    CUkernelNodeAttrValue, CUlaunchAttributeID, CUresult,
};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

exports! { cuda {
    cuGraphNodeGetParams: (node, parameters) => any_parameters;
    cuGraphNodeSetParams: (node, parameters) => set_any;
    cuGraphNodeSetParams_v2: (node, parameters) => set_any;
    cuGraphKernelNodeGetParams: (node, parameters) => kernel_parameters_v1;
    cuGraphKernelNodeGetParams_v2: (node, parameters) => kernel_parameters;
    cuGraphKernelNodeSetParams: (node, parameters) => set_kernel_v1;
    cuGraphKernelNodeSetParams_v2: (node, parameters) => set_kernel;
    cuGraphKernelNodeGetAttribute: (node, attribute, value) => kernel_attribute;
    cuGraphKernelNodeSetAttribute: (node, attribute, value) => set_kernel_attribute;
    cuGraphKernelNodeCopyAttributes: (to, from) => copy_kernel_attributes;
    cuGraphMemcpyNodeGetParams: (node, parameters) => copy_parameters;
    cuGraphMemcpyNodeSetParams: (node, parameters) => set_copy;
    cuGraphMemsetNodeGetParams: (node, parameters) => fill_parameters;
    cuGraphMemsetNodeSetParams: (node, parameters) => set_fill;
    cuGraphHostNodeGetParams: (node, parameters) => host_parameters;
    cuGraphHostNodeSetParams: (node, parameters) => set_host;
    cuGraphChildGraphNodeGetGraph: (node, graph) => child_graph;
    cuGraphEventRecordNodeGetEvent: (node, event) => recorded_event;
    cuGraphEventRecordNodeSetEvent: (node, event) => set_record;
    cuGraphEventWaitNodeGetEvent: (node, event) => awaited_event;
    cuGraphEventWaitNodeSetEvent: (node, event) => set_wait;
    cuGraphMemAllocNodeGetParams: (node, parameters) => allocate_parameters;
    cuGraphMemFreeNodeGetParams: (node, address) => freed_address;
} }

/// Reads something of a node; `None` from `of` says that the node is of another kind.
fn look<T>(node: CUgraphNode, of: impl FnOnce(&Operation) -> Option<T>) -> Done<T> {
    let objects = process()?.objects();
    let node = objects.graphs.node(node_handle(node))?;
    of(&node.operation).ok_or(CUresult::INVALID_VALUE)
}

/// Gives a node other parameters of the same kind.
fn set(
    node: CUgraphNode,
    operation: impl FnOnce(&Process, &mut Objects) -> Done<Operation>,
) -> Done {
    let process = process()?;
    let mut objects = process.objects();
    let node = node_handle(node);
    let old = objects.graphs.node(node)?.operation.clone();
    let mut new = operation(process, &mut objects)?;
    if old.kind() != new.kind() {
        return Err(CUresult::INVALID_VALUE);
    }
    keep_attributes(&old, &mut new);
    objects.graphs.node_mut(node)?.operation = Arc::new(new);
    Ok(())
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

unsafe fn set_any(node: CUgraphNode, parameters: *mut CUgraphNodeParams) -> Done {
    out(parameters)?;
    // SAFETY: the caller's structure. What belongs to a graph cannot be exchanged.
    set(node, |process, objects| unsafe {
        made(process, objects, None, parameters)
    })
}

fn kernel_parameters_v1(node: CUgraphNode, parameters: *mut CUDA_KERNEL_NODE_PARAMS_v1) -> Done {
    let parameters = out(parameters)?;
    parameters.set(older(&look(node, kernel_of)?))
}

fn kernel_parameters(node: CUgraphNode, parameters: *mut CUDA_KERNEL_NODE_PARAMS) -> Done {
    let parameters = out(parameters)?;
    parameters.set(look(node, kernel_of)?)
}

fn kernel_of(operation: &Operation) -> Option<CUDA_KERNEL_NODE_PARAMS> {
    match operation {
        Operation::Kernel(launch) => Some(described(launch)),
        _ => None,
    }
}

unsafe fn set_kernel_v1(node: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS_v1) -> Done {
    // SAFETY: the caller's structure.
    unsafe {
        let given = newer_of(parameters)?;
        set_kernel(node, &raw const given)
    }
}

unsafe fn set_kernel(node: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS) -> Done {
    // SAFETY: the caller's structure.
    let given = unsafe { given(parameters) }?;
    // SAFETY: as above.
    set(node, |process, objects| unsafe {
        kernel(process, objects, &given)
    })
}

fn kernel_attribute(
    node: CUgraphNode,
    attribute: CUkernelNodeAttrID,
    value: *mut CUkernelNodeAttrValue,
) -> Done {
    let value = out(value)?;
    value.set(look(node, |operation| match operation {
        Operation::Kernel(launch) => launch
            .attributes
            .get(&attribute.0)
            .copied()
            .or(Some([0; 8])),
        _ => None,
    })?)
}

unsafe fn set_kernel_attribute(
    node: CUgraphNode,
    attribute: CUkernelNodeAttrID,
    value: *const CUkernelNodeAttrValue,
) -> Done {
    // SAFETY: the caller's union.
    let value = unsafe { given(value) }?;
    if attribute.name().is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    change_kernel(node, |launch| {
        if attribute == CUlaunchAttributeID::COOPERATIVE {
            launch.shape.cooperative = value[0] as u32 != 0;
        }
        launch.attributes.insert(attribute.0, value);
    })
}

fn change_kernel(node: CUgraphNode, change: impl FnOnce(&mut Launch)) -> Done {
    let mut launch = look(node, |operation| match operation {
        Operation::Kernel(launch) => Some(launch.clone()),
        _ => None,
    })?;
    change(&mut launch);
    let mut objects = process()?.objects();
    let node = objects.graphs.node_mut(node_handle(node))?;
    node.operation = Arc::new(Operation::Kernel(launch));
    Ok(())
}

fn copy_kernel_attributes(to: CUgraphNode, from: CUgraphNode) -> Done {
    let (attributes, cooperative) = look(from, |operation| match operation {
        Operation::Kernel(launch) => Some((launch.attributes.clone(), launch.shape.cooperative)),
        _ => None,
    })?;
    change_kernel(to, |launch| {
        launch.attributes = attributes;
        launch.shape.cooperative = cooperative;
    })
}

fn copy_parameters(node: CUgraphNode, parameters: *mut CUDA_MEMCPY3D) -> Done {
    let parameters = out(parameters)?;
    parameters.set(look(node, |operation| match operation {
        Operation::Move(Move::Copy(copy)) => Some(*copy),
        _ => None,
    })?)
}

unsafe fn set_copy(node: CUgraphNode, parameters: *const CUDA_MEMCPY3D) -> Done {
    // SAFETY: the caller's structure.
    let of = Move::Copy(unsafe { given(parameters) }?);
    set(node, |process, objects| {
        transfer(process, objects, of, null_mut())
    })
}

fn fill_parameters(node: CUgraphNode, parameters: *mut CUDA_MEMSET_NODE_PARAMS) -> Done {
    let parameters = out(parameters)?;
    parameters.set(look(node, |operation| match operation {
        Operation::Move(Move::Fill(fill)) => Some(*fill),
        _ => None,
    })?)
}

unsafe fn set_fill(node: CUgraphNode, parameters: *const CUDA_MEMSET_NODE_PARAMS) -> Done {
    // SAFETY: the caller's structure.
    let of = Move::Fill(unsafe { given(parameters) }?);
    set(node, |process, objects| {
        transfer(process, objects, of, null_mut())
    })
}

fn host_parameters(node: CUgraphNode, parameters: *mut CUDA_HOST_NODE_PARAMS) -> Done {
    let parameters = out(parameters)?;
    parameters.set(look(node, |operation| match operation {
        Operation::Host(call) => Some(CUDA_HOST_NODE_PARAMS {
            fn_: Some(call.function),
            userData: call.data,
        }),
        _ => None,
    })?)
}

unsafe fn set_host(node: CUgraphNode, parameters: *const CUDA_HOST_NODE_PARAMS) -> Done {
    // SAFETY: the caller's structure.
    let given = unsafe { given(parameters) }?;
    set(node, |_, _| host(given))
}

fn child_graph(node: CUgraphNode, graph: *mut CUgraph) -> Done {
    let graph = out(graph)?;
    graph.set(look(node, |operation| match operation {
        Operation::Child(child) => Some(to_graph(*child)),
        _ => None,
    })?)
}

fn recorded_event(node: CUgraphNode, event: *mut CUevent) -> Done {
    let event = out(event)?;
    event.set(look(node, |operation| match operation {
        Operation::Record(event) => Some(without_provenance_mut(event.value())),
        _ => None,
    })?)
}

fn set_record(node: CUgraphNode, of: CUevent) -> Done {
    set(node, |_, objects| event(objects, of, Operation::Record))
}

fn awaited_event(node: CUgraphNode, event: *mut CUevent) -> Done {
    let event = out(event)?;
    event.set(look(node, |operation| match operation {
        Operation::Wait(event) => Some(without_provenance_mut(event.value())),
        _ => None,
    })?)
}

fn set_wait(node: CUgraphNode, of: CUevent) -> Done {
    set(node, |_, objects| event(objects, of, Operation::Wait))
}

fn allocate_parameters(node: CUgraphNode, parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS) -> Done {
    let parameters = out(parameters)?;
    parameters.set(look(node, |operation| match operation {
        Operation::Allocate(allocate) => Some(allocate.parameters()),
        _ => None,
    })?)
}

fn freed_address(node: CUgraphNode, address: *mut CUdeviceptr) -> Done {
    let address = out(address)?;
    address.set(look(node, |operation| match operation {
        Operation::Free(freed) => Some(*freed),
        _ => None,
    })?)
}
