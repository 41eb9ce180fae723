//! The controller loop: observe, plan, act. It is the single owner of the node's state.
//!
//! May use: `host`, `auth`, `compute`, `model`, `gpu`, `job_dir`, `checkpoint`, `config`, `journal`, `supervisor`,
//! `container`.
//! Used by: `http`, `daemon`, `standalone`.
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
//! it is written in its reserve ([`disk_full`]).

mod active_set;
pub mod admission;
mod claims;
mod disk_full;
pub mod lifecycle;
pub mod mailbox;
mod mig;
mod observe;
pub mod query;
mod startup;
mod tick;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender};
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode, Event, GpuChanged, MigInstance};
use divvy_core::reconcile::{BypassKind, Watchlist};
use divvy_core::{GpuUuid, JobId, Project, Wait};
use tokio::sync::broadcast;

use crate::checkpoint::CheckpointOps;
use crate::compute::ComputeScheduler;
use crate::config::Config;
use crate::controller::mailbox::{Inbox, Message, Milestone, Reply, StateQuery};
use crate::gpu::mig::{MigCommand, Workers};
use crate::gpu::slice::HeldSlice;
use crate::gpu::{Device, IDLE_INTERVAL, Observer};
use crate::host::clock::{Instant, now};
use crate::host::disk::Disk;
use crate::host::failpoint::reach;
use crate::host::process::Process;
use crate::job_dir::ExitRecord;
use crate::journal::retention::PruneDone;
use crate::journal::secrets::Secrets;
use crate::journal::{Store, StoreError};
use crate::model::counters::Counters;
use crate::model::job::Job;
use crate::model::mig_instance::MigSlot;
use crate::model::policy::Dependency;
use crate::supervisor::handle::SupervisorHandle;
use crate::supervisor::watch::{Watch, WatchEvent};
pub use mig::MigCounts;
use mig::MigManager;
use observe::reconcile::SliceUsage;
pub use query::exec_target::{ExecEnvironment, ExecTarget};

/// How often everything is looked at while there are jobs, whatever happens.
pub const TICK: Duration = Duration::from_millis(250);

/// Most messages that one round takes, which bounds how long an answer is held back.
const BATCH: usize = 256;

/// The state, and the means to change it.
pub struct Controller {
    config: Config,
    store: Store,
    disk: Disk,
    /// The disk has no room.
    disk_full: Option<disk_full::DiskFull>,
    /// The journal keeps a reserve for that.
    has_reserve: bool,
    watch: Option<Watch>,
    events: broadcast::Sender<Event>,
    devices: Vec<Device>,
    observer: Arc<Observer>,
    compute_scheduler: ComputeScheduler,
    migs: MigManager,
    checkpoint_ops: CheckpointOps,
    /// Processes that may be past the limiter.
    watchlist: Watchlist,
    /// How many were, by way.
    bypasses: [u64; BypassKind::ALL.len()],
    /// GPUs whose driver was said not to tell whose memory is whose.
    accounts_only: HashSet<GpuUuid>,
    /// Jobs that have not ended. Boxed, as the map keeps room for nearly as many again.
    jobs: BTreeMap<JobId, Box<ActiveJob>>,
    active_set: active_set::ActiveSet,
    /// Jobs that run and that the journal does not have.
    unknown: observe::unjournaled::Unknowns,
    /// How many jobs the journal got from their records when the agent started.
    recovered: u32,
    texts: admission::text_budget::TextBudget,
    /// The last plan's reasons, by job.
    waits: HashMap<JobId, Wait>,
    /// With fairness, the queue whose turn it is.
    cursor: usize,
    /// Of the last plan.
    head: Option<JobId>,
    projects: Vec<Project>,
    secrets: Secrets,
    /// When the plan may be another one, though nothing has changed.
    replan_at: Option<Instant>,
    /// Supervisors that this agent started and that have not been waited for.
    children: Vec<SupervisorHandle>,
    notifications: lifecycle::notifications::Notifications,
    /// Why the GPUs cannot be observed, said once.
    observation_error: Option<String>,
    /// GPUs that jobs hold and that were lost at the last look.
    lost_gpus: BTreeSet<GpuUuid>,
    /// GPUs that jobs hold of which the last look does not show who is on them: they did not answer, and may again, or their instances
    /// were being changed or could not be read. `None` before the first look.
    unobserved_gpus: Option<BTreeSet<GpuUuid>>,
    usage_clock: observe::usage::UsageClock,
    /// When it was last looked for those who do nothing.
    last_idle_check: Instant,
    /// When it is to be looked for what is left of containers.
    container_gc_at: Option<Instant>,
    counters: Counters,
    effects: Effects,
}

