//! `divvy selftest`, inside a slice: tries to exceed the memory limit in every way that the driver offers.
//!
//! ```text
//! divvy selftest ──divvy run──► lead ──┬─► a process for each way, lookup and set of views ──► a line of JSON
//!                                      └─► racers, several at once (race)
//! lead ──► v1::Selftest on stdout
//! ```
//! Each attempt has a process of its own: a driver that crashes or hangs costs one row. What the processes say is not
//! taken on trust alone: the slice's ledger must have counted a refusal, or it was the GPU that was full and not the
//! slice.

pub mod park;
mod race;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use divvy_api::v1::{LimiterForm, Selftest, SelftestCheck, SelftestKind, SelftestResult};
use divvy_driver::load::Lookup;
use divvy_driver::nvml::{Identity, Nvml};
use divvy_driver::probe::{self, Outcome, Session, Verdict, WAYS, Way};
use divvy_ledger::Slice;
use serde::{Deserialize, Serialize};

use crate::daemon::bootstrap::PRELOAD;
use crate::host::child_timeout::{failure_message, run_with_timeout};
use crate::host::clock::now;
use crate::host::error::error_chain;

/// How long one attempt may take: a context on a cold GPU takes seconds, thousands of calls take one more.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);

/// What one process tried, as it tells its leader.
#[derive(Debug, Serialize, Deserialize)]
struct AttemptReport {
    name: String,
    result: SelftestResult,
    got: Option<u64>,
    /// How often memory was refused.
    refusals: u64,
    detail: String,
}

type Failure = Box<dyn std::error::Error>;

