//! Probes of a GPU with a fault: a short-lived process makes a context there. The daemon itself never does: a context on
//! a sick GPU may hang, or take its process along.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use divvy_api::sync::lock;
use divvy_core::GpuUuid;

use super::overhead::{FULL, start};
use crate::host::child_timeout::{failure_message, wait_with_timeout};
use crate::host::process::Process;

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
    /// Probes that were killed and may still be in the driver.
    hung: Arc<Mutex<BTreeMap<GpuUuid, Process>>>,
}

impl Prober {
    /// `divvy`: this program.
    pub fn new(report: ProbeSender, divvy: PathBuf, simulated: Option<PathBuf>) -> Self {
        Self {
            report,
            divvy,
            simulated,
            hung: Arc::default(),
        }
    }

    /// Starts a probe of a GPU; its outcome is reported in any case. While the kernel does not let go of an earlier one,
    /// no further one starts: there would be more with each try.
    pub fn start(&self, gpu: GpuUuid) {
        let hung = lock(&self.hung).get(&gpu).copied();
        if let Some(process) = hung.filter(|process| process.is_alive()) {
            let why = format!("an earlier probe (pid {}) hangs in the driver", process.pid);
            return (self.report)(GpuProbed {
                gpu,
                outcome: Err(why),
            });
        }
        let hung = Arc::clone(&self.hung);
        let (divvy, simulated) = (self.divvy.clone(), self.simulated.clone());
        let (report, of) = (Arc::clone(&self.report), gpu.clone());
        let run = move || {
            let outcome = start(&divvy, simulated.as_deref(), of.as_str()).and_then(|child| {
                let process = Process::with_pid(child.id());
                let outcome = wait_with_timeout(child, PROBE_TIMEOUT);
                if let Some(process) = process.filter(|_| outcome.is_err()) {
                    lock(&hung).insert(of.clone(), process);
                }
                outcome
            });
            let outcome = match outcome {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) if output.status.code() == Some(FULL.into()) => Ok(()),
                Ok(output) => Err(words(&output)),
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

/// The error that the probe wrote, or how it ended without one.
fn words(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim().lines().last().unwrap_or_default();
    match last.strip_prefix("divvy: ") {
        Some(error) => error.to_owned(),
        None => failure_message(output),
    }
}

fn not_started(gpu: GpuUuid, error: &io::Error) -> GpuProbed {
    GpuProbed {
        gpu,
        outcome: Err(format!("cannot start a thread: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::mpsc;

    use divvy_testkit::Bounded as _;

    use super::*;

    fn gpu() -> GpuUuid {
        GpuUuid::from_bytes([1; 16])
    }

    /// What a probe of a `divvy` that does this reports.
    fn outcome(folder: &Path, script: &str, hung: Option<Process>) -> Result<(), String> {
        let divvy = folder.join("divvy");
        fs::write(&divvy, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&divvy, fs::Permissions::from_mode(0o755)).unwrap();
        let (sender, outcomes) = mpsc::channel();
        let report = move |probed: GpuProbed| sender.send(probed.outcome).unwrap();
        let prober = Prober::new(Arc::new(report), divvy, None);
        lock(&prober.hung).extend(hung.map(|process| (gpu(), process)));
        prober.start(gpu());
        outcomes.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    #[test]
    fn a_probe_tells_the_drivers_error_and_takes_a_full_gpu_for_a_sound_one() {
        let folder = tempfile::tempdir().unwrap();
        let of = |script| outcome(folder.path(), script, None);
        assert_eq!(of("echo '{}'"), Ok(()));
        assert_eq!(of("echo 'divvy: out of memory' >&2; exit 3"), Ok(()));
        let error = "cuInit: unknown error".to_owned();
        let sick = "echo 'divvy-sim: words' >&2; echo 'divvy: cuInit: unknown error' >&2; exit 1";
        assert_eq!(of(sick), Err(error));
        assert_eq!(of("kill -9 $$"), Err("signal: 9 (SIGKILL)".to_owned()));
    }

    #[test]
    fn while_a_killed_probe_hangs_in_the_driver_no_further_probe_starts() {
        let folder = tempfile::tempdir().unwrap();
        let mut hangs = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let process = Process::with_pid(hangs.id()).unwrap();
        let started = folder.path().join("started");
        let script = format!("touch {}", started.display());
        let error = outcome(folder.path(), &script, Some(process)).unwrap_err();
        assert!(error.starts_with("an earlier probe (pid "), "{error}");
        assert!(!started.exists());
        hangs.kill().unwrap();
        hangs.wait_bounded().unwrap();
        assert_eq!(outcome(folder.path(), &script, Some(process)), Ok(()));
    }
}
