//! Does what a task's life asks for: calls of the server and of the agent, the record before each of them that needs one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use divvy_api::client::WaitFor;
use divvy_api::v1::{Confirm, Confirmation, EndReason, ErrorCode, Job, JobState};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::back::{Back, way};
use super::beat::of_slot;
use super::hand::{Hand, RunningSlot};
use super::life::{Action, Ending, Event, JobEnd, Life, Mark, Outcome, Seen, Why, Word};
use super::log::events;
use super::pump::pump;
use super::record::Record;
use super::watch::{Step, Watcher, is_stopping};
use crate::Stop;
use crate::server::{Subcode, Task, now_ms};
use crate::slot::{Slot, share_text, slot_id};

/// Between two looks at a task that nobody seems to have.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// One call that waits for a job's end; it also tells the agent that somebody stands by the job's slice.
const WAIT: Duration = Duration::from_secs(10);

/// Tasks as they were seen in one look.
#[derive(Debug)]
pub struct Sight {
    /// When the look began, on [`Hand::elapsed`]'s clock.
    pub begun: Duration,
    /// What became of each that was looked for: `None` where it has been deleted.
    pub tasks: BTreeMap<String, Option<Task>>,
}

/// What the rest of the front end is told.
#[derive(Debug)]
pub enum Said {
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

/// How the agent's job stands.
#[derive(Clone, Debug)]
enum JobSight {
    NotYet,
    Is(Arc<Job>),
    /// The agent does not know it.
    Unknown,
}

/// One task's driver.
pub struct Driver {
    hand: Arc<Hand>,
    life: Life,
    record: Record,
    /// The record as it is on disk.
    saved: Option<Mark>,
    /// The task as it was last read.
    task: Task,
    /// What keeps it from being run, in words.
    trouble: String,
    /// `attempt` of the job when it was confirmed.
    confirmed: Option<u32>,
    job: watch::Receiver<JobSight>,
    waiter: JoinHandle<()>,
    pump: Option<JoinHandle<()>>,
    sight: watch::Receiver<Option<Arc<Sight>>>,
    watcher: Watcher,
    /// Since when it runs: what was seen before says nothing.
    running_since: Option<Duration>,
    /// Its worker is on the server's list.
    reported: bool,
    stop: Stop,
    keep: bool,
    said: mpsc::UnboundedSender<Said>,
}

impl Driver {
    pub fn new(
        hand: Arc<Hand>,
        life: Life,
        record: Record,
        sight: watch::Receiver<Option<Arc<Sight>>>,
        stop: (Stop, bool),
        said: mpsc::UnboundedSender<Said>,
    ) -> Self {
        let (tell, job) = watch::channel(JobSight::NotYet);
        let waiter =
            tokio::task::spawn_local(follow_job(Arc::clone(&hand), record.job.clone(), tell));
        Self {
            saved: None,
            task: Task::default(),
            trouble: String::new(),
            confirmed: None,
            pump: None,
            watcher: Watcher::default(),
            running_since: None,
            reported: false,
            hand,
            life,
            record,
            job,
            waiter,
            sight,
            stop: stop.0,
            keep: stop.1,
            said,
        }
    }

    /// Leads the task to its end, or to the daemon's.
    pub async fn drive(mut self) {
        let mut is_past = false;
        loop {
            self.save();
            if !is_past && self.life.is_past_claim() {
                is_past = true;
                let popped = !matches!(self.life.action(), Action::Finish(Outcome::NotOurs));
                let task = self.record.task.clone();
                let _ = self.said.send(Said::PastClaim { task, popped });
            }
            let event = match self.life.action() {
                Action::Look => self.look(false).await,
                Action::LookAgain => {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    self.look(true).await
                }
                Action::Pop => self.pop().await,
                Action::Start => self.start().await,
                Action::Confirm => self.confirm().await,
                Action::Watch => {
                    if self.keep && self.stop.is_said() {
                        let task = self.record.task.clone();
                        let _ = self.said.send(Said::Left { task });
                        break;
                    }
                    self.watch().await
                }
                Action::Cancel => self.cancel().await,
                Action::Tell(ending) => self.tell(ending).await,
                Action::PutBack => self.put_back().await,
                Action::Finish(outcome) => {
                    self.finish(outcome).await;
                    break;
                }
            };
            if let Some(event) = event {
                tracing::debug!(task = %self.record.task, ?event, "ClearML task");
                self.life = self.life.on(event);
            }
            if self.stop.is_said() && !(self.keep && self.life.mark() == Some(Mark::Confirmed)) {
                self.life = self.life.on(Event::Stop);
            }
        }
        self.waiter.abort();
    }

