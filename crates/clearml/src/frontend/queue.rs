//! One ClearML queue: its mirror, the first job of each project in it, and the tasks that wait for those jobs' slices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use divvy_api::client::WaitFor;
use divvy_api::v1::{Amount, Confirmation, ErrorCode, Job, JobState, Submit};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::context::Context;
use super::queue_mirror::{Mirror, Queued, View};
use super::setup::Queue;
use crate::facts::{Facts, beginning};
use crate::projects::ProjectPlacement;

/// Labels by which our jobs are found again.
pub const TASK: &str = "clearml.task";
pub const QUEUE: &str = "clearml.queue";
/// The display names of the task's user and project.
const USER: &str = "clearml.user";
const PROJECT: &str = "clearml.project";
/// A further note for people: `divvy why` shows it, and the task's log.
pub const NOTE: &str = "note";

/// Bytes of a label, as the node agent takes them.
const LONGEST_LABEL: usize = 256;

/// Projects whose first job has a waiting call to the daemon; the front end polls the others with each poll of the
/// server. Each call is a connection to the daemon, of 512 for a user: so an eighth of them is taken.
const MOST_WAITERS: usize = 64;

/// One call that waits for the head's slice. The daemon answers when the slice comes, so the length only sets the
/// number of idle calls: two a minute for a project.
const WAIT: Duration = Duration::from_secs(30);

/// How the job at a queue's head stands.
#[derive(Debug)]
pub enum GrantEvent {
    Granted {
        queue: usize,
        job: String,
    },
    /// The job was cancelled, or its slice was released because its task was not claimed in time.
    Over {
        queue: usize,
        job: String,
    },
}

/// A queue that is served.
#[derive(Debug)]
pub struct ServedQueue {
    pub facts: Queue,
    pub view: View,
    /// Waiters for the slices of each project's first job, by job.
    waiters: BTreeMap<String, AbortHandle>,
    /// The last refusal of a job of each place, so that each is said once.
    refused: BTreeMap<ProjectPlacement, String>,
    /// The display names of the tasks in view.
    pub facts_of: BTreeMap<String, Facts>,
}

impl ServedQueue {
    pub fn new(facts: Queue) -> Self {
        Self {
            view: View {
                depth: facts.depth,
                ..View::default()
            },
            facts,
            waiters: BTreeMap::new(),
            refused: BTreeMap::new(),
            facts_of: BTreeMap::new(),
        }
    }

    /// Waits for the slice of each project's first job.
    pub fn stand_by(
        &mut self,
        at: usize,
        context: &Arc<Context>,
        heads: &mpsc::UnboundedSender<GrantEvent>,
    ) {
        let mut places = BTreeSet::new();
        let mirrors = self.view.mirrors.iter();
        let firsts = mirrors.filter(|mirror| places.insert(mirror.place.clone()));
        let jobs: BTreeSet<String> = firsts
            .filter(|mirror| !mirror.granted)
            .take(MOST_WAITERS)
            .map(|mirror| mirror.job.clone())
            .collect();
        self.waiters.retain(|job, waiter| {
            let stays = jobs.contains(job);
            if !stays {
                waiter.abort();
            }
            stays
        });
        for job in jobs {
            self.waiters.entry(job).or_insert_with_key(|job| {
                let waiting = wait_for_slice(Arc::clone(context), at, job.clone(), heads.clone());
                tokio::task::spawn_local(waiting).abort_handle()
            });
        }
    }

    /// The waiter has said what it had to.
    pub fn heard(&mut self, job: &str) {
        self.waiters.remove(job);
    }

    /// Takes what a look has found; tasks that `is_free` refuses are driven, or gone.
    pub fn saw(
        &mut self,
        entries: Vec<String>,
        is_free: impl Fn(&String) -> bool,
        place: impl Fn(&Facts) -> ProjectPlacement,
    ) {
        self.view.barred.clear();
        let free = entries.into_iter().filter(is_free);
        let none = Facts::default();
        self.view.tasks = free
            .map(|task| Queued {
                place: place(self.facts_of.get(&task).unwrap_or(&none)),
                task,
            })
            .collect();
        let waiting: BTreeSet<&str> = (self.view.tasks.iter())
            .map(|queued| queued.task.as_str())
            .collect();
        self.facts_of
            .retain(|task, _| waiting.contains(task.as_str()));
    }

