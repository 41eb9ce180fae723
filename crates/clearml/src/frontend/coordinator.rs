//! The coordinator: one loop over the server's queues, the agent's grants and the tasks' results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_api::v1::{Job, JobState};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::context::Context;
use super::poll::{PollRequest, PollResult, foreign, poll_server};
use super::pull_schedule::Gate;
use super::queue::{GrantEvent, QUEUE, ServedQueue, TASK, is_granted};
use super::queue_mirror::{Mirror, MirrorStep, steps};
use super::record::Record;
use super::setup::Queue;
use super::task_runner::{TaskNotice, TaskRunner, TaskSnapshot, recovered_job};
use super::task_state::{ClaimPhase, Outcome, TaskLifecycle};
use crate::projects::Projects;
use crate::server::now_ms;
use crate::slot::slot_id;
use crate::{Error, StopSignal};

/// Tasks of a queue that are looked at where each project has its own turn.
const LOOKED_AT: usize = 256;

/// How long what is still to be said to the server may take once the daemon is told to stop. What is not said then is in its
/// record, and said by the next daemon.
const LEAVING: Duration = Duration::from_secs(60);

pub struct Coordinator {
    context: Arc<Context>,
    lines: Vec<ServedQueue>,
    gate: Gate,
    stop: StopSignal,
    keep: bool,
    projects: Projects,
    /// Names of the node's projects, where the mapping asks for them.
    there: BTreeSet<String>,
    /// Tasks that are driven, with the queue they are from.
    driven: BTreeMap<String, Option<usize>>,
    drivers: Vec<JoinHandle<()>>,
    /// Counts what makes an earlier look out of date.
    epoch: u64,
    /// Tasks that left their queues, and when on that count.
    gone: Vec<(String, u64)>,
    looking: bool,
    look_again: bool,
    /// Every worker that a task of ours ran as: the server's list may show one for a while after its end, and before we say so.
    ours: BTreeSet<String>,
    /// GPUs that other daemons of our name use.
    foreign: Vec<u32>,
    workers_seen: Option<Instant>,
    /// The server did not answer when it was last looked at.
    away: bool,
    /// Part of the keys under which jobs are submitted: no key is used twice.
    nonce: u64,
    tasks: watch::Sender<Option<Arc<TaskSnapshot>>>,
    said: (
        mpsc::UnboundedSender<TaskNotice>,
        mpsc::UnboundedReceiver<TaskNotice>,
    ),
    heads: (
        mpsc::UnboundedSender<GrantEvent>,
        mpsc::UnboundedReceiver<GrantEvent>,
    ),
    seen: (
        mpsc::UnboundedSender<PollResult>,
        mpsc::UnboundedReceiver<PollResult>,
    ),
}

impl Coordinator {
    pub fn new(
        context: Arc<Context>,
        queues: Vec<Queue>,
        gate: Gate,
        projects: Projects,
        stop: StopSignal,
        keep: bool,
    ) -> Self {
        Self {
            projects,
            there: BTreeSet::new(),
            lines: queues.into_iter().map(ServedQueue::new).collect(),
            driven: BTreeMap::new(),
            drivers: Vec::new(),
            epoch: 0,
            gone: Vec::new(),
            looking: false,
            look_again: false,
            ours: BTreeSet::new(),
            foreign: Vec::new(),
            workers_seen: None,
            away: false,
            nonce: u64::try_from(now_ms()).unwrap_or_default(),
            tasks: watch::Sender::new(None),
            said: mpsc::unbounded_channel(),
            heads: mpsc::unbounded_channel(),
            seen: mpsc::unbounded_channel(),
            context,
            gate,
            stop,
            keep,
        }
    }

    /// Serves until told to stop, and then until everything is where it can be left.
    ///
    /// # Errors
    /// Records that cannot be read, an agent that does not answer at all.
    pub async fn serve(&mut self) -> Result<(), Error> {
        self.recover().await?;
        let mut beat = interval(self.context.poll);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_requested() {
            tokio::select! {
                _ = beat.tick() => self.start_poll(),
                Some(seen) = self.seen.1.recv() => self.apply_poll(seen),
                Some(said) = self.said.1.recv() => self.handle_notice(said),
                Some(head) = self.heads.1.recv() => self.granted(head),
                () = self.stop.requested() => break,
            }
            // Results that arrived together are handled together: jobs are submitted in the order of the queues.
            while let Ok(said) = self.said.1.try_recv() {
                self.handle_notice(said);
            }
            self.act().await;
        }
        self.leave().await;
        Ok(())
    }

