//! What a stream handle means, and what may be asked of it. The null stream is one stream for the whole device, or one a
//! thread, by the name under which a function was called.

use divvy_driver::sys::cuda::{CUdevice, CUresult, CUstream, CUstreamCaptureStatus, pfn};

use crate::charge::stock::relaxed;
use crate::device;
use crate::route::function::{Function, driver};
use crate::table::real;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` of `cuda.h`: handles that name no stream of the program's making.
const PER_THREAD_STREAM: usize = 2;

/// The functions that go with one meaning of the null stream.
pub struct Flavour {
    is_capturing: &'static Function<pfn::cuStreamIsCapturing>,
    query: &'static Function<pfn::cuStreamQuery>,
    pub free: &'static Function<pfn::cuMemFreeAsync>,
    per_thread: bool,
}

pub static LEGACY: Flavour = Flavour {
    is_capturing: &driver::cuStreamIsCapturing,
    query: &driver::cuStreamQuery,
    free: &real::cuMemFreeAsync,
    per_thread: false,
};
pub static PER_THREAD: Flavour = Flavour {
    is_capturing: &driver::cuStreamIsCapturing_ptsz,
    query: &driver::cuStreamQuery_ptsz,
    free: &real::cuMemFreeAsync_ptsz,
    per_thread: true,
};

impl Flavour {
    /// While a stream is captured, what is asked of it is written down and not done. When the driver will not say, it
    /// will not do it either.
    pub fn captures(&self, stream: CUstream) -> bool {
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

    /// What tells streams apart for the whole process; `None` where the handle is another stream in another thread.
    pub fn identity(&self, stream: CUstream) -> Option<usize> {
        let per_thread =
            stream as usize == PER_THREAD_STREAM || stream.is_null() && self.per_thread;
        (!per_thread).then_some(stream as usize)
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