/// A job that has not ended, and what belongs to it while the agent lives.
struct ActiveJob {
    job: Job,
    /// Bytes of its texts ([`crate::model::validate::budget`]).
    texts: u64,
    slice: Option<Box<HeldSlice>>,
    waiters: Vec<Waiter>,
    /// Whom it runs after and who has not ended.
    after: Vec<Dependency>,
    /// When it came into its present state, as far as this agent knows.
    since: Instant,
    /// When its client was last heard of, for a job that its client runs.
    client_seen: Instant,
    /// The process that this agent started to supervise it.
    supervisor: Option<u32>,
    /// How that one ended, once it has.
    supervisor_end: Option<String>,
    /// Since when it is lost, and how that one ended not said.
    lost_since: Option<Instant>,
    /// When its container was last given another supervisor.
    supervisor_replaced: Option<Instant>,
    /// When it was last looked at, while an end of its supervisor is told ([`Watch::watch_supervisor`]).
    last_checked: Option<Instant>,
    /// Since when it has ended and is waited for.
    orphans_since: Option<Instant>,
    /// How often that process ended before it had started anything.
    false_starts: u32,
    /// MIG instances that it is to have and that are not ready.
    pending_instances: BTreeSet<MigSlot>,
    /// How often they were refused.
    refusals: u32,
    /// Why its start has to wait.
    shortage: Option<lifecycle::start::Shortage>,
    /// How its start failed, where its folder could not tell.
    start_failure: Option<ExitRecord>,
    /// What a claim is used through is there.
    has_claim_files: bool,
    /// Nobody confirmed it or waited for it while it held its slice; it is not placed before somebody does.
    confirmation_expired: bool,
    /// Its slice could not be read, which was said.
    damaged: bool,
    /// Another process than the daemon changed its slice's control file, and an event has told it.
    tampered: bool,
    /// Its limiter could not count something, which was said.
    alarm_reported: bool,
    /// By position in its holdings.
    slice_usage: Vec<SliceUsage>,
    /// Processes of it that the driver listed last.
    members: Vec<Process>,
    activity: observe::usage::GpuActivity,
    /// What is under way for its memory.
    memory_op: lifecycle::offload::MemoryOp,
}

struct Waiter {
    milestone: Milestone,
    reply: Reply<divvy_api::v1::Job>,
}

/// What one round has decided and not yet done.
#[derive(Default)]
struct Effects {
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
    memory_ops: Vec<JobId>,
    /// Who waits until what it says is journaled.
    commit_waiters: Vec<SyncSender<()>>,
    /// Processes to be killed.
    processes_to_kill: Vec<Process>,
    /// Jobs whose processes are all to be killed.
    jobs_to_kill: Vec<JobId>,
    /// Jobs that have ended, for those that run after them.
    ended: Vec<JobId>,
    /// Jobs whose secrets nobody needs once the round is journaled.
    expired_secrets: Vec<JobId>,
    /// Jobs that came to a milestone.
    milestones_reached: Vec<JobId>,
    job_replies: Vec<JobReply>,
    /// Jobs of arrays to which something was done.
    array_replies: Vec<ArrayReply>,
    queries: Vec<StateQuery>,
    /// What the threads of MIG are to do.
    mig_commands: Vec<MigCommand>,
    /// Points at which a test may have the daemon die once the round is journaled.
    failpoints: Vec<&'static str>,
    project_replies: Vec<(
        Reply<divvy_api::v1::Project>,
        Result<divvy_api::v1::Project, Error>,
    )>,
    /// Claims that were asked for, and that were given back.
    claim_replies: Vec<(Reply<JobId>, Result<JobId, Error>)>,
    claim_release_replies: Vec<(Reply<Option<JobId>>, Option<JobId>)>,
    /// Changed GPUs, and idle instances given back.
    gpu_mode_replies: Vec<(Reply<GpuChanged>, Result<GpuChanged, Error>)>,
    mig_gc_replies: Vec<(Reply<Vec<MigInstance>>, Vec<MigInstance>)>,
    /// Who waits for what was forgotten.
    prune_replies: Vec<PruneDone>,
    /// Jobs to look at once more in the next round.
    recheck: Vec<JobId>,
    stop: bool,
}

