//! Observe, plan, act: the single owner of the node's state.
//!
//! ```text
//! messages ──► handle ──► plan ──► commit ──► act ──► answer
//!              (journal entries)   (one sync) (slices, supervisors, signals)
//! ```
//! One thread, one round after another. A round takes every message that is there, so that a burst costs one sync of
//! the journal. Intent is journaled before it is acted on: a job is `starting` on disk before its slice exists, `stopping`
//! before it is signalled. What was done is journaled when the world shows it: records in the job's folder.
//!
//! A journal that cannot be written ends the agent: what was answered is on disk, and jobs need no agent to run. On a full disk
//! it is written in its reserve ([`full`]).

mod after;
mod alarm;
mod array;
mod back;
mod busy;
mod cancel;
mod change;
mod claims;
mod confirm;
pub mod container;
mod end;
mod follow;
pub mod foresight;
mod forget;
mod full;
pub mod glance;
mod hold;
mod idle;
mod inside;
mod key;
mod left;
mod limits;
mod memory;
mod mig;
mod notice;
mod observe;
mod on_behalf;
mod outlook;
mod pause;
mod place;
mod projects;
mod read;
mod reconcile;
pub mod reference;
mod resize;
mod resume;
pub mod shown;
mod start;
mod submit;
mod texts;
mod tick;
mod unknown;
mod usage;
mod whose;
pub mod why;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode, Event, GpuChanged, MigInstance};
use divvy_core::reconcile::{Watchlist, Way};
use divvy_core::{GpuUuid, JobId, Project, Wait};
use tokio::sync::broadcast;

use crate::aside::Errands;
use crate::clock::{Instant, now};
use crate::config::Config;
use crate::counted::Counted;
use crate::disk::Disk;
use crate::failpoint::reach;
use crate::gpu::slice::HeldSlice;
use crate::gpu::{Device, IDLE, Observer};
use crate::job::Job;
use crate::keeper::Keeper;
use crate::mailbox::{Inbox, Message, Milestone, Read, Reply};
use crate::mig::{Order, Slot, Workers};
use crate::process::Process;
use crate::pruner::Forgotten;
use crate::records::Exit;
use crate::secrets::Secrets;
use crate::store::{Store, StoreError};
use crate::supervise::started::Started;
use crate::terms::After;
use crate::watch::{News, Watch};
pub use inside::{Inside, Room};
pub use mig::Counts;
use mig::Migs;
use reconcile::Ledger;

/// How often everything is looked at while there are jobs, whatever happens.
pub const TICK: Duration = Duration::from_millis(250);

/// Most messages that one round takes, which bounds how long an answer is held back.
const BATCH: usize = 256;

/// The state, and the means to change it.
pub struct Cycle {
    config: Config,
    store: Store,
    disk: Disk,
    /// The disk has no room.
    full: Option<full::Full>,
    /// The journal keeps a reserve for that.
    reserves: bool,
    watch: Option<Watch>,
    events: broadcast::Sender<Event>,
    devices: Vec<Device>,
    observer: Arc<Observer>,
    keeper: Keeper,
    migs: Migs,
    errands: Errands,
    /// Processes that may be past the limiter.
    watchlist: Watchlist,
    /// How many were, by way.
    bypasses: [u64; Way::ALL.len()],
    /// GPUs whose driver was said not to tell whose memory is whose.
    unspoken: HashSet<GpuUuid>,
    /// Jobs that have not ended. Boxed, as the map keeps room for nearly as many again.
    jobs: BTreeMap<JobId, Box<Living>>,
    busy: busy::Busy,
    /// Jobs that run and that the journal does not have.
    unknown: unknown::Unknowns,
    /// How many jobs the journal got from their records when the agent started.
    recovered: u32,
    texts: texts::Texts,
    /// The last plan's reasons, by job.
    waits: HashMap<JobId, Wait>,
    /// With fairness, the queue whose turn it is.
    cursor: usize,
    /// Of the last plan.
    head: Option<JobId>,
    projects: Vec<Project>,
    secrets: Secrets,
    /// When the plan may be another one, though nothing has changed.
    again_at: Option<Instant>,
    /// Supervisors that this agent started and that have not been waited for.
    children: Vec<Started>,
    notices: notice::Notices,
    /// Why the GPUs cannot be observed, said once.
    blind: Option<String>,
    /// GPUs that jobs hold and that were lost at the last look.
    lost: BTreeSet<GpuUuid>,
    /// GPUs that jobs hold of which the last look does not show who is on them: they did not answer, and may again, or their instances
    /// were being changed or could not be read. `None` before the first look.
    unseen: Option<BTreeSet<GpuUuid>>,
    pages: usage::Pages,
    /// When it was last looked for those who do nothing.
    idle_looked: Instant,
    /// When it is to be looked for what is left of containers.
    leftovers: Option<Instant>,
    counted: Counted,
    round: Round,
}