    /// Takes up what an earlier run of ours left.
    async fn recover(&mut self) -> Result<(), Error> {
        let records = self.context.records.all()?;
        let jobs: Vec<Job> = self
            .context
            .agent(async |client| client.jobs(false).await)
            .await?;
        let mut known: BTreeSet<String> = BTreeSet::new();
        let living: BTreeSet<String> = records.iter().map(|record| record.task.clone()).collect();
        for record in records {
            known.insert(record.job.clone());
            let job = match jobs.iter().find(|job| job.id == record.job) {
                Some(job) => Some(job.clone()),
                None => {
                    let id = &record.job;
                    self.context
                        .agent(async |client| client.job(id).await)
                        .await
                        .ok()
                }
            };
            tracing::info!(task = %record.task, job = %record.job, mark = ?record.mark, "resuming a ClearML task");
            let lifecycle = TaskLifecycle::recovered(record.mark, recovered_job(job.as_ref()));
            self.run_task(lifecycle, record, None);
        }
        let ours = |job: &&Job| job.labels.contains_key(TASK) && !known.contains(&job.id);
        for job in jobs.iter().filter(ours) {
            let task = job.labels[TASK].clone();
            let begun = matches!(job.state, JobState::Running) && !self.driven.contains_key(&task);
            if !begun {
                // Its task was never claimed: where it still waits, it is mirrored anew.
                let id = &job.id;
                let _ = self
                    .context
                    .agent(async |client| client.cancel(id).await)
                    .await;
                continue;
            }
            // Its record was lost, and its task must not be.
            let queue = job.labels.get(QUEUE).cloned().unwrap_or_default();
            let line = self.lines.iter().find(|line| line.facts.id == queue);
            let record = Record {
                task,
                queue_name: line.map_or_else(|| job.queue.clone(), |line| line.facts.name.clone()),
                queue_id: queue,
                job: job.id.clone(),
                worker: self.worker(job),
                mark: ClaimPhase::Confirmed,
            };
            self.run_task(
                TaskLifecycle::recovered(ClaimPhase::Confirmed, recovered_job(Some(job))),
                record,
                None,
            );
        }
        self.context.runner.clear_all_but(&living);
        Ok(())
    }

    fn worker(&self, job: &Job) -> String {
        slot_id(
            &self.context.settings.worker_name,
            &self.context.mode,
            &job.slices,
        )
    }

    fn run_task(&mut self, lifecycle: TaskLifecycle, record: Record, queue: Option<usize>) {
        self.driven.insert(record.task.clone(), queue);
        self.ours.insert(record.worker.clone());
        let (stop, said) = ((self.stop.clone(), self.keep), self.said.0.clone());
        let snapshots = self.tasks.subscribe();
        let driver = TaskRunner::new(
            Arc::clone(&self.context),
            lifecycle,
            record,
            snapshots,
            stop,
            said,
        );
        self.drivers.retain(|driver| !driver.is_finished());
        self.drivers.push(tokio::task::spawn_local(driver.run()));
    }

    /// Looks at the server, unless that is going on; then once more after it.
    fn start_poll(&mut self) {
        if std::mem::replace(&mut self.looking, true) {
            self.look_again = true;
            return;
        }
        let workers = self
            .workers_seen
            .is_none_or(|at| at.elapsed() >= self.context.settings.report);
        if workers {
            self.workers_seen = Some(Instant::now());
        }
        let mapped = !self.projects.now().is_none();
        let most = |line: &ServedQueue| if mapped { LOOKED_AT } else { line.facts.depth };
        let ask = PollRequest {
            queues: self
                .lines
                .iter()
                // Tasks with a running task runner may still be in there.
                .map(|line| (line.facts.id.clone(), most(line) + self.driven.len()))
                .collect(),
            named: (self.lines.iter())
                .flat_map(|line| line.facts_of.keys().cloned())
                .collect(),
            projects: mapped,
            tasks: self.driven.keys().cloned().collect(),
            workers,
            epoch: self.epoch,
        };
        let (context, tell) = (Arc::clone(&self.context), self.seen.0.clone());
        tokio::task::spawn_local(async move {
            // The receiver is gone when the daemon stops.
            let _ = tell.send(poll_server(context, ask).await);
        });
    }

