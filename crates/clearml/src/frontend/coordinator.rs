//! The coordinator: one loop over the server's queues, the agent's grants and the tasks' results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_api::front_end::{TellHolds, Withdrawal, Withdrawn, WorkerHold};
use divvy_api::v1::{self, Job, JobQuery, JobState};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::attribution::of_waiting;
use super::context::Context;
use super::poll::{PollRequest, PollResult, holds, poll_server, uses_its_gpus};
use super::pull_schedule::Gate;
use super::queue::{GrantEvent, QUEUE, ServedQueue, TASK, is_granted};
use super::queue_mirror::{CancelReason, Mirror, MirrorStep, steps};
use super::record::Record;
use super::setup::Queue;
use super::task_runner::{TaskNotice, TaskRunner, TaskSnapshot, recovered_job};
use super::task_state::{ClaimPhase, Outcome, TaskLifecycle};
use crate::projects::Projects;
use crate::server::{Task, Worker, now_ms};
use crate::slot::{is_slot_of, slot_id};
use crate::{Error, StopSignal, Ties};

/// Tasks of a queue that the front end reads where each project has its own turn. More than enough for the turns of
/// some ten projects; a queue of thousands would be read at each poll otherwise.
const LOOKED_AT: usize = 256;

/// How far back a starting daemon looks for slots of its own on the server's list, seconds: an entry lives `TIMEOUT`
/// after its last report, and a report may be under way for minutes where the server is slow. So half as much again as
/// `TIMEOUT`.
const OLD_SLOTS_S: i64 = 900;

/// Jobs of that time that it looks at, the newest: more than a node of eight GPUs ends in it.
const OLD_SLOTS: usize = 1000;

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
    /// Tasks that are driven.
    driven: BTreeMap<String, Driven>,
    /// Jobs of tasks that an earlier run mirrored and no look has found yet, by queue and in the order of submission.
    adopted: BTreeMap<String, Vec<Job>>,
    withdrawals: mpsc::Receiver<Withdrawal>,
    drivers: Vec<JoinHandle<()>>,
    /// Counts what makes an earlier look out of date.
    epoch: u64,
    /// Tasks that left their queues, and when on that count.
    gone: Vec<(String, u64)>,
    looking: bool,
    look_again: bool,
    /// Every worker that a task of ours ran as, here or in an earlier run: the server's list may show one after its end.
    ours: BTreeSet<String>,
    /// What other daemons of our name use of the GPUs.
    foreign: Vec<WorkerHold>,
    tell_holds: TellHolds,
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

/// A task that is driven.
struct Driven {
    /// The queue that it is claimed from.
    queue: Option<usize>,
    job: String,
    /// It is out of its queue, or stays there.
    is_past_claim: bool,
    /// It is taken from its queue because a user of this machine has cancelled it.
    withdraws: bool,
    /// Users that wait to hear whether it is cancelled.
    cancels: Vec<oneshot::Sender<Result<Withdrawn, v1::Error>>>,
}

impl Driven {
    fn answer(&mut self, answer: &Result<Withdrawn, v1::Error>) {
        for cancel in self.cancels.drain(..) {
            let _ = cancel.send(answer.clone());
        }
    }
}

