//! Context overhead: the memory of one CUDA context, measured once for each model and driver in a child process, and
//! stored.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use divvy_core::Bytes;
use divvy_driver::cuda::{self, ContextOverhead};
use serde::{Deserialize, Serialize};

use super::ObservedGpu;
use super::source::simulated_libraries;
use crate::host::child_timeout::{failure_message, wait_with_timeout};
use crate::host::error::error_chain;

/// Taken where it cannot be measured: more than a data-centre GPU is believed to take (300 to 500 MB; docs/hardware.md).
pub const ASSUMED: Bytes = Bytes::mib(600);

/// What a context costs on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    pub bytes: Bytes,
    /// No other process disturbed the measurement; false where the figure is assumed.
    pub is_measured: bool,
}

impl Overhead {
    const ASSUMED: Self = Self {
        bytes: ASSUMED,
        is_measured: false,
    };
}

/// Exit code of a probe that found too little free memory for a context: the GPU works. So neither success nor the
/// codes of a failed or misused program (1, 2).
pub const FULL: u8 = 3;

/// How long a probe may take; the first context after a boot takes seconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(60);

/// What a probe prints.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    bytes: u64,
    /// Other processes of the GPU did not disturb the figure.
    exact: bool,
}

/// `divvy probe-context UUID [--simulated DIR]`: measures and prints one line of JSON.
pub fn probe(uuid: &str, simulated: Option<&Path>) -> ExitCode {
    match measure(uuid, simulated) {
        Ok(overhead) => {
            let measured = Measured {
                bytes: overhead.bytes,
                exact: overhead.source == cuda::Source::Process,
            };
            let line = serde_json::to_string(&measured).unwrap_or_default();
            let written = io::Write::write_all(&mut io::stdout(), line.as_bytes());
            if written.is_ok() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("divvy: {}", error_chain(error.as_ref()));
            let driver = error.downcast_ref::<divvy_driver::Error>();
            match driver.is_some_and(divvy_driver::Error::is_out_of_memory) {
                true => ExitCode::from(FULL),
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn measure(
    uuid: &str,
    simulated: Option<&Path>,
) -> Result<ContextOverhead, Box<dyn std::error::Error>> {
    let libraries = simulated.map(simulated_libraries);
    let (cuda, nvml) = match &libraries {
        Some((cuda, nvml)) => (Some(cuda.as_path()), Some(nvml.as_path())),
        None => (None, None),
    };
    Ok(cuda::context_overhead(cuda, nvml, uuid.parse()?)?)
}

/// The overhead on each of these GPUs, in their order: `known` by model, else measured, one GPU of each model, all at
/// once. `remember` gets what a measurement is sure of, in bytes. `simulated` is the folder of the simulated driver.
///
/// # Errors
/// Those of `known` and `remember`.
pub fn overheads<E>(
    divvy: &Path,
    simulated: Option<&Path>,
    gpus: &[&ObservedGpu],
    known: impl Fn(&str) -> Result<Option<u64>, E>,
    remember: impl Fn(&str, u64) -> Result<(), E>,
) -> Result<Vec<Overhead>, E> {
    let mut by_model: BTreeMap<&str, Overhead> = BTreeMap::new();
    let mut probes: BTreeMap<&str, io::Result<Child>> = BTreeMap::new();
    for gpu in gpus {
        if by_model.contains_key(gpu.model.as_str()) || probes.contains_key(gpu.model.as_str()) {
            continue;
        }
        match known(&gpu.model)? {
            Some(bytes) => drop(by_model.insert(
                &gpu.model,
                Overhead {
                    bytes: Bytes::new(bytes),
                    is_measured: true,
                },
            )),
            // A context on the bare GPU would be in the way of its first instance, and costs no limit anything.
            None if gpu.active_mig().is_some() => {}
            None => drop(probes.insert(&gpu.model, start(divvy, simulated, gpu.uuid.as_str()))),
        }
    }
    let deadline = Instant::now() + PROBE_TIMEOUT;
    for (model, probe) in probes {
        let overhead = match probe.and_then(|child| finish(child, deadline)) {
            Ok(measured) => {
                // A figure that others may have disturbed is good for now, and measured again next time.
                if measured.exact {
                    remember(model, measured.bytes)?;
                }
                tracing::info!(
                    model,
                    bytes = measured.bytes,
                    exact = measured.exact,
                    "measured the context overhead"
                );
                Overhead {
                    bytes: Bytes::new(measured.bytes),
                    is_measured: measured.exact,
                }
            }
            Err(error) => {
                tracing::warn!(model, %error, assumed = %ASSUMED, "cannot measure the context overhead; assuming a \
                    high value");
                Overhead::ASSUMED
            }
        };
        by_model.insert(model, overhead);
    }
    Ok(gpus
        .iter()
        .map(|gpu| {
            by_model
                .get(gpu.model.as_str())
                .copied()
                .unwrap_or(Overhead::ASSUMED)
        })
        .collect())
}

pub(super) fn start(divvy: &Path, simulated: Option<&Path>, uuid: &str) -> io::Result<Child> {
    let mut command = Command::new(divvy);
    command.args(["probe-context", uuid]);
    if let Some(folder) = simulated {
        command.arg("--simulated").arg(folder);
    }
    command
        // The daemon may have been started inside a job or with GPUs hidden; the probe measures the bare driver.
        .env_remove("LD_PRELOAD")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

fn finish(child: Child, deadline: Instant) -> io::Result<Measured> {
    let left = deadline.saturating_duration_since(Instant::now());
    let output = wait_with_timeout(child, left)?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "the probe ended with {}",
            failure_message(&output)
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).map_err(|error| {
        io::Error::other(format!("cannot read the probe's output {text:?} ({error})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon of the whole machine has other folders than a child would find by itself.
    #[test]
    fn the_probe_gets_the_folder_of_the_simulated_driver() {
        let folder = tempfile::tempdir().unwrap();
        let divvy = folder.path().join("divvy");
        let script = "#!/bin/sh\nshift 2\necho '{\"bytes\":'$#$2',\"exact\":true}'\n";
        std::fs::write(&divvy, script).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&divvy, executable).unwrap();
        let bytes = |simulated: Option<&str>| {
            let child = start(&divvy, simulated.map(Path::new), "GPU-1").unwrap();
            let measured = finish(child, Instant::now() + PROBE_TIMEOUT).unwrap();
            measured.bytes
        };
        assert_eq!(bytes(None), 0);
        assert_eq!(bytes(Some("77")), 277);
    }
}
