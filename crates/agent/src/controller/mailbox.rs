//! Mailbox: every request and observation reaches the controller as a message.
//!
//! A client's call waits for room before it sends ([`Mailbox::request`]). There is room for 1024 messages of calls. A
//! large message takes several places, so that all of them together have at most 64 MiB of JSON. The daemon's own
//! threads send without room ([`Mailbox::post`]), so that a full mailbox never delays the end of a job. These threads
//! are few, and their messages are small. They are the watcher, the observer, the retention thread, a MIG worker for
//! each GPU, and a thread for each checkpoint operation.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use divvy_api::v1::{
    Claim, ConfigReload, Confirm, Error, ErrorCode, GpuChange, GpuChanged, Job, JobChange, MigGc,
    MigInstance, Project, Resize, Submit,
};
use divvy_core::JobId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::auth::Caller;
use crate::checkpoint;
use crate::controller::effects::StateQuery;
use crate::controller::query::job_summary::JobSummary;
use crate::controller::query::queries::Queries;
use crate::controller::reload::Reread;
use crate::controller::request::{
    Act, ActOutcome, MatchingJobs, Milestone, ProjectAct, Reply, Selection,
};
use crate::gpu::mig::MigReport;
use crate::gpu::sample::NodeSample;
use crate::host::account::UserAccount;
use crate::host::process::Process;
use crate::journal::retention::{PruneBatch, PruneDone};
use crate::model::validate::budget::written;
use crate::supervisor::watch::WatchEvent;

/// Places for messages of calls: four rounds of the controller.
const ROOM: u32 = 1024;

/// Bytes of JSON that one place holds; a larger message takes several.
const PLACE: u64 = 64 << 10;

/// A message to the controller: a call of a client, or a report of another thread of the daemon.
pub enum Message {
    /// Submits a job or an array.
    Submit {
        submit: Box<Submit>,
        by: Box<Caller>,
        /// The account of the user that the submission names, if the machine knows that user.
        named: Option<Box<UserAccount>>,
        /// The client's process, where the job is to end with it.
        client: Option<Process>,
        reply: Reply<Job>,
    },
    /// Stops all processes of a job, or resumes them.
    Pause {
        reference: String,
        suspend: bool,
        reply: Reply<Job>,
    },
    /// Stops all processes of a job and offloads its GPU memory. The reply comes when the memory is offloaded or will
    /// stay.
    Offload {
        reference: String,
        reply: Reply<Job>,
    },
    /// Stops a placed job, and requeues it.
    Requeue {
        reference: String,
        by: Box<Caller>,
        reply: Reply<Job>,
    },
    /// Applies one act to the jobs of a selection, in one round; replies with the jobs that accepted it.
    Act {
        selection: Selection,
        act: Act,
        by: Box<Caller>,
        reply: Reply<ActOutcome<JobSummary>>,
    },
    /// Adds, changes or removes a project.
    Project {
        name: String,
        act: ProjectAct,
        reply: Reply<Project>,
    },
    /// Defines the projects of the configuration file at the start.
    DefineProjects,
    /// Applies the configuration file that was read again, or refuses it.
    Reload {
        read: Box<Result<Reread, Error>>,
        reply: Reply<ConfigReload>,
    },
    /// Stops a job for good.
    Cancel {
        reference: String,
        by: Box<Caller>,
        reply: Reply<Job>,
    },
    /// Confirms a job that has its slice and waits for its confirmation.
    Confirm {
        reference: String,
        confirm: Box<Confirm>,
        by: Box<Caller>,
        reply: Reply<Job>,
    },
    /// Holds the devices that another scheduler has allocated; replies with the job that stands for the claim.
    HoldClaim {
        uid: String,
        claim: Box<Claim>,
        /// The caller, with the account of the claim's owner.
        by: Box<Caller>,
        /// The caller's uid, where the owner is another user.
        maker: Option<u32>,
        reply: Reply<JobId>,
    },
    /// Releases a claim; replies `None` if it is not held.
    ReleaseClaim {
        uid: String,
        by: Box<Caller>,
        reply: Reply<Option<JobId>>,
    },
    /// Changes the amount or the compute mode of a job.
    Resize {
        reference: String,
        resize: Resize,
        reply: Reply<Job>,
    },
    /// Changes a job: all of the change or nothing.
    Change {
        reference: String,
        change: Box<JobChange>,
        by: Box<Caller>,
        reply: Reply<Job>,
    },
    /// Holds a pending job, or releases it.
    Hold {
        reference: String,
        hold: bool,
        by: Box<Caller>,
        reply: Reply<Job>,
    },
    /// Changes the mode of a GPU, named by index or UUID.
    GpuMode {
        gpu: String,
        change: GpuChange,
        reply: Reply<GpuChanged>,
    },
    /// Destroys idle MIG instances; replies with them.
    MigGc {
        gc: MigGc,
        reply: Reply<Vec<MigInstance>>,
    },
    /// Replies once a job reaches a milestone.
    Wait {
        reference: String,
        milestone: Milestone,
        reply: Reply<Job>,
    },
    /// Reads the state, after all earlier messages are durable.
    Query(StateQuery),
    /// Records an event.
    RecordEvent {
        job: JobId,
        kind: &'static str,
        text: String,
    },
    /// The watcher saw a change of a job's records or the end of its supervisor.
    Watch(WatchEvent),
    /// An observation of the driver and the ledgers.
    Sampled(Box<NodeSample>),
    /// The report of a checkpoint operation.
    CheckpointReport(Box<checkpoint::CheckpointReport>),
    /// The report of a MIG command.
    MigReport(Box<MigReport>),
    /// The driver could not be queried.
    ObservationFailed(String),
    /// History that retention deletes from the journal.
    Prune { past: PruneBatch, done: PruneDone },
    /// Stops the controller after its round.
    Stop,
}

