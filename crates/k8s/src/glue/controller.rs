//! The glue's control loop: observes the cluster and the server, applies `task_state`'s decision for each task, and
//! claims tasks.

mod claim;
mod create_pod;
mod report;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use divvy_clearml::facts::Facts;
use divvy_clearml::frontend::pull_schedule::Gate;
use divvy_clearml::frontend::watch::{WatchDecision as Verdict, Watcher, is_stopping};
use divvy_clearml::server::{QueueFacts, ServerError, Status, Subcode, Task};
use tokio::task::JoinHandle;

use super::context::GlueContext;
use super::log_forwarder::forward_log;
use super::objects::TaskObjects;
use super::pod_status::{PodState, pod_status};
use super::record::{Logged, Record};
use super::task_state::{ClaimPhase, TaskFacts, TaskStep, next};
use super::waiting::Reasons;

/// Tasks of a queue that one look asks for, beyond those that are known. A queue's first 64 are more than a look can
/// start; a longer list would be read for nothing at each poll.
const HEAD: usize = 64;

/// Errors, in words, by the id of the task or queue.
type Troubles = BTreeMap<String, String>;

/// The id of an error that concerns no single task or queue.
const EVERYTHING: &str = "";

/// Between two looks while one thing follows another. So a chain of steps takes a moment, and not a poll for each; a
/// shorter pause would be busy waiting.
const BREATH: Duration = Duration::from_millis(20);

pub struct GlueController {
    context: Rc<GlueContext>,
    gate: Gate,
    started: Instant,
    tasks: BTreeMap<String, Memory>,
    reasons: Reasons,
    /// The task of each queue whose record could not be made at the last look.
    conflicts: BTreeMap<String, String>,
    /// The errors of the last round, so that each is logged once.
    troubles: Troubles,
}

/// The known state of a task beyond the observable; all of it is optional.
#[derive(Default)]
struct Memory {
    looks: u8,
    watcher: Watcher,
    /// The last reported reason why it waits.
    said: Option<String>,
    /// When a reason was last written into its log.
    logged_reason: Option<Instant>,
    /// Its log has the line of its pod.
    announced: bool,
    /// Why Kueue stopped its pod, until it is back in its queue.
    preempted: Option<String>,
    facts: Option<Facts>,
    log_task: Option<JoinHandle<()>>,
    pinged: Option<Instant>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(log_task) = &self.log_task {
            log_task.abort();
        }
    }
}

/// Why a step cannot be done now.
#[derive(Debug, thiserror::Error)]
enum OperationError {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the Kubernetes API: {}", crate::base::cluster::error_message(.0))]
    Cluster(#[from] kube::Error),
}

impl OperationError {
    /// Whether it is an answer to this one call. Otherwise the next call would fail in the same way.
    fn is_answer(&self) -> bool {
        match self {
            Self::Server(error) => !matches!(
                error,
                ServerError::Unreachable { .. } | ServerError::NotClearml { .. }
            ),
            Self::Cluster(error) => matches!(error, kube::Error::Api(_)),
        }
    }
}

impl GlueController {
    pub fn new(context: Rc<GlueContext>, gate: Gate) -> Self {
        Self {
            context,
            gate,
            started: Instant::now(),
            tasks: BTreeMap::new(),
            reasons: Reasons::default(),
            conflicts: BTreeMap::new(),
            troubles: Troubles::new(),
        }
    }

    /// Serves for ever. It may be killed at any point; its successor continues from the records.
    pub async fn serve(&mut self) {
        loop {
            let is_more = match self.reconcile().await {
                Ok(is_more) => is_more,
                Err(trouble) => {
                    let text = self.log_failure(EVERYTHING, &trouble);
                    self.troubles.insert(EVERYTHING.to_owned(), text);
                    false
                }
            };
            tokio::time::sleep(if is_more {
                BREATH.min(self.context.poll)
            } else {
                self.context.poll
            })
            .await;
        }
    }

