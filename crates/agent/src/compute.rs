//! The compute scheduler: one thread that writes the leases of compute time, decided by the core, into the slices'
//! files.
//!
//! May use: `host`.
//! Used by: `controller`, `daemon`.
//!
//! ```text
//! controller ── keep, release ──► scheduler ◄── demand of the slices' processes (woken by them, or periodically)
//!                                     └──► divvy_core::lease ──► grants in the slices' control files
//! ```
//! With at most one slice that wants a GPU, the thread sleeps. It writes no journal: after a restart every slice begins
//! level with the others. When it gives no sign for a second, the slices' processes go on without it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use divvy_api::sync::lock;
use divvy_api::v1::{ComputeTime, LatencyTime};
use divvy_core::lease::{self, Activity, Decision, TenantConfig, TenantEvent};
use divvy_core::{self as core, Compute, JobId, LatencyGoal, Share};
use divvy_ledger::{
    Control, Demand, DemandReader, Forgery, Grant, OpenError, Slice, Waker, boot_time_ns,
    wait_for_demand,
};
use latency_window::LatencyWindow;
use launch_watch::LaunchWatches;
use parked_gate::ParkedGates;

use crate::host::clock::Instant;

/// How often the scheduler renews the grant of a slice whose gate is not open: well within the second after which the
/// slice goes on ungated.
const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(250);
/// The reported usage covers this time, in samples that are `SAMPLE` apart. So ten samples: fewer would jump with each
/// turn, and more would show a job that has ended.
const PAST: Duration = Duration::from_secs(10);
const SAMPLE: Duration = Duration::from_secs(1);
/// Interval of checking the slices with watched launches: a small part of any time after which a job is idle. Half
/// would only double the reads.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Commands alone do not raise the polling rate of slices without demand: a process that wants the GPU wakes the
/// thread. A new command waits no longer than that; a shorter pause would take processor time for nothing.
const AT_REST: Duration = Duration::from_millis(10);
/// How long the thread sleeps when nothing is due. An event wakes it, so any length would do; a minute bounds the harm
/// of a lost one.
const SLEEP: Duration = Duration::from_secs(60);

/// What a slice gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeUsage {
    /// Its share in the division, in thousandths of each GPU.
    pub share: u16,
    /// What its processes used of each GPU by their own measure, in thousandths, over the last ten seconds or since it
    /// is known. None while it has its GPUs to itself: then nothing is measured.
    pub used: Option<u16>,
    /// Time that its threads stood at the gate, all together, ever.
    pub throttled: Duration,
    /// What a process other than the daemon wrote over its grants.
    pub forged: Option<Forgery>,
    /// Its requests of the last minute, if it has a latency goal.
    pub latency: Option<LatencyTime>,
}

impl ComputeUsage {
    pub fn to_api(self) -> ComputeTime {
        ComputeTime {
            share_asked: self.share,
            share_used: self.used,
            throttled_ms: u64::try_from(self.throttled.as_millis()).unwrap_or(u64::MAX),
            latency: self.latency,
        }
    }
}

/// A command to the scheduler.
pub enum SchedulerCommand {
    AddSlice {
        job: JobId,
        folder: PathBuf,
        terms: TenantConfig,
    },
    RemoveSlice {
        job: JobId,
    },
    /// GPUs, and thousandths of the time.
    Utilization(Vec<(u32, u32)>),
    Watch {
        job: JobId,
        folder: PathBuf,
    },
    Unwatch {
        job: JobId,
        folder: PathBuf,
    },
    Park {
        job: JobId,
        folder: PathBuf,
    },
}

/// Where the thread reports the call of a parked job that needs its memory.
pub type WakeReporter = Box<dyn Fn(JobId, String) + Send>;

/// A scheduler of compute time: its thread, or what a test has in its place.
pub trait Scheduler: Send + Sync {
    fn send(&self, command: SchedulerCommand);

    /// As [`ComputeScheduler::last_demand`].
    fn last_demand(&self, job: JobId) -> Option<Instant>;

    /// As [`ComputeScheduler::usage`].
    fn usage(&self, job: JobId) -> Option<ComputeUsage>;
}

/// The controller's handle of the scheduler.
pub struct ComputeScheduler(Box<dyn Scheduler>);

impl ComputeScheduler {
    pub fn new(scheduler: impl Scheduler + 'static) -> Self {
        Self(Box::new(scheduler))
    }

