//! Stream capture: beginning, ending and querying it.

use super::graph::{dependencies, graph_handle, to_graph};
use super::{out, set_if_wanted};
use crate::engine::objects::result::Done;
use crate::engine::process::capture_mode;
use crate::engine::process::process;
use divvy_driver::sys::cuda::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode as Mode,
    CUstreamCaptureStatus as Status, CUstreamUpdateCaptureDependencies_flags as Update,
};
use std::ptr::{null, null_mut};

exports! { cuda {
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz: (stream) => { begin_in_mode(stream, Mode::GLOBAL) };
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz: (stream, mode) => begin_in_mode;
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz: (stream, graph, nodes, edges, count, mode) => begin_into;
    cuStreamEndCapture, cuStreamEndCapture_ptsz: (stream, graph) => end;
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz: (stream, status) => is_capturing;
    cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz: (stream, status, id) => { info(stream, status, id, null_mut(), null_mut(), null_mut(), null_mut()) };
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz: (stream, status, id, graph, nodes, count) => { info(stream, status, id, graph, nodes, null_mut(), count) };
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz: (stream, status, id, graph, nodes, edges, count) => info;
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz: (stream, nodes, count, flags) => { update(stream, nodes, null(), count, flags) };
    cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz: (stream, nodes, edges, count, flags) => update;
    cuThreadExchangeStreamCaptureMode: (mode) => exchange_mode;
} }

/// The first form of the function knows one mode, the global one.
fn begin_in_mode(stream: CUstream, mode: Mode) -> Done {
    process()?.begin_capture(stream.addr(), mode, None)
}

unsafe fn begin_into(
    stream: CUstream,
    graph: CUgraph,
    nodes: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    mode: Mode,
) -> Done {
    // SAFETY: the caller's lists.
    let dependencies = unsafe { dependencies(nodes, edges, count) }?;
    let into = Some((graph_handle(graph), dependencies));
    process()?.begin_capture(stream.addr(), mode, into)
}

/// A capture that was invalid has ended all the same, and gives no graph.
fn end(stream: CUstream, graph: *mut CUgraph) -> Done {
    let (process, graph) = (process()?, out(graph)?);
    match process.end_capture(stream.addr()) {
        Ok(captured) => graph.set(to_graph(captured)),
        Err(error) => {
            graph.set(null_mut())?;
            Err(error)
        }
    }
}

fn is_capturing(stream: CUstream, status: *mut Status) -> Done {
    let (process, status) = (process()?, out(status)?);
    status.set(process.capture_status(stream.addr())?)
}

fn info(
    stream: CUstream,
    status: *mut Status,
    id: *mut u64,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
) -> Done {
    let (process, status) = (process()?, out(status)?);
    if nodes.is_null() && !edges.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let found = process.capture_status(stream.addr())?;
    if found != Status::ACTIVE {
        set_if_wanted(nodes, null());
        set_if_wanted(edges, null());
        set_if_wanted(count, 0);
        return status.set(found);
    }
    let captured = process.capture_info(stream.addr())?;
    if captured.has_edge_data && !nodes.is_null() && edges.is_null() {
        return Err(CUresult::LOSSY_QUERY);
    }
    set_if_wanted(id, captured.id);
    set_if_wanted(graph, to_graph(captured.graph));
    set_if_wanted(nodes, captured.nodes.cast());
    set_if_wanted(edges, captured.edges);
    set_if_wanted(count, captured.count);
    status.set(found)
}

unsafe fn update(
    stream: CUstream,
    nodes: *mut CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    flags: u32,
) -> Done {
    let process = process()?;
    // SAFETY: the caller's lists.
    let dependencies = unsafe { dependencies(nodes, edges, count) }?;
    let replaces = match Update(flags) {
        Update::ADD_CAPTURE_DEPENDENCIES => false,
        Update::SET_CAPTURE_DEPENDENCIES => true,
        _ => return Err(CUresult::INVALID_VALUE),
    };
    process.set_capture_dependencies(stream.addr(), dependencies, replaces)
}

unsafe fn exchange_mode(mode: *mut Mode) -> Done {
    let place = out(mode)?;
    // SAFETY: not null; the caller's mode to set.
    let wanted = unsafe { *mode };
    place.set(capture_mode::exchange_mode(wanted)?)
}