    /// One look, and what follows from it; `true`: something has changed by it.
    async fn reconcile(&mut self) -> Result<bool, OperationError> {
        let context = Rc::clone(&self.context);
        let found = context.objects.list().await?;
        self.tasks.retain(|task, _| found.contains_key(task));
        let pods = found.values().filter_map(|found| found.pod.as_ref());
        self.reasons
            .refresh(&context.objects, context.poll, pods)
            .await;
        let ids: Vec<String> = found.keys().cloned().collect();
        let tasks = if ids.is_empty() {
            Vec::new()
        } else {
            context.server.tasks(&ids).await?
        };
        let tasks: BTreeMap<String, Task> = tasks
            .into_iter()
            .map(|task| (task.id.clone(), task))
            .collect();
        let mut heads = BTreeMap::new();
        let mut troubles = Troubles::new();
        for served in &context.queues {
            let head = context.server.head(&served.id, HEAD + ids.len()).await;
            let is_gone = |error: &ServerError| error.refusal() == Some(Subcode::NoQueue);
            // A queue that was deleted holds nothing any more.
            let gone = head.as_ref().is_err_and(is_gone);
            let head = self.taken(
                &mut troubles,
                &served.id,
                head.map_err(OperationError::from),
            )?;
            let head = head.or_else(|| gone.then(QueueFacts::default));
            heads.extend(head.map(|head| (served.id.clone(), head)));
        }
        let mut is_more = false;
        for (id, found) in &found {
            let queue = &found.record.queue_id;
            if context.served(queue).is_some() && !heads.contains_key(queue) {
                // Whether it is still in its queue cannot be said.
                continue;
            }
            let facts = self.facts(found, tasks.get(id), &heads).await;
            let done = self.step(found, &facts).await;
            is_more |= self.taken(&mut troubles, id, done)?.unwrap_or_default();
        }
        for served in &context.queues {
            if let Some(head) = heads.get(&served.id) {
                let done = self.claim(served, head, &found).await;
                let done = self.taken(&mut troubles, &served.id, done)?;
                is_more |= done.unwrap_or_default();
            }
        }
        if self.troubles.contains_key(EVERYTHING) {
            tracing::info!("server and cluster respond again");
        }
        self.troubles = troubles;
        Ok(is_more)
    }

