//! What the command line and the daemon's process give the front end for one run.

use std::path::PathBuf;

use divvy_api::front_end::{TellHolds, Withdrawal};
use divvy_core::{Amount, QueueName};
use tokio::sync::mpsc;

use crate::config::Settings;
use crate::slot::Mode;
use crate::{container, projects};

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
    /// `clearml.project-by`.
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

/// What ties the front end to the daemon in whose process it runs, besides calls over the socket.
pub struct Ties {
    /// Users' wishes to cancel tasks that wait.
    pub withdrawals: mpsc::Receiver<Withdrawal>,
    pub tell_holds: TellHolds,
}
