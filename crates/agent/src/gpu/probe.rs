//! Probes of a GPU with a fault: a short-lived process makes a context there. The daemon itself never does: a context on
//! a sick GPU may hang, or take its process along.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use divvy_core::GpuUuid;

use super::overhead::{FULL, start};
use crate::host::child_timeout::{failure_message, wait_with_timeout};

/// How long a probe may take: the first context after a driver was loaded takes seconds on machines with many GPUs.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a probe found on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProbed {
    pub gpu: GpuUuid,
    /// How it failed; `Ok` if a context was made, or only memory was missing for one.
    pub outcome: Result<(), String>,
}

/// Where outcomes go.
pub type ProbeSender = Arc<dyn Fn(GpuProbed) + Send + Sync>;

/// Starts probes, each on a thread of its own.
pub struct Prober {
    report: ProbeSender,
    divvy: PathBuf,
    /// The folder of the simulated driver.
    simulated: Option<PathBuf>,
}

impl Prober {
    /// `divvy`: this program.
    pub fn new(report: ProbeSender, divvy: PathBuf, simulated: Option<PathBuf>) -> Self {
        Self {
            report,
            divvy,
            simulated,
        }
    }

    /// Starts a probe of a GPU; its outcome is reported in any case.
    pub fn start(&self, gpu: GpuUuid) {
        let (divvy, simulated) = (self.divvy.clone(), self.simulated.clone());
        let (report, of) = (Arc::clone(&self.report), gpu.clone());
        let run = move || {
            let outcome = start(&divvy, simulated.as_deref(), of.as_str())
                .and_then(|child| wait_with_timeout(child, PROBE_TIMEOUT));
            let outcome = match outcome {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) if output.status.code() == Some(FULL.into()) => Ok(()),
                Ok(output) => Err(failure_message(&output)),
                Err(error) => Err(error.to_string()),
            };
            report(GpuProbed { gpu: of, outcome });
        };
        let thread = std::thread::Builder::new().name("probe".to_owned());
        if let Err(error) = thread.spawn(run) {
            (self.report)(not_started(gpu, &error));
        }
    }
}

fn not_started(gpu: GpuUuid, error: &io::Error) -> GpuProbed {
    GpuProbed {
        gpu,
        outcome: Err(format!("cannot start a thread: {error}")),
    }
}