impl Coordinator {
    pub fn new(
        context: Arc<Context>,
        (queues, gate): (Vec<Queue>, Gate),
        projects: Projects,
        (stop, keep): (StopSignal, bool),
        ties: Ties,
    ) -> Self {
        let Ties {
            withdrawals,
            tell_holds,
        } = ties;
        Self {
            projects,
            adopted: BTreeMap::new(),
            withdrawals,
            tell_holds,
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
                Some(asked) = self.withdrawals.recv() => self.withdraw(asked),
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
            let queue = job.labels.get(QUEUE).cloned().unwrap_or_default();
            let begun = matches!(job.state, JobState::Running) && !self.driven.contains_key(&task);
            if !begun {
                // Its task was never claimed: where it still waits, its job goes on standing for it.
                let is_served = self.lines.iter().any(|line| line.facts.id == queue);
                if is_served && !self.driven.contains_key(&task) {
                    self.adopted.entry(queue).or_default().push(job.clone())
                } else {
                    let why = "its queue is not served any more".to_owned();
                    self.context.end_job(&job.id, why, true).await;
                }
                continue;
            }
            // Its record was lost, and its task must not be.
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
        self.forget_old_slots().await;
        Ok(())
    }

    /// Takes the workers of tasks that ended lately off the server's list: a report that was under way at a task's end
    /// may have put its worker there again, and an earlier run may not have lived to take it off.
    async fn forget_old_slots(&mut self) {
        let since = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(OLD_SLOTS_S);
        let query = JobQuery {
            all: true,
            since: Some(since),
            limit: OLD_SLOTS,
            ..JobQuery::default()
        };
        let recent = self
            .context
            .agent(async |client| client.job_page(&query).await)
            .await;
        let jobs = recent.map(|page| page.jobs).unwrap_or_default();
        let is_old = |job: &&Job| job.state == JobState::Ended && job.labels.contains_key(TASK);
        let mut old: BTreeSet<String> = jobs
            .iter()
            .filter(is_old)
            .filter(|job| !job.slices.is_empty())
            .map(|job| self.worker(job))
            .collect();
        old.retain(|worker| *worker != self.context.daemon && !self.ours.contains(worker));
        self.ours.extend(old.iter().cloned());
        self.unregister(old);
    }

    /// Takes workers off the server's list.
    fn unregister(&self, workers: BTreeSet<String>) {
        let context = Arc::clone(&self.context);
        tokio::task::spawn_local(async move {
            for worker in workers {
                // A worker that is not on the list cannot be taken off it.
                if let Err(error) = context.server.unregister(&worker).await {
                    tracing::debug!(%worker, %error, "cannot unregister an old worker");
                }
            }
        });
    }

    fn worker(&self, job: &Job) -> String {
        slot_id(
            &self.context.settings.worker_name,
            &self.context.mode,
            &job.slices,
        )
    }

    fn run_task(&mut self, lifecycle: TaskLifecycle, record: Record, queue: Option<usize>) {
        self.drive(lifecycle, record, queue, None);
    }

    /// `cancel`: what a user of this machine did, where the task is taken from its queue for that, and its reply.
    fn drive(
        &mut self,
        lifecycle: TaskLifecycle,
        record: Record,
        queue: Option<usize>,
        cancel: Option<(String, oneshot::Sender<Result<Withdrawn, v1::Error>>)>,
    ) {
        let (because, reply) = cancel.unzip();
        let driven = Driven {
            queue,
            job: record.job.clone(),
            is_past_claim: false,
            withdraws: because.is_some(),
            cancels: reply.into_iter().collect(),
        };
        self.driven.insert(record.task.clone(), driven);
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
        let driver = match because {
            Some(because) => driver.withdrawing(because),
            None => driver,
        };
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
            for job in self.adopted.remove(&line.facts.id).into_iter().flatten() {
                line.adopt(&job);
            }
        }
        if let Some(tasks) = seen.tasks {
            self.tasks.send_replace(Some(tasks));
        }
        if let Some(workers) = seen.workers {
            self.count_foreign(workers);
        }
    }