/// Jobs of an array to which something was done, and where they are shown.
type ArrayReply = (
    Reply<Vec<query::summary::JobSummary>>,
    Result<Vec<JobId>, Error>,
);

struct JobReply {
    reply: Reply<divvy_api::v1::Job>,
    result: Result<JobId, Error>,
}

impl ActiveJob {
    fn new(job: Job) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            job,
            texts: 0,
            slice: None,
            waiters: Vec::new(),
            after: Vec::new(),
            since: now,
            client_seen: now,
            supervisor: None,
            supervisor_end: None,
            lost_since: None,
            supervisor_replaced: None,
            last_checked: None,
            orphans_since: None,
            false_starts: 0,
            pending_instances: BTreeSet::new(),
            refusals: 0,
            shortage: None,
            start_failure: None,
            has_claim_files: false,
            confirmation_expired: false,
            damaged: false,
            tampered: false,
            alarm_reported: false,
            slice_usage: Vec::new(),
            members: Vec::new(),
            activity: observe::usage::GpuActivity::new(),
            memory_op: lifecycle::offload::MemoryOp::default(),
        })
    }
}

/// What [`Controller::new`] takes besides what was observed.
pub struct ControllerParts {
    pub config: Config,
    pub store: Store,
    pub watch: Option<Watch>,
    pub events: broadcast::Sender<Event>,
    pub devices: Vec<Device>,
    pub observer: Arc<Observer>,
    pub keeper: ComputeScheduler,
    pub workers: Workers,
    pub checkpoint_ops: CheckpointOps,
    /// How many jobs the journal got from their records.
    pub recovered: u32,
}