/// `divvy probe-limits`: tries what the words say against a limit in bytes and prints what came of it; without words
/// everything, each in a process of its own.
pub fn probe_limits(limit: u64, words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => run_all(limit).and_then(|report| print_json(&report)),
        ["way", name] => way(name, limit).and_then(|tried| print_json(&[tried])),
        ["lookup", name] => lookup(name, limit).and_then(|tried| print_json(&tried)),
        ["views"] => views(limit).and_then(|tried| print_json(&tried)),
        ["park"] => park::cycle(),
        ["holder"] => park::holder(),
        ["racer", block, most] => race::racer(block, most),
        _ => Err(format!("unknown probe {words:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("divvy: {}", error_chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn print_json<T: Serialize + ?Sized>(what: &T) -> Result<(), Failure> {
    let line = serde_json::to_string(what)?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}

/// Everything, in this process's slice.
fn run_all(limit: u64) -> Result<Selftest, Failure> {
    let this = std::env::current_exe()?;
    let place = gpu_environment()?;
    let enforcement = place.enforcement().to_owned();
    let identity = place.identity;
    // An instance is as large as it is made, and no smaller than was asked.
    let limit = place.instance.unwrap_or(limit);
    let lead = Leader {
        this,
        limit,
        slice: own_slice(),
    };
    let mut checks = Vec::new();
    for way in WAYS {
        checks.extend(lead.run_attempts(SelftestKind::Memory, way.name, &["way", way.name]));
    }
    for (name, words) in LOOKUPS {
        checks.push(worst_of(
            name,
            &lead.run_attempts(SelftestKind::Lookup, name, &["lookup", words]),
        ));
    }
    checks.push(race::race(&lead.this, limit));
    checks.extend(lead.run_attempts(SelftestKind::View, "views", &["views"]));
    if place.instance.is_none() {
        checks.push(nvidia_smi(&identity.uuid, limit));
    }
    Ok(Selftest {
        gpu_uuid: identity.uuid,
        gpu_index: identity.index,
        model: identity.name,
        driver_version: place.driver_version,
        cuda_version: place.cuda_version,
        simulated: simulated(),
        version: divvy_api::version::program(),
        at: now(),
        daemon: true,
        memory_limit_bytes: limit,
        enforcement,
        form: form(),
        passed: checks.iter().all(|check| !check.result.is_failure()),
        checks,
    })
}

/// Ways by which programs find the driver's functions, besides `dlsym` on its handle, which all other checks use.
const LOOKUPS: [(&str, &str); 2] = [
    ("linked (global scope)", "global"),
    ("cuGetProcAddress", "proc_address"),
];

struct Leader {
    this: PathBuf,
    limit: u64,
    /// `None` where this process is in no slice.
    slice: Option<Slice>,
}

impl Leader {
    /// Has a process try something, and answers what it tried; where it came to nothing, that.
    fn run_attempts(&self, kind: SelftestKind, name: &str, words: &[&str]) -> Vec<SelftestCheck> {
        let before = self.refusals();
        let asked = run_with_timeout(
            Command::new(&self.this)
                .args(["probe-limits", "--limit", &self.limit.to_string()])
                .args(words),
            ATTEMPT_TIMEOUT,
        );
        let tried = asked.map_err(|error| error.to_string()).and_then(|output| {
            serde_json::from_slice(&output.stdout).map_err(|_| failure_message(&output))
        });
        let tried: Vec<AttemptReport> = tried.unwrap_or_else(|detail| {
            vec![AttemptReport {
                name: name.to_owned(),
                result: SelftestResult::Failed,
                got: None,
                refusals: 0,
                detail,
            }]
        });
        let by_the_slice = self.refusals().saturating_sub(before);
        let seen: u64 = tried.iter().map(|tried| tried.refusals).sum();
        let check = |tried: AttemptReport| {
            // Without a slice the refusal has no known source.
            let by_the_gpu = tried.result == SelftestResult::Enforced
                && by_the_slice < seen
                && self.slice.is_some();
            let (result, detail) = if by_the_gpu {
                let why = "the GPU was full before the test reached its limit";
                (SelftestResult::Failed, why.to_owned())
            } else {
                (tried.result, tried.detail)
            };
            SelftestCheck {
                kind,
                name: tried.name,
                result,
                got_bytes: tried.got,
                detail,
            }
        };
        tried.into_iter().map(check).collect()
    }

    /// How many reservations the slice has refused so far.
    fn refusals(&self) -> u64 {
        let slice = self.slice.as_ref();
        let read = slice.and_then(|slice| slice.read().ok());
        read.map_or(0, |snapshot| snapshot.usage(0).denied)
    }
}

fn own_slice() -> Option<Slice> {
    let folder = std::env::var_os("DIVVY_SLICE").filter(|folder| !folder.is_empty())?;
    Slice::open(&PathBuf::from(folder)).ok()
}

/// Model and number of the simulated GPUs; `None` on real ones.
fn simulated() -> Option<String> {
    let models = std::env::var("DIVVY_SIM").ok();
    models.filter(|models| !models.is_empty())
}

/// In which form the limiter limits this process's programs. On a MIG instance the preload has no slice, and limits
/// nothing.
fn form() -> Option<LimiterForm> {
    let preloads = std::env::var("LD_PRELOAD").unwrap_or_default();
    if Path::new(divvy_ledger::MOUNTED).exists() {
        Some(LimiterForm::Wrapper)
    } else if std::env::var_os("DIVVY_SLICE").is_some()
        && preloads.split(':').any(|file| file.ends_with(PRELOAD))
    {
        Some(LimiterForm::Preload)
    } else {
        None
    }
}

/// Where this process runs, as NVML reports.
struct GpuEnvironment {
    identity: Identity,
    /// Bytes of the instance it has, where the GPU is divided (MIG).
    instance: Option<u64>,
    driver_version: String,
    cuda_version: String,
}

impl GpuEnvironment {
    /// What holds the limit: the driver for an instance, the limiter otherwise.
    fn enforcement(&self) -> &'static str {
        match self.instance {
            Some(_) => "mig",
            None => "interposer",
        }
    }
}

/// The GPU that CUDA shows this process. The leader must hold no memory while others race for it, so it makes no
/// context.
fn gpu_environment() -> Result<GpuEnvironment, Failure> {
    let nvml = Nvml::load(None)?;
    let uuid = std::env::var("NVIDIA_VISIBLE_DEVICES").unwrap_or_default();
    let uuid = uuid.split(',').next().unwrap_or_default();
    let (identity, instance) = if uuid.starts_with("MIG-") {
        let (own, gpu) = nvml.mig_device(uuid)?;
        (gpu.identity()?, Some(own.memory()?.total))
    } else {
        let mut devices = nvml.devices()?.into_iter().flatten();
        let device = devices
            .find(|device| uuid.is_empty() || device.uuid().is_ok_and(|found| found == uuid))
            .ok_or_else(|| format!("NVML lists no GPU {uuid}"))?;
        (device.identity()?, None)
    };
    Ok(GpuEnvironment {
        identity,
        instance,
        driver_version: nvml.driver_version()?,
        cuda_version: nvml.cuda_version()?.to_string(),
    })
}

fn known_way(name: &str) -> Result<&'static Way, Failure> {
    Ok(probe::way(name).ok_or_else(|| format!("unknown way to allocate {name}"))?)
}

