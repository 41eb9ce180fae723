//! One queue: its view, the job at its head, and who waits for that job's slice.

use std::sync::Arc;
use std::time::Duration;

use divvy_api::client::WaitFor;
use divvy_api::v1::{Amount, Confirmation, ErrorCode, Job, JobState, Submit};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::hand::Hand;
use super::mirror::{Mirror, View};
use super::setup::Queue;

/// Labels by which our jobs are found again.
pub const TASK: &str = "clearml.task";
pub const QUEUE: &str = "clearml.queue";

/// One call that waits for the head's slice.
const WAIT: Duration = Duration::from_secs(30);

/// How the job at a queue's head stands.
#[derive(Debug)]
pub enum Head {
    Granted {
        queue: usize,
        job: String,
    },
    /// Somebody cancelled it, or its slice went back as nobody claimed its task in time.
    Over {
        queue: usize,
        job: String,
    },
}

/// A queue that is served.
#[derive(Debug)]
pub struct Line {
    pub facts: Queue,
    pub view: View,
    /// Who waits for the head's slice, and which job that is.
    waiter: Option<(String, AbortHandle)>,
    /// The last refusal of a job, so that each is said once.
    refused: Option<String>,
}

impl Line {
    pub fn new(facts: Queue) -> Self {
        Self {
            view: View {
                depth: facts.depth,
                ..View::default()
            },
            facts,
            waiter: None,
            refused: None,
        }
    }

    /// Has somebody wait for the head's slice, if nobody does.
    pub fn stand_by(&mut self, at: usize, hand: &Arc<Hand>, heads: &mpsc::UnboundedSender<Head>) {
        let head = self.view.mirrors.first().filter(|head| !head.granted);
        let job = head.map(|head| head.job.clone());
        if self.waiter.as_ref().map(|(job, _)| job) == job.as_ref() {
            return;
        }
        if let Some((_, waiter)) = self.waiter.take() {
            waiter.abort();
        }
        if let Some(job) = job {
            let waiting = wait_for_slice(Arc::clone(hand), at, job.clone(), heads.clone());
            self.waiter = Some((job, tokio::task::spawn_local(waiting).abort_handle()));
        }
    }

    /// The waiter has said what it had to.
    pub fn heard(&mut self, job: &str) {
        if self
            .waiter
            .as_ref()
            .is_some_and(|(waited, _)| waited == job)
        {
            self.waiter = None;
        }
    }

    /// Submits a job for a task; `true` unless the agent refuses.
    pub async fn submit(&mut self, hand: &Hand, task: &str, nonce: u64, on: &[u32]) -> bool {
        let submit = Submit {
            // What is run is said with the confirmation.
            command: ["clearml-agent", "execute", "--id", task]
                .map(str::to_owned)
                .to_vec(),
            name: Some(format!("clearml:{task}")),
            queue: Some(self.facts.agent.clone()),
            amount: Some(amount(self.facts.amount)),
            gpus_on: on.to_vec(),
            cwd: "/".to_owned(),
            idempotency_key: Some(format!("clearml:{task}:{nonce}")),
            confirm: true,
            labels: [(TASK, task), (QUEUE, self.facts.id.as_str())]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Submit::default()
        };
        match hand
            .agent(async |client| client.submit(&submit).await)
            .await
        {
            Ok(job) => {
                self.refused = None;
                self.view.mirrors.push(Mirror {
                    task: task.to_owned(),
                    granted: is_granted(&job),
                    job: job.id,
                });
                true
            }
            Err(error) => {
                let text = error.to_string();
                if self.refused.as_ref() != Some(&text) {
                    tracing::warn!(queue = %self.facts.name, task, error = %text, "the agent refuses a task of this queue");
                    self.refused = Some(text);
                }
                false
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some((_, waiter)) = self.waiter.take() {
            waiter.abort();
        }
    }
}

pub fn is_granted(job: &Job) -> bool {
    job.state == JobState::Starting && job.confirmation == Some(Confirmation::Awaited)
}

async fn wait_for_slice(
    hand: Arc<Hand>,
    queue: usize,
    job: String,
    heads: mpsc::UnboundedSender<Head>,
) {
    let mut had = None;
    let head = loop {
        match hand
            .agent(async |client| client.wait(&job, WaitFor::Starting, WAIT).await)
            .await
        {
            Ok(now) if is_granted(&now) => break Head::Granted { queue, job },
            Ok(now) if now.state != JobState::Queued => break Head::Over { queue, job },
            // It had a slice while nobody looked, and has it no more.
            Ok(now) if had.is_some_and(|attempt| attempt < now.attempt) => {
                break Head::Over { queue, job };
            }
            Ok(now) => had = Some(now.attempt),
            Err(error) if error.code == ErrorCode::TimedOut => {}
            Err(_) => break Head::Over { queue, job },
        }
    };
    let _ = heads.send(head);
}

/// An amount as the API has it.
fn amount(amount: divvy_core::Amount) -> Amount {
    Amount::from(amount)
}
