//! Mailbox: every request and observation reaches the controller as a message.
//!
//! ```text
//! threads of the daemon ─► own lane ──┐ first
//! user 1000 ─► room ─► lane of 1000 ──┤
//! user 1001 ─► room ─► lane of 1001 ──┴► the user that has used the least of the controller's time is next
//! ```
//! A client's call waits for room before it sends ([`Mailbox::request`]). Each user has room for 1024 messages. A large
//! message takes several places, so that all of them together have at most 64 MiB of JSON. The daemon's own threads
//! send without room ([`Mailbox::post`]), so that a full mailbox never delays the end of a job. These threads are few,
//! and their messages are small. They are the watcher, the observer, the retention thread, a MIG worker for each GPU,
//! and a thread for each checkpoint operation.
//!
//! The controller takes calls and reads in the order of start-time fair queueing (Goyal, Vin and Cheng, 1996): one
//! user's many or dear calls delay another user's by one message at most (decision 048).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use divvy_api::front_end::WorkerHold;
use divvy_api::v1::{
    Claim, ConfigReload, Confirm, Drain, Error, ErrorCode, GpuChange, GpuChanged, Job, JobChange,
    MigGc, MigInstance, Project, Resize, Submit,
};
use divvy_core::{GpuUuid, JobId};
use tokio::sync::oneshot;

use crate::auth::{Caller, Role};
use crate::checkpoint;
use crate::controller::effects::StateQuery;
use crate::controller::query::job_summary::JobSummary;
use crate::controller::query::queries::Queries;
use crate::controller::reload::Reread;
use crate::controller::request::{
    Act, ActOutcome, Cancellation, MatchingJobs, Milestone, ProjectAct, Reply, Selection,
};
use crate::gpu::mig::MigReport;
use crate::gpu::probe::GpuProbed;
use crate::gpu::sample::NodeSample;
use crate::host::account::UserAccount;
use crate::host::clock::Instant;
use crate::host::process::Process;
use crate::host::user_permits::{UserPermit, UserSemaphores};
use crate::journal::retention::{PruneBatch, PruneDone};
use crate::model::validate::budget::written;
use crate::supervisor::watch::WatchEvent;