    /// The record is on disk before what it speaks of is begun. A disk that is full stops everything here, and loses nothing.
    fn save(&mut self) {
        let Some(mark) = self.life.mark() else { return };
        if self.saved == Some(mark) {
            return;
        }
        self.record.mark = mark;
        match self.hand.records.save(&self.record) {
            Ok(()) => self.saved = Some(mark),
            Err(error) => {
                tracing::error!(task = %self.record.task, %error, "cannot write a record")
            }
        }
    }

    async fn look(&mut self, with_queue: bool) -> Option<Event> {
        let (seen, listed) = self.see(with_queue).await;
        Some(Event::Seen { seen, listed })
    }

    async fn see(&mut self, with_queue: bool) -> (Seen, bool) {
        let listed = with_queue && self.is_listed().await;
        let id = self.record.task.clone();
        let found = self
            .hand
            .server
            .ask(async |server| server.task(&id).await)
            .await;
        let task = match found {
            Ok(task) => task,
            Err(error) => {
                if error.refusal() != Some(Subcode::NoTask) {
                    tracing::warn!(task = %id, %error, "the task cannot be read");
                }
                None
            }
        };
        let seen = Seen {
            status: task.as_ref().map(|task| task.status),
            stopping: task.as_ref().is_some_and(is_stopping),
        };
        if let Some(task) = task {
            self.task = task;
        }
        (seen, listed)
    }

    async fn is_listed(&self) -> bool {
        let queue = &self.record.queue_id;
        let found = self
            .hand
            .server
            .ask(async |server| server.head(queue, usize::from(u16::MAX)).await)
            .await;
        let is_it = |entry: &crate::server::Entry| entry.task == self.record.task;
        found.is_ok_and(|queue| queue.entries.iter().any(is_it))
    }

    async fn pop(&mut self) -> Option<Event> {
        if self.saved != Some(Mark::Claiming) {
            // Without its record the task could be lost.
            tokio::time::sleep(LOOK_AGAIN).await;
            return None;
        }
        let (queue, task) = (self.record.queue_id.clone(), self.record.task.clone());
        match self.hand.server.pop(&queue, &task).await {
            Ok(popped) => match popped.entry {
                Some(entry) if entry.task == task => Some(Event::Popped),
                Some(other) => {
                    let back = self.hand.server.add_first(&queue, &other.task).await;
                    let what = "put back a task that was not asked for";
                    self.hand.try_to(what, &other.task, back).await;
                    Some(Event::NotPopped)
                }
                None => Some(Event::NotPopped),
            },
            Err(error) if error.passes() => {
                tracing::warn!(task, %error, "whether the task was claimed is not known");
                Some(Event::PopLost)
            }
            Err(error) => {
                tracing::warn!(task, %error, "the task cannot be claimed");
                Some(Event::NotPopped)
            }
        }
    }

    async fn start(&mut self) -> Option<Event> {
        let (id, worker) = (self.record.task.clone(), self.record.worker.clone());
        let message = format!("pulled by {worker}");
        let started = self
            .hand
            .server
            .ask(async |server| server.started(&id, &message).await)
            .await;
        if let Err(error) = started {
            tracing::warn!(task = %id, %error, "the task cannot be started");
            return Some(Event::StartRefused);
        }
        let line = format!(
            "task {id} pulled from {} by worker {worker}\n",
            self.record.queue_id
        );
        self.say("INFO", &line).await;
        if let Some(job) = self.fresh_job().await {
            let mut runtime = self.task.runtime.clone().unwrap_or_default();
            runtime.insert("_exec_agent_hostname".into(), json!(self.hand.host));
            runtime.extend(facts(&job));
            let set = self
                .hand
                .server
                .ask(async |server| server.set_runtime(&id, &runtime).await)
                .await;
            self.hand
                .try_to("write the task's runtime properties", &id, set)
                .await;
        }
        Some(Event::Started)
    }

