//! The loop: looks at the cluster and the server, does what `life` says about each task, and claims those that there is room for.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use divvy_clearml::frontend::back::{Back, way};
use divvy_clearml::frontend::gate::Gate;
use divvy_clearml::frontend::life::Seen;
use divvy_clearml::frontend::watch::{Step as Verdict, Watcher, is_stopping};
use divvy_clearml::server::{Container, QueueFacts, ServerError, Status, Subcode, Task};
use tokio::task::JoinHandle;

use super::hand::{Hand, Served};
use super::life::{Facts, Mark, Step, Word, next};
use super::objects::{Found, Made};
use super::pod::{self, Asked, arguments, secret_data};
use super::pump::pump;
use super::record::{Logged, Record};
use super::sight::{State, sight};
use super::values::Wrong;

/// Tasks of a queue that one look asks for, beyond those that are known.
const HEAD: usize = 64;

/// Between two looks while one thing follows another.
const BREATH: Duration = Duration::from_millis(20);

pub struct Desk {
    hand: Rc<Hand>,
    gate: Gate,
    started: Instant,
    tasks: BTreeMap<String, Memory>,
    /// The last trouble, so that each is said once.
    trouble: Option<String>,
}

/// What is known of a task beyond what can be seen; nothing of it has to be.
#[derive(Default)]
struct Memory {
    looks: u8,
    watcher: Watcher,
    /// What was last said of its waiting.
    said: Option<String>,
    pump: Option<JoinHandle<()>>,
    pinged: Option<Instant>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(pump) = &self.pump {
            pump.abort();
        }
    }
}

/// What keeps a step from being done now.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("the Kubernetes API: {0}")]
    Cluster(#[from] kube::Error),
}

impl Desk {
    pub fn new(hand: Rc<Hand>, gate: Gate) -> Self {
        Self {
            hand,
            gate,
            started: Instant::now(),
            tasks: BTreeMap::new(),
            trouble: None,
        }
    }

    /// Serves for ever. It may be stopped anywhere: whoever comes next goes on there.
    pub async fn serve(&mut self) {
        loop {
            let is_more = match self.look().await {
                Ok(is_more) => {
                    if self.trouble.take().is_some() {
                        tracing::info!("server and cluster answer again");
                    }
                    is_more
                }
                Err(trouble) => {
                    let text = trouble.to_string();
                    if self.trouble.as_ref() != Some(&text) {
                        tracing::warn!(error = text, "trying again with each look");
                        self.trouble = Some(text);
                    }
                    false
                }
            };
            tokio::time::sleep(if is_more {
                BREATH.min(self.hand.poll)
            } else {
                self.hand.poll
            })
            .await;
        }
    }

    /// One look, and what follows from it; `true`: something has changed by it.
    async fn look(&mut self) -> Result<bool, Trouble> {
        let hand = Rc::clone(&self.hand);
        let found = hand.objects.found().await?;
        self.tasks.retain(|task, _| found.contains_key(task));
        let ids: Vec<String> = found.keys().cloned().collect();
        let tasks = match ids.is_empty() {
            true => Vec::new(),
            false => hand.server.tasks(&ids).await?,
        };
        let tasks: BTreeMap<String, Task> = tasks
            .into_iter()
            .map(|task| (task.id.clone(), task))
            .collect();
        let mut heads = BTreeMap::new();
        for served in &hand.queues {
            heads.insert(
                served.id.clone(),
                hand.server.head(&served.id, HEAD + ids.len()).await?,
            );
        }
        let mut is_more = false;
        for (id, found) in &found {
            let facts = self.facts(found, tasks.get(id), &heads).await;
            is_more |= self.step(found, &facts, tasks.get(id)).await?;
        }
        for served in &hand.queues {
            if let Some(head) = heads.get(&served.id) {
                is_more |= self.claim(served, head, &found).await?;
            }
        }
        Ok(is_more)
    }

