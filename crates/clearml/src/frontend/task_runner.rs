//! The task runner: carries out the actions of a task's state machine, with the record written before each call that
//! needs one.
//!
//! `claim`, `start`, `run` and `end` are what is done at each stage of it; `job` is what the agent says meanwhile.

mod claim;
mod end;
mod job;
mod run;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::context::Context;
use super::log::events;
use super::record::Record;
use super::task_state::{Action, ClaimPhase, Event, Outcome, TaskLifecycle};
use super::watch::Watcher;
use crate::StopSignal;
use crate::server::{Task, now_ms};
pub use job::recovered_job;
use job::{JobSight, follow};

/// Between two observations of a task without a visible worker. Five of them are 10 s: an agent's first report needs 3
/// s, so half would take tasks from live agents.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Tasks as they were seen in one look.
#[derive(Debug)]
pub struct TaskSnapshot {
    /// When the look began, on [`Context::elapsed`]'s clock.
    pub begun: Duration,
    /// The state of each requested task: `None` if it has been deleted.
    pub tasks: BTreeMap<String, Option<Task>>,
}

/// A message to the rest of the front end.
#[derive(Debug)]
pub enum TaskNotice {
    /// The queue's next task may be claimed; with whether this one is out of the queue.
    PastClaim { task: String, popped: bool },
    /// Nothing more is done for this task here.
    Done {
        task: String,
        worker: String,
        outcome: Outcome,
    },
    /// The daemon ends and leaves it to run.
    Left { task: String },
}

/// One task's driver.
pub struct TaskRunner {
    context: Arc<Context>,
    lifecycle: TaskLifecycle,
    record: Record,
    /// The record as it is on disk.
    saved: Option<ClaimPhase>,
    /// The task as it was last read.
    task: Task,
    /// The reason why it cannot run, in words.
    trouble: String,
    /// What a user of this machine did, where its task is taken from its queue for that: `cancelled by ana (uid 1001)`.
    withdrawn: Option<String>,
    /// Its runtime properties name this run.
    marked: bool,
    /// `attempt` of the job when it was confirmed.
    confirmed: Option<u32>,
    job: watch::Receiver<JobSight>,
    waiter: JoinHandle<()>,
    log_task: Option<JoinHandle<()>>,
    snapshots: watch::Receiver<Option<Arc<TaskSnapshot>>>,
    watcher: Watcher,
    /// Since when it runs: what was seen before says nothing.
    running_since: Option<Duration>,
    /// Its worker is on the server's list.
    reported: bool,
    stop: StopSignal,
    keep: bool,
    said: mpsc::UnboundedSender<TaskNotice>,
}

impl TaskRunner {
    pub fn new(
        context: Arc<Context>,
        lifecycle: TaskLifecycle,
        record: Record,
        snapshots: watch::Receiver<Option<Arc<TaskSnapshot>>>,
        stop: (StopSignal, bool),
        said: mpsc::UnboundedSender<TaskNotice>,
    ) -> Self {
        let (tell, job) = watch::channel(JobSight::NotYet);
        let waiter =
            tokio::task::spawn_local(follow(Arc::clone(&context), record.job.clone(), tell));
        Self {
            saved: None,
            task: Task::default(),
            trouble: String::new(),
            withdrawn: None,
            marked: false,
            confirmed: None,
            log_task: None,
            watcher: Watcher::default(),
            running_since: None,
            reported: false,
            context,
            lifecycle,
            record,
            job,
            waiter,
            snapshots,
            stop: stop.0,
            keep: stop.1,
            said,
        }
    }

    /// The same, of a task that a user of this machine cancels while it waits.
    pub fn withdrawing(mut self, because: String) -> Self {
        self.withdrawn = Some(because);
        self
    }

    /// Leads the task to its end, or to the daemon's.
    pub async fn run(mut self) {
        let mut is_past = false;
        loop {
            self.save();
            if !is_past && self.lifecycle.is_past_claim() {
                is_past = true;
                let popped = !matches!(self.lifecycle.action(), Action::Finish(Outcome::NotOurs));
                let task = self.record.task.clone();
                let _ = self.said.send(TaskNotice::PastClaim { task, popped });
            }
            let event = match self.lifecycle.action() {
                Action::Look => self.observe(false).await,
                Action::LookAgain => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    self.observe(true).await
                }
                Action::Pop => self.pop().await,
                Action::Remove => self.remove().await,
                Action::Start => self.start().await,
                Action::Confirm => self.confirm().await,
                Action::Watch => {
                    if self.keep && self.stop.is_requested() {
                        let task = self.record.task.clone();
                        let _ = self.said.send(TaskNotice::Left { task });
                        break;
                    }
                    self.watch().await
                }
                Action::Cancel(why) => self.cancel(why).await,
                Action::ReportEnd(ending) => self.report_end(ending).await,
                Action::PutBack => self.put_back().await,
                Action::Finish(outcome) => {
                    self.finish(outcome).await;
                    break;
                }
            };
            if let Some(event) = event {
                tracing::debug!(task = %self.record.task, ?event, "event of a ClearML task");
                self.lifecycle = self.lifecycle.on(event);
            }
            if self.stop.is_requested()
                && !(self.keep && self.lifecycle.mark() == Some(ClaimPhase::Confirmed))
            {
                self.lifecycle = self.lifecycle.on(Event::Stop);
            }
        }
        self.waiter.abort();
    }

    /// The record is on disk before what it speaks of is begun. A disk that is full stops everything here, and loses nothing.
    fn save(&mut self) {
        let Some(mark) = self.lifecycle.mark() else {
            return;
        };
        if self.saved == Some(mark) {
            return;
        }
        self.record.mark = mark;
        match self.context.records.save(&self.record) {
            Ok(()) => self.saved = Some(mark),
            Err(error) => {
                tracing::error!(task = %self.record.task, %error, "cannot write the task's record")
            }
        }
    }

    /// A piece of the task's log.
    async fn say(&self, level: &'static str, text: &str) {
        let task = &self.record.task;
        let events = events(task, &self.record.worker, level, text, now_ms());
        if events.is_empty() {
            return;
        }
        let sent = self
            .context
            .server
            .retry(async |server| server.add_events(&events).await)
            .await;
        self.context
            .try_to("write to the task's log", task, sent)
            .await;
    }
}
