//! Graph nodes by kind, and adding them to graphs.

use super::{dependencies, graph_handle, to_node};
use crate::engine::objects::Objects;
use crate::engine::objects::graph::node::{Allocate, Dependency, Node, Operation};
use crate::engine::objects::graph::{Graph, Owner};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::host_call::HostCall;
use crate::engine::objects::kernel::Geometry;
use crate::engine::objects::launch::{Arguments, Launch, Shape};
use crate::engine::objects::result::Done;
use crate::engine::objects::transfer::Move;
use crate::engine::process::{Process, process};
use crate::engine::work::launch;
use crate::exports::cuda::context::to_handle as context_handle;
use crate::exports::cuda::launch::parameters_of;
use crate::exports::cuda::module::function_handle;
use crate::exports::cuda::out;
use crate::exports::cuda::pool::gpu_at;
use crate::exports::cuda::stream::event_handle;
use divvy_driver::sys::cuda::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_EVENT_RECORD_NODE_PARAMS, CUDA_EVENT_WAIT_NODE_PARAMS,
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEM_FREE_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS_v2, CUcontext, CUdeviceptr, CUevent, CUgraph,
    CUgraphChildGraphNodeOwnership, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams,
    CUgraphNodeType, CUmemAllocationHandleType, CUmemAllocationType, CUresult,
};
use std::collections::BTreeMap;
use std::ptr::null;

exports! { cuda {
    cuGraphAddNode: (node, graph, before, count, parameters) => { add_any(node, graph, before, null(), count, parameters) };
    cuGraphAddNode_v2, cuGraphAddNode_v3: (node, graph, before, edges, count, parameters) => add_any;
    cuGraphAddKernelNode_v2: (node, graph, before, count, parameters) => add_kernel;
    cuGraphAddMemcpyNode: (node, graph, before, count, parameters, context) => add_copy;
    cuGraphAddMemsetNode: (node, graph, before, count, parameters, context) => add_fill;
    cuGraphAddHostNode: (node, graph, before, count, parameters) => add_host;
    cuGraphAddChildGraphNode: (node, graph, before, count, child) => add_child;
    cuGraphAddEmptyNode: (node, graph, before, count) => add_empty;
    cuGraphAddEventRecordNode: (node, graph, before, count, event) => add_record;
    cuGraphAddEventWaitNode: (node, graph, before, count, event) => add_wait;
    cuGraphAddMemAllocNode: (node, graph, before, count, parameters) => add_allocate;
    cuGraphAddMemFreeNode: (node, graph, before, count, address) => add_free;
} }

/// # Safety
/// The place is NULL or holds a T.
unsafe fn given<T: Copy>(place: *const T) -> Done<T> {
    // SAFETY: by contract.
    unsafe { place.as_ref() }
        .copied()
        .ok_or(CUresult::INVALID_VALUE)
}

/// The member of a union of node parameters.
///
/// # Safety
/// The parameters are of the kind that has this member.
unsafe fn member<T: Copy>(parameters: *const CUgraphNodeParams) -> T {
    // SAFETY: by contract; no member is larger than the union.
    unsafe { (&raw const (*parameters).reserved1).cast::<T>().read() }
}

/// # Safety
/// As for [`member`]; the place can be written.
pub(super) unsafe fn set_member<T>(parameters: *mut CUgraphNodeParams, value: T) {
    // SAFETY: by contract.
    unsafe { (&raw mut (*parameters).reserved1).cast::<T>().write(value) }
}

