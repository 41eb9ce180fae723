//! An allocation that is refused while a graph is captured: the capture has to go on, and the graph to run.

use super::graphs::{begin_capture, end_capture, graph_of, instance};
use super::{Session, linear};
use crate::Error;
use crate::sys::cuda::*;

/// Bytes that the captured fill writes.
const WRITTEN: usize = 1 << 20;

/// The results of the calls, in their order.
#[derive(Debug)]
pub struct Captured {
    /// The allocation during the capture; its bytes where it was granted.
    pub allocation: Result<u64, Error>,
    /// The end of the capture, and the graph's instance.
    pub capture: Result<(), Error>,
    /// The launch of the graph, and waiting for it.
    pub launch: Result<(), Error>,
}

/// Captures a fill of memory in the global mode. In between, this thread asks for `bytes` as allocators do: in the relaxed
/// mode.
///
/// # Errors
/// The driver's before the capture.
pub fn during_capture(session: &Session, bytes: u64) -> Result<Captured, Error> {
    let f = &session.functions;
    let target = linear::alloc(session, WRITTEN as u64)?;
    let address = target.address().unwrap_or_default();
    let (stream, stream_made) = begin_capture(session, CUstreamCaptureMode::GLOBAL)?;
    // SAFETY: our own stream, and memory of that size that outlives the graph.
    let filled = session.call(&f.cuMemsetD8Async, |fill| unsafe {
        fill(address, 0, WRITTEN, stream)
    });
    let before = exchange_mode(session, CUstreamCaptureMode::RELAXED);
    let allocation = linear::alloc(session, bytes);
    if let Ok(before) = before {
        exchange_mode(session, before)?;
    }
    let graph = end_capture(session, stream);
    let (capture, launch) = match filled.and(graph) {
        Ok(graph) => replay(session, graph),
        Err(error) => (Err(error.clone()), Err(error)),
    };
    drop(stream_made);
    Ok(Captured {
        allocation: allocation.map(|taken| taken.bytes()),
        capture,
        launch,
    })
}

/// Instantiates the graph, and launches the instance.
fn replay(session: &Session, graph: CUgraph) -> (Result<(), Error>, Result<(), Error>) {
    let _made = graph_of(session, graph);
    match instance(session, graph) {
        Err(error) => (Err(error.clone()), Err(error)),
        Ok((exec, _instance)) => {
            // SAFETY: our own executable graph, the null stream.
            let launched = session.call(&session.functions.cuGraphLaunch, |launch| unsafe {
                launch(exec, std::ptr::null_mut())
            });
            session.synchronise();
            (Ok(()), launched)
        }
    }
}

/// Sets this thread's mode of capturing, and answers the one before.
fn exchange_mode(
    session: &Session,
    mode: CUstreamCaptureMode,
) -> Result<CUstreamCaptureMode, Error> {
    let mut mode = mode;
    let exchange = &session.functions.cuThreadExchangeStreamCaptureMode;
    // SAFETY: reads and writes one mode.
    session.call(exchange, |exchange| unsafe { exchange(&raw mut mode) })?;
    Ok(mode)
}