impl Controller {
    /// The state as the journal has it; [`Controller::resume`] then compares it with the world.
    ///
    /// # Errors
    /// When the journal cannot be read or makes no sense.
    pub fn new(parts: ControllerParts) -> Result<Self, StoreError> {
        let ControllerParts {
            config,
            store,
            watch,
            events,
            devices,
            observer,
            keeper,
            workers,
            checkpoint_ops,
            recovered,
        } = parts;
        let jobs = store
            .living()?
            .into_iter()
            .map(|job| (job.id, ActiveJob::new(job)))
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
        let migs = MigManager::new(workers, store.migs()?);
        let mut cycle = Self {
            disk: Disk::of(config.home.state()),
            disk_full: None,
            has_reserve: false,
            config,
            store,
            watch,
            events,
            devices,
            observer,
            compute_scheduler: keeper,
            migs,
            checkpoint_ops,
            watchlist: Watchlist::default(),
            bypasses,
            accounts_only: HashSet::new(),
            jobs,
            active_set: active_set::ActiveSet::default(),
            unknown: observe::unjournaled::Unknowns::new(),
            recovered,
            texts: admission::text_budget::TextBudget::default(),
            waits: HashMap::new(),
            cursor,
            head,
            projects,
            secrets,
            replan_at: None,
            children: Vec::new(),
            notifications: lifecycle::notifications::Notifications::default(),
            observation_error: None,
            lost_gpus: BTreeSet::new(),
            unobserved_gpus: None,
            usage_clock: observe::usage::UsageClock::new(),
            last_idle_check: Instant::now(),
            container_gc_at: None,
            counters: Counters::default(),
            effects: Effects {
                replan: true,
                ..Effects::default()
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
            let patience = if self.effects.recheck.is_empty() && !self.effects.replan {
                (tick + self.tick_interval()).saturating_duration_since(Instant::now())
            } else {
                Duration::ZERO
            };
            let first = match messages.recv_timeout(patience) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let ticks = tick.elapsed() >= self.tick_interval();
            if ticks {
                tick = Instant::now();
            }
            self.run_once(
                first.into_iter().chain(messages.try_iter().take(BATCH)),
                ticks,
            )?;
            if self.effects.stop {
                return Ok(());
            }
        }
    }

    /// One round: takes these messages, looks at everything when it is time, decides, makes it durable and does it.
    ///
    /// # Errors
    /// When the journal fails; then nothing of the round is done.
    pub fn run_once(
        &mut self,
        messages: impl Iterator<Item = Message>,
        ticks: bool,
    ) -> Result<(), StoreError> {
        let has_changed = self.check_disk(ticks)?;
        self.store.begin()?;
        if has_changed {
            self.report_disk()?;
        }
        for id in std::mem::take(&mut self.effects.recheck) {
            self.sync_job(id)?;
        }
        for message in messages {
            self.handle(message)?;
        }
        if ticks {
            self.sweep()?;
        }
        self.commit_and_apply()
    }

    /// Between two looks at everything.
    fn tick_interval(&self) -> Duration {
        match self.jobs.is_empty() && self.children.is_empty() && self.unknown.is_empty() {
            true => IDLE_INTERVAL,
            false => TICK,
        }
    }

    /// Plans if need be, makes the round durable, then does what it has decided and answers.
    fn commit_and_apply(&mut self) -> Result<(), StoreError> {
        self.release_dependents()?;
        if std::mem::take(&mut self.effects.replan) {
            let began = Instant::now();
            self.plan()?;
            self.counters.plans.add(began.elapsed());
        }
        let began = Instant::now();
        self.store.commit()?;
        self.counters.commits.add(began.elapsed());
        self.remove_expired_secrets();
        self.dispatch_mig_commands();
        self.apply_resizes()?;
        self.write_replicas()?;
        self.check();
        self.kill_processes();
        for id in std::mem::take(&mut self.effects.pauses) {
            let began = Instant::now();
            self.stop_all_processes(id);
            self.counters.suspends.add(began.elapsed());
        }
        self.run_memory_ops();
        for journaled in std::mem::take(&mut self.effects.commit_waiters) {
            // It waits, unless it has given up.
            let _ = journaled.try_send(());
        }
        for event in self.effects.events.drain(..) {
            // Nobody listening is no failure.
            let _ = self.events.send(event);
        }
        // A client must find its slice when it is told that its job starts; a supervisor is started after the answers.
        let (claims, starts): (Vec<JobId>, Vec<_>) = std::mem::take(&mut self.effects.starts)
            .into_iter()
            .partition(|id| self.is_claim(*id));
        let (clients, supervised): (Vec<JobId>, _) =
            starts.into_iter().partition(|id| self.runs_on_client(*id));
        for id in claims {
            self.bind_claim(id);
        }
        for id in clients {
            self.prepare(id);
        }
        self.send_replies();
        reach("round.answered");
        for id in supervised {
            self.prepare(id);
            reach("start.prepared");
            self.spawn(id);
        }
        for id in std::mem::take(&mut self.effects.stops) {
            self.stop(id);
        }
        self.start_notifications();
        for read in std::mem::take(&mut self.effects.queries) {
            read(self);
        }
        self.observer.set_busy(!self.jobs.is_empty());
        Ok(())
    }

    fn handle(&mut self, message: Message) -> Result<(), StoreError> {
        let message = match self.disk_full_error() {
            Some(error) => message.refuse_new_work(error),
            None => Some(message),
        };
        let Some(message) = message else {
            return Ok(());
        };
        match message {
            Message::Submit { submit, by, reply } => {
                let result = self.submit(*submit, &by)?;
                match result {
                    admission::submit::SubmitOutcome::Job(id) => {
                        self.effects.job_replies.push(JobReply {
                            reply,
                            result: Ok(id),
                        })
                    }
                    admission::submit::SubmitOutcome::Refused(error) => {
                        self.effects.job_replies.push(JobReply {
                            reply,
                            result: Err(error),
                        })
                    }
                    // It would change nothing, so nothing needs to be durable first.
                    admission::submit::SubmitOutcome::DryRun(mut job, foresight) => {
                        // That takes longer than a round should. Whoever asks when there are no more threads gets no answer.
                        let tell = std::thread::Builder::new().name("foresee".into());
                        let _ = tell.spawn(move || {
                            foresight.estimate_start(&mut job);
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
                self.counters.failed_suspends += u64::from(result.as_ref().is_err_and(refused));
                self.effects.job_replies.push(JobReply { reply, result });
            }
            Message::Offload { reference, reply } => self.offload(&reference, reply)?,
            Message::Requeue {
                reference,
                by,
                reply,
            } => {
                let result = self.requeue(&reference, &by)?;
                self.effects.job_replies.push(JobReply { reply, result });
            }
            Message::Array {
                array,
                act,
                by,
                reply,
            } => {
                let result = self.act_on_array(array, &act, &by)?;
                self.effects.array_replies.push((reply, result));
            }
            Message::Project { name, act, reply } => {
                let result = self.apply_project_act(&name, &act)?;
                self.effects.project_replies.push((reply, result));
            }
            Message::Cancel {
                reference,
                by,
                reply,
            } => {
                let result = self.cancel(&reference, &by)?;
                self.effects.job_replies.push(JobReply { reply, result });
            }
            Message::Confirm {
                reference,
                confirm,
                by,
                reply,
            } => {
                let result = self.confirm(&reference, &confirm, &by)?;
                self.effects.job_replies.push(JobReply { reply, result });
            }
            Message::HoldClaim {
                uid,
                claim,
                by,
                reply,
            } => {
                let result = self.hold_claim(&uid, *claim, &by)?;
                self.effects.claim_replies.push((reply, result));
            }
            Message::ReleaseClaim { uid, reply } => {
                let result = self.release_claim(&uid)?;
                self.effects.claim_release_replies.push((reply, result));
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
                self.effects.job_replies.push(JobReply { reply, result });
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
                self.effects.job_replies.push(JobReply { reply, result });
            }
            Message::Wait {
                reference,
                milestone,
                reply,
            } => self.wait(&reference, milestone, reply)?,
            Message::RecordEvent { job, kind, text } => {
                self.record_event(Some(job), kind, &text)?
            }
            Message::Query(read) => self.effects.queries.push(read),
            Message::Watch(WatchEvent::Record(id)) => self.check_records(id)?,
            Message::Watch(WatchEvent::SupervisorEnded(id)) => self.sync_job(id)?,
            Message::Watch(WatchEvent::EventsLost) => {
                for id in self.jobs.keys().copied().collect::<Vec<_>>() {
                    self.check_records(id)?;
                }
            }
            Message::GpuMode { gpu, change, reply } => self.change_mode(&gpu, &change, reply)?,
            Message::MigGc { gc, reply } => {
                let gone = self.collect(&gc)?;
                self.effects.mig_gc_replies.push((reply, gone));
            }
            Message::MigReport(report) => self.apply_mig_report(*report)?,
            Message::CheckpointReport(report) => self.apply_checkpoint_report(*report)?,
            Message::Sampled(look) => self.apply_sample(&look)?,
            Message::ObservationFailed(why) => self.observation_failed(why)?,
            Message::Prune { past, done } => self.prune(past, done)?,
            Message::Stop => self.effects.stop = true,
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
            Err(error) => self.effects.job_replies.push(JobReply {
                reply,
                result: Err(error),
            }),
            Ok(id) => match self.jobs.get_mut(&id) {
                Some(living) => {
                    living.waiters.retain(|waiter| !waiter.reply.is_closed());
                    living.waiters.push(Waiter { milestone, reply });
                    self.effects.milestones_reached.push(id);
                    self.clear_confirmation_expiry(id);
                }
                None => self.effects.job_replies.push(JobReply {
                    reply,
                    result: Ok(id),
                }),
            },
        }
        Ok(())
    }

    /// Sends what has become answerable.
    fn send_replies(&mut self) {
        let mut reached = std::mem::take(&mut self.effects.milestones_reached);
        reached.sort_unstable();
        reached.dedup();
        for id in reached {
            let Some(living) = self.jobs.get_mut(&id) else {
                continue;
            };
            let (life, left) = (&living.job.state, living.orphans_since.is_some());
            // What it is to run on may not be there yet.
            let awaits_nothing = living.pending_instances.is_empty();
            let settled = Self::is_memory_settled(living);
            let arrived = |waiter: &mut Waiter| match (life, waiter.milestone) {
                (divvy_core::JobState::Ended { .. }, _) => true,
                (life, Milestone::MemorySettled) => {
                    settled || !matches!(life, divvy_core::JobState::Running { .. })
                }
                (divvy_core::JobState::Queued, _) | (_, Milestone::Ended) => false,
                (divvy_core::JobState::Starting { .. }, Milestone::Starting) => awaits_nothing,
                (_, Milestone::Starting) => true,
                (divvy_core::JobState::Stopping { .. }, Milestone::Released) => left,
                (life, Milestone::Bound) => !matches!(life, divvy_core::JobState::Starting { .. }),
                (_, Milestone::Released) => false,
            };
            let waiters: Vec<Waiter> = living.waiters.extract_if(.., arrived).collect();
            for waiter in waiters {
                self.effects.job_replies.push(JobReply {
                    reply: waiter.reply,
                    result: Ok(id),
                });
            }
        }
        // Whoever runs a job himself would start at once: he is told when everything that it runs on is there.
        let answers = std::mem::take(&mut self.effects.job_replies);
        let waits = |answer: &JobReply| {
            let id = answer.result.as_ref().ok();
            id.is_some_and(|id| self.runs_on_client(*id) && !self.has_all_instances(*id))
        };
        let (later, now): (Vec<JobReply>, Vec<JobReply>) = answers.into_iter().partition(waits);
        self.effects.job_replies = later;
        for JobReply { reply, result } in now {
            if !reply.is_closed() {
                let _ = reply.send(result.and_then(|id| self.job_to_api(id)));
            }
        }
        for (reply, result) in std::mem::take(&mut self.effects.array_replies) {
            let _ = reply.send(result.map(|jobs| self.summaries_of(&jobs)));
        }
        for (reply, result) in std::mem::take(&mut self.effects.project_replies) {
            let _ = reply.send(result);
        }
        for (reply, result) in std::mem::take(&mut self.effects.gpu_mode_replies) {
            let _ = reply.send(result);
        }
        for (reply, result) in std::mem::take(&mut self.effects.claim_replies) {
            let _ = reply.send(result);
        }
        for (reply, id) in std::mem::take(&mut self.effects.claim_release_replies) {
            let _ = reply.send(Ok(id));
        }
        for done in std::mem::take(&mut self.effects.prune_replies) {
            let _ = done.send(());
        }
        for (reply, gone) in std::mem::take(&mut self.effects.mig_gc_replies) {
            let _ = reply.send(Ok(gone));
        }
        self.drop_ended();
    }

    fn record_event(
        &mut self,
        job: Option<JobId>,
        kind: &str,
        text: &str,
    ) -> Result<(), StoreError> {
        let event = self.store.append_event(now(), job, kind, text)?;
        *self.counters.events.entry(kind.to_owned()).or_default() += 1;
        self.effects.events.push(event);
        Ok(())
    }

    /// In debug builds, what must hold after every step.
    fn check(&self) {
        if cfg!(debug_assertions) {
            let broken = divvy_core::invariants::check(&self.snapshot());
            assert!(broken.is_ok(), "an invariant does not hold: {broken:?}");
            self.check_active_set();
        }
    }
}

#[cfg(test)]
impl Controller {
    /// The jobs that it knows of.
    pub fn known_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|living| &living.job)
    }

    /// The MIG instances that it knows of as its own.
    pub fn instances(&self) -> &BTreeMap<MigSlot, crate::model::mig_instance::ManagedInstance> {
        self.migs.instances()
    }

    /// The place in its queue of a job that waits for its turn.
    pub fn queue_position(&self, id: JobId) -> Option<usize> {
        self.waits.get(&id).map(|wait| wait.place)
    }

    pub fn journal(&self) -> &Store {
        &self.store
    }
}