    fn apply_poll(&mut self, seen: PollResult) {
        self.looking = false;
        if std::mem::take(&mut self.look_again) {
            self.start_poll();
        }
        match (&seen.trouble, self.away) {
            (Some(error), false) => {
                tracing::warn!(
                    error,
                    "cannot read queues and tasks from the ClearML server; retrying"
                );
            }
            (None, true) => tracing::info!("the ClearML server responds again"),
            _ => {}
        }
        self.away = seen.trouble.is_some();
        let now = jiff::Zoned::now().datetime();
        self.gone.retain(|(_, epoch)| *epoch > seen.epoch);
        if let Some(there) = seen.projects {
            self.there = there;
        }
        for (line, facts) in self.lines.iter_mut().zip(seen.queues) {
            let Some(facts) = facts else { continue };
            line.view.pulls = self.gate.is_open(&facts.tags, now);
            let is_free = |task: &String| {
                !self.driven.contains_key(task) && !self.gone.iter().any(|(gone, _)| gone == task)
            };
            let entries: Vec<String> = facts.entries.into_iter().map(|entry| entry.task).collect();
            for task in &entries {
                if let Some(names) = seen.names.get(task) {
                    line.facts_of.insert(task.clone(), names.clone());
                }
            }
            let (mapping, there) = (self.projects.now(), &self.there);
            line.saw(entries, is_free, |facts| mapping.place(facts, there));
        }
        if let Some(tasks) = seen.tasks {
            self.tasks.send_replace(Some(tasks));
        }
        if let Some(workers) = seen.workers {
            self.count_foreign(&workers);
        }
    }

    fn count_foreign(&mut self, workers: &[crate::server::Worker]) {
        let slots = self.context.slots();
        let running = slots.values().map(|slot| slot.worker.clone());
        self.ours.extend(running);
        drop(slots);
        let ours = |id: &str| id == self.context.daemon || self.ours.contains(id);
        let foreign = foreign(&self.context.settings.worker_name, workers, ours);
        if foreign != self.foreign {
            tracing::warn!(gpus = ?foreign, "other daemons with this worker name use these GPUs; this daemon does not use them");
            self.foreign = foreign;
            // Every job that waits is submitted again, for other GPUs.
            for line in &mut self.lines {
                for mirror in line.view.mirrors.drain(..) {
                    cancel(&self.context, mirror);
                }
            }
        }
    }

    fn handle_notice(&mut self, said: TaskNotice) {
        self.epoch += 1;
        match said {
            TaskNotice::PastClaim { task, popped } => {
                let Some(queue) = self.driven.get(&task).copied().flatten() else {
                    return;
                };
                let view = &mut self.lines[queue].view;
                view.claiming = false;
                if popped {
                    self.gone.push((task, self.epoch));
                }
                // The next ones move up.
                self.start_poll();
            }
            TaskNotice::Done {
                task,
                worker,
                outcome,
            } => {
                if outcome != Outcome::NotOurs {
                    tracing::info!(task, %worker, ?outcome, "done with a ClearML task");
                }
                self.driven.remove(&task);
                self.ours.insert(worker);
                self.gone.push((task, self.epoch));
                self.start_poll();
            }
            TaskNotice::Left { task } => {
                self.driven.remove(&task);
            }
        }
    }

    fn granted(&mut self, head: GrantEvent) {
        let (queue, job, is_granted) = match head {
            GrantEvent::Granted { queue, job } => (queue, job, true),
            GrantEvent::Over { queue, job } => (queue, job, false),
        };
        let line = &mut self.lines[queue];
        line.heard(&job);
        if is_granted {
            if let Some(mirror) = line
                .view
                .mirrors
                .iter_mut()
                .find(|mirror| mirror.job == job)
            {
                mirror.granted = true;
            }
            return;
        }
        let over: Vec<Mirror> = line
            .view
            .mirrors
            .extract_if(.., |mirror| mirror.job == job)
            .collect();
        for mirror in over {
            cancel(&self.context, mirror);
        }
    }