/// Places for messages of one user: four rounds of the controller, and twice the user's connections.
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
        /// A dry run's turn, kept until its estimate is done.
        turn: Option<Box<dyn Send>>,
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
    /// Parks a job, or wakes a parked one. The reply to a park comes when the memory is offloaded or will stay.
    Park {
        reference: String,
        wake: bool,
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
        how: Box<Cancellation>,
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
    /// Takes GPUs out of service; replies with them.
    Drain {
        drain: Box<Drain>,
        by: Box<Caller>,
        reply: Reply<Vec<GpuUuid>>,
    },
    /// Returns GPUs to service; replies with them.
    Undrain {
        gpus: Vec<String>,
        by: Box<Caller>,
        reply: Reply<Vec<GpuUuid>>,
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
    /// Records an event.
    RecordEvent {
        job: JobId,
        by: Box<Caller>,
        kind: &'static str,
        text: String,
    },
    /// The watcher saw a change of a job's records or the end of its supervisor.
    Watch(WatchEvent),
    /// An observation of the driver and the ledgers.
    Sampled(Box<NodeSample>),
    /// Parts of GPUs that workers of other daemons use, all that the front end knows.
    WorkerHolds(Vec<WorkerHold>),
    /// The report of a checkpoint operation.
    CheckpointReport(Box<checkpoint::CheckpointReport>),
    /// A call of a parked job needs its memory.
    WakeWanted { job: JobId, call: String },
    /// The report of a MIG command.
    MigReport(Box<MigReport>),
    /// The outcome of a probe of a GPU.
    GpuProbed(GpuProbed),
    /// The driver could not be queried.
    ObservationFailed(String),
    /// History that retention deletes from the journal.
    Prune { past: PruneBatch, done: PruneDone },
    /// Stops the controller after its round.
    Stop,
}

impl Message {
    /// The operator or administrator who acts on a job, perhaps of another user.
    pub fn governor(&self) -> Option<u32> {
        match self {
            Self::Requeue { by, .. }
            | Self::Act { by, .. }
            | Self::Cancel { by, .. }
            | Self::Change { by, .. }
            | Self::Hold { by, .. }
            | Self::RecordEvent { by, .. } => (by.role >= Role::Operator).then_some(by.account.uid),
            _ => None,
        }
    }

    /// Refuses a message that begins new work, which the journal would have to hold; returns any other message. Ends
    /// and releases are no new work. A submission passes: only the controller knows whether it repeats an earlier one.
    pub fn refuse_new_work(self, error: Error) -> Option<Self> {
        match self {
            Self::Pause { reply, .. }
            | Self::Offload { reply, .. }
            | Self::Park { reply, .. }
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
            Self::Drain { reply, .. } | Self::Undrain { reply, .. } => drop(reply.send(Err(error))),
            Self::MigGc { reply, .. } => drop(reply.send(Err(error))),
            other @ (Self::Submit { .. }
            | Self::Cancel { .. }
            | Self::Act { .. }
            | Self::DefineProjects
            | Self::Reload { .. }
            | Self::ReleaseClaim { .. }
            | Self::Wait { .. }
            | Self::RecordEvent { .. }
            | Self::Watch(_)
            | Self::Sampled(_)
            | Self::WorkerHolds(_)
            | Self::CheckpointReport(_)
            | Self::WakeWanted { .. }
            | Self::MigReport(_)
            | Self::GpuProbed(_)
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

/// What the controller does for a sender.
enum Work {
    /// A message of a round.
    Call(Message),
    /// Reads the state between two rounds, after all earlier messages are durable.
    Read(StateQuery),
}

/// A piece of work, and its room until the controller takes it.
struct Envelope {
    work: Work,
    /// `None`: the daemon's own.
    user: Option<u32>,
    _room: Option<UserPermit>,
}

/// Work, and its number in the order of arrival.
type Numbered = (u64, Envelope);

/// The sending end; cheap to clone.
#[derive(Clone)]
pub struct Mailbox {
    sender: Sender<Envelope>,
    rooms: Arc<UserSemaphores>,
    /// Whose lane it sends to; `None`: the daemon's own.
    user: Option<u32>,
}

/// The two kinds of [`Work`].
#[derive(Clone, Copy)]
enum Kind {
    Call,
    Read,
}

/// The work of one user that waits for the controller.
#[derive(Default)]
struct Lane {
    /// By [`Kind`].
    waits: [VecDeque<Numbered>; 2],
    /// The controller's time that the user has used, from the clock on when the lane was last empty.
    used: Duration,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.waits.iter().all(VecDeque::is_empty)
    }

    /// The number of the first work of this kind.
    fn first(&self, kind: Kind) -> Option<u64> {
        self.waits[kind as usize].front().map(|(number, _)| *number)
    }
}

/// The controller's end.
pub struct Inbox {
    arrivals: Receiver<Envelope>,
    /// The daemon's own lane is the first.
    lanes: BTreeMap<Option<u32>, Lane>,
    /// How much work has arrived.
    arrived: u64,
    /// [`Lane::used`] of the work that was taken last: a user that comes back begins here, so idle time saves nothing.
    clock: Duration,
}

/// Both ends.
pub fn mailbox() -> (Mailbox, Inbox) {
    let (sender, arrivals) = channel();
    let mailbox = Mailbox {
        sender,
        rooms: Arc::default(),
        user: None,
    };
    let inbox = Inbox {
        arrivals,
        lanes: BTreeMap::new(),
        arrived: 0,
        clock: Duration::ZERO,
    };
    (mailbox, inbox)
}

impl Inbox {
    /// Waits up to `patience` for work, and not at all where some is left.
    ///
    /// # Errors
    /// When no sender is left.
    pub fn wait(&mut self, patience: Duration) -> Result<(), Disconnected> {
        if self.lanes.values().all(Lane::is_empty) {
            match self.arrivals.recv_timeout(patience) {
                Ok(arrival) => self.sort(arrival),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Disconnected),
            }
        }
        self.take_in();
        Ok(())
    }

    fn take_in(&mut self) {
        while let Ok(arrival) = self.arrivals.try_recv() {
            self.sort(arrival);
        }
    }

    fn sort(&mut self, arrival: Envelope) {
        let lane = self.lanes.entry(arrival.user).or_default();
        if lane.is_empty() {
            lane.used = lane.used.max(self.clock);
        }
        let kind = match arrival.work {
            Work::Call(_) => Kind::Call,
            Work::Read(_) => Kind::Read,
        };
        self.arrived += 1;
        lane.waits[kind as usize].push_back((self.arrived, arrival));
    }

    /// Whether messages of a round wait.
    pub fn has_calls(&self) -> bool {
        let mut lanes = self.lanes.values();
        lanes.any(|lane| lane.first(Kind::Call).is_some())
    }

    /// The messages of one round: at most so many, and none once they have taken so long. Each is its user's time until
    /// the next is taken.
    pub fn round(&mut self, most: usize, longest: Duration) -> Turns<'_> {
        Turns {
            inbox: self,
            left: most,
            until: Instant::now() + longest,
            served: None,
        }
    }

    /// Does reads until none is ready, or until they have taken so long. A read is ready once no earlier call of its
    /// user waits, and none of the daemon's own: a client that has waited for a fresh sample reads it.
    pub fn read(&mut self, longest: Duration, read: impl Fn(StateQuery)) {
        let until = Instant::now() + longest;
        loop {
            self.take_in();
            let begun = Instant::now();
            let Some(next) = self.next(Kind::Read) else {
                return;
            };
            if let Work::Read(query) = next.work {
                read(query);
            }
            self.charge(next.user, begun.elapsed());
            if Instant::now() >= until {
                return;
            }
        }
    }

    /// The next work of this kind that is ready: the daemon's own, then that of the user with the least time.
    fn next(&mut self, kind: Kind) -> Option<Envelope> {
        let own = self.lanes.get(&None);
        let own = own.and_then(|own| own.first(Kind::Call));
        let is_ready = |lane: &Lane| {
            lane.first(kind).is_some_and(|first| {
                let mut calls = [own, lane.first(Kind::Call)].into_iter().flatten();
                matches!(kind, Kind::Call) || calls.all(|call| call > first)
            })
        };
        let lanes = self.lanes.iter_mut();
        let ready = lanes.filter(|(_, lane)| is_ready(lane));
        let (user, lane) = ready.min_by_key(|(user, lane)| (user.is_some(), lane.used))?;
        if user.is_some() {
            self.clock = self.clock.max(lane.used);
        }
        let (_, work) = lane.waits[kind as usize].pop_front()?;
        Some(work)
    }

    fn charge(&mut self, user: Option<u32>, spent: Duration) {
        if let Some(lane) = self.lanes.get_mut(&user) {
            lane.used += spent;
        }
        // What is left of these users is what a new lane begins with.
        let clock = self.clock;
        self.lanes
            .retain(|_, lane| !lane.is_empty() || lane.used > clock);
    }
}

/// No sender is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

/// The messages of one round, in fair order.
pub struct Turns<'a> {
    inbox: &'a mut Inbox,
    left: usize,
    until: Instant,
    /// Whose message is being handled, since when.
    served: Option<(Option<u32>, Instant)>,
}

impl Iterator for Turns<'_> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        let now = Instant::now();
        if let Some((user, since)) = self.served.take() {
            self.inbox
                .charge(user, now.saturating_duration_since(since));
        }
        if self.left == 0 || now >= self.until {
            return None;
        }
        self.inbox.take_in();
        let next = self.inbox.next(Kind::Call)?;
        self.left -= 1;
        self.served = Some((next.user, now));
        match next.work {
            Work::Call(message) => Some(message),
            Work::Read(_) => None,
        }
    }
}