    /// Takes a job of an earlier run as the one that stands for its task, if the task is placed as it was then. Any other
    /// one is ended with the next steps: it stands for no task of the list.
    pub fn adopt(&mut self, job: &Job) {
        let Some(task) = job.labels.get(TASK) else {
            return;
        };
        let queued = self.view.tasks.iter().find(|queued| queued.task == *task);
        let is_same = |queued: &&Queued| {
            let note = queued.place.note();
            let note = note.as_deref().map(|note| beginning(note, LONGEST_LABEL));
            queued.place.project == job.project && note == job.labels.get(NOTE).map(String::as_str)
        };
        let place = match queued.filter(is_same) {
            Some(queued) => queued.place.clone(),
            None => ProjectPlacement {
                project: job.project.clone(),
                missing: None,
            },
        };
        self.view.mirrors.push(Mirror {
            task: task.clone(),
            job: job.id.clone(),
            place,
            granted: is_granted(job),
        });
    }

    /// Submits a job for a task; `true` unless the agent refuses all submissions now.
    pub async fn submit(&mut self, context: &Context, queued: &Queued, nonce: u64) -> bool {
        let submit = self.submission(queued, nonce);
        match context
            .agent(async |client| client.submit(&submit).await)
            .await
        {
            Ok(job) => {
                self.refused.remove(&queued.place);
                self.view.mirrors.push(Mirror {
                    task: queued.task.clone(),
                    place: queued.place.clone(),
                    granted: is_granted(&job),
                    job: job.id,
                });
                true
            }
            Err(error) => {
                let text = error.to_string();
                if self.refused.get(&queued.place) != Some(&text) {
                    let (queue, task) = (&self.facts.name, &queued.task);
                    tracing::warn!(%queue, task, error = %text, "the daemon refuses a task of this queue");
                    let waits = format!("waits: {text}");
                    let waits = beginning(&waits, LONGEST_LABEL);
                    let said = context.server.say_status(task, waits).await;
                    context.try_to("report why a task waits", task, said).await;
                    self.refused.insert(queued.place.clone(), text);
                }
                self.view.barred.insert(queued.place.clone());
                queued.place.project.is_some()
            }
        }
    }

    fn submission(&self, queued: &Queued, nonce: u64) -> Submit {
        let task = queued.task.as_str();
        let none = Facts::default();
        let facts = self.facts_of.get(task).unwrap_or(&none);
        let note = queued.place.note();
        let labels = [
            (TASK, Some(task)),
            (QUEUE, Some(self.facts.id.as_str())),
            (USER, facts.user.as_deref()),
            (PROJECT, facts.project.as_deref()),
            (NOTE, note.as_deref()),
        ];
        let label = |(name, value): (&str, Option<&str>)| {
            Some((name.to_owned(), beginning(value?, LONGEST_LABEL).to_owned()))
        };
        Submit {
            // The command line follows with the confirmation.
            command: [
                &self.facts.execute[..],
                &["--id".to_owned(), task.to_owned()],
            ]
            .concat(),
            name: Some(facts.job_name(task)),
            user: facts.user.clone(),
            project: queued.place.project.clone(),
            queue: Some(self.facts.agent.clone()),
            amount: Some(amount(self.facts.amount)),
            cwd: "/".to_owned(),
            idempotency_key: Some(format!("clearml:{task}:{nonce}")),
            confirm: true,
            labels: labels.into_iter().filter_map(label).collect(),
            ..Submit::default()
        }
    }
}

impl Drop for ServedQueue {
    fn drop(&mut self) {
        self.waiters.values().for_each(AbortHandle::abort);
    }
}

pub fn is_granted(job: &Job) -> bool {
    job.state == JobState::Starting && job.confirmation == Some(Confirmation::Awaiting)
}

async fn wait_for_slice(
    context: Arc<Context>,
    queue: usize,
    job: String,
    heads: mpsc::UnboundedSender<GrantEvent>,
) {
    let mut had = None;
    let head = loop {
        match context
            .agent(async |client| client.wait(&job, WaitFor::Starting, WAIT).await)
            .await
        {
            Ok(now) if is_granted(&now) => break GrantEvent::Granted { queue, job },
            Ok(now) if now.state != JobState::Queued => break GrantEvent::Over { queue, job },
            // It got a slice between two observations, and has lost it again.
            Ok(now) if had.is_some_and(|attempt| attempt < now.attempt) => {
                break GrantEvent::Over { queue, job };
            }
            Ok(now) => had = Some(now.attempt),
            Err(error) if error.code == ErrorCode::TimedOut => {}
            Err(_) => break GrantEvent::Over { queue, job },
        }
    };
    let _ = heads.send(head);
}

/// An amount as the API has it.
fn amount(amount: divvy_core::Amount) -> Amount {
    Amount::from(amount)
}