    /// The job as the agent has it now.
    async fn fresh_job(&self) -> Option<Job> {
        let id = &self.record.job;
        self.hand
            .agent(async |client| client.job(id).await)
            .await
            .ok()
    }

    async fn confirm(&mut self) -> Option<Event> {
        let Some(job) = self.fresh_job().await else {
            return Some(Event::NoSlice);
        };
        match (job.state, job.confirmation) {
            (JobState::Starting, Some(Confirmation::Awaited)) => {}
            (JobState::Starting | JobState::Running, _) => {
                self.confirmed = Some(job.attempt);
                return Some(Event::Confirmed);
            }
            _ => return Some(Event::NoSlice),
        }
        let slot = self.slot(&job);
        if slot.worker != self.record.worker {
            let old = std::mem::replace(&mut self.record.worker, slot.worker.clone());
            let gone = self
                .hand
                .server
                .ask(async |server| server.unregister(&old).await)
                .await;
            self.hand
                .try_to("take a worker off the list", &slot.worker, gone)
                .await;
            self.saved = None;
            self.save();
        }
        let launch = match self.hand.runner.launch(&self.task, &slot) {
            Ok(launch) => launch,
            Err(error) => {
                self.trouble = error.to_string();
                return Some(Event::Unfit);
            }
        };
        self.say("INFO", &launch.lines.concat()).await;
        if let Some(container) = &launch.write_back {
            let id = &self.record.task;
            let set = self
                .hand
                .server
                .ask(async |server| server.set_container(id, container).await)
                .await;
            self.hand
                .try_to("write the task's container", id, set)
                .await;
        }
        let added = match &launch.container {
            Some(_) => {
                let id = &self.record.job;
                let args = self
                    .hand
                    .agent(async |client| client.docker_args(id).await)
                    .await;
                args.map(|args| args.flags).unwrap_or_default()
            }
            None => Vec::new(),
        };
        self.say("INFO", &launch.executing(&added)).await;
        let confirm = Confirm {
            attempt: Some(job.attempt),
            command: Some(launch.command),
            container: launch.container,
            env: launch.env,
            labels: BTreeMap::new(),
        };
        let id = &self.record.job;
        match self
            .hand
            .agent(async |client| client.confirm(id, &confirm).await)
            .await
        {
            Ok(_) => {
                self.confirmed = Some(job.attempt);
                Some(Event::Confirmed)
            }
            Err(error) if matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) => {
                tracing::warn!(task = %self.record.task, %error, "the task's slice is gone");
                Some(Event::NoSlice)
            }
            Err(error) => {
                self.trouble = error.to_string();
                Some(Event::Unfit)
            }
        }
    }

    fn slot(&self, job: &Job) -> Slot {
        Slot {
            worker: slot_id(
                &self.hand.settings.worker_name,
                &self.hand.mode,
                &job.slices,
            ),
            parent: self.hand.daemon.clone(),
            queue_id: self.record.queue_id.clone(),
            queue_name: self.record.queue_name.clone(),
            job: job.id.clone(),
            slices: job.slices.clone(),
        }
    }

    /// Waits for whatever comes first.
    async fn watch(&mut self) -> Option<Event> {
        if self.pump.is_none() {
            let (task, job, worker) = (
                self.record.task.clone(),
                self.record.job.clone(),
                self.record.worker.clone(),
            );
            self.pump = Some(tokio::task::spawn_local(pump(
                Arc::clone(&self.hand),
                task,
                job,
                worker,
            )));
        }
        self.running_since
            .get_or_insert_with(|| self.hand.elapsed());
        let ping = match self.hand.settings.ping {
            Duration::ZERO => Duration::MAX,
            ping => ping,
        };
        loop {
            if let Some(event) = self.job_event() {
                return Some(event);
            }
            self.report().await;
            tokio::select! {
                changed = self.job.changed() => if changed.is_err() {
                    return Some(Event::JobEnded(JobEnd::Lost));
                },
                Ok(()) = self.sight.changed() => {
                    if let Some(event) = self.looked().await {
                        return Some(event);
                    }
                }
                () = self.stop.said() => return None,
                () = tokio::time::sleep(ping) => {
                    let id = self.record.task.clone();
                    let pinged = self.hand.server.ask(async |server| server.ping(&id).await).await;
                    self.hand.try_to("ping", &id, pinged).await;
                }
            }
        }
    }