/// # Safety
/// Arguments are as the API documents them.
unsafe fn kernel(
    process: &Process,
    objects: &Objects,
    given: &CUDA_KERNEL_NODE_PARAMS,
) -> Done<Operation> {
    let as_kernel = given.func.is_null();
    let handle = if as_kernel {
        given.kern.cast()
    } else {
        given.func
    };
    let handle = function_handle(handle);
    let function = objects.functions.get(handle);
    let function = function.ok_or(CUresult::INVALID_VALUE)?;
    let geometry = Geometry {
        grid: [given.gridDimX, given.gridDimY, given.gridDimZ],
        block: [given.blockDimX, given.blockDimY, given.blockDimZ],
    };
    if !geometry.is_valid() {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = match launch::home(objects, function) {
        Some(home) => home,
        None if given.ctx.is_null() => process.current(objects)?.context,
        None => context_handle(given.ctx),
    };
    objects.context(context)?;
    // SAFETY: the caller's lists, of the function's own parameters.
    let arguments = unsafe {
        let parameters = parameters_of(given.kernelParams, given.extra)?;
        Arguments::copy_of(&parameters, launch::layout(function).as_deref())
    };
    Ok(Operation::Kernel(Launch {
        shape: Shape {
            function: handle,
            geometry,
            shared: given.sharedMemBytes,
            cooperative: false,
        },
        context,
        as_kernel,
        arguments,
        attributes: BTreeMap::new(),
    }))
}

/// A copy or memory set. A context that is named must be there.
fn transfer(process: &Process, objects: &Objects, of: Move, context: CUcontext) -> Done<Operation> {
    if !context.is_null() {
        objects.context(context_handle(context))?;
    }
    of.resolve(objects)?.check_in_graph(process, objects)?;
    Ok(Operation::Move(of))
}

fn host(given: CUDA_HOST_NODE_PARAMS) -> Done<Operation> {
    let function = given.fn_.ok_or(CUresult::INVALID_VALUE)?;
    let data = given.userData;
    Ok(Operation::Host(HostCall { function, data }))
}

fn event(
    objects: &Objects,
    event: CUevent,
    operation: fn(Handle<crate::engine::objects::stream::Event>) -> Operation,
) -> Done<Operation> {
    let event = event_handle(event);
    objects.events.get(event).ok_or(CUresult::INVALID_VALUE)?;
    Ok(operation(event))
}

/// A child graph is a copy, or the graph itself where it may be moved.
fn child(objects: &mut Objects, child: CUgraph, moves: bool) -> Done<Operation> {
    let child = graph_handle(child);
    let found = objects.graphs.get(child)?;
    if !moves {
        let copy = objects.graphs.clone_graph(child, Owner::Program)?;
        return Ok(Operation::Child(copy));
    }
    if found.owner != Owner::Program || found.filling {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(Operation::Child(child))
}

/// # Safety
/// The parameters' list of access descriptions is as long as they say.
unsafe fn allocate(
    process: &Process,
    objects: &mut Objects,
    graph: Handle<Graph>,
    before: &[Dependency],
    given: &CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Done<Operation> {
    let properties = &given.poolProps;
    let gpu = gpu_at(process, properties.location)?;
    let is_known = properties.allocType == CUmemAllocationType::PINNED
        && properties.handleTypes == CUmemAllocationHandleType::NONE;
    let listed = given.accessDescCount == 0 || !given.accessDescs.is_null();
    if !is_known || !listed || given.accessDescCount > process.device_count() {
        return Err(CUresult::INVALID_VALUE);
    }
    let access: Box<[_]> = (0..given.accessDescCount)
        // SAFETY: not null, and as long as this by contract.
        .map(|at| unsafe { *given.accessDescs.add(at) })
        .collect();
    for description in &access {
        gpu_at(process, description.location)?;
    }
    objects.graphs.get(graph)?;
    let size = given.bytesize as u64;
    let dptr = process.reserve_for_graph(objects, graph, before, gpu, size)?;
    let parameters = CUDA_MEM_ALLOC_NODE_PARAMS { dptr, ..*given };
    Ok(Operation::Allocate(Allocate::new(parameters, access, gpu)))
}

/// Adds a node that does what `operation` makes; a failure leaves nothing behind.
unsafe fn add(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    operation: impl FnOnce(&Process, &mut Objects, &[Dependency]) -> Done<Operation>,
) -> Done<Handle<Node>> {
    let (process, node) = (process()?, out(node)?);
    // SAFETY: the caller's lists.
    let before = unsafe { dependencies(before, edges, count) }?;
    let mut objects = process.objects();
    let graph = graph_handle(graph);
    objects.graphs.get(graph)?;
    let operation = operation(process, &mut objects, &before)?;
    let address = match &operation {
        Operation::Allocate(allocate) => Some(allocate.address()),
        _ => None,
    };
    let copy = match &operation {
        Operation::Child(child) => Some(*child),
        _ => None,
    };
    match objects.graphs.add(graph, before, operation) {
        Ok(added) => {
            node.set(to_node(added))?;
            Ok(added)
        }
        Err(error) => {
            if let Some(address) = address {
                objects.graphs.memory.hold(address);
                objects.let_go(address);
            }
            if let Some(copy) = copy {
                objects.end_graph(copy);
            }
            Err(error)
        }
    }
}

unsafe fn add_any(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> Done {
    process()?;
    out(parameters)?;
    // SAFETY: the caller's lists and structure.
    let added = unsafe {
        add(
            node,
            graph,
            before,
            edges,
            count,
            |process, objects, before| {
                made(
                    process,
                    objects,
                    Some((graph_handle(graph), before)),
                    parameters,
                )
            },
        )
    }?;
    let objects = process()?.objects();
    if let Operation::Allocate(allocate) = &*objects.graphs.node(added)?.operation {
        // SAFETY: the structure is the caller's, of an allocation node.
        unsafe {
            let mut given: CUDA_MEM_ALLOC_NODE_PARAMS = member(parameters);
            given.dptr = allocate.address();
            set_member(parameters, given);
        }
    }
    Ok(())
}

/// What the tagged union describes. Child graphs and allocations are for a graph they become part of.
///
/// # Safety
/// The parameters are the caller's, as the API documents them.
pub(super) unsafe fn made(
    process: &Process,
    objects: &mut Objects,
    graph: Option<(Handle<Graph>, &[Dependency])>,
    parameters: *const CUgraphNodeParams,
) -> Done<Operation> {
    // SAFETY: by contract, and each arm reads the member of its kind.
    unsafe {
        match ((*parameters).type_, graph) {
            (CUgraphNodeType::KERNEL, _) => kernel(process, objects, &member(parameters)),
            (CUgraphNodeType::MEMCPY, _) => {
                let given: CUDA_MEMCPY_NODE_PARAMS = member(parameters);
                transfer(
                    process,
                    objects,
                    Move::Copy(given.copyParams),
                    given.copyCtx,
                )
            }
            (CUgraphNodeType::MEMSET, _) => {
                let given: CUDA_MEMSET_NODE_PARAMS_v2 = member(parameters);
                transfer(process, objects, Move::Fill(member(parameters)), given.ctx)
            }
            (CUgraphNodeType::HOST, _) => host(member(parameters)),
            (CUgraphNodeType::EMPTY, _) => Ok(Operation::Empty),
            (CUgraphNodeType::WAIT_EVENT, _) => {
                let given: CUDA_EVENT_WAIT_NODE_PARAMS = member(parameters);
                event(objects, given.event, Operation::Wait)
            }
            (CUgraphNodeType::EVENT_RECORD, _) => {
                let given: CUDA_EVENT_RECORD_NODE_PARAMS = member(parameters);
                event(objects, given.event, Operation::Record)
            }
            (CUgraphNodeType::GRAPH, Some(_)) => {
                let given: CUDA_CHILD_GRAPH_NODE_PARAMS = member(parameters);
                let moves = given.ownership == CUgraphChildGraphNodeOwnership::MOVE;
                child(objects, given.graph, moves)
            }
            (CUgraphNodeType::MEM_ALLOC, Some((graph, before))) => {
                allocate(process, objects, graph, before, &member(parameters))
            }
            (CUgraphNodeType::MEM_FREE, Some(_)) => {
                let given: CUDA_MEM_FREE_NODE_PARAMS = member(parameters);
                Ok(Operation::Free(given.dptr))
            }
            (kind, _) if kind <= CUgraphNodeType::FABRIC_CPY_BATCH => Err(CUresult::NOT_SUPPORTED),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

unsafe fn add_kernel(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: the caller's lists and structure.
    unsafe {
        let given = given(parameters)?;
        let made =
            |process: &Process, objects: &mut Objects, _: &[_]| kernel(process, objects, &given);
        add(node, graph, before, null(), count, made).map(drop)
    }
}

unsafe fn add_transfer(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    (of, context): (Move, CUcontext),
) -> Done {
    let made =
        |process: &Process, objects: &mut Objects, _: &[_]| transfer(process, objects, of, context);
    // SAFETY: the caller's lists.
    unsafe { add(node, graph, before, null(), count, made) }.map(drop)
}

unsafe fn add_copy(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Done {
    // SAFETY: the caller's lists and structure.
    unsafe {
        let of = Move::Copy(given(parameters)?);
        add_transfer(node, graph, before, count, (of, context))
    }
}

unsafe fn add_fill(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Done {
    // SAFETY: the caller's lists and structure.
    unsafe {
        let of = Move::Fill(given(parameters)?);
        add_transfer(node, graph, before, count, (of, context))
    }
}

unsafe fn add_host(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_HOST_NODE_PARAMS,
) -> Done {
    // SAFETY: the caller's lists and structure.
    unsafe {
        let given = given(parameters)?;
        let made = |_: &Process, _: &mut Objects, _: &[_]| host(given);
        add(node, graph, before, null(), count, made).map(drop)
    }
}

unsafe fn add_child(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    of: CUgraph,
) -> Done {
    let made = |_: &Process, objects: &mut Objects, _: &[_]| child(objects, of, false);
    // SAFETY: the caller's lists.
    unsafe { add(node, graph, before, null(), count, made) }.map(drop)
}

unsafe fn add_empty(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
) -> Done {
    let made = |_: &Process, _: &mut Objects, _: &[_]| Ok(Operation::Empty);
    // SAFETY: the caller's lists.
    unsafe { add(node, graph, before, null(), count, made) }.map(drop)
}

unsafe fn add_record(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    of: CUevent,
) -> Done {
    let made = |_: &Process, objects: &mut Objects, _: &[_]| event(objects, of, Operation::Record);
    // SAFETY: the caller's lists.
    unsafe { add(node, graph, before, null(), count, made) }.map(drop)
}

unsafe fn add_wait(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    of: CUevent,
) -> Done {
    let made = |_: &Process, objects: &mut Objects, _: &[_]| event(objects, of, Operation::Wait);
    // SAFETY: the caller's lists.
    unsafe { add(node, graph, before, null(), count, made) }.map(drop)
}

unsafe fn add_allocate(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Done {
    let owner = graph_handle(graph);
    // SAFETY: the caller's lists and structure.
    unsafe {
        let given = given(parameters)?;
        let made = |process: &Process, objects: &mut Objects, before: &[Dependency]| {
            allocate(process, objects, owner, before, &given)
        };
        let added = add(node, graph, before, null(), count, made)?;
        let objects = process()?.objects();
        if let Operation::Allocate(allocate) = &*objects.graphs.node(added)?.operation {
            (*parameters).dptr = allocate.address();
        }
    }
    Ok(())
}

unsafe fn add_free(
    node: *mut CUgraphNode,
    graph: CUgraph,
    before: *const CUgraphNode,
    count: usize,
    address: CUdeviceptr,
) -> Done {
    let made = |_: &Process, _: &mut Objects, _: &[_]| Ok(Operation::Free(address));
    // SAFETY: the caller's lists.
    unsafe { add(node, graph, before, null(), count, made) }.map(drop)
}