/// A job that has not ended, and what belongs to it while the agent lives.
struct Living {
    job: Job,
    /// Bytes of its texts ([`crate::intake::budget`]).
    texts: u64,
    slice: Option<Box<HeldSlice>>,
    waiters: Vec<Waiter>,
    /// Whom it runs after and who has not ended.
    after: Vec<After>,
    /// When it came into its present state, as far as this agent knows.
    since: Instant,
    /// When its client was last heard of, for a job that its client runs.
    heard: Instant,
    /// The process that this agent started to supervise it.
    supervisor: Option<u32>,
    /// How that one ended, once it has.
    supervisor_end: Option<String>,
    /// Since when it is lost, and how that one ended not said.
    unheard: Option<Instant>,
    /// When its container was last given another supervisor.
    relayed: Option<Instant>,
    /// When it was last looked at, while an end of its supervisor is told ([`Watch::attend`]).
    attended: Option<Instant>,
    /// Since when it has ended and is waited for.
    left: Option<Instant>,
    /// How often that process ended before it had started anything.
    false_starts: u32,
    /// MIG instances that it is to have and that are not ready.
    awaits: BTreeSet<Slot>,
    /// How often they were refused.
    refusals: u32,
    /// Why its start has to wait.
    shortage: Option<start::Shortage>,
    /// How its start failed, where its folder could not tell.
    failed: Option<Exit>,
    /// What a claim is used through is there.
    laid: bool,
    /// Nobody confirmed it or waited for it while it held its slice; it is not placed before somebody does.
    unasked: bool,
    /// Its slice could not be read, which was said.
    damaged: bool,
    /// Another process than the daemon changed its slice's control file, and an event has told it.
    tampered: bool,
    /// Its limiter could not count something, which was said.
    alarmed: bool,
    /// By position in its holdings.
    ledgers: Vec<Ledger>,
    /// Processes of it that the driver listed last.
    members: Vec<Process>,
    work: usage::Work,
    /// What is under way for its memory.
    trip: memory::Trip,
}

struct Waiter {
    milestone: Milestone,
    reply: Reply<divvy_api::v1::Job>,
}

/// What one round has decided and not yet done.
#[derive(Default)]
struct Round {
    /// Something changed that a plan depends on.
    replan: bool,
    events: Vec<Event>,
    starts: Vec<JobId>,
    stops: Vec<JobId>,
    /// Jobs whose limits are other ones now.
    resizes: Vec<JobId>,
    /// Jobs that were changed since their records were begun.
    changed: BTreeSet<JobId>,
    /// Jobs whose processes are all to be stopped.
    pauses: Vec<JobId>,
    /// Jobs whose memory is to be copied.
    trips: Vec<JobId>,
    /// Who waits until what it says is journaled.
    journaled: Vec<SyncSender<()>>,
    /// Processes to be killed.
    shots: Vec<Process>,
    /// Jobs whose processes are all to be killed.
    kills: Vec<JobId>,
    /// Jobs that have ended, for those that run after them.
    ended: Vec<JobId>,
    /// Jobs whose secrets nobody needs once the round is journaled.
    forgets: Vec<JobId>,
    /// Jobs that came to a milestone.
    reached: Vec<JobId>,
    answers: Vec<Answer>,
    /// Jobs of arrays to which something was done.
    arrays: Vec<ArrayAnswer>,
    reads: Vec<Read>,
    /// What the threads of MIG are to do.
    orders: Vec<Order>,
    /// Points at which a test may have the daemon die once the round is journaled.
    points: Vec<&'static str>,
    tended: Vec<(
        Reply<divvy_api::v1::Project>,
        Result<divvy_api::v1::Project, Error>,
    )>,
    /// Claims that were asked for, and that were given back.
    held: Vec<(Reply<JobId>, Result<JobId, Error>)>,
    given_back: Vec<(Reply<Option<JobId>>, Option<JobId>)>,
    /// Changed GPUs, and idle instances given back.
    changes: Vec<(Reply<GpuChanged>, Result<GpuChanged, Error>)>,
    collected: Vec<(Reply<Vec<MigInstance>>, Vec<MigInstance>)>,
    /// Who waits for what was forgotten.
    forgotten: Vec<Forgotten>,
    /// Jobs to look at once more in the next round.
    again: Vec<JobId>,
    stop: bool,
}