    /// Counts what slots of other daemons of our name use, and takes our own old slots off the server's list.
    fn count_foreign(&mut self, (workers, running): (Vec<Worker>, BTreeMap<String, Task>)) {
        let slots = self.context.slots();
        let living: BTreeSet<String> = slots.values().map(|slot| slot.worker.clone()).collect();
        drop(slots);
        self.ours.extend(living.iter().cloned());
        let is_slot = |worker: &&Worker| is_slot_of(&self.context.settings.worker_name, &worker.id);
        let others = workers.iter().filter(is_slot);
        let others: Vec<&Worker> = others.filter(|other| !living.contains(&other.id)).collect();
        let (in_use, old): (Vec<&Worker>, Vec<&Worker>) = others.into_iter().partition(|worker| {
            uses_its_gpus(worker, &running, |task| self.driven.contains_key(task))
        });
        let old = old.into_iter().map(|worker| worker.id.clone());
        let old: BTreeSet<String> = old
            .filter(|id| self.ours.contains(id) && *id != self.context.daemon)
            .collect();
        if !old.is_empty() {
            self.unregister(old);
        }
        let name = &self.context.settings.worker_name;
        let foreign: Vec<WorkerHold> = in_use.iter().flat_map(|one| holds(name, one)).collect();
        let parts = |holds: &[WorkerHold]| -> Vec<(u32, u16)> {
            holds.iter().map(|held| (held.gpu, held.share)).collect()
        };
        if foreign == self.foreign {
            return;
        }
        if parts(&foreign) != parts(&self.foreign) {
            let workers: Vec<&str> = in_use.iter().map(|worker| worker.id.as_str()).collect();
            tracing::warn!(
                ?workers,
                "workers of other daemons with this worker name use GPUs of this daemon, which leaves them their parts"
            );
        }
        self.foreign.clone_from(&foreign);
        (self.tell_holds)(foreign);
    }

    /// A user of this machine cancels a task that waits.
    fn withdraw(&mut self, asked: Withdrawal) {
        let Withdrawal {
            job,
            because,
            reply,
        } = asked;
        if let Some(driven) = self.driven.values_mut().find(|driven| driven.job == job) {
            if driven.is_past_claim && !driven.withdraws {
                drop(reply.send(Ok(Withdrawn::Claimed)))
            } else {
                // Whether another worker was quicker is known in a moment.
                driven.cancels.push(reply)
            }
            return;
        }
        let line = self.lines.iter_mut().find_map(|line| {
            let mirrors = &mut line.view.mirrors;
            let at = mirrors.iter().position(|mirror| mirror.job == job)?;
            Some((mirrors.remove(at).task, line))
        });
        let Some((task, line)) = line else {
            let adopted = self.adopted.values().flatten().any(|other| other.id == job);
            // A job that only looks like a task's is no affair of the server.
            let answer = if adopted {
                Err(v1::Error::new(
                    v1::ErrorCode::Conflict,
                    format!("the ClearML server has not said yet whether the task of job {job} still waits"),
                )
                .hint("cancel it again in a few seconds"))
            } else {
                Ok(Withdrawn::Claimed)
            };
            let _ = reply.send(answer);
            return;
        };
        line.view.tasks.retain(|queued| queued.task != task);
        let record = Record {
            task,
            queue_id: line.facts.id.clone(),
            queue_name: line.facts.name.clone(),
            // It has no slot, and the daemon itself speaks in its log.
            worker: self.context.daemon.clone(),
            job,
            mark: ClaimPhase::Claiming,
        };
        let lifecycle = TaskLifecycle::withdrawing();
        self.drive(lifecycle, record, None, Some((because, reply)));
    }