    /// The slot's worker is on the server's list as soon as the task runs.
    async fn report(&mut self) {
        let slot = self.hand.slots().get(&self.record.task).cloned();
        let Some(slot) = slot.filter(|_| !self.reported) else {
            return;
        };
        self.reported = true;
        if slot.worker != self.hand.daemon {
            let report = of_slot(&self.hand, &self.record.task, &slot);
            if let Err(error) = self.hand.server.report(&report).await {
                tracing::debug!(worker = slot.worker, %error, "reporting a slot");
            }
        }
    }

    fn set_slot(&self, job: &Job) {
        let slot = RunningSlot {
            worker: self.record.worker.clone(),
            shares: job.slices.iter().map(|slice| slice.share).collect(),
        };
        self.hand.set_slot(&self.record.task, Some(slot));
    }

    fn job_event(&mut self) -> Option<Event> {
        let sight = self.job.borrow_and_update().clone();
        match sight {
            JobSight::NotYet => None,
            JobSight::Unknown => Some(Event::JobEnded(JobEnd::Lost)),
            JobSight::Is(job) => {
                if job.state == JobState::Ended {
                    self.trouble = job.reason.clone().unwrap_or_default();
                    return Some(Event::JobEnded(end_of(&job)));
                }
                let again = job.confirmation == Some(Confirmation::Awaited)
                    && self.confirmed.is_none_or(|attempt| attempt < job.attempt);
                if again {
                    return Some(Event::GrantedAgain);
                }
                self.set_slot(&job);
                None
            }
        }
    }

    async fn looked(&mut self) -> Option<Event> {
        let sight = self.sight.borrow_and_update().clone()?;
        if self.running_since.is_none_or(|since| sight.begun < since) {
            return None;
        }
        let task = sight.tasks.get(&self.record.task)?.as_ref();
        let most = self.hand.settings.abort_callback_max;
        match self.watcher.look(task, self.hand.elapsed(), most) {
            Step::Go => None,
            Step::Wait(line) => {
                self.say("DEBUG", &format!("{line}\n")).await;
                None
            }
            Step::Stop(why, line) => {
                if let Some(line) = line {
                    self.say("DEBUG", &format!("{line}\n")).await;
                }
                if why != Why::Gone {
                    let reason = match why {
                        Why::Abort => "the task was stopped",
                        Why::Reset => "the task was reset",
                        _ => "the task's status was changed",
                    };
                    self.say("ERROR", &format!("User aborted: stopping task: {reason}\n"))
                        .await;
                }
                Some(Event::Verdict(why))
            }
        }
    }

    async fn cancel(&mut self) -> Option<Event> {
        let id = self.record.job.clone();
        match self
            .hand
            .agent(async |client| client.cancel(&id).await)
            .await
        {
            // It ends, or has.
            Ok(_) => {}
            Err(error) if error.code == ErrorCode::NotFound => {
                return Some(Event::JobEnded(JobEnd::Lost));
            }
            Err(error) => tracing::debug!(job = %id, %error, "cancelling"),
        }
        loop {
            let sight = self.job.borrow_and_update().clone();
            match sight {
                JobSight::Unknown => return Some(Event::JobEnded(JobEnd::Lost)),
                JobSight::Is(job) if job.state == JobState::Ended => {
                    return Some(Event::JobEnded(end_of(&job)));
                }
                _ => {}
            }
            if self.job.changed().await.is_err() {
                return Some(Event::JobEnded(JobEnd::Lost));
            }
        }
    }