    /// # Errors
    /// The thread cannot be started.
    pub fn start(wakes: WakeReporter) -> io::Result<Self> {
        Ok(Self::new(ThreadHandle::start(wakes)?))
    }

    /// Has a slice take turns from now on, also one that did under an earlier daemon.
    pub fn add_slice(&self, job: JobId, folder: &Path, grants: &[core::Grant], compute: Compute) {
        let Some(terms) = tenant_config(grants, compute) else {
            return self.remove_slice(job);
        };
        self.0.send(SchedulerCommand::AddSlice {
            job,
            folder: folder.to_owned(),
            terms,
        });
    }

    /// Watches from now on whether a slice launches anything, also a slice that takes no turns.
    pub fn watch(&self, job: JobId, folder: &Path) {
        let folder = folder.to_owned();
        self.0.send(SchedulerCommand::Watch { job, folder });
    }

    /// Stops polling, and leaves the slice as it was before.
    pub fn unwatch(&self, job: JobId, folder: &Path) {
        let folder = folder.to_owned();
        self.0.send(SchedulerCommand::Unwatch { job, folder });
    }

    /// Has each call of a parked job wait that needs its GPUs, and reports the first one. Until the slice is added or
    /// removed.
    pub fn park(&self, job: JobId, folder: &Path) {
        let folder = folder.to_owned();
        self.0.send(SchedulerCommand::Park { job, folder });
    }

    /// When a slice that is watched was last seen to want something.
    pub fn last_demand(&self, job: JobId) -> Option<Instant> {
        self.0.last_demand(job)
    }

    /// The slice takes no more turns.
    pub fn remove_slice(&self, job: JobId) {
        self.0.send(SchedulerCommand::RemoveSlice { job });
    }

    /// So many percent of the time the driver saw these GPUs in use lately.
    pub fn report_utilization(&self, gpus: &[(u32, u32)]) {
        if !gpus.is_empty() {
            let thousandths = |(gpu, percent): &(u32, u32)| (*gpu, percent * 10);
            let gpus = gpus.iter().map(thousandths).collect();
            self.0.send(SchedulerCommand::Utilization(gpus));
        }
    }

    /// What a slice got so far; `None` for one that takes no turns.
    pub fn usage(&self, job: JobId) -> Option<ComputeUsage> {
        self.0.usage(job)
    }
}

/// The scheduler's thread, as its starter has it.
struct ThreadHandle {
    commands: Sender<SchedulerCommand>,
    waker: Arc<Waker>,
    usage: Arc<Mutex<BTreeMap<JobId, ComputeUsage>>>,
    /// The time at which each slice with watched launches was last seen to want the GPU.
    last_demand: Arc<Mutex<BTreeMap<JobId, Instant>>>,
    thread: Option<JoinHandle<()>>,
}

impl ThreadHandle {
    fn start(wakes: WakeReporter) -> io::Result<Self> {
        let (orders, received) = channel();
        let (bell, got) = (Arc::new(Waker::default()), Arc::default());
        let wanted = Arc::default();
        let round = SchedulerThread {
            received,
            waker: Arc::clone(&bell),
            usage: Arc::clone(&got),
            last_demand: Arc::clone(&wanted),
            watched: LaunchWatches::default(),
            parked: ParkedGates::new(wakes),
            arbiter: lease::Arbiter::default(),
            slices: BTreeMap::new(),
            last_keepalive: Duration::ZERO,
            observed_at: None,
        };
        let thread = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || round.run())?;
        Ok(Self {
            commands: orders,
            waker: bell,
            usage: got,
            last_demand: wanted,
            thread: Some(thread),
        })
    }
}

impl Scheduler for ThreadHandle {
    fn send(&self, command: SchedulerCommand) {
        // Nothing follows from utilisation at once: the thread takes it with the next command or timeout, which while a
        // slice is gated is `KEEPALIVE_INTERVAL` away.
        let wakes = !matches!(command, SchedulerCommand::Utilization(_));
        if !wakes && lock(&self.usage).is_empty() {
            return;
        }
        // The thread ends only with this handle, so the channel has a receiver.
        let _ = self.commands.send(command);
        if wakes {
            self.waker.wake();
        }
    }

    fn last_demand(&self, job: JobId) -> Option<Instant> {
        lock(&self.last_demand).get(&job).copied()
    }