    async fn facts(
        &mut self,
        found: &Found,
        task: Option<&Task>,
        heads: &BTreeMap<String, QueueFacts>,
    ) -> Facts {
        let hand = Rc::clone(&self.hand);
        let record = &found.record;
        let memory = self.tasks.entry(record.task.clone()).or_default();
        let pod = found.pod.as_ref().map(sight);
        let state = pod.as_ref().map(|pod| &pod.state);
        let writes = matches!(state, Some(State::Runs | State::Ended(_)));
        let mut is_logged = record.logged == Logged::All;
        if let (Some(pod), true, false) = (&found.pod, writes, is_logged) {
            let pump = memory.pump.get_or_insert_with(|| {
                tokio::task::spawn_local(pump(Rc::clone(&hand), record.clone(), pod.clone()))
            });
            is_logged = pump.is_finished();
        }
        let is_listed =
            |facts: &QueueFacts| facts.entries.iter().any(|entry| entry.task == record.task);
        let listed = match heads.get(&record.queue_id) {
            Some(facts) => is_listed(facts),
            // One that is not served any more is asked for only where that says something.
            None if record.mark == Mark::Claiming => {
                let found = hand
                    .server
                    .head(&record.queue_id, usize::from(u16::MAX))
                    .await;
                found.is_ok_and(|facts| is_listed(&facts))
            }
            None => false,
        };
        let queue = task.and_then(|task| task.rest.get("execution")?.get("queue")?.as_str());
        let most = hand.settings.abort_callback_max;
        // Whether it is queued is looked at by `life`: it is while its pod waits.
        let verdict = match task.map(|task| task.status) {
            Some(Status::Queued | Status::Unknown) => false,
            _ => match memory.watcher.look(task, self.started.elapsed(), most) {
                Verdict::Go => false,
                Verdict::Wait(line) => {
                    hand.say(&record.task, "DEBUG", &format!("{line}\n")).await;
                    false
                }
                Verdict::Stop(..) => true,
            },
        };
        Facts {
            mark: record.mark,
            is_logged,
            status: task.map(|task| task.status),
            stopping: task.is_some_and(is_stopping),
            was_stopped: record.was_stopped,
            listed,
            elsewhere: queue.is_some_and(|queue| queue != record.queue_id),
            served: hand.served(&record.queue_id).is_some(),
            looks: memory.looks,
            verdict,
            pod,
        }
    }

    /// Does the next step of a task; `true`: another may follow at once.
    async fn step(
        &mut self,
        found: &Found,
        facts: &Facts,
        task: Option<&Task>,
    ) -> Result<bool, Trouble> {
        let (hand, record) = (Rc::clone(&self.hand), &found.record);
        let id = record.task.as_str();
        let Some(memory) = self.tasks.get_mut(id) else {
            return Ok(false);
        };
        let step = next(facts);
        if !matches!(step, Step::Nothing | Step::Say(_)) {
            tracing::debug!(task = id, ?step, ?facts, "ClearML task");
        }
        match step {
            Step::Nothing => {
                if facts.status == Some(Status::InProgress) {
                    self.ping(id).await;
                }
                return Ok(false);
            }
            Step::LookAgain => {
                memory.looks += 1;
                return Ok(false);
            }
            Step::Forget => {
                hand.objects.remove_record(id).await?;
                if record.mark == Mark::Ours {
                    // Its agent has done so itself, unless it was killed.
                    let _ = hand.server.unregister(&hand.child(id)).await;
                    tracing::info!(task = id, status = ?facts.status, "ClearML task: over");
                }
            }
            Step::Return => {
                let record = Record {
                    mark: Mark::Returning,
                    ..record.clone()
                };
                hand.objects.write_mark(&record).await?;
            }
            Step::PutBack => {
                self.put_back(record, facts).await?;
                hand.objects.remove_record(id).await?;
                tracing::info!(task = id, "ClearML task: back in its queue");
            }
            Step::Make => return self.make(record).await,
            Step::Delete => {
                if let Some(pod) = &found.pod {
                    hand.objects.delete(pod).await?;
                }
            }
            Step::Say(why) => {
                self.wait(id, &why).await?;
                return Ok(false);
            }
            Step::Start => {
                let message = format!("pulled by {}", hand.worker);
                hand.server.started(id, &message).await?;
                if let Some(task) = task {
                    self.show(task).await;
                }
            }
            Step::Tell(word) => return self.tell(id, facts, &word).await,
        }
        Ok(true)
    }

    /// Keeps the server from taking the task for a lost one.
    async fn ping(&mut self, task: &str) {
        let every = self.hand.settings.ping;
        let Some(memory) = self.tasks.get_mut(task) else {
            return;
        };
        if every.is_zero() || memory.pinged.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        memory.pinged = Some(Instant::now());
        if let Err(error) = self.hand.server.ping(task).await {
            tracing::debug!(task, %error, "pinging");
        }
    }

    /// What the task's page shows of its pod.
    async fn show(&self, task: &Task) {
        let objects = &self.hand.objects;
        let mut runtime = task.runtime.clone().unwrap_or_default();
        let pod = format!("{}/{}", objects.namespace, super::record::name(&task.id));
        runtime.insert("_divvy_pod".to_owned(), pod.into());
        if let Err(error) = self.hand.server.set_runtime(&task.id, &runtime).await {
            tracing::warn!(task = task.id, %error, "cannot write the task's runtime properties");
        }
    }

