//! Executable graphs.

use super::parameters::keep_attributes;
use super::{graph_handle, node, node_handle, to_node};
use crate::engine::objects::Objects;
use crate::engine::objects::graph::exec::Exec;
use crate::engine::objects::graph::node::Operation;
use crate::engine::objects::graph::plan::Mismatch;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::{Process, process};
use crate::engine::work::graph::InstantiateError;
use crate::exports::cuda::{out, set_if_wanted};
use divvy_driver::sys::cuda::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphExecUpdateResult as Verdict,
    CUgraphExecUpdateResultInfo, CUgraphInstantiate_flags as Flags,
    CUgraphInstantiateResult as Outcome, CUgraphNode, CUgraphNodeParams, CUgraphNodeType, CUresult,
    CUstream,
};
use std::ffi::c_char;
use std::ptr::{null_mut, without_provenance_mut};

exports! { cuda {
    cuGraphInstantiate, cuGraphInstantiate_v2: (exec, graph, node, log, room) => instantiate_with_log;
    cuGraphInstantiateWithFlags: (exec, graph, flags) => instantiate;
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz: (exec, graph, parameters) => instantiate_with;
    cuGraphExecDestroy: (exec) => destroy;
    cuGraphUpload, cuGraphUpload_ptsz: (exec, stream) => upload;
    cuGraphLaunch, cuGraphLaunch_ptsz: (exec, stream) => launch;
    cuGraphExecUpdate: (exec, graph, node, result) => update_v1;
    cuGraphExecUpdate_v2: (exec, graph, result) => update;
    cuGraphExecNodeSetParams: (exec, node, parameters) => set_any;
    cuGraphNodeSetEnabled: (exec, node, enabled) => set_enabled;
    cuGraphNodeGetEnabled: (exec, node, enabled) => is_enabled;
} }

fn exec_handle(exec: CUgraphExec) -> Handle<Exec> {
    Handle::from_value(exec.addr())
}

