//! Probe of graph memory: by an allocation node, and by an allocation on a captured stream.

use super::{Session, Taken};
use crate::Error;
use crate::sys::cuda::*;

/// The stream that NULL means.
const STREAM: CUstream = std::ptr::null_mut();

/// `cuGraphAddMemAllocNode`, instantiated and launched.
pub fn node(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let (graph, made, address) = with_node(session, bytes)?;
    launched(session, graph, made, bytes, address)
}

/// `cuGraphUpload` of such a graph, which is never launched.
pub fn uploaded(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let (graph, made, _) = with_node(session, bytes)?;
    let (exec, instance) = instance(session, graph)?;
    // SAFETY: our own executable graph, the null stream.
    session.call(&session.functions.cuGraphUpload, |upload| unsafe {
        upload(exec, STREAM)
    })?;
    session.synchronise();
    Ok(session.taken(bytes, move |_| {
        drop(instance);
        drop(made);
        Ok(())
    }))
}

/// A graph that allocates `bytes` when it runs, and the address it will have.
fn with_node(session: &Session, bytes: u64) -> Result<(CUgraph, Taken<'_>, CUdeviceptr), Error> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: writes one handle.
    session.call(&session.functions.cuGraphCreate, |make| unsafe {
        make(&raw mut graph, 0)
    })?;
    let made = graph_of(session, graph);
    let mut node = std::ptr::null_mut();
    let mut parameters = CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CUmemAllocationType::PINNED,
            location: session.location(),
            ..Default::default()
        },
        bytesize: bytes as usize,
        ..Default::default()
    };
    // SAFETY: our own graph, no dependencies; writes a handle, and an address into the parameters.
    session.call(&session.functions.cuGraphAddMemAllocNode, |add| unsafe {
        add(
            &raw mut node,
            graph,
            std::ptr::null(),
            0,
            &raw mut parameters,
        )
    })?;
    Ok((graph, made, parameters.dptr))
}

/// `cuMemAllocAsync` on a stream that is being captured, the graph instantiated and launched.
pub fn captured(session: &Session, bytes: u64) -> Result<Taken<'_>, Error> {
    let (stream, stream_made) = begin_capture(session, CUstreamCaptureMode::RELAXED)?;
    let mut address = 0;
    // SAFETY: writes one address; our own stream.
    let allocated = session.call(&session.functions.cuMemAllocAsync, |take| unsafe {
        take(&raw mut address, bytes as usize, stream)
    });
    let graph = end_capture(session, stream);
    drop(stream_made);
    allocated?;
    let graph = graph?;
    let made = graph_of(session, graph);
    launched(session, graph, made, bytes, address)
}

/// A new stream, whose calls go into a graph.
pub(super) fn begin_capture(
    session: &Session,
    mode: CUstreamCaptureMode,
) -> Result<(CUstream, Taken<'_>), Error> {
    let f = &session.functions;
    let mut stream = std::ptr::null_mut();
    // SAFETY: writes one handle.
    session.call(&f.cuStreamCreate, |make| unsafe {
        make(&raw mut stream, CUstream_flags::NON_BLOCKING.0)
    })?;
    let made = session.taken(0, move |session| {
        // SAFETY: made above, destroyed once.
        session.call(&session.functions.cuStreamDestroy_v2, |destroy| unsafe {
            destroy(stream)
        })
    });
    // SAFETY: our own stream.
    session.call(&f.cuStreamBeginCapture_v2, |begin| unsafe {
        begin(stream, mode)
    })?;
    Ok((stream, made))
}

/// The graph of a stream from [`begin_capture`], which the caller destroys.
pub(super) fn end_capture(session: &Session, stream: CUstream) -> Result<CUgraph, Error> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: our own stream; writes one handle.
    session.call(&session.functions.cuStreamEndCapture, |end| unsafe {
        end(stream, &raw mut graph)
    })?;
    Ok(graph)
}

pub(super) fn graph_of(session: &Session, graph: CUgraph) -> Taken<'_> {
    session.taken(0, move |session| {
        // SAFETY: made by our caller, destroyed once.
        session.call(&session.functions.cuGraphDestroy, |destroy| unsafe {
            destroy(graph)
        })
    })
}

pub(super) fn instance(
    session: &Session,
    graph: CUgraph,
) -> Result<(CUgraphExec, Taken<'_>), Error> {
    let mut exec = std::ptr::null_mut();
    let instantiate = &session.functions.cuGraphInstantiateWithFlags;
    // SAFETY: our own graph; writes one handle.
    session.call(instantiate, |make| unsafe { make(&raw mut exec, graph, 0) })?;
    let made = session.taken(0, move |session| {
        // SAFETY: made above, destroyed once.
        let destroyed = session.call(&session.functions.cuGraphExecDestroy, |destroy| unsafe {
            destroy(exec)
        });
        // SAFETY: our own device.
        session.call(&session.functions.cuDeviceGraphMemTrim, |trim| unsafe {
            trim(session.device)
        })?;
        destroyed
    });
    Ok((exec, made))
}

/// The graph's memory is there from its launch until it is freed; then the device's graph pool may keep it.
fn launched<'s>(
    session: &'s Session,
    graph: CUgraph,
    made: Taken<'s>,
    bytes: u64,
    address: CUdeviceptr,
) -> Result<Taken<'s>, Error> {
    let (exec, instance) = instance(session, graph)?;
    // SAFETY: our own executable graph, the null stream.
    session.call(&session.functions.cuGraphLaunch, |launch| unsafe {
        launch(exec, STREAM)
    })?;
    session.synchronise();
    Ok(session.taken(bytes, move |session| {
        // SAFETY: allocated by the launch, freed once.
        let freed = session.call(&session.functions.cuMemFree_v2, |free| unsafe {
            free(address)
        });
        session.synchronise();
        drop(instance);
        drop(made);
        freed
    }))
}
