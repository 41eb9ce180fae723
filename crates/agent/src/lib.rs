//! The node agent: observe, plan, apply; journal, runners, HTTP server.
//!
//! ```text
//! http ──► mailbox ──► cycle ──► store (journal)
//!                        │  ▲
//!                  start │  │ watch, follow
//!                        ▼  │
//!             job folders (records) ◄──► supervise (a process for each job)
//! ```
//! What is decided is decided by `divvy-core`; what holds a program to its slice is the ledger and the interposer. Here
//! is what happens in time: journal, processes, signals, restarts.
#![forbid(unsafe_code)]

mod access;
mod account;
mod advice;
mod aside;
mod ask;
mod bypass;
mod cause;
mod claim;
mod clock;
mod config;
mod container;
mod copies;
mod counted;
mod cycle;
mod daemon;
mod descriptors;
mod disk;
mod doctor;
mod environment;
mod failpoint;
mod gpu;
mod guest;
mod http;
mod idle;
mod intake;
mod job;
mod keep;
mod keeper;
mod kin;
mod log;
mod mailbox;
mod mig;
mod node;
mod nursery;
mod oom;
mod output;
mod process;
mod pruner;
mod records;
mod recover;
mod script;
mod secrets;
mod selftest;
mod simulated;
#[cfg(test)]
mod simulation;
mod solo;
mod store;
mod supervise;
mod terms;
mod usage;
mod user;
mod watch;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode};

pub use access::rules::RulesError;
pub use access::{Caller, Role, Rules};
pub use account::{Account, Group};
pub use daemon::{Beside, DaemonArgs, DoorArgs, LogSize, copy_journal, daemon, restore_journal};
pub use divvy_api::home;
pub use doctor::doctor;
pub use doctor::machine::probe_driver;
pub use guest::terminal::on_terminal;
pub use keep::Keep;
pub use selftest::probe_limits;
pub use solo::{SoloArgs, solo};
pub use supervise::supervise;

/// How a program ended that this process ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// As a shell would say it.
    pub code: u8,
    /// When and why Divvy stopped it, where Divvy did: `its time limit of 2h was reached`.
    pub stopped: Option<(jiff::Timestamp, String)>,
}

impl Ran {
    /// What the records of this job say besides the code.
    fn of(dir: &records::JobDir, code: i32) -> Self {
        let stopped = dir.stopped();
        Self {
            code: u8::try_from(code & 0xff).unwrap_or(125),
            stopped: stopped.map(|stopped| (stopped.at, stopped.cause.words)),
        }
    }
}

/// Runs a job that the agent placed for this process, on its terminal; answers the program's code as a shell would.
///
/// # Errors
/// [`ErrorCode::LaunchFailed`] when the job must not be started by this process; then nothing was.
pub fn run_client_job(dir: &Path) -> Result<Ran, Error> {
    let dir = records::JobDir::new(dir);
    let code = supervise::run_client_job(&dir);
    let code =
        code.map_err(|error| Error::new(ErrorCode::LaunchFailed, supervise::chain(&error)))?;
    Ok(Ran::of(&dir, code))
}

/// `divvy probe-context UUID`: measures what a context costs on a GPU and prints it.
pub fn probe_context(uuid: &str) -> ExitCode {
    let simulated = home::Home::from_env()
        .ok()
        .and_then(|home| simulated::from(None, &home));
    gpu::overhead::probe(
        uuid,
        simulated.as_ref().map(|simulated| simulated.lib.as_path()),
    )
}

/// `divvy checkpoint ACT PID START`: one call of the driver about another process; prints what it says.
pub fn checkpoint(
    act: &str,
    process: (u32, u64),
    within_ms: u64,
    library: Option<&Path>,
) -> ExitCode {
    aside::helper::checkpoint(act, process, Duration::from_millis(within_ms), library)
}

/// Indices of this machine's GPUs, or of the simulated ones that `sim` (or the environment) names.
///
/// # Errors
/// When there are none.
pub fn gpu_indices(sim: Option<&str>) -> Result<Vec<u32>, Error> {
    let home = home::Home::from_env().map_err(|error| daemon::from_home(&error))?;
    home.create().map_err(|error| daemon::from_home(&error))?;
    let simulated = simulated::from(sim, &home);
    if let Some(simulated) = &simulated {
        simulated::enter(simulated)?;
    }
    // Jobs may hold simulated GPUs.
    let node = node::Node::open(simulated, true)?;
    let gpus = node.observation.gpus.iter();
    Ok(gpus.map(|gpu| gpu.index).collect())
}