impl Mailbox {
    /// The same mailbox for the calls of a user.
    pub fn of(&self, user: u32) -> Self {
        Self {
            user: Some(user),
            ..self.clone()
        }
    }

    /// The same mailbox for the daemon's own work, which serves all users.
    pub fn own(&self) -> Self {
        Self {
            user: None,
            ..self.clone()
        }
    }

    /// Sends without waiting for room. The message is lost if the controller has stopped.
    pub fn post(&self, message: Message) {
        self.send(Work::Call(message), None);
    }

    fn send(&self, work: Work, room: Option<UserPermit>) {
        let user = self.user;
        let _ = self.sender.send(Envelope {
            work,
            user,
            _room: room,
        });
    }

    async fn room(&self, places: u32) -> Option<UserPermit> {
        // The client's patience ends the wait.
        let rooms = (places, ROOM as usize);
        self.rooms.take(self.user?, rooms, Duration::MAX).await
    }

    /// Sends a message that has a reply once there is room, and waits for the reply.
    ///
    /// # Errors
    /// The controller's error; [`ErrorCode::NoDaemon`] if it has stopped.
    pub async fn request<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let message = message(reply);
        let room = self.room(message.places()).await;
        self.send(Work::Call(message), room);
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Reads from the controller's state, unless the caller has gone by then.
    ///
    /// # Errors
    /// As [`Mailbox::request`].
    pub async fn query<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Queries<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let room = self.room(1).await;
        let read: StateQuery = Box::new(move |state, io, fx| {
            if !reply.is_closed() {
                let _ = reply.send(read(&Queries { state, io, fx }));
            }
        });
        self.send(Work::Read(read), room);
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

fn stopping() -> Error {
    Error::new(ErrorCode::NoDaemon, "the daemon is stopping")
        .hint("running jobs continue; start the daemon again with `divvy daemon`")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use divvy_testkit::until_async;

    use super::*;

    const ANA: u32 = 1000;
    const BO: u32 = 1001;

    fn wait(reference: &str) -> (Message, oneshot::Receiver<Result<Job, Error>>) {
        let (reply, answer) = oneshot::channel();
        let message = Message::Wait {
            reference: reference.to_owned(),
            milestone: Milestone::Ended,
            reply,
        };
        (message, answer)
    }

    fn sends(mailbox: &Mailbox, reference: &str) {
        mailbox.post(wait(reference).0);
    }

    fn reference(message: &Message) -> &str {
        match message {
            Message::Wait { reference, .. } => reference,
            _ => "another",
        }
    }

    fn ask(mailbox: &Mailbox) -> tokio::task::JoinHandle<Result<Job, Error>> {
        let mailbox = mailbox.clone();
        tokio::spawn(async move { mailbox.request(wait_for).await })
    }

    fn wait_for(reply: Reply<Job>) -> Message {
        Message::Wait {
            reference: "1".to_owned(),
            milestone: Milestone::Ended,
            reply,
        }
    }

    fn taken(inbox: &mut Inbox, most: usize) -> usize {
        inbox.wait(Duration::ZERO).unwrap();
        inbox.round(most, divvy_testkit::PATIENCE).count()
    }

    #[tokio::test]
    async fn a_users_calls_wait_for_room_and_other_users_and_the_daemons_own_threads_do_not() {
        let (mailbox, mut inbox) = mailbox();
        let ana = mailbox.of(ANA);
        let mut asked: Vec<_> = (0..ROOM + 10).map(|_| ask(&ana)).collect();
        let mut seen = 0;
        until_async("ana's room is full", async || {
            inbox.take_in();
            let waits = inbox.lanes.get(&Some(ANA))?.waits[Kind::Call as usize].len();
            (waits == ROOM as usize).then_some(())
        })
        .await;
        asked.push(ask(&mailbox.of(BO)));
        mailbox.post(Message::Stop);
        drop((mailbox, ana));
        until_async("all have come in", async || {
            seen += taken(&mut inbox, 100);
            (seen == ROOM as usize + 12).then_some(())
        })
        .await;
        // The controller has stopped without a reply.
        for asked in asked {
            assert_eq!(asked.await.unwrap().unwrap_err().code, ErrorCode::NoDaemon);
        }
    }

    #[test]
    fn the_daemons_own_messages_come_first_and_the_user_with_the_least_time_next() {
        let (mailbox, mut inbox) = mailbox();
        let (ana, bo) = (mailbox.of(ANA), mailbox.of(BO));
        for at in 0..4 {
            sends(&ana, &format!("ana {at}"));
        }
        sends(&bo, "bo 0");
        sends(&bo, "bo 1");
        sends(&mailbox, "own");
        inbox.wait(Duration::ZERO).unwrap();
        let mut order = Vec::new();
        while let Some(next) = inbox.next(Kind::Call) {
            let Work::Call(message) = &next.work else {
                unreachable!("no reads were sent")
            };
            order.push(reference(message).to_owned());
            // A call of ana takes three times as long.
            let spent = if next.user == Some(ANA) { 3 } else { 1 };
            inbox.charge(next.user, Duration::from_millis(spent));
        }
        assert_eq!(
            order,
            ["own", "ana 0", "bo 0", "bo 1", "ana 1", "ana 2", "ana 3"]
        );
        // Time in which bo had nothing to do is no credit: the first calls take turns.
        assert!(inbox.lanes.len() <= 2);
        sends(&ana, "ana 4");
        sends(&bo, "bo 2");
        inbox.wait(Duration::ZERO).unwrap();
        assert_eq!(inbox.next(Kind::Call).unwrap().user, Some(BO));
        assert!(inbox.lanes[&Some(BO)].used >= Duration::from_millis(9));
    }

    #[tokio::test]
    async fn a_read_waits_for_earlier_calls_of_its_user_and_of_the_daemon_alone() {
        for (before, is_ready) in [(None, false), (Some(ANA), false), (Some(BO), true)] {
            let (mailbox, mut inbox) = mailbox();
            let sender = before.map_or_else(|| mailbox.own(), |user| mailbox.of(user));
            sends(&sender, "a call");
            let ana = mailbox.of(ANA);
            let read = tokio::spawn(async move { ana.query(|_| Ok(())).await });
            until_async("the read has come in", async || {
                inbox.take_in();
                (inbox.arrived == 2).then_some(())
            })
            .await;
            assert_eq!(inbox.next(Kind::Read).is_some(), is_ready, "{before:?}");
            assert!(inbox.next(Kind::Call).is_some());
            assert_eq!(inbox.next(Kind::Read).is_some(), !is_ready, "{before:?}");
            assert_eq!(read.await.unwrap().unwrap_err().code, ErrorCode::NoDaemon);
        }
    }

    #[test]
    fn a_round_ends_with_its_time_and_leaves_the_rest_in_the_mailbox() {
        let (mailbox, mut inbox) = mailbox();
        for at in 0..3 {
            sends(&mailbox.of(ANA), &at.to_string());
        }
        inbox.wait(Duration::ZERO).unwrap();
        assert_eq!(inbox.round(9, Duration::ZERO).count(), 0);
        assert!(inbox.has_calls());
        assert_eq!(inbox.round(2, divvy_testkit::PATIENCE).count(), 2);
        assert_eq!(taken(&mut inbox, 9), 1);
        assert!(!inbox.has_calls());
    }

    #[tokio::test]
    async fn a_read_whose_client_has_gone_is_dropped_and_reads_take_turns() {
        let (mailbox, mut inbox) = mailbox();
        let read = |user: u32| {
            let mailbox = mailbox.of(user);
            tokio::spawn(async move { mailbox.query(|_| Ok(())).await })
        };
        let gone = read(ANA);
        let stays = [read(ANA), read(ANA), read(BO)];
        until_async("all have come in", async || {
            inbox.take_in();
            let waits = inbox.lanes.values().map(|lane| lane.waits[1].len());
            (waits.sum::<usize>() == 4).then_some(())
        })
        .await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let users = Rc::new(RefCell::new(Vec::new()));
        while let Some(next) = inbox.next(Kind::Read) {
            users.borrow_mut().push(next.user);
            inbox.charge(next.user, Duration::from_millis(1));
        }
        assert_eq!(users.borrow()[..2], [Some(ANA), Some(BO)]);
        for read in stays {
            // Nothing has read.
            assert_eq!(read.await.unwrap().unwrap_err().code, ErrorCode::NoDaemon);
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
                turn: None,
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
