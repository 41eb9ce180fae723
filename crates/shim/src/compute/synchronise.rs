//! The hooks of calls that wait for the GPU, such as `cuStreamSynchronize`. The gate never holds them up; while slices
//! take turns, the limiter records that they wait, and which work is done when they return.

use divvy_driver::sys::cuda::{CUcontext, CUevent, CUresult, CUstream};

use crate::charge::stream::{LEGACY, PER_THREAD};
use crate::compute::flight::{Lane, StreamId};
use crate::compute::gate::gated;
use crate::device;
use crate::process;
use crate::route::hook::Real;

fn watched<F>(real: &Real<'_, F>, of: impl Fn(&Lane) -> bool) -> CUresult {
    let result = match gated() {
        None => real.call(),
        Some((account, slot)) => {
            let watching = slot.watch_work();
            let result = real.call();
            drop(watching);
            let fine = result == CUresult::SUCCESS;
            account.compute.synchronised(slot, |lane| fine && of(lane));
            result
        }
    };
    // The driver gives freed memory of its pools back now (CUDA programming guide, "Physical Page Caching Behavior").
    if let Some(account) = process::account() {
        account.pools.synchronised();
    }
    result
}

pub fn context<F>(real: Real<'_, F>) -> CUresult {
    watched(&real, |lane| lane.context == device::current_context())
}

pub fn context_v2<F>(real: Real<'_, F>, context: CUcontext) -> CUresult {
    watched(&real, |lane| lane.context == context)
}

fn of_stream<F>(real: &Real<'_, F>, name: StreamId) -> CUresult {
    // A stream of another context that is named by its handle is told apart by that.
    watched(real, |lane| {
        lane.name == name && (lane.is_made() || lane.context == device::current_context())
    })
}

pub fn stream<F>(real: Real<'_, F>, stream: CUstream) -> CUresult {
    of_stream(&real, StreamId::of(stream, &LEGACY))
}

pub fn stream_ptsz<F>(real: Real<'_, F>, stream: CUstream) -> CUresult {
    of_stream(&real, StreamId::of(stream, &PER_THREAD))
}

pub fn event<F>(real: Real<'_, F>, _event: CUevent) -> CUresult {
    watched(&real, |_| false)
}
