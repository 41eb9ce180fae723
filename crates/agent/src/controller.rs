//! The controller: one thread that owns the node's state, handles messages, plans, and acts.
//!
//! ```text
//! messages ──► dispatch ──► plan ──► commit ──► apply ──► reply
//!              (State, journal)      (one sync)  (slices, supervisors, signals)
//! ```
//! It decides everything about jobs, GPUs and queues of this node.
//!
//! [`State`] is plain data, [`Io`] has the journal and the sensors, and [`Effects`] collects what a round has decided. A
//! handler is a function of the parts that it needs: its signature shows what it may change. The handles that change
//! the machine are [`Actuators`], which [`apply`] and [`startup`] alone get. Kills of orphans and of stopped jobs need no
//! handle, and neither do the files of a job.
//!
//! One round takes every message in the mailbox, so that a burst costs one sync of the journal. The journal records an
//! intent before the daemon acts: a job is `starting` on disk before its slice exists, and `stopping` before its
//! signal. After a crash, the job's records show how far the daemon came.
//!
//! If the journal cannot be written, the daemon ends. Every answer that it gave is on disk, and jobs run on without a
//! daemon. On a full disk the journal uses its reserve ([`disk_full`]).
//!
//! May use: `host`, `registry`, `auth`, `compute`, `history`, `model`, `gpu`, `job_dir`, `checkpoint`, `config`, `journal`,
//! `supervisor`, `container`.
//! Used by: `http`, `daemon`, `standalone`.

mod active_set;
mod actuators;
pub mod admission;
mod apply;
mod claims;
mod disk_full;
mod dispatch;
mod effects;
mod halt;
mod io;
pub mod known_gpus;
pub mod lifecycle;
pub mod mailbox;
mod mig;
mod observe;
pub mod query;
pub mod reference;
pub mod reload;
pub mod request;
mod run_as;
pub(in crate::controller) mod runtime;
mod service;
mod sharing;
mod startup;
mod state;
mod tick;
mod waiters;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use actuators::Actuators;
use admission::user_rules::MOST_LABELS;
use divvy_core::reconcile::Watchlist;
use divvy_core::{JobId, JobState};
use io::Sensors;
use lifecycle::{container_gc, job_sync};
use runtime::ActiveJob;
use startup::ResumeSummary;
use state::history::HistoryClock;
use state::job_users::JobUsers;
use state::mig::MigManager;
use state::usage::UsageClock;
use state::{DiskState, GpuState, Jobs, QueueState, Timers};
use tokio::sync::broadcast;

use crate::checkpoint::CheckpointOps;
use crate::compute::ComputeScheduler;
use crate::config::Config;
use crate::container::gc::ContainerGc;
use crate::controller::known_gpus::StartDifferences;
use crate::controller::mailbox::{Inbox, Message};
use crate::gpu::mig::Workers;
use crate::gpu::probe::Prober;
use crate::gpu::{Device, Observer};
use crate::history::History;
use crate::host::clock::Instant;
use crate::host::disk::Disk;
use crate::journal::secrets::Secrets;
use crate::journal::{Store, StoreError};
use crate::model::event::JobEvent;
use crate::model::park_record::ParkOff;
use crate::registry::{Membership, Registry};
use crate::supervisor::watch::Watch;
pub use effects::Effects;
pub use io::Io;
pub use query::exec_target::{ExecEnvironment, ExecTarget};
#[cfg(test)]
pub use query::queries::Queries;
pub use state::State;
#[cfg(test)]
pub use state::TICK;
#[cfg(test)]
pub use state::mig::MigCounts;

/// Most messages that one round takes, and the longest time that it goes on taking them. Both bound the delay of an
/// answer: a round of small messages is over before, and large ones get rounds of their own.
const BATCH: usize = 256;
const ROUND: Duration = Duration::from_millis(50);

/// How long reads may delay the next round. Rounds take 50 ms at most, so a pending change is no later than 70 ms; half
/// would delay each of many readers (048).
const READS: Duration = Duration::from_millis(20);

/// The node's state, the handles, and the effects of the current round.
pub struct Controller {
    state: State,
    io: Io,
    actuators: Actuators,
    fx: Effects,
}

/// The arguments of [`Controller::new`].
pub struct ControllerParts {
    pub config: Config,
    pub store: Store,
    pub watch: Option<Watch>,
    pub events: broadcast::Sender<Arc<JobEvent>>,
    pub devices: Vec<Device>,
    pub start: StartDifferences,
    pub observer: Arc<Observer>,
    pub compute_scheduler: ComputeScheduler,
    pub workers: Workers,
    /// How the daemon takes part in the machine's registry of allocations; `None` for a machine of its own.
    pub registry: Option<Membership>,
    pub checkpoint_ops: CheckpointOps,
    pub prober: Prober,
    /// `None`: no history is kept.
    pub history: Option<Arc<History>>,
    /// Number of jobs that the journal recovered from their job records.
    pub recovered: u32,
}