/// Jobs of an array to which something was done, and where they are shown.
type ArrayAnswer = (Reply<Vec<glance::Glance>>, Result<Vec<JobId>, Error>);

struct Answer {
    reply: Reply<divvy_api::v1::Job>,
    result: Result<JobId, Error>,
}

impl Living {
    fn new(job: Job) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            job,
            texts: 0,
            slice: None,
            waiters: Vec::new(),
            after: Vec::new(),
            since: now,
            heard: now,
            supervisor: None,
            supervisor_end: None,
            unheard: None,
            relayed: None,
            attended: None,
            left: None,
            false_starts: 0,
            awaits: BTreeSet::new(),
            refusals: 0,
            shortage: None,
            failed: None,
            laid: false,
            unasked: false,
            damaged: false,
            tampered: false,
            alarmed: false,
            ledgers: Vec::new(),
            members: Vec::new(),
            work: usage::Work::new(),
            trip: memory::Trip::default(),
        })
    }
}

/// What [`Cycle::new`] takes besides what was observed.
pub struct Parts {
    pub config: Config,
    pub store: Store,
    pub watch: Option<Watch>,
    pub events: broadcast::Sender<Event>,
    pub devices: Vec<Device>,
    pub observer: Arc<Observer>,
    pub keeper: Keeper,
    pub workers: Workers,
    /// How many jobs the journal got from their records.
    pub recovered: u32,
}

impl Cycle {
    /// The state as the journal has it; [`Cycle::resume`] then compares it with the world.
    ///
    /// # Errors
    /// When the journal cannot be read or makes no sense.
    pub fn new(parts: Parts) -> Result<Self, StoreError> {
        let Parts {
            config,
            store,
            watch,
            events,
            devices,
            observer,
            keeper,
            workers,
            recovered,
        } = parts;
        let jobs = store
            .living()?
            .into_iter()
            .map(|job| (job.id, Living::new(job)))
            .collect();
        let cursor = store
            .setting("cursor")?
            .and_then(|cursor| cursor.parse().ok())
            .unwrap_or(0);
        let head = store.setting("head")?;
        let head = head.and_then(|head| head.parse().ok());
        let bypasses = store.bypass_counts()?;
        let projects = store.projects()?;
        let secrets = Secrets::below(config.home.state());
        let errands = Errands::new(
            workers.mailbox(),
            Arc::clone(&observer),
            config.programs.divvy.clone(),
            (config.simulated.as_ref())
                .map(|simulated| simulated.lib.join(divvy_driver::load::CUDA)),
        );
        let migs = Migs::new(workers, store.migs()?);
        let mut cycle = Self {
            disk: Disk::of(config.home.state()),
            full: None,
            reserves: false,
            config,
            store,
            watch,
            events,
            devices,
            observer,
            keeper,
            migs,
            errands,
            watchlist: Watchlist::default(),
            bypasses,
            unspoken: HashSet::new(),
            jobs,
            busy: busy::Busy::default(),
            unknown: unknown::Unknowns::new(),
            recovered,
            texts: texts::Texts::default(),
            waits: HashMap::new(),
            cursor,
            head,
            projects,
            secrets,
            again_at: None,
            children: Vec::new(),
            notices: notice::Notices::default(),
            blind: None,
            lost: BTreeSet::new(),
            unseen: None,
            pages: usage::Pages::new(),
            idle_looked: Instant::now(),
            leftovers: None,
            counted: Counted::default(),
            round: Round {
                replan: true,
                ..Round::default()
            },
        };
        cycle.count_texts()?;
        Ok(cycle)
    }

