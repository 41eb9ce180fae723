//! The front end to a ClearML Server: pulls tasks from its queues and has the node agent run them.
//!
//! ```text
//!  ClearML Server ◄── server (HTTP, JWT) ── frontend ── divvy-api ──► node agent (plan, journal, slices, supervisors)
//!                                             │
//!                                  config · container · records
//! ```
//! The agent's journal and planner hold the state: the first tasks of each server queue are mirrored as pending jobs of
//! the agent's queue of the same name, and a task is taken from the server only once the agent has given its job a slice.
//! [`container`] makes a task's command line; the agent alone handles GPUs, slices and processes.
#![forbid(unsafe_code)]

pub mod config;
pub mod container;
mod error;
pub mod facts;
pub mod frontend;
mod options;
pub mod projects;
pub mod secret;
pub mod server;
pub mod slot;
mod stop;

use std::time::Duration;

pub use config::Settings;
pub use error::Error;
pub use options::{Options, Served, ServerQueue, Ties};
pub use slot::Mode;
pub use stop::StopSignal;

/// Asks the server whether it takes the keys. A server that does not answer `within` this time says nothing either way.
///
/// # Errors
/// When it refuses them, or nothing can be asked at all.
pub fn check(settings: &Settings, within: Duration) -> Result<(), Error> {
    let server = server::Server::new(&settings.api, &settings.worker_name)?;
    let login = async { tokio::time::timeout(within, server.login()).await };
    match runtime()?.block_on(login) {
        Ok(Err(error)) if error.refusal().is_some() => Err(error.into()),
        _ => Ok(()),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)
}

/// Serves until `stop` says so; blocks its thread, and runs what it needs in it.
///
/// # Errors
/// Before it serves, for every error that prevents it: keys that the server refuses, queues that it does not have, an
/// agent that does not answer. After that it goes on through every transient failure of server and agent.
pub fn run(options: Options, stop: StopSignal, ties: Ties) -> Result<(), Error> {
    tokio::task::LocalSet::new().block_on(&runtime()?, frontend::serve(options, stop, ties))
}