impl Controller {
    /// Loads the state from the journal; [`Controller::resume`] then compares it with the machine.
    ///
    /// # Errors
    /// When the journal cannot be read or contradicts itself.
    pub fn new(parts: ControllerParts) -> Result<Self, StoreError> {
        let ControllerParts {
            config,
            store,
            watch,
            events,
            devices,
            start,
            observer,
            compute_scheduler,
            workers,
            registry,
            checkpoint_ops,
            prober,
            history,
            recovered,
        } = parts;
        let active: BTreeMap<JobId, Box<ActiveJob>> = store
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
        let labels = store.labels(MOST_LABELS)?;
        let mut state = State {
            jobs: Jobs {
                active,
                park_off: store
                    .setting(ParkOff::SETTING)?
                    .and_then(|text| ParkOff::of_setting(&text)),
                recovered,
                ..Jobs::default()
            },
            mig: MigManager::new(store.migs()?),
            gpus: GpuState {
                devices,
                start,
                recorded: BTreeMap::new(),
                lost: BTreeSet::new(),
                unobserved: None,
                observation_error: None,
                watchlist: Watchlist::default(),
                bypasses,
                accounts_only: HashSet::new(),
                worker_holds: Vec::new(),
                observed_at: 0,
                leftovers: Vec::new(),
                watch: BTreeMap::new(),
            },
            queues: QueueState {
                cursor,
                head,
                projects,
                labels,
                users: JobUsers::default(),
                replan_at: None,
                is_contended: false,
            },
            disk: DiskState::default(),
            timers: Timers {
                usage_clock: UsageClock::new(),
                last_idle_check: Instant::now(),
                history: HistoryClock {
                    is_kept: history.is_some(),
                    ..HistoryClock::default()
                },
            },
            children: Vec::new(),
            estimates: OnceCell::new(),
        };
        let registry = match registry {
            Some(membership) => membership.join(&sharing::held(&state.jobs, &state.gpus)),
            None => Registry::absent(),
        };
        let compute_scheduler = Arc::new(compute_scheduler);
        let io = Io {
            secrets: Secrets::below(config.home.state()),
            sensors: Sensors::new(
                Arc::clone(&observer),
                Arc::clone(&compute_scheduler),
                Disk::of(config.home.state()),
            ),
            config,
            store,
            registry,
        };
        let actuators = Actuators {
            watch,
            events,
            observer,
            compute_scheduler,
            checkpoint_ops,
            prober,
            history,
            workers,
        };
        admission::user_rules::learn_users(&mut state, &io);
        admission::text_budget::count_texts(&mut state.jobs, &io)?;
        let fx = Effects {
            replan: true,
            ..Effects::default()
        };
        Ok(Self {
            state,
            io,
            actuators,
            fx,
        })
    }

    /// Runs rounds until a message stops the controller.
    ///
    /// # Errors
    /// When the journal fails: the controller may confirm nothing more, and everything that it confirmed is on disk.
    pub fn run(mut self, mut messages: Inbox) -> Result<(), StoreError> {
        let mut tick = Instant::now();
        loop {
            let interval = apply::tick_interval(&self.state.jobs, &self.state.children);
            let is_due = !self.fx.jobs.recheck.is_empty() || self.fx.replan;
            let patience = match is_due {
                false => (tick + interval).saturating_duration_since(Instant::now()),
                true => Duration::ZERO,
            };
            if messages.wait(patience).is_err() {
                return Ok(());
            }
            let ticks = tick.elapsed() >= interval;
            if ticks {
                tick = Instant::now();
            }
            // Reads alone change nothing.
            if ticks || is_due || messages.has_calls() {
                self.run_once(messages.round(BATCH, ROUND), ticks)?;
            }
            let Self { state, io, fx, .. } = &self;
            messages.read(READS, |read| read(state, io, fx));
            if self.fx.stop {
                return Ok(());
            }
        }
    }

    /// One round: handles these messages, checks every active job if `ticks`, plans, commits and applies.
    ///
    /// # Errors
    /// When the journal fails; then the round has no effect.
    pub fn run_once(
        &mut self,
        messages: impl Iterator<Item = Message>,
        ticks: bool,
    ) -> Result<(), StoreError> {
        let Self {
            state,
            io,
            actuators,
            fx,
        } = self;
        state.estimates.take();
        let has_changed = disk_full::check_disk(&mut state.disk, fx, io, ticks)?;
        io.store.begin()?;
        if has_changed {
            disk_full::report_disk(&state.disk, fx, io)?;
        }
        for id in std::mem::take(&mut fx.jobs.recheck) {
            job_sync::sync_job(state, fx, io, id)?;
        }
        for message in messages {
            match message {
                // The one message that changes the configuration, for all messages after it.
                Message::Reload { read, reply } => reload::reload(state, fx, io, *read, reply)?,
                message => dispatch::handle(state, fx, io, message)?,
            }
        }
        if ticks {
            tick::sweep(state, fx, io)?;
        }
        apply::commit_and_apply(state, fx, io, actuators)?;
        // A reply of this round may have copied a state that changed after it.
        state.estimates.take();
        Ok(())
    }

    /// Compares the journal with the machine after a start.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn resume(&mut self) -> Result<ResumeSummary, StoreError> {
        startup::resume(&mut self.state, &mut self.fx, &self.io, &self.actuators)
    }

    /// A job that a build with another record format started, and that still runs.
    pub fn job_of_earlier_build(&self) -> Option<JobId> {
        startup::job_of_earlier_build(&self.state.jobs, &self.io)
    }

    /// The jobs that have processes, or may have some.
    pub fn living(&self) -> BTreeSet<JobId> {
        let jobs = &self.state.jobs;
        let active = jobs.active.iter();
        let started = active.filter(|(_, active)| active.job.state != JobState::Queued);
        let started = started.map(|(id, _)| *id);
        started.chain(jobs.unjournaled.keys().copied()).collect()
    }

    /// Reserves disk space for the journal.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn reserve(&mut self) -> Result<(), StoreError> {
        disk_full::reserve(&mut self.state.disk, &mut self.fx, &self.io)
    }

    /// The input of the garbage collection of containers.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn container_gc(&self) -> Result<ContainerGc, StoreError> {
        container_gc::container_gc(&self.state.jobs, &self.io)
    }

    /// Read access for queries.
    #[cfg(test)]
    pub fn queries(&self) -> Queries<'_> {
        Queries {
            state: &self.state,
            io: &self.io,
            fx: &self.fx,
        }
    }
}