    /// Works until told to stop.
    ///
    /// # Errors
    /// When the journal fails: nothing may be acknowledged any more, and what was is safe.
    pub fn run(mut self, messages: &Inbox) -> Result<(), StoreError> {
        let mut tick = Instant::now();
        loop {
            let patience = if self.round.again.is_empty() && !self.round.replan {
                (tick + self.beat()).saturating_duration_since(Instant::now())
            } else {
                Duration::ZERO
            };
            let first = match messages.recv_timeout(patience) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let ticks = tick.elapsed() >= self.beat();
            if ticks {
                tick = Instant::now();
            }
            self.round(
                first.into_iter().chain(messages.try_iter().take(BATCH)),
                ticks,
            )?;
            if self.round.stop {
                return Ok(());
            }
        }
    }

    /// One round: takes these messages, looks at everything when it is time, decides, makes it durable and does it.
    ///
    /// # Errors
    /// When the journal fails; then nothing of the round is done.
    pub fn round(
        &mut self,
        messages: impl Iterator<Item = Message>,
        ticks: bool,
    ) -> Result<(), StoreError> {
        let has_changed = self.look_at_disk(ticks)?;
        self.store.begin()?;
        if has_changed {
            self.tell_of_disk()?;
        }
        for id in std::mem::take(&mut self.round.again) {
            self.look(id)?;
        }
        for message in messages {
            self.handle(message)?;
        }
        if ticks {
            self.sweep()?;
        }
        self.finish_round()
    }

    /// Between two looks at everything.
    fn beat(&self) -> Duration {
        match self.jobs.is_empty() && self.children.is_empty() && self.unknown.is_empty() {
            true => IDLE,
            false => TICK,
        }
    }

    /// Plans if need be, makes the round durable, then does what it has decided and answers.
    fn finish_round(&mut self) -> Result<(), StoreError> {
        self.release_followers()?;
        if std::mem::take(&mut self.round.replan) {
            let began = Instant::now();
            self.plan()?;
            self.counted.plans.add(began.elapsed());
        }
        let began = Instant::now();
        self.store.commit()?;
        self.counted.commits.add(began.elapsed());
        self.forget_those_ended();
        self.give_orders();
        self.carry_out_resizes()?;
        self.write_replicas()?;
        self.check();
        self.carry_out();
        for id in std::mem::take(&mut self.round.pauses) {
            let began = Instant::now();
            self.hold_still(id);
            self.counted.stills.add(began.elapsed());
        }
        self.make_trips();
        for journaled in std::mem::take(&mut self.round.journaled) {
            // It waits, unless it has given up.
            let _ = journaled.try_send(());
        }
        for event in self.round.events.drain(..) {
            // Nobody listening is no failure.
            let _ = self.events.send(event);
        }
        // A client must find its slice when it is told that its job starts; a supervisor is started after the answers.
        let (claims, starts): (Vec<JobId>, Vec<_>) = std::mem::take(&mut self.round.starts)
            .into_iter()
            .partition(|id| self.is_claim(*id));
        let (clients, supervised): (Vec<JobId>, _) =
            starts.into_iter().partition(|id| self.runs_on_client(*id));
        for id in claims {
            self.lend(id);
        }
        for id in clients {
            self.prepare(id);
        }
        self.answer();
        reach("round.answered");
        for id in supervised {
            self.prepare(id);
            reach("start.prepared");
            self.spawn(id);
        }
        for id in std::mem::take(&mut self.round.stops) {
            self.stop(id);
        }
        self.give_notices();
        for read in std::mem::take(&mut self.round.reads) {
            read(self);
        }
        self.observer.set_busy(!self.jobs.is_empty());
        Ok(())
    }