    /// The result of one task's or queue's operation; `None` if only that operation was refused, so that the others go
    /// on.
    ///
    /// # Errors
    /// The server or the cluster does not answer, which concerns every operation.
    fn taken<T>(
        &self,
        troubles: &mut Troubles,
        of: &str,
        done: Result<T, OperationError>,
    ) -> Result<Option<T>, OperationError> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(trouble) if trouble.is_answer() => {
                troubles.insert(of.to_owned(), self.log_failure(of, &trouble));
                Ok(None)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// A trouble in words, which are logged unless the last look had the same.
    fn log_failure(&self, of: &str, trouble: &OperationError) -> String {
        let text = trouble.to_string();
        if self.troubles.get(of) == Some(&text) {
            return text;
        }
        match self.context.served(of) {
            _ if of == EVERYTHING => {
                tracing::warn!(error = text, "server or cluster does not respond; retrying");
            }
            Some(served) => {
                tracing::warn!(
                    queue = served.queue.name,
                    error = text,
                    "an operation failed; retrying"
                );
            }
            None => tracing::warn!(task = of, error = text, "an operation failed; retrying"),
        }
        text
    }

    async fn facts(
        &mut self,
        found: &TaskObjects,
        task: Option<&Task>,
        heads: &BTreeMap<String, QueueFacts>,
    ) -> TaskFacts {
        let context = Rc::clone(&self.context);
        let record = &found.record;
        let pod = found.pod.as_ref();
        let pod = pod.map(|pod| self.reasons.explain(pod, pod_status(pod)));
        let memory = self.tasks.entry(record.task.clone()).or_default();
        let state = pod.as_ref().map(|pod| &pod.state);
        let writes = matches!(state, Some(PodState::Runs | PodState::Ended(_)));
        let mut is_logged = record.logged == Logged::All;
        if let (Some(pod), true, false) = (&found.pod, writes, is_logged) {
            let log_task = memory.log_task.get_or_insert_with(|| {
                tokio::task::spawn_local(forward_log(
                    Rc::clone(&context),
                    record.clone(),
                    pod.clone(),
                ))
            });
            is_logged = log_task.is_finished();
        }
        let is_listed =
            |facts: &QueueFacts| facts.entries.iter().any(|entry| entry.task == record.task);
        let listed = match heads.get(&record.queue_id) {
            Some(facts) => is_listed(facts),
            // One that is not served any more is asked for only where that says something.
            None if record.mark == ClaimPhase::Claiming => {
                let found = context
                    .server
                    .head(&record.queue_id, usize::from(u16::MAX))
                    .await;
                found.is_ok_and(|facts| is_listed(&facts))
            }
            None => false,
        };
        let queue = task.and_then(|task| task.rest.get("execution")?.get("queue")?.as_str());
        let most = context.settings.abort_callback_max;
        let child = context.child(&record.task);
        // `state` checks whether the task is queued: it is while its pod waits.
        let verdict = match task.map(|task| task.status) {
            Some(Status::Queued | Status::Unknown) => false,
            _ => match memory
                .watcher
                .look_at(task, &child, self.started.elapsed(), most)
            {
                Verdict::Go => false,
                Verdict::Wait(line) => {
                    context
                        .append_to_log(&record.task, "DEBUG", &format!("{line}\n"))
                        .await;
                    false
                }
                Verdict::Stop(..) => true,
            },
        };
        TaskFacts {
            mark: record.mark,
            is_logged,
            status: task.map(|task| task.status),
            stopping: task.is_some_and(is_stopping),
            was_stopped: record.was_stopped,
            listed,
            elsewhere: queue.is_some_and(|queue| queue != record.queue_id),
            served: context.served(&record.queue_id).is_some(),
            looks: memory.looks,
            verdict,
            pod,
        }
    }

    /// Does the next step of a task; `true`: another may follow at once.
    async fn step(
        &mut self,
        found: &TaskObjects,
        facts: &TaskFacts,
    ) -> Result<bool, OperationError> {
        let (context, record) = (Rc::clone(&self.context), &found.record);
        let id = record.task.as_str();
        let Some(memory) = self.tasks.get_mut(id) else {
            return Ok(false);
        };
        let step = next(facts);
        if !matches!(step, TaskStep::Nothing | TaskStep::ReportWaiting(_)) {
            tracing::debug!(task = id, ?step, ?facts, "ClearML task");
        }
        match step {
            TaskStep::Nothing => {
                if facts.status == Some(Status::InProgress) {
                    self.ping(id).await;
                }
                return Ok(false);
            }
            TaskStep::LookAgain => {
                memory.looks += 1;
                return Ok(false);
            }
            TaskStep::Forget => {
                if record.mark == ClaimPhase::Ours {
                    // Its agent has done so itself, unless it was killed. Before the record goes, because it is never
                    // retried afterwards.
                    let _ = context.server.unregister(&context.child(id)).await;
                    tracing::info!(task = id, status = ?facts.status, "ClearML task: ended");
                }
                context.objects.remove_record(id).await?;
            }
            TaskStep::Return => {
                memory.preempted = facts.pod.as_ref().and_then(|pod| pod.preempted.clone());
                let record = Record {
                    mark: ClaimPhase::Returning,
                    ..record.clone()
                };
                context.objects.write_mark(&record).await?;
            }
            TaskStep::PutBack => {
                let preempted = memory.preempted.take();
                self.put_back(record, facts).await?;
                if let Some(why) = preempted {
                    let line = format!("back in its queue: Kueue stopped its pod: {why}\n");
                    context.append_to_log(id, "WARNING", &line).await;
                }
                context.objects.remove_record(id).await?;
                tracing::info!(task = id, "ClearML task: back in its queue");
            }
            TaskStep::Make => return self.make(record).await,
            TaskStep::Delete => {
                if let Some(pod) = &found.pod {
                    context.objects.delete(pod).await?;
                }
            }
            TaskStep::ReportWaiting(why) => {
                self.wait(id, &why).await?;
                return Ok(false);
            }
            TaskStep::Start => {
                // It would undo a change that its user has made since the observation.
                let now = context.server.task(id).await?;
                let Some(task) = now.filter(|task| task.status == Status::Queued) else {
                    return Ok(true);
                };
                let message = format!("pulled by {}", context.worker);
                context.server.started(id, &message).await?;
                self.show(&task).await;
            }
            TaskStep::ReportEnd(word) => return self.report_end(id, facts, &word).await,
        }
        Ok(true)
    }

    /// Keeps the server from taking the task for a lost one.
    async fn ping(&mut self, task: &str) {
        let every = self.context.settings.ping;
        let Some(memory) = self.tasks.get_mut(task) else {
            return;
        };
        if every.is_zero() || memory.pinged.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        memory.pinged = Some(Instant::now());
        if let Err(error) = self.context.server.ping(task).await {
            tracing::debug!(task, %error, "pinging");
        }
    }
}
