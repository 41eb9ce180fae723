//! The shared context of the front end: the server, the agent, the records, and the state of running tasks.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::sync::lock;
use divvy_api::v1::{self, CancelJob};

use super::record::Records;
use crate::container::Runner;
use crate::server::{Server, ServerError};
use crate::{Mode, Settings};

/// How long to wait before the agent, in whose process we are, is asked again. It is a call within this process:
/// shorter would be busy waiting, and a second would delay each task by one.
const AGENT_AGAIN: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Context {
    pub server: Server,
    pub client: Client,
    pub records: Records,
    pub runner: Runner,
    pub settings: Settings,
    pub mode: Mode,
    /// The machine's name.
    pub host: String,
    /// The daemon's own worker id.
    pub daemon: String,
    /// Ids of the server's queues, in the order they are served.
    pub queues: Vec<String>,
    pub slot_tags: Vec<String>,
    pub poll: Duration,
    /// Held while a slot is reported, so that no report is under way when the slot is unregistered.
    pub slot_reports: tokio::sync::Mutex<()>,
    started: Instant,
    /// Workers of tasks that run, by task.
    slots: Mutex<BTreeMap<String, RunningSlot>>,
}

/// A worker that a task runs as.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningSlot {
    pub worker: String,
    /// Parts of its GPUs, in thousandths.
    pub shares: Vec<u16>,
}

/// The parts of a [`Context`].
pub struct Parts {
    pub server: Server,
    pub client: Client,
    pub records: Records,
    pub runner: Runner,
    pub settings: Settings,
    pub mode: Mode,
    pub host: String,
    pub daemon: String,
    pub queues: Vec<String>,
    pub slot_tags: Vec<String>,
    pub poll: Duration,
}

impl Context {
    pub fn new(parts: Parts) -> Self {
        let Parts {
            server,
            client,
            records,
            runner,
            settings,
            mode,
            host,
            daemon,
            queues,
            slot_tags,
            poll,
        } = parts;
        Self {
            server,
            client,
            records,
            runner,
            settings,
            mode,
            host,
            daemon,
            queues,
            slot_tags,
            poll,
            slot_reports: tokio::sync::Mutex::default(),
            started: Instant::now(),
            slots: Mutex::default(),
        }
    }

    /// Time since the front end started: a clock that only goes forward.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Asks the agent until it answers.
    pub async fn agent<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, v1::Error>,
    ) -> Result<T, v1::Error> {
        loop {
            match call(&self.client).await {
                Err(error)
                    if matches!(
                        error.code,
                        v1::ErrorCode::NoDaemon
                            | v1::ErrorCode::Unresponsive
                            | v1::ErrorCode::Internal
                    ) =>
                {
                    tracing::warn!(%error, "a call to the daemon failed; retrying");
                    tokio::time::sleep(AGENT_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }

    /// Ends a job that has not ended by itself. `withdraw`: without a row in the history, where it never ran.
    pub async fn end_job(&self, id: &str, because: String, withdraw: bool) {
        let mut how = CancelJob {
            because: Some(because),
            withdraw,
        };
        let asked = self
            .agent(async |client| client.cancel_as(id, &how).await)
            .await;
        // Any other error says that it has ended, or is gone.
        if withdraw && asked.is_err_and(|error| error.code == v1::ErrorCode::Conflict) {
            how.withdraw = false;
            let _ = self
                .agent(async |client| client.cancel_as(id, &how).await)
                .await;
        }
    }

    /// Logs the failure of a call that is not essential, and goes on.
    pub async fn try_to(&self, what: &'static str, task: &str, done: Result<(), ServerError>) {
        if let Err(error) = done {
            tracing::warn!(task, %error, "cannot {what}");
        }
    }

    pub fn set_slot(&self, task: &str, slot: Option<RunningSlot>) {
        let mut slots = self.slots();
        match slot {
            Some(slot) => slots.insert(task.to_owned(), slot),
            None => slots.remove(task),
        };
    }

    pub fn slots(&self) -> MutexGuard<'_, BTreeMap<String, RunningSlot>> {
        lock(&self.slots)
    }
}