    fn handle(&mut self, message: Message) -> Result<(), StoreError> {
        let message = match self.lacks_room() {
            Some(error) => message.refused_if_new(error),
            None => Some(message),
        };
        let Some(message) = message else {
            return Ok(());
        };
        match message {
            Message::Submit { submit, by, reply } => {
                let result = self.submit(*submit, &by)?;
                match result {
                    submit::Submitted::Job(id) => self.round.answers.push(Answer {
                        reply,
                        result: Ok(id),
                    }),
                    submit::Submitted::Refused(error) => self.round.answers.push(Answer {
                        reply,
                        result: Err(error),
                    }),
                    // It would change nothing, so nothing needs to be durable first.
                    submit::Submitted::Would(mut job, foresight) => {
                        // That takes longer than a round should. Whoever asks when there are no more threads gets no answer.
                        let tell = std::thread::Builder::new().name("foresee".into());
                        let _ = tell.spawn(move || {
                            foresight.tell(&mut job);
                            let _ = reply.send(Ok(*job));
                        });
                    }
                }
            }
            Message::Pause {
                reference,
                suspend,
                reply,
            } => {
                let result = self.pause(&reference, suspend)?;
                let refused = |error: &Error| suspend && error.code == ErrorCode::Conflict;
                self.counted.unsuspended += u64::from(result.as_ref().is_err_and(refused));
                self.round.answers.push(Answer { reply, result });
            }
            Message::Release { reference, reply } => self.release(&reference, reply)?,
            Message::Requeue {
                reference,
                by,
                reply,
            } => {
                let result = self.requeue(&reference, &by)?;
                self.round.answers.push(Answer { reply, result });
            }
            Message::Array {
                array,
                act,
                by,
                reply,
            } => {
                let result = self.act_on_array(array, &act, &by)?;
                self.round.arrays.push((reply, result));
            }
            Message::Project { name, act, reply } => {
                let result = self.tend_project(&name, &act)?;
                self.round.tended.push((reply, result));
            }
            Message::Cancel {
                reference,
                by,
                reply,
            } => {
                let result = self.cancel(&reference, &by)?;
                self.round.answers.push(Answer { reply, result });
            }
            Message::Confirm {
                reference,
                confirm,
                by,
                reply,
            } => {
                let result = self.confirm(&reference, &confirm, &by)?;
                self.round.answers.push(Answer { reply, result });
            }
            Message::HoldClaim {
                uid,
                claim,
                by,
                reply,
            } => {
                let result = self.hold_claim(&uid, *claim, &by)?;
                self.round.held.push((reply, result));
            }
            Message::ReleaseClaim { uid, reply } => {
                let result = self.release_claim(&uid)?;
                self.round.given_back.push((reply, result));
            }
            Message::Resize {
                reference,
                resize,
                reply,
            } => self.resize(&reference, resize, reply)?,
            Message::Change {
                reference,
                change,
                by,
                reply,
            } => {
                let result = self.change(&reference, &change, &by)?;
                self.round.answers.push(Answer { reply, result });
            }
            Message::Hold {
                reference,
                hold,
                by,
                reply,
            } => {
                let result = match hold {
                    true => self.hold(&reference, &by)?,
                    false => self.unhold(&reference, &by)?,
                };
                self.round.answers.push(Answer { reply, result });
            }
            Message::Wait {
                reference,
                milestone,
                reply,
            } => self.wait(&reference, milestone, reply)?,
            Message::Tell { job, kind, text } => self.tell(Some(job), kind, &text)?,
            Message::Read(read) => self.round.reads.push(read),
            Message::News(News::Record(id)) => self.news(id)?,
            Message::News(News::Unattended(id)) => self.look(id)?,
            Message::News(News::Lost) => {
                for id in self.jobs.keys().copied().collect::<Vec<_>>() {
                    self.news(id)?;
                }
            }
            Message::GpuMode { gpu, change, reply } => self.change_mode(&gpu, &change, reply)?,
            Message::MigGc { gc, reply } => {
                let gone = self.collect(&gc)?;
                self.round.collected.push((reply, gone));
            }
            Message::Mig(report) => self.reported(*report)?,
            Message::Aside(report) => self.trip_news(*report)?,
            Message::Looked(look) => self.observed(&look)?,
            Message::Blind(why) => self.blinded(why)?,
            Message::Forget { past, done } => self.forget_past(past, done)?,
            Message::Stop => self.round.stop = true,
        }
        Ok(())
    }

    fn wait(
        &mut self,
        reference: &str,
        milestone: Milestone,
        reply: Reply<divvy_api::v1::Job>,
    ) -> Result<(), StoreError> {
        match self.find(reference)? {
            Err(error) => self.round.answers.push(Answer {
                reply,
                result: Err(error),
            }),
            Ok(id) => match self.jobs.get_mut(&id) {
                Some(living) => {
                    living.waiters.retain(|waiter| !waiter.reply.is_closed());
                    living.waiters.push(Waiter { milestone, reply });
                    self.round.reached.push(id);
                    self.asked_for(id);
                }
                None => self.round.answers.push(Answer {
                    reply,
                    result: Ok(id),
                }),
            },
        }
        Ok(())
    }