    /// Says why a task waits, once.
    async fn wait(&mut self, task: &str, why: &str) -> Result<(), Trouble> {
        let Some(memory) = self.tasks.get_mut(task) else {
            return Ok(());
        };
        if memory.said.as_deref() == Some(why) {
            return Ok(());
        }
        self.hand
            .server
            .say_status(task, &format!("waiting in Kubernetes: {why}"))
            .await?;
        memory.said = Some(why.to_owned());
        self.hand
            .say(task, "INFO", &format!("waiting in Kubernetes: {why}\n"))
            .await;
        Ok(())
    }

    async fn tell(&mut self, id: &str, facts: &Facts, word: &Word) -> Result<bool, Trouble> {
        let hand = &self.hand;
        let message = format!("Changed by divvy {}", hand.worker);
        let line = match word {
            Word::Completed => "Process completed successfully".to_owned(),
            Word::Stopped => "Process aborted by user".to_owned(),
            Word::Failed(why) => format!("Process failed: {why}"),
        };
        hand.say(id, "DEBUG", &format!("{line}\n")).await;
        let told = match word {
            Word::Completed => {
                hand.server
                    .completed(id, "worker execution exit code 0", &message)
                    .await
            }
            Word::Stopped => {
                hand.server
                    .stopped(id, "task was stopped by tasks.stop", &message)
                    .await
            }
            Word::Failed(why) => {
                let reason = format!("worker execution: {why}");
                match facts.status {
                    // From `queued` there is no way to `failed` but this.
                    Some(Status::Queued) => {
                        hand.server.failed_unstarted(id, &reason, &message).await
                    }
                    _ => hand.server.failed(id, &reason, &message).await,
                }
            }
        };
        match told {
            // Somebody else was faster: the next look shows what they said.
            Err(error)
                if matches!(
                    error.refusal(),
                    Some(Subcode::StatusChange | Subcode::NoTask)
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                tracing::info!(task = id, ?word, "ClearML task");
                Ok(true)
            }
        }
    }