    fn usage(&self, job: JobId) -> Option<ComputeUsage> {
        lock(&self.usage).get(&job).copied()
    }
}

/// Slices that are left run on without turns.
impl Drop for ThreadHandle {
    fn drop(&mut self) {
        let (closed, _) = channel();
        self.commands = closed;
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// On what terms a slice takes turns: with the share it asked for, or else the least of its shares, for it has all its
/// GPUs at once. One that has them to itself takes none, unless it asked for less.
fn tenant_config(grants: &[core::Grant], compute: Compute) -> Option<TenantConfig> {
    let held = grants.iter().map(|grant| grant.share).min()?;
    let is_capped = compute.share.is_some_and(|share| share < Share::FULL);
    let terms = TenantConfig {
        gpus: grants.iter().map(|grant| grant.index).collect(),
        share: compute.share.unwrap_or(held),
        mode: compute.mode,
        goal: compute.latency.map(LatencyGoal::duration),
    };
    (held < Share::FULL || is_capped).then_some(terms)
}

struct ScheduledSlice {
    control: Control,
    demand_reader: DemandReader,
    activity: Activity,
    lease: lease::Lease,
    config: TenantConfig,
    /// The load of the GPUs at the last check.
    submitted: u64,
    throttled: Duration,
    device_time: Duration,
    /// Device time at moments about a second apart, the oldest first.
    usage_samples: VecDeque<(Duration, Duration)>,
    latency: LatencyWindow,
}

struct SchedulerThread {
    received: Receiver<SchedulerCommand>,
    waker: Arc<Waker>,
    usage: Arc<Mutex<BTreeMap<JobId, ComputeUsage>>>,
    arbiter: lease::Arbiter,
    slices: BTreeMap<JobId, ScheduledSlice>,
    last_demand: Arc<Mutex<BTreeMap<JobId, Instant>>>,
    watched: LaunchWatches,
    parked: ParkedGates,
    /// When the slices were last told that their grants count.
    last_keepalive: Duration,
    /// The time of the last check.
    observed_at: Option<Duration>,
}

impl SchedulerThread {
    fn run(mut self) {
        // Woken by a sender of commands, and perhaps by no other.
        let mut is_called = false;
        loop {
            let seen = self.waker.epoch();
            if !self.drain_commands() {
                break;
            }
            let now = now();
            if !is_called || self.needs_observation(now) {
                self.observe(now);
            }
            let turn = self.arbiter.decide(now);
            self.apply(&turn, now);
            self.check_watched(now);
            self.parked.check();
            let due = turn.wake_at.into_iter().chain(self.next_keepalive()).min();
            let longest = if self.watched.is_empty() {
                SLEEP
            } else {
                WATCH_INTERVAL
            };
            let patience = due.map_or(longest, |due| due.saturating_sub(self::now()).min(longest));
            let lookouts = self.slices.values().map(|kept| &kept.demand_reader);
            let lookouts = lookouts.chain(self.parked.readers());
            wait_for_demand(&self.waker, seen, lookouts, patience);
            is_called = self.waker.epoch() != seen;
        }
        let now = boot_time_ns();
        for kept in self.slices.values() {
            kept.control.grant(Grant::Open, now);
        }
        self.watched.open_all(now);
    }

    /// False once all senders are gone.
    fn drain_commands(&mut self) -> bool {
        use std::sync::mpsc::TryRecvError;
        loop {
            match self.received.try_recv() {
                Ok(order) => self.handle(order),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn handle(&mut self, order: SchedulerCommand) {
        if let SchedulerCommand::AddSlice { job, .. } | SchedulerCommand::RemoveSlice { job } =
            &order
        {
            self.parked.end(*job);
        }
        match order {
            SchedulerCommand::Park { job, folder } => {
                self.forget(job);
                self.parked.begin(job, &folder);
            }
            SchedulerCommand::AddSlice { job, terms, .. } if self.slices.contains_key(&job) => {
                if let Some(kept) = self.slices.get_mut(&job) {
                    kept.config = terms.clone();
                }
                self.arbiter
                    .handle(now(), TenantEvent::Configured(job.0, terms));
            }
            SchedulerCommand::AddSlice { job, folder, terms } => {
                match ScheduledSlice::open(&folder, terms.clone()) {
                    Ok(kept) => {
                        kept.control.grant(Grant::Closed, boot_time_ns());
                        self.slices.insert(job, kept);
                        self.arbiter
                            .handle(now(), TenantEvent::Configured(job.0, terms));
                    }
                    // A job may end before its slice is checked.
                    Err(error) if !folder.exists() => {
                        tracing::debug!(%job, %error, "the slice does not exist any more");
                    }
                    Err(error) => {
                        tracing::warn!(%job, %error, "cannot schedule compute time of this slice");
                    }
                }
            }
            SchedulerCommand::RemoveSlice { job } => self.remove(job),
            SchedulerCommand::Utilization(gpus) => {
                for (gpu, thousandths) in gpus {
                    self.arbiter
                        .handle(now(), TenantEvent::DriverUtilisation(gpu, thousandths));
                }
            }
            SchedulerCommand::Watch { job, folder } => self.watched.begin(job, &folder),
            SchedulerCommand::Unwatch { job, folder } => self.unwatch(job, &folder),
        }
    }

    fn unwatch(&mut self, job: JobId, folder: &Path) {
        self.watched.end(job);
        lock(&self.last_demand).remove(&job);
        match self.slices.get(&job) {
            // Its gate is not the watch's to open.
            _ if self.parked.has(job) => {}
            Some(kept) => kept
                .control
                .grant(to_ledger_grant(kept.lease), boot_time_ns()),
            None => launch_watch::open_gate(job, folder),
        }
    }

    /// Checks the slices with watched launches.
    fn check_watched(&mut self, now: Duration) {
        let wants = self.watched.poll_launches(nanos(now));
        if !wants.is_empty() {
            let mut wanted = lock(&self.last_demand);
            wanted.extend(wants.into_iter().map(|job| (job, Instant::now())));
        }
        self.watched.bound_open_gates(nanos(now));
    }

    fn remove(&mut self, job: JobId) {
        if let Some(kept) = self.slices.get(&job) {
            kept.control.grant(Grant::Open, boot_time_ns());
        }
        self.forget(job);
    }

    /// Leaves the gate of the slice as it is.
    fn forget(&mut self, job: JobId) {
        self.slices.remove(&job);
        self.arbiter.handle(now(), TenantEvent::Left(job.0));
        lock(&self.usage).remove(&job);
    }

    /// Whether the slices are polled although no process may have called.
    fn needs_observation(&self, now: Duration) -> bool {
        let is_at_rest = |kept: &ScheduledSlice| kept.activity.is_idle();
        !self.slices.values().all(is_at_rest)
            || self.observed_at.is_none_or(|at| now >= at + AT_REST)
    }

    fn observe(&mut self, now: Duration) {
        self.observed_at = Some(now);
        let mut damaged = Vec::new();
        for (job, kept) in &mut self.slices {
            match kept.demand_reader.demand(nanos(now)) {
                Ok(demand) => {
                    kept.record_demand(&demand, now);
                    let mut activity = activity(&demand);
                    let has_put = std::mem::replace(&mut kept.submitted, demand.submitted)
                        != demand.submitted;
                    // One that launches, waits and launches again is seen between the two every other time; at the gate
                    // it has said what is left.
                    activity.busy |= has_put && !activity.waiting;
                    if activity != kept.activity {
                        tracing::trace!(%job, ?activity, ?now);
                        kept.activity = activity;
                        self.arbiter
                            .handle(now, TenantEvent::Observed(job.0, activity));
                    }
                }
                Err(error) => {
                    tracing::warn!(%job, %error, "cannot read this slice; the compute scheduler gives it no further \
                        turns");
                    damaged.push(*job);
                }
            }
        }
        for job in damaged {
            self.remove(job);
        }
    }

    fn apply(&mut self, turn: &Decision, now: Duration) {
        for (tenant, grant) in &turn.leases {
            if let Some(kept) = self.slices.get_mut(&JobId(*tenant)) {
                tracing::trace!(tenant, ?grant, ?now, activity = ?kept.activity);
                kept.lease = *grant;
                kept.control.grant(to_ledger_grant(*grant), nanos(now));
            }
        }
        for (tenant, ahead) in &turn.ahead {
            if let Some(kept) = self.slices.get(&JobId(*tenant)) {
                kept.control.set_ahead(nanos(*ahead));
            }
        }
        if now >= self.last_keepalive + KEEPALIVE_INTERVAL {
            self.last_keepalive = now;
            // The present time: polling may have taken a while, and a process that gets no grant for a second goes on
            // ungated.
            let now = boot_time_ns();
            self.parked.renew(now);
            for kept in self.slices.values() {
                match kept.lease {
                    // A slice with watched launches is left ajar.
                    lease::Lease::Open => kept.control.refresh_grant(now),
                    // Told anew: its job may have opened the gate itself.
                    granted => kept.control.grant(to_ledger_grant(granted), now),
                }
            }
        }
        for served in &turn.served {
            if let Some(kept) = self.slices.get_mut(&JobId(served.tenant)) {
                kept.latency.record(now, *served);
            }
        }
        let mut got = lock(&self.usage);
        for (job, kept) in &mut self.slices {
            got.insert(*job, kept.usage(now, self.arbiter.is_over_share(job.0)));
        }
    }

    fn next_keepalive(&self) -> Option<Duration> {
        let is_open = |kept: &ScheduledSlice| kept.lease == lease::Lease::Open;
        let is_gated = !self.slices.values().all(is_open) || !self.parked.is_empty();
        is_gated.then(|| self.last_keepalive + KEEPALIVE_INTERVAL)
    }
}

impl ScheduledSlice {
    fn open(folder: &Path, terms: TenantConfig) -> Result<Self, OpenError> {
        let (control, demand_reader) = gate_and_demand(folder)?;
        Ok(Self {
            control,
            demand_reader,
            activity: Activity::default(),
            lease: lease::Lease::Closed,
            config: terms,
            submitted: 0,
            throttled: Duration::ZERO,
            device_time: Duration::ZERO,
            usage_samples: VecDeque::new(),
            latency: LatencyWindow::default(),
        })
    }

    fn record_demand(&mut self, demand: &Demand, now: Duration) {
        self.throttled = Duration::from_nanos(demand.throttled_ns);
        self.device_time = demand
            .device_time
            .iter()
            .copied()
            .map(Duration::from_nanos)
            .sum();
        if self
            .usage_samples
            .back()
            .is_none_or(|(at, _)| now >= *at + SAMPLE)
        {
            self.usage_samples.push_back((now, self.device_time));
        }
        while self.usage_samples.len() > 2 && now >= self.usage_samples[1].0 + PAST {
            self.usage_samples.pop_front();
        }
    }

    fn usage(&mut self, now: Duration, over_share: bool) -> ComputeUsage {
        let goal = self.config.goal;
        let latency = goal.map(|goal| self.latency.summary(now, goal, over_share));
        let used = self.usage_samples.front().and_then(|(at, then)| {
            let gpus = self.config.gpus.len().max(1) as u128;
            let passed = now.saturating_sub(*at).as_nanos() * gpus;
            let used = self.device_time.saturating_sub(*then).as_nanos() * 1000;
            u16::try_from(used.checked_div(passed)?.min(1000)).ok()
        });
        ComputeUsage {
            share: self.config.share.thousandths(),
            used: used.filter(|_| self.lease != lease::Lease::Open),
            throttled: self.throttled,
            forged: self.control.forged_gate(),
            latency,
        }
    }
}

/// The gate of a slice, to write, and the demand of its processes.
fn gate_and_demand(folder: &Path) -> Result<(Control, DemandReader), OpenError> {
    let slice = Slice::open(folder)?;
    Ok((Control::open_writable(folder)?, DemandReader::new(&slice)?))
}

fn activity(demand: &Demand) -> Activity {
    Activity {
        waiting: demand.waiting,
        busy: demand.busy,
        overdue: demand.overdue,
        requests: demand.requests,
        workers: demand.workers,
        ends_at: Duration::from_nanos(demand.ends_at),
        used: demand
            .device_time
            .into_iter()
            .map(Duration::from_nanos)
            .sum(),
    }
}

fn to_ledger_grant(grant: lease::Lease) -> Grant {
    match grant {
        lease::Lease::Open => Grant::Open,
        lease::Lease::Bounded => Grant::Bounded,
        lease::Lease::Until(end) | lease::Lease::Visit(end) => Grant::Until(nanos(end)),
        lease::Lease::Peers(end) => Grant::Peers(nanos(end)),
        lease::Lease::Closed => Grant::Closed,
    }
}

/// The clock that the slices' files use.
fn now() -> Duration {
    Duration::from_nanos(boot_time_ns())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

mod latency_window;
mod launch_watch;
pub(crate) mod parked_gate;
#[cfg(test)]
mod tests;