    /// Sends what has become answerable.
    fn answer(&mut self) {
        let mut reached = std::mem::take(&mut self.round.reached);
        reached.sort_unstable();
        reached.dedup();
        for id in reached {
            let Some(living) = self.jobs.get_mut(&id) else {
                continue;
            };
            let (life, left) = (&living.job.life, living.left.is_some());
            // What it is to run on may not be there yet.
            let awaits_nothing = living.awaits.is_empty();
            let settled = Self::is_settled(living);
            let arrived = |waiter: &mut Waiter| match (life, waiter.milestone) {
                (divvy_core::Job::Ended { .. }, _) => true,
                (life, Milestone::Settled) => {
                    settled || !matches!(life, divvy_core::Job::Running { .. })
                }
                (divvy_core::Job::Queued, _) | (_, Milestone::Ended) => false,
                (divvy_core::Job::Starting { .. }, Milestone::Starting) => awaits_nothing,
                (_, Milestone::Starting) => true,
                (divvy_core::Job::Stopping { .. }, Milestone::Released) => left,
                (life, Milestone::Lent) => !matches!(life, divvy_core::Job::Starting { .. }),
                (_, Milestone::Released) => false,
            };
            let waiters: Vec<Waiter> = living.waiters.extract_if(.., arrived).collect();
            for waiter in waiters {
                self.round.answers.push(Answer {
                    reply: waiter.reply,
                    result: Ok(id),
                });
            }
        }
        // Whoever runs a job himself would start at once: he is told when everything that it runs on is there.
        let answers = std::mem::take(&mut self.round.answers);
        let waits = |answer: &Answer| {
            let id = answer.result.as_ref().ok();
            id.is_some_and(|id| self.runs_on_client(*id) && !self.awaits_nothing(*id))
        };
        let (later, now): (Vec<Answer>, Vec<Answer>) = answers.into_iter().partition(waits);
        self.round.answers = later;
        for Answer { reply, result } in now {
            if !reply.is_closed() {
                let _ = reply.send(result.and_then(|id| self.show_any(id)));
            }
        }
        for (reply, result) in std::mem::take(&mut self.round.arrays) {
            let _ = reply.send(result.map(|jobs| self.glances_of(&jobs)));
        }
        for (reply, result) in std::mem::take(&mut self.round.tended) {
            let _ = reply.send(result);
        }
        for (reply, result) in std::mem::take(&mut self.round.changes) {
            let _ = reply.send(result);
        }
        for (reply, result) in std::mem::take(&mut self.round.held) {
            let _ = reply.send(result);
        }
        for (reply, id) in std::mem::take(&mut self.round.given_back) {
            let _ = reply.send(Ok(id));
        }
        for done in std::mem::take(&mut self.round.forgotten) {
            let _ = done.send(());
        }
        for (reply, gone) in std::mem::take(&mut self.round.collected) {
            let _ = reply.send(Ok(gone));
        }
        self.drop_ended();
    }

    fn tell(&mut self, job: Option<JobId>, kind: &str, text: &str) -> Result<(), StoreError> {
        let event = self.store.tell(now(), job, kind, text)?;
        *self.counted.told.entry(kind.to_owned()).or_default() += 1;
        self.round.events.push(event);
        Ok(())
    }

    /// In debug builds, what must hold after every step.
    fn check(&self) {
        if cfg!(debug_assertions) {
            let broken = divvy_core::invariants::check(&self.snapshot());
            assert!(broken.is_ok(), "an invariant does not hold: {broken:?}");
            self.check_busy();
        }
    }
}

#[cfg(test)]
impl Cycle {
    /// The jobs that it knows of.
    pub fn remembered(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|living| &living.job)
    }

    /// The MIG instances that it knows of as its own.
    pub fn instances(&self) -> &BTreeMap<Slot, crate::mig::Instance> {
        self.migs.instances()
    }

    /// The place in its queue of a job that waits for its turn.
    pub fn turn_of(&self, id: JobId) -> Option<usize> {
        self.waits.get(&id).map(|wait| wait.place)
    }

    pub fn journal(&self) -> &Store {
        &self.store
    }
}
