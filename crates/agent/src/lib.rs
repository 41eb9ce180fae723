//! The node agent, which runs as `divvy daemon`: controller, journal, supervisors, GPU observation and HTTP API.
//!
//! ```text
//! http ──► controller ──► journal
//!             │  ▲
//!       start │  │ watch
//!             ▼  │
//!           job_dir ◄──► supervisor (a process for each job)
//! ```
//! `divvy-core` decides; the ledger and the limiter hold a program to its slice. This crate does what takes time:
//! journal, processes, signals, restarts. Imports between its rooms run one way: `cargo xtask arrows` checks the table
//! of rooms.
#![forbid(unsafe_code)]

mod auth;
mod checkpoint;
mod compute;
mod config;
mod container;
mod controller;
mod daemon;
mod diagnostics;
mod exec;
mod gpu;
mod history;
mod host;
mod http;
mod job_dir;
mod journal;
mod model;
mod registry;
#[cfg(test)]
mod simulation;
mod standalone;
mod supervisor;

use std::path::Path;
use std::process::ExitCode;

use divvy_api::standalone::ProgramResult;
use divvy_api::v1::{Error, ErrorCode};

pub use auth::absent::warnings as absent_accounts;
pub use auth::rules::ContainerAccess;
pub use auth::{Caller, Role, Rules};
pub use controller::query::protocols::protocols;
pub use daemon::{FrontEndTask, copy_journal, daemon, record_park, restore_journal};
pub use diagnostics::doctor::doctor;
pub use diagnostics::doctor::machine::probe_driver;
pub use diagnostics::selftest::probe_limits;
pub use divvy_api::home;
pub use divvy_fork::take_over;
pub use exec::terminal::on_terminal;
pub use host::account::{Group, UserAccount};
pub use http::withdraw::Withdraw;
pub use model::retention::RetentionPolicy;
pub use standalone::run_standalone;
pub use supervisor::enter::{enter_slice, slice_access};

/// `divvy supervise DIR`: supervises jobs, each as a process or as a container.
pub fn supervise(dir: &Path) -> ExitCode {
    supervisor::supervise(dir, container::run::run)
}

/// Runs a job that the daemon placed for this process, on its terminal; answers the program's code as a shell would.
///
/// # Errors
/// [`ErrorCode::LaunchFailed`] when the job must not be started by this process; then nothing was.
pub fn run_client_job(dir: &Path) -> Result<ProgramResult, Error> {
    let dir = job_dir::JobDir::new(dir);
    let code = supervisor::run_client_job(&dir, container::run::run);
    let code = code
        .map_err(|error| Error::new(ErrorCode::LaunchFailed, host::error::error_chain(&error)))?;
    let stopped = dir.stopped();
    Ok(ProgramResult {
        code: u8::try_from(code & 0xff).unwrap_or(125),
        stopped: stopped.map(|stopped| (stopped.at, stopped.cause.words)),
    })
}

/// `divvy probe-context UUID`: measures what a context costs on a GPU and prints it. `simulated` is the folder of the
/// simulated driver.
pub fn probe_context(uuid: &str, simulated: Option<&Path>) -> ExitCode {
    gpu::overhead::probe(uuid, simulated)
}

/// `divvy checkpoint --serve`: calls of the driver about other processes, as standard input asks for them.
pub fn checkpoint(library: Option<&Path>) -> ExitCode {
    checkpoint::helper::serve(library)
}

/// GPUs and their processes as the driver shows them, of this machine or of the simulated driver that `DIVVY_SIM` names.
///
/// # Errors
/// When there are none.
pub fn observe_gpus() -> Result<Vec<divvy_api::v1::Gpu>, Error> {
    let node = observed_node(None)?;
    Ok(diagnostics::gpus::unmanaged(
        &node.observation,
        &node.source.power(&std::collections::BTreeSet::new()),
    ))
}

/// Indices of this machine's GPUs, or of the simulated ones that `sim` (or the environment) names.
///
/// # Errors
/// When there are none.
pub fn gpu_indices(sim: Option<&str>) -> Result<Vec<u32>, Error> {
    let node = observed_node(sim)?;
    let gpus = node.observation.gpus.iter();
    Ok(gpus.map(|gpu| gpu.index).collect())
}

fn observed_node(sim: Option<&str>) -> Result<daemon::bootstrap::NodeInventory, Error> {
    let home = home::Home::from_env().map_err(|error| daemon::from_home(&error))?;
    let simulated = config::simulated_gpus::requested(sim, &home);
    if let Some(simulated) = &simulated {
        home.create().map_err(|error| daemon::from_home(&error))?;
        config::simulated_gpus::ensure_environment(simulated)?;
    }
    // Jobs may hold simulated GPUs.
    daemon::bootstrap::NodeInventory::open(simulated, None, true, false)
}
