//! Stream handles: the stream that a handle names, and queries that are safe on it. The null stream is one stream for
//! the whole device or one per thread, depending on the name under which a function was called.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use divvy_driver::sys::cuda::{
    CUdevice, CUevent, CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, pfn,
};

use crate::charge::driver_cache::relaxed;
use crate::device;
use crate::route::function::{Function, driver};
use crate::route::hook::Real;
use crate::table::real;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` of `cuda.h`: handles that name no stream of the program's making.
const PER_THREAD_STREAM: usize = 2;

/// The functions that go with one meaning of the null stream.
pub struct Flavour {
    is_capturing: &'static Function<pfn::cuStreamIsCapturing>,
    query: &'static Function<pfn::cuStreamQuery>,
    record: &'static Function<pfn::cuEventRecord>,
    pub free: &'static Function<pfn::cuMemFreeAsync>,
    per_thread: bool,
}

pub static LEGACY: Flavour = Flavour {
    is_capturing: &driver::cuStreamIsCapturing,
    query: &driver::cuStreamQuery,
    record: &driver::cuEventRecord,
    free: &real::cuMemFreeAsync,
    per_thread: false,
};
pub static PER_THREAD: Flavour = Flavour {
    is_capturing: &driver::cuStreamIsCapturing_ptsz,
    query: &driver::cuStreamQuery_ptsz,
    record: &driver::cuEventRecord_ptsz,
    free: &real::cuMemFreeAsync_ptsz,
    per_thread: true,
};

/// Whether this process ever asked to capture a stream. Most programs never do, and need not ask the driver before each
/// call whether a stream is captured. Captures for Direct3D (`cuStreamBeginCaptureToCig`) do not exist on Linux.
static ANY_CAPTURE: AtomicBool = AtomicBool::new(false);

pub fn begin_capture<F>(real: Real<'_, F>, _stream: CUstream) -> CUresult {
    ANY_CAPTURE.store(true, SeqCst);
    real.call()
}

pub fn begin_capture_v2<F>(
    real: Real<'_, F>,
    stream: CUstream,
    _mode: CUstreamCaptureMode,
) -> CUresult {
    begin_capture(real, stream)
}

pub fn begin_capture_to_graph<F>(
    real: Real<'_, F>,
    stream: CUstream,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _data: *const CUgraphEdgeData,
    _count: usize,
    _mode: CUstreamCaptureMode,
) -> CUresult {
    begin_capture(real, stream)
}

impl Flavour {
    /// While a stream is captured, what is asked of it is written down and not done. When the driver will not say, it
    /// will not do it either.
    pub fn captures(&self, stream: CUstream) -> bool {
        if !ANY_CAPTURE.load(Relaxed) {
            return false;
        }
        let mut status = CUstreamCaptureStatus::NONE;
        let Some(ask) = self.is_capturing.get() else {
            return false;
        };
        // SAFETY: the program's stream, and a place for the answer.
        let result = unsafe { ask(stream, &mut status) };
        result != CUresult::SUCCESS || status != CUstreamCaptureStatus::NONE
    }

    /// Whether work is still under way in the stream.
    pub fn is_busy(&self, stream: CUstream) -> bool {
        let Some(ask) = self.query.get() else {
            return false;
        };
        // SAFETY: the program's stream.
        relaxed(|| unsafe { ask(stream) }) == CUresult::NOT_READY
    }

    /// The identity of a stream in the whole process; `None` if the handle means another stream in another thread.
    pub fn identity(&self, stream: CUstream) -> Option<usize> {
        let per_thread =
            stream as usize == PER_THREAD_STREAM || stream.is_null() && self.per_thread;
        (!per_thread).then_some(stream as usize)
    }
}

/// A place in a stream's order. It outlives the stream.
pub struct StreamMarker(CUevent);

// SAFETY: an event belongs to a context and not to a thread.
unsafe impl Send for StreamMarker {}

impl StreamMarker {
    /// Behind all that was asked of the stream so far; `None` when the driver will not have it.
    pub fn behind(stream: CUstream, flavour: &Flavour) -> Option<StreamMarker> {
        /// `CU_EVENT_DISABLE_TIMING` of cuda.h.
        const DISABLE_TIMING: u32 = 2;
        let mut event = std::ptr::null_mut();
        let create = driver::cuEventCreate.get()?;
        // SAFETY: the driver's function, with a place for its answer.
        if relaxed(|| unsafe { create(&mut event, DISABLE_TIMING) }) != CUresult::SUCCESS {
            return None;
        }
        let mark = StreamMarker(event);
        // SAFETY: the event just made, and the program's stream, which is not captured: it has just done something.
        let recorded = relaxed(|| unsafe { Some(flavour.record.get()?(event, stream)) });
        (recorded == Some(CUresult::SUCCESS)).then_some(mark)
    }

    /// Whether the stream has come this far. When the driver will not say, its context is gone, and all work with it.
    pub fn is_reached(&self) -> bool {
        // SAFETY: an event of our own.
        let asked = relaxed(|| unsafe { Some(driver::cuEventQuery.get()?(self.0)) });
        asked != Some(CUresult::NOT_READY)
    }
}

impl Drop for StreamMarker {
    fn drop(&mut self) {
        if let Some(destroy) = driver::cuEventDestroy_v2.get() {
            // SAFETY: an event of our own, which no other code knows.
            unsafe { destroy(self.0) };
        }
    }
}

/// The device that a stream's work runs on.
pub fn device_of(stream: CUstream) -> Option<CUdevice> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the program's stream, and a place for the answer.
    let known = stream as usize > PER_THREAD_STREAM
        && unsafe { driver::cuStreamGetCtx.get()?(stream, &mut context) } == CUresult::SUCCESS;
    if !known || context == device::current_context() {
        return device::current();
    }
    // SAFETY: a living context, for its stream does; taken off again at once.
    unsafe {
        if driver::cuCtxPushCurrent_v2.get()?(context) != CUresult::SUCCESS {
            return None;
        }
        let device = device::current();
        driver::cuCtxPopCurrent_v2.get()?(&mut context);
        device
    }
}