    /// Brings the agent's jobs to what they ought to be.
    async fn act(&mut self) {
        let on = match self.allowed_gpus().await {
            Some(on) => on,
            // Other programs have every GPU.
            None => return,
        };
        for at in 0..self.lines.len() {
            // A job may have its slice as soon as it is submitted.
            while self.step(at, &on).await {}
            self.lines[at].stand_by(at, &self.context, &self.heads.0);
        }
    }

    /// Does what is to be done about a queue now; `true` if there may be more of it.
    async fn step(&mut self, at: usize, on: &[u32]) -> bool {
        let steps = steps(&self.lines[at].view);
        let is_more = !steps.is_empty();
        for step in steps {
            match step {
                MirrorStep::Cancel(mirror) => {
                    self.lines[at].view.mirrors.retain(|other| *other != mirror);
                    cancel(&self.context, mirror);
                }
                MirrorStep::Submit(queued) => {
                    let line = &mut self.lines[at];
                    // The first of its project was refused, and the next ones keep their order.
                    if line.view.barred.contains(&queued.place) {
                        continue;
                    }
                    self.nonce += 1;
                    let nonce = self.nonce;
                    if !line.submit(&self.context, &queued, nonce, on).await {
                        return false;
                    }
                }
                MirrorStep::Claim(mirror) => self.claim(at, mirror).await,
            }
        }
        is_more
    }

    /// Indexes of GPUs that tasks may be on, empty for all of them; `None`: there is none.
    async fn allowed_gpus(&self) -> Option<Vec<u32>> {
        if self.foreign.is_empty() {
            return Some(Vec::new());
        }
        let gpus = self
            .context
            .agent(async |client| client.gpus().await)
            .await
            .ok()?;
        let free = gpus
            .iter()
            .filter(|gpu| gpu.mode != "unmanaged" && !self.foreign.contains(&gpu.index));
        let free: Vec<u32> = free.map(|gpu| gpu.index).collect();
        (!free.is_empty()).then_some(free)
    }

    async fn claim(&mut self, at: usize, mirror: Mirror) {
        let line = &mut self.lines[at];
        line.view.mirrors.retain(|other| *other != mirror);
        let id = &mirror.job;
        let Ok(job) = self
            .context
            .agent(async |client| client.job(id).await)
            .await
        else {
            return;
        };
        if !is_granted(&job) {
            cancel(&self.context, mirror);
            return;
        }
        line.view.claiming = true;
        let first = line.view.tasks.first();
        let is_head = first.is_none_or(|first| first.task == mirror.task);
        line.view.tasks.retain(|queued| queued.task != mirror.task);
        let record = Record {
            task: mirror.task,
            queue_id: line.facts.id.clone(),
            queue_name: line.facts.name.clone(),
            worker: self.worker(&job),
            job: mirror.job,
            mark: ClaimPhase::Claiming,
        };
        let lifecycle = if is_head {
            TaskLifecycle::new()
        } else {
            TaskLifecycle::passing()
        };
        self.run_task(lifecycle, record, Some(at));
    }

    /// Nothing more is pulled; what runs is stopped or left, and what was claimed and does not run goes back.
    async fn leave(&mut self) {
        for line in &mut self.lines {
            for mirror in line.view.mirrors.drain(..) {
                let id = &mirror.job;
                let _ = self
                    .context
                    .agent(async |client| client.cancel(id).await)
                    .await;
            }
        }
        let drivers = std::mem::take(&mut self.drivers);
        let all = async {
            for driver in drivers {
                let _ = driver.await;
            }
        };
        if tokio::time::timeout(LEAVING, all).await.is_err() {
            tracing::warn!(
                "the ClearML server does not respond; the next daemon will report how the tasks ended"
            );
        }
    }
}

/// Cancels a job that stands for a task which is not claimed. An error says that it has ended.
fn cancel(context: &Arc<Context>, mirror: Mirror) {
    let context = Arc::clone(context);
    tokio::task::spawn_local(async move {
        let _ = context
            .agent(async |client| client.cancel(&mirror.job).await)
            .await;
    });
}