/// Ends this process after the time of an attempt: if it hangs in the driver, it must not keep the others waiting.
fn exit_after_timeout() {
    thread::spawn(|| {
        thread::sleep(ATTEMPT_TIMEOUT);
        std::process::exit(1);
    });
}

fn way(name: &str, limit: u64) -> Result<AttemptReport, Failure> {
    let way = known_way(name)?;
    let session = Session::open(None, Lookup::Handle, 0)?;
    Ok(tried(way.name, probe::exceed(&session, way, limit)))
}

fn lookup(name: &str, limit: u64) -> Result<Vec<AttemptReport>, Failure> {
    let lookup = match name {
        "global" => Lookup::Global,
        "proc_address" => Lookup::ProcAddress,
        _ => return Err(format!("unknown lookup {name}").into()),
    };
    let session = Session::open(None, lookup, 0)?;
    let each = WAYS.iter();
    Ok(each
        .map(|way| tried(way.name, probe::exceed(&session, way, limit)))
        .collect())
}

fn tried(name: &str, outcome: Outcome) -> AttemptReport {
    AttemptReport {
        name: name.to_owned(),
        result: match outcome.verdict {
            Verdict::Enforced => SelftestResult::Enforced,
            Verdict::NotEnforced => SelftestResult::NotEnforced,
            Verdict::NotAvailable => SelftestResult::NotAvailable,
            Verdict::Failed => SelftestResult::Failed,
        },
        got: (outcome.got > 0).then_some(outcome.got),
        refusals: outcome.refusals,
        detail: outcome.detail,
    }
}

/// One row of all that was tried by one lookup: the worst of it.
fn worst_of(name: &str, tried: &[SelftestCheck]) -> SelftestCheck {
    let of = |result| tried.iter().filter(move |check| check.result == result);
    let names = |result| {
        let names: Vec<&str> = of(result).map(|check| check.name.as_str()).collect();
        names.join(", ")
    };
    let enforced = of(SelftestResult::Enforced).count();
    let (result, detail) = if of(SelftestResult::NotEnforced).next().is_some() {
        (
            SelftestResult::NotEnforced,
            names(SelftestResult::NotEnforced),
        )
    } else if let Some(failed) = of(SelftestResult::Failed).next() {
        let detail = format!("{}: {}", failed.name, failed.detail);
        (SelftestResult::Failed, detail)
    } else if enforced == 0 {
        let first = tried.first().map(|check| check.detail.clone());
        (SelftestResult::NotAvailable, first.unwrap_or_default())
    } else {
        let detail = format!("{enforced} functions");
        (SelftestResult::Enforced, detail)
    };
    SelftestCheck {
        kind: SelftestKind::Lookup,
        name: name.to_owned(),
        result,
        got_bytes: tried.iter().filter_map(|check| check.got_bytes).max(),
        detail,
    }
}

fn views(limit: u64) -> Result<Vec<AttemptReport>, Failure> {
    let session = Session::open(None, Lookup::Handle, 0)?;
    let views = probe::views(&session, None, limit)?;
    let tried = |view: probe::View| AttemptReport {
        name: view.name.to_owned(),
        result: match &view.agrees {
            Ok(true) => SelftestResult::Agrees,
            Ok(false) => SelftestResult::Differs,
            Err(error) if error.is_unsupported() => SelftestResult::NotAvailable,
            Err(_) => SelftestResult::Failed,
        },
        got: None,
        refusals: 0,
        detail: view.detail,
    };
    Ok(views.into_iter().map(tried).collect())
}

/// What `nvidia-smi` calls the GPU's memory, in MiB.
fn nvidia_smi(uuid: &str, limit: u64) -> SelftestCheck {
    let asked = run_with_timeout(
        Command::new("nvidia-smi").args([
            "--query-gpu=memory.total",
            "--format=csv,noheader,nounits",
            "--id",
            uuid,
        ]),
        ATTEMPT_TIMEOUT,
    );
    let (result, detail) = match asked {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let why = "nvidia-smi is not installed".to_owned();
            (SelftestResult::NotAvailable, why)
        }
        Err(error) => (SelftestResult::NotAvailable, error.to_string()),
        Ok(output) if !output.status.success() => {
            (SelftestResult::Failed, failure_message(&output))
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let result = if said.parse() == Ok(limit >> 20) {
                SelftestResult::Agrees
            } else {
                SelftestResult::Differs
            };
            (result, format!("{said} MiB, limit {} MiB", limit >> 20))
        }
    };
    SelftestCheck {
        kind: SelftestKind::View,
        name: "nvidia-smi total".to_owned(),
        result,
        got_bytes: None,
        detail,
    }
}
