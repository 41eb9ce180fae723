//! Programs that run in other slices while a replay runs.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use divvy_api::v1::{GpuFigures, Neighbour};
use divvy_driver::load::Lookup;
use divvy_driver::nvml::Nvml;
use divvy_driver::probe::{Session, device_count};

use super::stage::{MIB, PIECE};
use crate::diagnostics::selftest::{Failure, gpu_environment, known_way, print_json};

/// The part that JAX takes at its start, in thousandths of the total.
pub const PREALLOCATED: u64 = 750;
/// The block that the neighbour takes and frees all the time.
const BLOCK: u64 = 128 * MIB;
const PAUSE: Duration = Duration::from_millis(2);
/// It ends by itself after this time.
const LONGEST: Duration = Duration::from_secs(1800);

/// A neighbour: takes what JAX takes, says so, then takes and frees a block until its input ends. Its last line is the
/// number of rounds.
pub fn neighbour(limit: u64) -> Result<(), Failure> {
    let session = Session::open(None, Lookup::Handle, 0)?;
    let way = known_way("cuMemAlloc_v2")?;
    let place = gpu_environment()?;
    let limit = place.instance.unwrap_or(limit);
    let total = session.info()?.total;
    // Without a limiter it sees the whole GPU, and takes no more than a part of its limit.
    let part = (u128::from(total.min(limit)) * u128::from(PREALLOCATED) / 1000) as u64;
    let held = way.take(&session, part / PIECE * PIECE)?;
    print_json(&Neighbour {
        gpu_uuid: place.identity.uuid,
        gpu_index: place.identity.index,
        total_bytes: total,
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
        thread::sleep(PAUSE);
        drop(taken);
        thread::sleep(PAUSE);
    }
    print_json(&rounds)
}

/// The totals of all GPUs of this slice, as CUDA and NVML show them.
pub fn pair() -> Result<(), Failure> {
    // CUDA first: the simulated driver is one file, of which NVML would be found as CUDA (docs/simulator.md).
    let count = device_count(None)?;
    let nvml = Nvml::load(None)?;
    let mut figures = Vec::new();
    for ordinal in 0..count {
        let session = Session::open(None, Lookup::Handle, ordinal)?;
        let uuid = session.uuid()?;
        figures.push(GpuFigures {
            gpu_uuid: uuid.to_string(),
            cuda_total_bytes: session.info()?.total,
            nvml_total_bytes: nvml.device_by_uuid(uuid)?.memory()?.total,
        });
    }
    print_json(&figures)
}