    async fn tell(&mut self, ending: Ending) -> Option<Event> {
        // What the job wrote last comes before what is said about it.
        if let Some(pump) = self.pump.take() {
            let _ = pump.await;
        }
        let (seen, _) = self.see(false).await;
        let Some(word) = ending.word(seen) else {
            return Some(Event::Told);
        };
        let id = self.record.task.clone();
        let message = format!("Changed by divvy {}", self.record.worker);
        let trouble = std::mem::take(&mut self.trouble);
        let (line, reason) = said(ending, word, &trouble);
        self.say("DEBUG", &format!("{line}\n")).await;
        let told = self.hand.server.ask(async |server| match word {
            Word::Completed => server.completed(&id, &reason, &message).await,
            Word::Failed => server.failed(&id, &reason, &message).await,
            Word::Stopped => server.stopped(&id, &reason, &message).await,
        });
        match told.await {
            // Somebody else was faster, and that is as well.
            Err(error)
                if matches!(
                    error.refusal(),
                    Some(Subcode::StatusChange | Subcode::NoTask)
                ) => {}
            Err(error) => tracing::error!(task = %id, %error, "how the task ended cannot be said"),
            Ok(()) => {}
        }
        Some(Event::Told)
    }

    async fn put_back(&mut self) -> Option<Event> {
        let (queue, task) = (self.record.queue_id.clone(), self.record.task.clone());
        let (seen, listed) = self.see(true).await;
        for step in way(seen, listed) {
            let done = self.hand.server.ask(async |server| match step {
                Back::Add => server.add(&queue, &task).await,
                Back::Reset => server.reset(&task).await,
                Back::Enqueue => server.enqueue(&queue, &task).await,
                Back::Front => server.move_to_front(&queue, &task).await,
                Back::Stop => {
                    let message = format!("Changed by divvy {}", self.record.worker);
                    server
                        .stopped(&task, "task was stopped by tasks.stop", &message)
                        .await
                }
            });
            match done.await {
                Err(error) if error.refusal() == Some(Subcode::AlreadyQueued) => {}
                done => {
                    self.hand
                        .try_to("put the task back into its queue", &task, done)
                        .await
                }
            }
        }
        Some(Event::PutBack)
    }

    async fn finish(&mut self, outcome: Outcome) {
        let id = self.record.job.clone();
        if !matches!(&*self.job.borrow(), JobSight::Is(job) if job.state == JobState::Ended) {
            // An error says that it has ended, or is gone.
            let _ = self
                .hand
                .agent(async |client| client.cancel(&id).await)
                .await;
        }
        if let Some(pump) = self.pump.take() {
            pump.abort();
        }
        let task = self.record.task.clone();
        self.hand.set_slot(&task, None);
        let worker = self.record.worker.clone();
        if self.may_be_listed(outcome) {
            let gone = self
                .hand
                .server
                .ask(async |server| server.unregister(&worker).await)
                .await;
            // A worker that never was on the list cannot be taken off it.
            if let Err(error) = gone {
                tracing::debug!(%worker, %error, "unregistering");
            }
        }
        if let Err(error) = self.hand.runner.clear(&task) {
            tracing::warn!(task, %error, "files of a task that is over stay");
        }
        self.hand.records.remove(&task);
        let _ = self.said.send(Said::Done {
            task,
            worker,
            outcome,
        });
    }

    /// Whether the slot's worker may be on the server's list: since it ran, here or before a restart.
    fn may_be_listed(&self, outcome: Outcome) -> bool {
        let ran = self.reported || self.running_since.is_some();
        ran && outcome != Outcome::NotOurs && self.record.worker != self.hand.daemon
    }

    /// A piece of the task's log.
    async fn say(&self, level: &'static str, text: &str) {
        let task = &self.record.task;
        let events = events(task, &self.record.worker, level, text, now_ms());
        if events.is_empty() {
            return;
        }
        let sent = self
            .hand
            .server
            .ask(async |server| server.add_events(&events).await)
            .await;
        self.hand
            .try_to("write to the task's log", task, sent)
            .await;
    }
}