impl Message {
    /// Refuses a message that begins new work, which the journal would have to hold; returns any other message. Ends
    /// and releases are no new work. A submission passes: only the controller knows whether it repeats an earlier one.
    pub fn refuse_new_work(self, error: Error) -> Option<Self> {
        match self {
            Self::Pause { reply, .. }
            | Self::Offload { reply, .. }
            | Self::Requeue { reply, .. }
            | Self::Confirm { reply, .. }
            | Self::Change { reply, .. }
            | Self::Hold { reply, .. }
            | Self::Resize { reply, .. } => drop(reply.send(Err(error))),
            Self::Project { reply, .. } => drop(reply.send(Err(error))),
            Self::HoldClaim { reply, .. } => drop(reply.send(Err(error))),
            Self::Act { act, reply, .. } if act != Act::Cancel => {
                drop(reply.send(Err(error)));
            }
            Self::GpuMode { reply, .. } => drop(reply.send(Err(error))),
            Self::MigGc { reply, .. } => drop(reply.send(Err(error))),
            other @ (Self::Submit { .. }
            | Self::Cancel { .. }
            | Self::Act { .. }
            | Self::DefineProjects
            | Self::Reload { .. }
            | Self::ReleaseClaim { .. }
            | Self::Wait { .. }
            | Self::Query(_)
            | Self::RecordEvent { .. }
            | Self::Watch(_)
            | Self::Sampled(_)
            | Self::CheckpointReport(_)
            | Self::MigReport(_)
            | Self::ObservationFailed(_)
            | Self::Prune { .. }
            | Self::Stop) => return Some(other),
        }
        None
    }

    /// How many places the message takes.
    fn places(&self) -> u32 {
        let bytes = match self {
            Self::Submit { submit, .. } => written(submit),
            Self::Confirm { confirm, .. } => written(confirm),
            Self::HoldClaim { claim, .. } => written(claim),
            Self::Project {
                act: ProjectAct::Add(change) | ProjectAct::Set(change),
                ..
            } => written(change),
            Self::Act {
                selection:
                    Selection::Matching(MatchingJobs {
                        only: Some(only), ..
                    }),
                ..
            } => (only.len() * size_of::<JobId>()) as u64,
            // A reference has a limit of a few kilobytes, and the rest is smaller.
            _ => 0,
        };
        let places = u32::try_from(bytes / PLACE).unwrap_or(ROOM);
        places.saturating_add(1).min(ROOM)
    }
}

/// A message, and its room until the controller takes it.
struct Envelope {
    message: Message,
    _room: Option<OwnedSemaphorePermit>,
}

/// The sending end; cheap to clone.
#[derive(Clone)]
pub struct Mailbox {
    sender: Sender<Envelope>,
    room: Arc<Semaphore>,
}

/// The controller's end.
pub struct Inbox(Receiver<Envelope>);