    async fn put_back(&self, record: &Record, facts: &Facts) -> Result<(), Trouble> {
        let (server, queue, task) = (&self.hand.server, &record.queue_id, &record.task);
        // The queue may be one that is not served, and was not looked at.
        let head = server.head(queue, usize::from(u16::MAX)).await;
        let listed = head.is_ok_and(|facts| facts.entries.iter().any(|entry| entry.task == *task));
        let seen = Seen {
            status: facts.status,
            stopping: facts.stopping,
        };
        for step in way(seen, listed) {
            let done = match step {
                Back::Add => server.add(queue, task).await,
                Back::Reset => server.reset(task).await,
                Back::Enqueue => server.enqueue(queue, task).await,
                Back::Front => server.move_to_front(queue, task).await,
                Back::Stop => {
                    let message = format!("Changed by divvy {}", self.hand.worker);
                    server
                        .stopped(task, "task was stopped by tasks.stop", &message)
                        .await
                }
            };
            match done {
                Err(error) if error.passes() => return Err(error.into()),
                Err(error) if error.refusal() != Some(Subcode::AlreadyQueued) => {
                    tracing::warn!(task, %error, "cannot put the task back into its queue");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes a task's pod, behind the Secret that it reads.
    async fn make(&mut self, record: &Record) -> Result<bool, Trouble> {
        let hand = Rc::clone(&self.hand);
        let (Some(task), Some(served)) = (
            hand.server.task(&record.task).await?,
            hand.served(&record.queue_id),
        ) else {
            return Ok(false);
        };
        let made = match self.dress(record, served, &task).await? {
            Ok(pod) => hand.objects.make_pod(&pod).await,
            Err(wrong) => Made::Never(wrong.to_string()),
        };
        match made {
            Made::Made => {
                tracing::info!(
                    task = record.task,
                    queue = served.queue.name,
                    "ClearML task: its pod is made"
                );
                Ok(true)
            }
            Made::Later(why) => {
                tracing::warn!(task = record.task, error = why, "the pod is not taken now");
                self.wait(&record.task, &why).await?;
                Ok(false)
            }
            Made::Never(why) => {
                let why = format!("its pod is refused: {why}");
                let seen = task.status;
                let message = format!("Changed by divvy {}", hand.worker);
                hand.say(&record.task, "ERROR", &format!("{why}\n")).await;
                if seen == Status::Queued {
                    hand.server
                        .failed_unstarted(&record.task, &why, &message)
                        .await?;
                }
                Ok(true)
            }
        }
    }

    /// The pod of a task; its Secret is there when this returns.
    async fn dress(
        &self,
        record: &Record,
        served: &Served,
        task: &Task,
    ) -> Result<Result<k8s_openapi::api::core::v1::Pod, Wrong>, Trouble> {
        let (hand, setup) = (&self.hand, &self.hand.setup);
        let wants = task.container.clone().unwrap_or_default();
        let own = wants
            .image
            .as_deref()
            .map(str::trim)
            .filter(|image| !image.is_empty() && !setup.no_override);
        let (env, left_out) = match own {
            Some(_) => arguments(wants.arguments.as_deref().unwrap_or_default()),
            None => arguments(&setup.arguments.join(" ")),
        };
        let files = hand.values.files(&served.queue);
        let child = hand.child(&record.task);
        let asked = Asked {
            record,
            holder: &hand.objects.holder,
            image: own,
            default_image: &setup.image,
            env: &env,
            worker: &child,
            files: &files,
            token: hand.token.is_some(),
            pull: setup.pull,
        };
        let pod = match pod::pod(&hand.manifest, &hand.values.layers(&served.queue), &asked) {
            Ok(pod) => pod,
            Err(wrong) => return Ok(Err(wrong)),
        };
        let script = hand.script(&record.task, wants.setup_shell_script.as_deref());
        let token = hand.token.as_ref().map(|token| token.expose());
        hand.objects
            .fill(
                record,
                secret_data(script, hand.config.clone(), token, &files),
            )
            .await?;
        let image = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.containers.first()?.image.clone());
        let mut line = format!(
            "task {} pulled from {} by worker {}\nRunning Task {} in pod {}/{}: {}\n",
            record.task,
            record.queue_id,
            hand.worker,
            record.task,
            hand.objects.namespace,
            super::record::name(&record.task),
            image.as_deref().unwrap_or_default(),
        );
        if !left_out.is_empty() {
            let words = left_out.join(" ");
            line.push_str(&format!("container arguments left out, as only -e and --env mean something to a pod: {words}\n"));
        }
        hand.say(&record.task, "INFO", &line).await;
        if own.is_none() {
            let container = Container { image, ..wants };
            if let Err(error) = hand.server.set_container(&record.task, &container).await {
                tracing::warn!(task = record.task, %error, "cannot write the task's container");
            }
        }
        Ok(Ok(pod))
    }

    /// Claims a queue's first tasks while there is room for their pods; `true`: there is a new one.
    async fn claim(
        &mut self,
        served: &Served,
        head: &QueueFacts,
        found: &BTreeMap<String, Found>,
    ) -> Result<bool, Trouble> {
        if !self.gate.is_open(&head.tags, jiff::Zoned::now().datetime()) {
            return Ok(false);
        }
        let lives = |found: &&Found| {
            let pod = found.pod.as_ref().map(|pod| sight(pod).state);
            found.record.queue_id == served.id && !matches!(pod, Some(State::Ended(_)))
        };
        let living = found.values().filter(lives).count();
        let most = served
            .queue
            .max_pods
            .map_or(usize::MAX, |most| most as usize);
        let mut is_more = false;
        for entry in head.entries.iter().take(most.saturating_sub(living)) {
            if found.contains_key(&entry.task) || !self.pop(served, &entry.task).await? {
                break;
            }
            is_more = true;
        }
        Ok(is_more)
    }

    /// Takes a task from the front of its queue; `true`: it is ours.
    async fn pop(&mut self, served: &Served, id: &str) -> Result<bool, Trouble> {
        let hand = Rc::clone(&self.hand);
        let was = hand.server.task(id).await?.map(|task| task.status);
        let record = Record {
            task: id.to_owned(),
            queue_id: served.id.clone(),
            queue_name: served.queue.name.clone(),
            mark: Mark::Claiming,
            was_stopped: was == Some(Status::Stopped),
            logged: Logged::Nothing,
        };
        if !hand.objects.make_record(&record).await? {
            tracing::warn!(
                task = id,
                "there is a Secret of this task's name that is not ours; its queue is held up"
            );
            return Ok(false);
        }
        let popped = match hand.server.pop(&served.id, id).await {
            Ok(popped) => popped,
            // The record stays: whether it was claimed shows.
            Err(error) if error.passes() => return Err(error.into()),
            Err(error) => {
                hand.objects.remove_record(id).await?;
                return Err(error.into());
            }
        };
        match popped.entry {
            Some(entry) if entry.task == id => {
                let record = Record {
                    mark: Mark::Ours,
                    ..record
                };
                hand.objects.write_mark(&record).await?;
                Ok(true)
            }
            other => {
                if let Some(other) = other {
                    // A server older than API 2.21 gives its head, whichever was asked for.
                    let back = hand
                        .ask(async |server| server.add(&served.id, &other.task).await)
                        .await;
                    let front = hand
                        .ask(async |server| server.move_to_front(&served.id, &other.task).await)
                        .await;
                    if let Err(error) = back.and(front) {
                        tracing::error!(task = other.task, %error, "cannot put back a task that was not asked for");
                    }
                }
                hand.objects.remove_record(id).await?;
                Ok(false)
            }
        }
    }
}
