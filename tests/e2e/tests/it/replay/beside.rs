//! Programs that run in other slices while a replay runs.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use divvy_driver::load::Lookup;
use divvy_driver::nvml::Nvml;
use divvy_driver::probe::{Session, device_count};
use divvy_testkit::let_pass;
use serde::{Deserialize, Serialize};

use super::child::print_json;
use super::stage::{MIB, PIECE, known, limit_of};
use super::step::Trouble;

/// The part that JAX takes at its start, in thousandths of the total.
pub const PREALLOCATED: u64 = 750;
/// The block that the neighbour takes and frees all the time.
const BLOCK: u64 = 128 * MIB;
const PAUSE: Duration = Duration::from_millis(2);
/// It ends by itself after this time.
const LONGEST: Duration = Duration::from_secs(1800);

/// What runs beside the replayed programs; the test that creates their slices starts it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Surroundings {
    pub neighbour: Neighbour,
    /// Figures of a job with equal parts of two GPUs, one for each GPU.
    pub pair: Option<Vec<GpuFigures>>,
}

/// A program in another slice of the same GPU, with the same limit. It allocates and frees memory all the time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Neighbour {
    /// Bytes that it has taken as JAX does at its start.
    pub preallocated_bytes: u64,
}

/// Memory of one GPU as programs in a slice see it, in bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GpuFigures {
    /// By `cuMemGetInfo`.
    pub cuda_total_bytes: u64,
    /// By NVML.
    pub nvml_total_bytes: u64,
}

/// A neighbour: takes what JAX takes, says so, then takes and frees a block until its input ends. Its last line is the
/// number of rounds.
pub fn neighbour(limit: u64) -> Result<(), Trouble> {
    let session = Session::open(None, Lookup::Handle, 0)?;
    let way = known("cuMemAlloc_v2")?;
    let limit = limit_of(&session, limit)?;
    let total = session.info()?.total;
    // Without a limiter it sees the whole GPU, and takes no more than a part of its limit.
    let part = (u128::from(total.min(limit)) * u128::from(PREALLOCATED) / 1000) as u64;
    let held = way.take(&session, part / PIECE * PIECE)?;
    print_json(&Neighbour {
        preallocated_bytes: held.bytes(),
    })?;
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    thread::spawn(move || {
        let mut rest = Vec::new();
        let _ = io::stdin().lock().read_to_end(&mut rest);
        told.store(true, Ordering::Relaxed);
    });
    let start = Instant::now();
    let mut rounds: u64 = 0;
    while !over.load(Ordering::Relaxed) && start.elapsed() < LONGEST {
        // In a small slice the block does not fit beside the rest.
        let block = BLOCK.min(session.info()?.free / 2 / PIECE * PIECE);
        let taken = match block {
            0 => None,
            _ => way.take(&session, block).ok(),
        };
        rounds += u64::from(taken.is_some());
        // Half of the time the block is held.
        let_pass(PAUSE);
        drop(taken);
        let_pass(PAUSE);
    }
    print_json(&rounds)
}

/// The totals of all GPUs of this slice, as CUDA and NVML show them.
pub fn pair() -> Result<(), Trouble> {
    // CUDA first: the simulated driver is one file, of which NVML would be found as CUDA (docs/simulator.md).
    let count = device_count(None)?;
    let nvml = Nvml::load(None)?;
    let mut figures = Vec::new();
    for ordinal in 0..count {
        let session = Session::open(None, Lookup::Handle, ordinal)?;
        let uuid = session.uuid()?;
        figures.push(GpuFigures {
            cuda_total_bytes: session.info()?.total,
            nvml_total_bytes: nvml.device_by_uuid(uuid)?.memory()?.total,
        });
    }
    print_json(&figures)
}