    fn handle_notice(&mut self, said: TaskNotice) {
        self.epoch += 1;
        match said {
            TaskNotice::PastClaim { task, popped } => {
                let Some(driven) = self.driven.get_mut(&task) else {
                    return;
                };
                driven.is_past_claim = true;
                if popped && !driven.withdraws {
                    driven.answer(&Ok(Withdrawn::Claimed));
                }
                if let Some(queue) = driven.queue {
                    self.lines[queue].view.claiming = false;
                }
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
                if let Some(mut driven) = self.driven.remove(&task) {
                    driven.answer(&cancelled(outcome, &driven.job));
                }
                self.ours.insert(worker);
                self.gone.push((task, self.epoch));
                self.start_poll();
            }
            TaskNotice::Left { task } => {
                if let Some(mut driven) = self.driven.remove(&task) {
                    driven.answer(&Ok(Withdrawn::Claimed));
                }
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
        let mirrors = &mut line.view.mirrors;
        let over = mirrors.extract_if(.., |mirror| mirror.job == job);
        let over = over.map(|mirror| (mirror, Some("its slice was not claimed in time")));
        let over = over.collect();
        end_jobs(&self.context, &line.facts.id, over);
    }

    /// Brings the agent's jobs to what they ought to be.
    async fn act(&mut self) {
        for at in 0..self.lines.len() {
            // A job may have its slice as soon as it is submitted.
            while self.step(at).await {}
            self.lines[at].stand_by(at, &self.context, &self.heads.0);
        }
    }

    /// Does what is to be done about a queue now; `true` if there may be more of it.
    async fn step(&mut self, at: usize) -> bool {
        let steps = steps(&self.lines[at].view);
        let is_more = !steps.is_empty();
        let (cancels, steps): (Vec<MirrorStep>, Vec<MirrorStep>) = steps
            .into_iter()
            .partition(|step| matches!(step, MirrorStep::Cancel(..)));
        let mut over = Vec::with_capacity(cancels.len());
        for cancel in cancels {
            if let MirrorStep::Cancel(mirror, why) = cancel {
                self.lines[at].view.mirrors.retain(|other| *other != mirror);
                over.push((mirror, known_reason(why)));
            }
        }
        end_jobs(&self.context, &self.lines[at].facts.id, over);
        for step in steps {
            match step {
                MirrorStep::Cancel(..) => unreachable!("they come first"),
                MirrorStep::Submit(queued) => {
                    let line = &mut self.lines[at];
                    // The first of its project was refused, and the next ones keep their order.
                    if line.view.barred.contains(&queued.place) {
                        continue;
                    }
                    self.nonce += 1;
                    let nonce = self.nonce;
                    if !line.submit(&self.context, &queued, nonce).await {
                        return false;
                    }
                }
                MirrorStep::Claim(mirror) => self.claim(at, mirror).await,
            }
        }
        is_more
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
            let why = Some("it lost its slice before its task was claimed");
            end_jobs(&self.context, &line.facts.id, vec![(mirror, why)]);
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
        // Jobs of tasks that wait stay: the next daemon finds them again under the same numbers.
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

/// Why a job stands for its task no longer, in words; `None`: the server knows.
fn known_reason(why: CancelReason) -> Option<&'static str> {
    match why {
        CancelReason::Left => None,
        CancelReason::Closed => Some("the daemon pulls no tasks of this queue now"),
        CancelReason::Moved => Some("its task's place in the queue, or project, has changed"),
    }
}

/// Ends jobs of a queue that stand for tasks which are not claimed, each with its reason; without one, the server says
/// why the task left the queue.
fn end_jobs(context: &Arc<Context>, queue: &str, jobs: Vec<(Mirror, Option<&'static str>)>) {
    if jobs.is_empty() {
        return;
    }
    let (context, queue) = (Arc::clone(context), queue.to_owned());
    tokio::task::spawn_local(async move {
        let left = jobs.iter().filter(|(_, why)| why.is_none());
        let left: Vec<String> = left.map(|(mirror, _)| mirror.task.clone()).collect();
        let mut words = if left.is_empty() {
            BTreeMap::new()
        } else {
            of_waiting(&context, &queue, &left).await
        };
        for (mirror, why) in jobs {
            let words = words.remove(&mirror.task);
            let why = why.map(str::to_owned).or(words).unwrap_or_default();
            context.end_job(&mirror.job, why, true).await;
        }
    });
}

/// What a user hears that has cancelled a task, once nothing more is done for it here.
fn cancelled(outcome: Outcome, job: &str) -> Result<Withdrawn, v1::Error> {
    match outcome {
        Outcome::Ended | Outcome::Released => Ok(Withdrawn::Done),
        Outcome::NotOurs => Err(v1::Error::new(
            v1::ErrorCode::Conflict,
            format!(
                "the task of job {job} is not in its queue any more: another worker was quicker, or its user has moved it"
            ),
        )
        .hint("stop the task on the ClearML server")),
        Outcome::Returned => Err(v1::Error::new(
            v1::ErrorCode::Conflict,
            format!("the task of job {job} is back in its queue on the ClearML server"),
        )
        .hint("cancel its next job; `divvy ps` shows it")),
    }
}
