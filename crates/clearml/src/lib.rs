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
pub mod facts;
pub mod frontend;
pub mod projects;
pub mod secret;
pub mod server;
pub mod slot;
mod stop;

use std::path::PathBuf;
use std::time::Duration;

use divvy_api::front_end::{TellHolds, Withdrawal};
use divvy_core::{Amount, QueueName};
use tokio::sync::mpsc;

pub use config::Settings;
pub use stop::StopSignal;

/// The command line's options for one run of the front end.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node agent's socket.
    pub socket: PathBuf,
    /// Folder for the front end's own records, made if it is not there.
    pub records: PathBuf,
    /// From clearml.conf and the environment.
    pub settings: Settings,
    /// In the order they are served; the agent serves the same.
    pub queues: Vec<Served>,
    /// Queues that the server does not have are made there.
    pub create_queue: bool,
    /// How tasks are given GPUs, which decides how workers are named.
    pub mode: Mode,
    /// How tasks are run.
    pub run: container::Options,
    /// `--uptime` or `--downtime`, as written; before `agent.uptime` and `agent.downtime`.
    pub uptime: Vec<String>,
    pub downtime: Vec<String>,
    /// `--child-report-tags`: tags of the workers that slots register as.
    pub slot_tags: Vec<String>,
    /// `--polling-interval`, in seconds.
    pub polling_interval: Option<u64>,
    /// When told to stop, tasks are left to run; otherwise they are stopped and marked so.
    pub keep_children: bool,
    /// `--clearml-project-by`.
    pub project_by: projects::Source,
}

/// A queue of the server and the agent's queue that its tasks wait in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub server: ServerQueue,
    pub agent: QueueName,
    /// The amount of each of its tasks.
    pub amount: Amount,
}

/// Which queue of the server is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerQueue {
    /// By its name, or its id.
    Named(String),
    /// The server's default queue; where it has none, the one that is called `default`.
    Default,
}

/// How tasks are given GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `--dynamic-gpus`: the daemon is `NAME:dgpu0-2`, and every task has a slot of its own, `NAME:gpu2.25a`. The text is
    /// what `--gpus` was given, without blanks.
    Dynamic { gpus: String },
    /// One task at a time on all of them, under the daemon's own name: `NAME:gpu0,1`, or `NAME:0` without `--gpus`.
    Plain { gpus: Option<String> },
}

/// What ties the front end to the daemon in whose process it runs, besides calls over the socket.
pub struct Ties {
    /// Users' wishes to cancel tasks that wait.
    pub withdrawals: mpsc::Receiver<Withdrawal>,
    pub tell_holds: TellHolds,
}

/// Why the front end does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    #[error(transparent)]
    Projects(#[from] projects::MappingError),
    #[error(transparent)]
    Server(#[from] server::ServerError),
    #[error("the daemon: {0}")]
    Agent(#[from] divvy_api::v1::Error),
    #[error("the server has no queue \"{0}\"")]
    NoQueue(String),
    #[error("cannot {what} {path}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start the front end's runtime")]
    Runtime(#[source] std::io::Error),
}

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