fn make(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> Result<Handle<Exec>, InstantiateError> {
    let (process, exec) = (process()?, out(exec)?);
    let made = process.instantiate(graph_handle(graph), flags)?;
    exec.set(without_provenance_mut(made.value()))?;
    Ok(made)
}

/// A cycle is an invalid value.
fn code(refusal: InstantiateError) -> CUresult {
    match refusal {
        InstantiateError::Cycle(_) => CUresult::INVALID_VALUE,
        InstantiateError::Other(error) => error,
    }
}

/// The forms of before CUDA 12, which name the node that is at fault.
unsafe fn instantiate_with_log(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    room: usize,
) -> Done {
    set_if_wanted(node, null_mut());
    if room > 0 {
        set_if_wanted(log, 0);
    }
    make(exec, graph, 0).map(drop).map_err(|refusal| {
        if let InstantiateError::Cycle(at) = refusal {
            set_if_wanted(node, to_node(at));
        }
        code(refusal)
    })
}

/// Uploading needs a stream, which only the form with parameters names.
fn instantiate(exec: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Done {
    if flags & u64::from(Flags::UPLOAD.0) != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    make(exec, graph, flags).map(drop).map_err(code)
}

unsafe fn instantiate_with(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Done {
    let process = process()?;
    // SAFETY: null or the caller's structure.
    let parameters = unsafe { parameters.as_mut() }.ok_or(CUresult::INVALID_VALUE)?;
    (parameters.hErrNode_out, parameters.result_out) = (null_mut(), Outcome::SUCCESS);
    let made = make(exec, graph, parameters.flags).and_then(|made| {
        if parameters.flags & u64::from(Flags::UPLOAD.0) != 0 {
            let uploaded = process.upload_graph(made, parameters.hUploadStream.addr());
            uploaded.inspect_err(|_| {
                // It was made just now.
                let _ = process.destroy_exec(made);
            })?;
        }
        Ok(())
    });
    made.map_err(|refusal| {
        (parameters.hErrNode_out, parameters.result_out) = match &refusal {
            InstantiateError::Cycle(node) => (to_node(*node), Outcome::INVALID_STRUCTURE),
            InstantiateError::Other(_) => (null_mut(), Outcome::ERROR),
        };
        code(refusal)
    })
}

fn destroy(exec: CUgraphExec) -> Done {
    process()?.destroy_exec(exec_handle(exec))
}

fn upload(exec: CUgraphExec, stream: CUstream) -> Done {
    process()?.upload_graph(exec_handle(exec), stream.addr())
}

fn launch(exec: CUgraphExec, stream: CUstream) -> Done {
    process()?.launch_graph(exec_handle(exec), stream.addr())
}

fn update_v1(
    exec: CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    result: *mut Verdict,
) -> Done {
    let mut info = CUgraphExecUpdateResultInfo::default();
    let (node, result) = (out(node)?, out(result)?);
    let updated = update(exec, graph, &raw mut info);
    node.set(info.errorNode)?;
    result.set(info.result)?;
    updated
}

fn update(exec: CUgraphExec, graph: CUgraph, info: *mut CUgraphExecUpdateResultInfo) -> Done {
    let (process, info) = (process()?, out(info)?);
    let updated = process.update_exec(exec_handle(exec), graph_handle(graph));
    let Err(Mismatch {
        verdict,
        node,
        from,
    }) = updated
    else {
        return info.set(CUgraphExecUpdateResultInfo::default());
    };
    info.set(CUgraphExecUpdateResultInfo {
        result: verdict,
        errorNode: node.map_or(null_mut(), to_node),
        errorFromNode: from.map_or(null_mut(), to_node),
    })?;
    Err(CUresult::GRAPH_EXEC_UPDATE_FAILURE)
}

/// Gives one node of an executable graph other parameters of its kind.
fn change(
    exec: CUgraphExec,
    node: CUgraphNode,
    operation: impl FnOnce(&Process, &mut Objects) -> Done<Operation>,
) -> Done {
    let process = process()?;
    let mut objects = process.objects();
    let (exec, node) = (exec_handle(exec), node_handle(node));
    let mut new = operation(process, &mut objects)?;
    let old = objects.graphs.node(node)?.operation.clone();
    keep_attributes(&old, &mut new);
    process.change_exec(&mut objects, exec, node, new)
}

unsafe fn set_any(
    exec: CUgraphExec,
    node: CUgraphNode,
    parameters: *mut CUgraphNodeParams,
) -> Done {
    out(parameters)?;
    // SAFETY: the caller's structure.
    let is_child = unsafe { (*parameters).type_ } == CUgraphNodeType::GRAPH;
    if is_child {
        // SAFETY: the first field of this kind's member is the graph.
        let child = unsafe {
            (&raw const (*parameters).reserved1)
                .cast::<CUgraph>()
                .read()
        };
        return set_child(exec, node, child);
    }
    // SAFETY: the caller's structure.
    change(exec, node, |process, objects| unsafe {
        node::made(process, objects, None, parameters)
    })
}

fn set_child(exec: CUgraphExec, node: CUgraphNode, child: CUgraph) -> Done {
    let (exec, node) = (exec_handle(exec), node_handle(node));
    process()?.update_exec_child(exec, node, graph_handle(child))
}

/// Kernels, copies and memory sets can be switched off and on.
fn set_enabled(exec: CUgraphExec, node: CUgraphNode, enabled: u32) -> Done {
    let (process, exec, node) = (process()?, exec_handle(exec), node_handle(node));
    process
        .switch_exec_node(exec, node, Some(enabled != 0))
        .map(drop)
}

fn is_enabled(exec: CUgraphExec, node: CUgraphNode, enabled: *mut u32) -> Done {
    let (process, exec, node) = (process()?, exec_handle(exec), node_handle(node));
    let enabled = out(enabled)?;
    enabled.set(u32::from(process.switch_exec_node(exec, node, None)?))
}