/// The task's log and its status at the end of a run: a line, and the reason.
fn said(ending: Ending, word: Word, trouble: &str) -> (String, String) {
    let failed = |what: &str| (format!("Process failed: {what}"), what.to_owned());
    let because = |what: &str| match trouble {
        "" => what.to_owned(),
        trouble => format!("{what}: {trouble}"),
    };
    match (word, ending) {
        (Word::Completed, _) => (
            "Process completed successfully".to_owned(),
            "worker execution done".to_owned(),
        ),
        (Word::Stopped, Ending::Stopped(Why::Shutdown)) => (
            "Process aborted: the agent stops".to_owned(),
            "the agent was stopped".to_owned(),
        ),
        (Word::Stopped, Ending::Job(JobEnd::Cancelled)) => (
            "Process aborted: its job was cancelled on the worker's machine".to_owned(),
            "its job was cancelled on the worker's machine".to_owned(),
        ),
        (Word::Stopped, _) => (
            "Process aborted by user".to_owned(),
            "task was stopped by tasks.stop".to_owned(),
        ),
        (Word::Failed, Ending::Job(JobEnd::Exited(code))) => (
            format!("Process failed, exit code {code}"),
            format!("worker execution exit code {code}"),
        ),
        (Word::Failed, Ending::Job(JobEnd::NotLaunched)) => {
            failed(&because("worker could not start the task"))
        }
        (Word::Failed, Ending::Job(JobEnd::Lost)) => {
            failed(&because("worker lost the task's process"))
        }
        (Word::Failed, Ending::Unfit) => failed(&because("worker cannot run the task")),
        (Word::Failed, _) => failed(&because("worker stopped the task")),
    }
}

fn end_of(job: &Job) -> JobEnd {
    match job.end_reason {
        Some(EndReason::Completed) => JobEnd::Exited(0),
        Some(EndReason::Failed) => JobEnd::Exited(job.exit_code.unwrap_or(1)),
        Some(EndReason::Cancelled) => JobEnd::Cancelled,
        Some(EndReason::LaunchFailed | EndReason::DependencyFailed) => JobEnd::NotLaunched,
        Some(EndReason::SupervisorLost) | None => JobEnd::Lost,
        Some(_) => JobEnd::Killed,
    }
}

/// What the task's page shows of its slot.
fn facts(job: &Job) -> impl Iterator<Item = (String, Value)> {
    let list = |of: &dyn Fn(&divvy_api::v1::Slice) -> String| {
        job.slices.iter().map(of).collect::<Vec<_>>().join(",")
    };
    [
        ("_divvy_job", json!(job.id)),
        (
            "_divvy_gpu",
            json!(list(&|slice| slice.gpu_index.to_string())),
        ),
        (
            "_divvy_gpu_fraction",
            json!(list(&|slice| share_text(slice.share))),
        ),
        (
            "_divvy_gpu_memory_limit_bytes",
            json!(list(&|slice| slice.memory_limit_bytes.to_string())),
        ),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
}

/// Follows the agent's job until it has ended, and stands by its slice meanwhile.
async fn follow_job(hand: Arc<Hand>, job: String, tell: watch::Sender<JobSight>) {
    loop {
        let waited = hand
            .agent(async |client| client.wait(&job, WaitFor::Ended, WAIT).await)
            .await;
        match waited {
            Ok(job) => {
                let is_over = job.state == JobState::Ended;
                if tell.send(JobSight::Is(Arc::new(job))).is_err() || is_over {
                    return;
                }
            }
            Err(error) if error.code == ErrorCode::TimedOut => {}
            Err(error) => {
                tracing::warn!(job, %error, "the job is not known to the agent");
                let _ = tell.send(JobSight::Unknown);
                return;
            }
        }
    }
}

/// The life of a task whose record was found, by what has become of its job.
pub fn found(job: Option<&Job>) -> super::life::Found {
    use super::life::Found;
    match job {
        Some(job) if job.confirmation == Some(Confirmation::Awaited) => Found::Awaited,
        Some(job) if job.started_at.is_some() || job.confirmation == Some(Confirmation::Given) => {
            Found::Begun
        }
        _ => Found::Nothing,
    }
}
