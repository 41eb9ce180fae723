//! Memory nodes of CUDA graphs: allocations that a graph makes when it runs. `cuGraphAddMemAllocNode` and similar
//! calls, or a captured `cuMemAllocAsync`, define them without taking memory, and so does instantiation. The driver
//! takes the memory when the graph is uploaded or launched (CUDA programming guide, "First Launch / cudaGraphUpload")
//! and keeps it.
//!
//! ```text
//! instantiate: what may it take? ──► launch, upload: charge that, call, settle ──► trim, destroy: settle
//! ```
//! How much a graph may take is `footprint`'s to find; which launches can make the driver take more, `executable`'s to say.
//! While a stream is captured a launch is written down too, and nothing is charged or asked.

mod executable;
mod footprint;

use std::ffi::{c_char, c_ulonglong};
use std::sync::Arc;

use divvy_driver::sys::cuda::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUdevice, CUgraph, CUgraphExec, CUgraphExecUpdateResult,
    CUgraphExecUpdateResultInfo, CUgraphInstantiate_flags, CUgraphNode, CUresult, CUstream,
};

pub use executable::Graphs;
use executable::{Executable, Need};
use footprint::Footprint;

use crate::charge::stream::{Flavour, LEGACY, PER_THREAD};
use crate::compute::{self, Work};
use crate::device::{self, Admission};
use crate::process::{self, LimiterState};
use crate::route::hook::Real;

pub fn instantiate_with_log<F>(
    real: Real<'_, F>,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    _error: *mut CUgraphNode,
    _log: *mut c_char,
    _size: usize,
) -> CUresult {
    instantiated(&real, exec, graph, None)
}

pub fn instantiate<F>(
    real: Real<'_, F>,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    _flags: c_ulonglong,
) -> CUresult {
    instantiated(&real, exec, graph, None)
}

pub fn instantiate_with_params<F>(
    real: Real<'_, F>,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    let upload = upload_stream(params).map(|stream| (stream, &LEGACY));
    instantiated(&real, exec, graph, upload)
}

pub fn instantiate_with_params_ptsz<F>(
    real: Real<'_, F>,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    let upload = upload_stream(params).map(|stream| (stream, &PER_THREAD));
    instantiated(&real, exec, graph, upload)
}

/// The stream into which the graph is uploaded at once, if it is.
fn upload_stream(params: *const CUDA_GRAPH_INSTANTIATE_PARAMS) -> Option<CUstream> {
    // SAFETY: null, or the program's structure, which the driver would read too.
    let params = unsafe { params.as_ref() }?;
    let uploads = params.flags & u64::from(CUgraphInstantiate_flags::UPLOAD.0) != 0;
    uploads.then_some(params.hUploadStream)
}

fn instantiated<F>(
    real: &Real<'_, F>,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    upload: Option<(CUstream, &Flavour)>,
) -> CUresult {
    if exec.is_null() || graph.is_null() || matches!(process::limiter_state(), LimiterState::Off) {
        return real.call();
    }
    let Ok(executable) = admitted(&Footprint::of(graph)) else {
        return CUresult::OUT_OF_MEMORY;
    };
    let (Some(account), Some(executable)) = (process::account(), executable) else {
        return plain(real, exec);
    };
    let graphs = &account.graphs;
    let growths = match upload {
        None => Vec::new(),
        Some((stream, flavour)) => match executable.begin(graphs, || flavour.is_busy(stream)) {
            Some(growths) => growths,
            None => return CUresult::OUT_OF_MEMORY,
        },
    };
    let era = graphs.era(&executable);
    let result = real.call();
    executable.finish(growths);
    if result == CUresult::SUCCESS {
        if let Some((stream, flavour)) = upload {
            graphs.mapped(&executable, flavour.identity(stream), era);
        }
        executable.reconcile();
        // SAFETY: not null, and the driver has just written the handle.
        graphs.insert(unsafe { exec.read() }, executable);
    }
    result
}

/// A graph that takes no memory. What was known by its handle is gone.
fn plain<F>(real: &Real<'_, F>, exec: *mut CUgraphExec) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
    {
        // SAFETY: not null, and the driver has just written the handle.
        account.graphs.take(unsafe { exec.read() });
    }
    result
}

/// The executable graph that takes so much; `None` when it takes nothing of the slice's GPUs.
///
/// # Errors
/// It takes memory where nothing may be allocated.
fn admitted(footprint: &Footprint) -> Result<Option<Arc<Executable>>, ()> {
    let mut needs = Vec::new();
    for (device, bytes) in &footprint.bytes {
        match device::admit_on(*device) {
            Admission::Charge(place) => needs.push(Need {
                cache: place.account.graphs.cache(&place, *device),
                bytes: *bytes,
            }),
            Admission::Pass => {}
            Admission::Refuse => return Err(()),
        }
    }
    Ok((!needs.is_empty()).then(|| Executable::new(needs, footprint.leaves_allocations)))
}

