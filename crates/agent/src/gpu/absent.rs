//! A driver that does not answer when the daemon starts: its module is not loaded yet, or an upgrade of it runs.
//!
//! A child process asks whether it answers now, and the daemon then starts anew. A library of the driver stays in the
//! process that has loaded it, also where a newer one is in its place, and keeps the module in use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use divvy_api::sync::lock;
use divvy_core::GpuUuid;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::mig::driver::Gpu;
use super::source::{GpuDriver, MigReader, SourceError};
use super::{GpuOccupancy, Observation, Power};
use crate::host::child_timeout::{failure_message, run_with_timeout};

/// How often the child asks: a boot or an upgrade takes minutes, and a child tens of milliseconds.
const ASK_INTERVAL: Duration = Duration::from_secs(2);

/// How long it may take; a driver that has just been loaded takes seconds for its first answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A driver that does not answer.
pub struct AbsentDriver {
    divvy: PathBuf,
    /// The folder of the simulated driver.
    simulated: Option<PathBuf>,
    /// When it was asked last, and why it did not answer.
    asked: Mutex<(Instant, String)>,
}

/// What `divvy probe-driver` prints of NVML.
#[derive(Deserialize)]
struct Probe {
    nvml: Result<IgnoredAny, String>,
}

impl AbsentDriver {
    /// `divvy`: the program that asks. `why`: what the driver said at the start.
    pub fn new(divvy: PathBuf, simulated: Option<PathBuf>, why: String) -> Self {
        Self {
            divvy,
            simulated,
            asked: Mutex::new((Instant::now(), why)),
        }
    }

    /// Why it does not answer now; [`SourceError::Returned`] if it does.
    fn ask(&self) -> SourceError {
        let mut asked = lock(&self.asked);
        if asked.0.elapsed() >= ASK_INTERVAL {
            match self.probe() {
                Ok(()) => return SourceError::Returned,
                Err(why) => *asked = (Instant::now(), why),
            }
        }
        SourceError::Absent(asked.1.clone())
    }

    fn probe(&self) -> Result<(), String> {
        let mut command = Command::new(&self.divvy);
        command
            .arg("probe-driver")
            .env_remove("LD_PRELOAD")
            .env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(folder) = &self.simulated {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let output = run_with_timeout(&mut command, PATIENCE).map_err(|error| error.to_string())?;
        match serde_json::from_slice::<Probe>(&output.stdout) {
            Ok(probe) => probe.nvml.map(drop),
            Err(_) => Err(failure_message(&output)),
        }
    }
}

impl GpuDriver for AbsentDriver {
    fn version(&self) -> Result<String, SourceError> {
        Err(self.ask())
    }

    fn gpu(&self, _: &GpuUuid) -> Result<Box<dyn Gpu + '_>, SourceError> {
        Err(self.ask())
    }

    fn observe(&self, _: MigReader<'_>, _: &BTreeSet<u32>) -> Result<Observation, SourceError> {
        Err(self.ask())
    }

    fn occupancy(&self) -> Result<Vec<GpuOccupancy>, SourceError> {
        Err(self.ask())
    }

    fn power(&self, _: &BTreeSet<u32>) -> BTreeMap<u32, Power> {
        BTreeMap::new()
    }
}