/// Both ends.
pub fn mailbox() -> (Mailbox, Inbox) {
    let (sender, receiver) = channel();
    let room = Arc::new(Semaphore::new(ROOM as usize));
    (Mailbox { sender, room }, Inbox(receiver))
}

impl Inbox {
    /// The next message, waiting up to `patience` for one.
    ///
    /// # Errors
    /// When there was none, or when no sender is left.
    pub fn recv_timeout(&self, patience: Duration) -> Result<Message, RecvTimeoutError> {
        self.0
            .recv_timeout(patience)
            .map(|envelope| envelope.message)
    }

    /// The messages that are there now.
    pub fn try_iter(&self) -> impl Iterator<Item = Message> {
        self.0.try_iter().map(|envelope| envelope.message)
    }
}

impl Mailbox {
    /// Sends without waiting for room. The message is lost if the controller has stopped.
    pub fn post(&self, message: Message) {
        self.send(message, None);
    }

    fn send(&self, message: Message, room: Option<OwnedSemaphorePermit>) {
        let _ = self.sender.send(Envelope {
            message,
            _room: room,
        });
    }

    /// Sends a message that has a reply once there is room, and waits for the reply.
    ///
    /// # Errors
    /// The controller's error; [`ErrorCode::NoDaemon`] if it has stopped.
    pub async fn request<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let message = message(reply);
        let room = Arc::clone(&self.room).acquire_many_owned(message.places());
        // The semaphore is never closed.
        let room = room.await.ok();
        self.send(message, room);
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Reads from the controller's state.
    ///
    /// # Errors
    /// As [`Mailbox::request`].
    pub async fn query<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Queries<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.request(|reply| {
            Message::Query(Box::new(move |state, io, fx| {
                let _ = reply.send(read(&Queries { state, io, fx }));
            }))
        })
        .await
    }
}

fn stopping() -> Error {
    Error::new(ErrorCode::NoDaemon, "the daemon is stopping")
        .hint("running jobs continue; start the daemon again with `divvy daemon`")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use divvy_testkit::until_async;

    use super::*;

    fn ask(mailbox: &Mailbox) -> tokio::task::JoinHandle<Result<(), Error>> {
        let mailbox = mailbox.clone();
        tokio::spawn(async move { mailbox.query(|_| Ok(())).await })
    }

    async fn until_room(mailbox: &Mailbox, left: usize) {
        until_async(format!("{left} places are left"), async || {
            (mailbox.room.available_permits() == left).then_some(())
        })
        .await;
    }

    #[tokio::test]
    async fn calls_wait_while_the_mailbox_is_full_and_the_daemons_own_threads_do_not() {
        let (mailbox, inbox) = mailbox();
        let asked: Vec<_> = (0..ROOM + 10).map(|_| ask(&mailbox)).collect();
        until_room(&mailbox, 0).await;
        assert_eq!(inbox.try_iter().take(3).count(), 3);
        // Three of the ten calls have found room.
        until_room(&mailbox, 0).await;
        mailbox.post(Message::Stop);
        drop(mailbox);
        let mut taken = 3;
        until_async("all have come in", async || {
            taken += inbox.try_iter().count();
            (taken == ROOM as usize + 11).then_some(())
        })
        .await;
        // The controller has stopped without a reply.
        for asked in asked {
            assert_eq!(asked.await.unwrap().unwrap_err().code, ErrorCode::NoDaemon);
        }
    }

    #[test]
    fn a_large_message_takes_as_many_places_as_it_has_bytes() {
        let submit = |length: usize| {
            let (reply, _) = oneshot::channel();
            let submit = Submit {
                env: BTreeMap::from([("A".to_owned(), "x".repeat(length))]),
                ..Submit::default()
            };
            let submit = Box::new(submit);
            let account = crate::host::account::UserAccount {
                uid: 1000,
                gid: 1000,
                name: "ana".to_owned(),
                groups: Vec::new(),
                home: None,
            };
            let by = Box::new(Caller {
                account,
                role: crate::auth::Role::User,
                can_see_all: false,
                is_engine: false,
            });
            let named = None;
            Message::Submit {
                submit,
                by,
                named,
                client: None,
                reply,
            }
            .places()
        };
        assert_eq!(submit(0), 1);
        assert_eq!(submit(2 << 20), 33);
        assert_eq!(Message::Stop.places(), 1);
    }
}