/// Whether a launch may pass directly: no thread waits for a turn, and no graph takes memory.
#[inline(always)]
pub fn is_open() -> bool {
    compute::is_open() && executable::none_takes_memory()
}

pub fn launch<F>(real: Real<'_, F>, exec: CUgraphExec, stream: CUstream) -> CUresult {
    let run = || run(&real, exec, stream, &LEGACY, Graphs::launched);
    compute::pass(stream, &LEGACY, || Work::graph(exec as usize), run)
}

pub fn launch_ptsz<F>(real: Real<'_, F>, exec: CUgraphExec, stream: CUstream) -> CUresult {
    let run = || run(&real, exec, stream, &PER_THREAD, Graphs::launched);
    compute::pass(stream, &PER_THREAD, || Work::graph(exec as usize), run)
}

pub fn upload<F>(real: Real<'_, F>, exec: CUgraphExec, stream: CUstream) -> CUresult {
    run(&real, exec, stream, &LEGACY, |_, _| {})
}

pub fn upload_ptsz<F>(real: Real<'_, F>, exec: CUgraphExec, stream: CUstream) -> CUresult {
    run(&real, exec, stream, &PER_THREAD, |_, _| {})
}

/// Has the driver map a graph's memory; `done` follows when it has.
fn run<F>(
    real: &Real<'_, F>,
    exec: CUgraphExec,
    stream: CUstream,
    flavour: &Flavour,
    done: impl Fn(&Graphs, &Executable),
) -> CUresult {
    let known =
        process::account().and_then(|account| Some((&account.graphs, account.graphs.get(exec)?)));
    let Some((graphs, executable)) = known else {
        return real.call();
    };
    if flavour.captures(stream) {
        return real.call();
    }
    let identity = flavour.identity(stream);
    if let Some(result) = run_steady(real, graphs, &executable, identity, &done) {
        return result;
    }
    // The trim may wait for its own stream, and holds no launch up meanwhile.
    let Some(growths) = executable.begin(graphs, || flavour.is_busy(stream)) else {
        return CUresult::OUT_OF_MEMORY;
    };
    let _leaving = graphs.launching(&executable);
    let era = graphs.era(&executable);
    let result = real.call();
    executable.finish(growths);
    if result == CUresult::SUCCESS {
        graphs.mapped(&executable, identity, era);
        done(graphs, &executable);
    }
    result
}

/// The same for a graph that has its memory from the last time; `None` where it may not.
fn run_steady<F>(
    real: &Real<'_, F>,
    graphs: &Graphs,
    executable: &Executable,
    stream: Option<usize>,
    done: impl Fn(&Graphs, &Executable),
) -> Option<CUresult> {
    let _leaving = graphs.launching(executable);
    let _launching = graphs.steady(executable, stream)?;
    let result = real.call();
    executable.reconcile();
    if result == CUresult::SUCCESS {
        done(graphs, executable);
    }
    Some(result)
}

pub fn update<F>(
    real: Real<'_, F>,
    exec: CUgraphExec,
    graph: CUgraph,
    _error: *mut CUgraphNode,
    _outcome: *mut CUgraphExecUpdateResult,
) -> CUresult {
    updated(&real, exec, graph)
}

pub fn update_v2<F>(
    real: Real<'_, F>,
    exec: CUgraphExec,
    graph: CUgraph,
    _outcome: *mut CUgraphExecUpdateResultInfo,
) -> CUresult {
    updated(&real, exec, graph)
}

/// An update keeps the kinds of all nodes, so only a graph that took memory before takes any afterwards.
fn updated<F>(real: &Real<'_, F>, exec: CUgraphExec, graph: CUgraph) -> CUresult {
    let result = real.call();
    if result == CUresult::SUCCESS
        && let Some(account) = process::account()
        && account.graphs.get(exec).is_some()
        && let Ok(Some(executable)) = admitted(&Footprint::of(graph))
    {
        account.graphs.insert(exec, executable);
    }
    result
}

pub fn destroy<F>(real: Real<'_, F>, exec: CUgraphExec) -> CUresult {
    // Taken out first: the driver may give the handle to another thread's new graph at once.
    let taken = process::account().and_then(|account| Some((account, account.graphs.take(exec)?)));
    let Some((account, executable)) = taken else {
        return real.call();
    };
    let result = real.call();
    if result == CUresult::SUCCESS {
        executable.reconcile();
    } else {
        account.graphs.insert(exec, executable);
    }
    result
}

pub fn trim<F>(real: Real<'_, F>, _device: CUdevice) -> CUresult {
    match process::account() {
        Some(account) => account.graphs.giving_back(|| real.call()),
        None => real.call(),
    }
}
