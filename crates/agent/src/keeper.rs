//! Takes turns of compute time between the slices of the node: one thread between the slices' files and the law of the core.
//!
//! ```text
//! cycle ── keep, release ──► keeper ◄── what the slices' processes want (woken by them, or every so often)
//!                                      └──► divvy_core::lease ──► grants in the slices' control files
//! ```
//! With at most one slice that wants a GPU, the thread sleeps. It writes no journal: after a restart every slice begins
//! level with the others. When it is not heard of for a second, the slices' processes go on without it.

mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use divvy_api::v1::ComputeTime;
use divvy_core::lease::{self, Activity, Event, Terms, Turn};
use divvy_core::{self as core, Compute, JobId, Share};
use divvy_ledger::{
    Bell, Control, Demand, Grant, Lookout, OpenError, Slice, boot_time_ns, wait_for_demand,
};

use crate::clock::Instant;
use watch::Watched;

/// How often a slice that is not open is told that its grant still counts: well within the second that it waits for that.
const KEEP: Duration = Duration::from_millis(250);
/// What was used is told over this time, from moments so far apart.
const PAST: Duration = Duration::from_secs(10);
const SAMPLE: Duration = Duration::from_secs(1);
/// How often slices are looked at whose launches are watched: a small part of any time after which a job is idle.
const LOOK: Duration = Duration::from_secs(1);
/// Orders alone are no reason to look at slices of which nobody wants anything more often than this: who comes to want something wakes the
/// thread.
const AT_REST: Duration = Duration::from_millis(10);
/// How long the thread sleeps when nothing is due.
const SLEEP: Duration = Duration::from_secs(60);

/// What a slice gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// Its share in the division, in thousandths of each GPU.
    pub asked: u16,
    /// What its processes used of each GPU by their own measure, in thousandths, over the last ten seconds or since it is known.
    /// None while it has its GPUs to itself: then nothing is measured.
    pub used: Option<u16>,
    /// Time that its threads stood at the gate, all together, ever.
    pub throttled: Duration,
}

impl Got {
    pub fn shown(self) -> ComputeTime {
        ComputeTime {
            share_asked: self.asked,
            share_used: self.used,
            throttled_ms: u64::try_from(self.throttled.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The thread, for whoever tells it about slices.
pub struct Keeper {
    orders: Sender<Order>,
    bell: Arc<Bell>,
    got: Arc<Mutex<BTreeMap<JobId, Got>>>,
    /// When slices whose launches are watched were last seen to want something.
    wanted: Arc<Mutex<BTreeMap<JobId, Instant>>>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Keep {
        job: JobId,
        folder: PathBuf,
        terms: Terms,
    },
    Release {
        job: JobId,
    },
    /// GPUs, and thousandths of the time.
    Used(Vec<(u32, u32)>),
    Watch {
        job: JobId,
        folder: PathBuf,
    },
    Unwatch {
        job: JobId,
        folder: PathBuf,
    },
}

impl Keeper {
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let (orders, received) = channel();
        let (bell, got) = (Arc::new(Bell::default()), Arc::default());
        let wanted = Arc::default();
        let round = Round {
            received,
            bell: Arc::clone(&bell),
            got: Arc::clone(&got),
            wanted: Arc::clone(&wanted),
            watched: Watched::default(),
            law: lease::Keeper::default(),
            kept: BTreeMap::new(),
            told_at: Duration::ZERO,
            observed_at: None,
        };
        let thread = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || round.run())?;
        Ok(Self {
            orders,
            bell,
            got,
            wanted,
            thread: Some(thread),
        })
    }

    /// One that does nothing: nobody waits for turns in a simulation.
    #[cfg(test)]
    pub fn idle() -> Self {
        Self {
            orders: channel().0,
            bell: Arc::default(),
            got: Arc::default(),
            wanted: Arc::default(),
            thread: None,
        }
    }

    /// Has a slice take turns from now on, also one that did under an earlier agent.
    pub fn keep(&self, job: JobId, folder: &Path, grants: &[core::Grant], compute: Compute) {
        let Some(terms) = terms(grants, compute) else {
            return self.release(job);
        };
        self.order(Order::Keep {
            job,
            folder: folder.to_owned(),
            terms,
        });
    }

    /// Looks from now on whether a slice launches anything, also one that takes no turns.
    pub fn watch(&self, job: JobId, folder: &Path) {
        #[cfg(test)]
        crate::simulation::watch(job, true);
        let folder = folder.to_owned();
        self.order(Order::Watch { job, folder });
    }

    /// Looks no more, and leaves the slice as if nobody ever had.
    pub fn unwatch(&self, job: JobId, folder: &Path) {
        #[cfg(test)]
        crate::simulation::watch(job, false);
        let folder = folder.to_owned();
        self.order(Order::Unwatch { job, folder });
    }

    /// When a slice that is watched was last seen to want something.
    pub fn wanted(&self, job: JobId) -> Option<Instant> {
        #[cfg(test)]
        if self.thread.is_none() {
            return crate::simulation::wanted(job);
        }
        lock(&self.wanted).get(&job).copied()
    }

    /// The slice takes no more turns.
    pub fn release(&self, job: JobId) {
        self.order(Order::Release { job });
    }

    /// So many percent of the time the driver saw these GPUs in use lately.
    pub fn used(&self, gpus: &[(u32, u32)]) {
        if !gpus.is_empty() && !lock(&self.got).is_empty() {
            let thousandths = |(gpu, percent): &(u32, u32)| (*gpu, percent * 10);
            let order = Order::Used(gpus.iter().map(thousandths).collect());
            // Nothing follows from it at once: it is taken with whatever else wakes the thread, which while anybody is gated is `KEEP`.
            let _ = self.orders.send(order);
        }
    }

    /// What a slice got so far; `None` for one that takes no turns.
    pub fn got(&self, job: JobId) -> Option<Got> {
        lock(&self.got).get(&job).copied()
    }

    fn order(&self, order: Order) {
        // The thread ends only with this, so somebody receives.
        let _ = self.orders.send(order);
        self.bell.ring();
    }
}

/// Whoever is left runs on without turns.
impl Drop for Keeper {
    fn drop(&mut self) {
        let (closed, _) = channel();
        self.orders = closed;
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// On what terms a slice takes turns: with the share it asked for, or else the least of its shares, for it has all its GPUs at
/// once. One that has them to itself takes none, unless it asked for less.
fn terms(grants: &[core::Grant], compute: Compute) -> Option<Terms> {
    let held = grants.iter().map(|grant| grant.share).min()?;
    let is_capped = compute.share.is_some_and(|share| share < Share::FULL);
    let terms = Terms {
        gpus: grants.iter().map(|grant| grant.index).collect(),
        share: compute.share.unwrap_or(held),
        mode: compute.mode,
    };
    (held < Share::FULL || is_capped).then_some(terms)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Kept {
    control: Control,
    lookout: Lookout,
    activity: Activity,
    granted: lease::Grant,
    terms: Terms,
    /// What was put on the GPUs when it was last looked at.
    put: u64,
    throttled: Duration,
    device_time: Duration,
    /// Device time at moments about a second apart, the oldest first.
    past: VecDeque<(Duration, Duration)>,
}

struct Round {
    received: Receiver<Order>,
    bell: Arc<Bell>,
    got: Arc<Mutex<BTreeMap<JobId, Got>>>,
    law: lease::Keeper,
    kept: BTreeMap<JobId, Kept>,
    wanted: Arc<Mutex<BTreeMap<JobId, Instant>>>,
    watched: Watched,
    /// When the slices were last told that their grants count.
    told_at: Duration,
    /// When they were last looked at.
    observed_at: Option<Duration>,
}

impl Round {
    fn run(mut self) {
        // By somebody who has orders, and perhaps by nobody else.
        let mut is_called = false;
        loop {
            let seen = self.bell.seen();
            if !self.take_orders() {
                break;
            }
            let now = now();
            if !is_called || self.is_to_look(now) {
                self.observe(now);
            }
            let turn = self.law.turn(now);
            self.apply(&turn, now);
            self.look(now);
            let due = turn.again.into_iter().chain(self.next_keep()).min();
            let longest = if self.watched.is_empty() { SLEEP } else { LOOK };
            let patience = due.map_or(longest, |due| due.saturating_sub(self::now()).min(longest));
            let lookouts = self.kept.values().map(|kept| &kept.lookout);
            wait_for_demand(&self.bell, seen, lookouts, patience);
            is_called = self.bell.seen() != seen;
        }
        let now = boot_time_ns();
        for kept in self.kept.values() {
            kept.control.grant(Grant::Open, now);
        }
        self.watched.open_all(now);
    }

    /// False once nobody can order anything any more.
    fn take_orders(&mut self) -> bool {
        use std::sync::mpsc::TryRecvError;
        loop {
            match self.received.try_recv() {
                Ok(order) => self.take(order),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Keep { job, terms, .. } if self.kept.contains_key(&job) => {
                if let Some(kept) = self.kept.get_mut(&job) {
                    kept.terms = terms.clone();
                }
                self.law.on(now(), Event::Terms(job.0, terms));
            }
            Order::Keep { job, folder, terms } => match Kept::open(&folder, terms.clone()) {
                Ok(kept) => {
                    kept.control.grant(Grant::Closed, boot_time_ns());
                    self.kept.insert(job, kept);
                    self.law.on(now(), Event::Terms(job.0, terms));
                }
                // A job may end before its slice is looked at.
                Err(error) if !folder.exists() => {
                    tracing::debug!(%job, %error, "the slice does not exist any more");
                }
                Err(error) => {
                    tracing::warn!(%job, %error, "cannot schedule compute time of this slice");
                }
            },
            Order::Release { job } => self.forget(job),
            Order::Used(gpus) => {
                for (gpu, thousandths) in gpus {
                    self.law.on(now(), Event::Used(gpu, thousandths));
                }
            }
            Order::Watch { job, folder } => self.watched.begin(job, &folder),
            Order::Unwatch { job, folder } => self.unwatch(job, &folder),
        }
    }

    fn unwatch(&mut self, job: JobId, folder: &Path) {
        self.watched.end(job);
        lock(&self.wanted).remove(&job);
        match self.kept.get(&job) {
            Some(kept) => kept.control.grant(word(kept.granted), boot_time_ns()),
            None => watch::open(job, folder),
        }
    }

    /// Looks at the slices whose launches are watched.
    fn look(&mut self, now: Duration) {
        let wants = self.watched.look(nanos(now));
        if !wants.is_empty() {
            let mut wanted = lock(&self.wanted);
            wanted.extend(wants.into_iter().map(|job| (job, Instant::now())));
        }
        self.watched.hold(nanos(now));
    }

    fn forget(&mut self, job: JobId) {
        if let Some(kept) = self.kept.remove(&job) {
            kept.control.grant(Grant::Open, boot_time_ns());
        }
        self.law.on(now(), Event::Left(job.0));
        lock(&self.got).remove(&job);
    }

    /// Whether the slices are to be looked at though nobody of them may have called.
    fn is_to_look(&self, now: Duration) -> bool {
        let is_at_rest = |kept: &Kept| kept.activity.is_idle();
        !self.kept.values().all(is_at_rest) || self.observed_at.is_none_or(|at| now >= at + AT_REST)
    }

    fn observe(&mut self, now: Duration) {
        self.observed_at = Some(now);
        let mut damaged = Vec::new();
        for (job, kept) in &mut self.kept {
            match kept.lookout.demand(nanos(now)) {
                Ok(demand) => {
                    kept.note(&demand, now);
                    let mut activity = activity(&demand);
                    let has_put = std::mem::replace(&mut kept.put, demand.put) != demand.put;
                    // One that launches, waits and launches again is seen between the two every other time; at the gate it has said what is left.
                    activity.busy |= has_put && !activity.waiting;
                    if activity != kept.activity {
                        tracing::trace!(%job, ?activity, ?now);
                        kept.activity = activity;
                        self.law.on(now, Event::Seen(job.0, activity));
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
            self.forget(job);
        }
    }

    fn apply(&mut self, turn: &Turn, now: Duration) {
        for (tenant, grant) in &turn.grants {
            if let Some(kept) = self.kept.get_mut(&JobId(*tenant)) {
                tracing::trace!(tenant, ?grant, ?now, activity = ?kept.activity);
                kept.granted = *grant;
                kept.control.grant(word(*grant), nanos(now));
            }
        }
        if now >= self.told_at + KEEP {
            self.told_at = now;
            // The time by now: looking may have taken some, and who hears nothing for a second goes on ungated.
            let now = boot_time_ns();
            for kept in self.kept.values() {
                match kept.granted {
                    // One whose launches are watched is left ajar.
                    lease::Grant::Open => kept.control.keep(now),
                    // Told anew: its job may have opened the gate itself.
                    granted => kept.control.grant(word(granted), now),
                }
            }
        }
        let mut got = lock(&self.got);
        for (job, kept) in &self.kept {
            got.insert(*job, kept.got(now));
        }
    }

    fn next_keep(&self) -> Option<Duration> {
        let is_open = |kept: &Kept| kept.granted == lease::Grant::Open;
        (!self.kept.values().all(is_open)).then(|| self.told_at + KEEP)
    }
}

impl Kept {
    fn open(folder: &Path, terms: Terms) -> Result<Self, OpenError> {
        let slice = Slice::open(folder)?;
        Ok(Self {
            control: Control::open_writable(folder)?,
            lookout: Lookout::new(&slice)?,
            activity: Activity::default(),
            granted: lease::Grant::Closed,
            terms,
            put: 0,
            throttled: Duration::ZERO,
            device_time: Duration::ZERO,
            past: VecDeque::new(),
        })
    }

    fn note(&mut self, demand: &Demand, now: Duration) {
        self.throttled = Duration::from_nanos(demand.throttled);
        self.device_time = demand
            .device_time
            .iter()
            .copied()
            .map(Duration::from_nanos)
            .sum();
        if self.past.back().is_none_or(|(at, _)| now >= *at + SAMPLE) {
            self.past.push_back((now, self.device_time));
        }
        while self.past.len() > 2 && now >= self.past[1].0 + PAST {
            self.past.pop_front();
        }
    }

    fn got(&self, now: Duration) -> Got {
        let used = self.past.front().and_then(|(at, then)| {
            let gpus = self.terms.gpus.len().max(1) as u128;
            let passed = now.saturating_sub(*at).as_nanos() * gpus;
            let used = self.device_time.saturating_sub(*then).as_nanos() * 1000;
            u16::try_from(used.checked_div(passed)?.min(1000)).ok()
        });
        Got {
            asked: self.terms.share.thousandths(),
            used: used.filter(|_| self.granted != lease::Grant::Open),
            throttled: self.throttled,
        }
    }
}

fn activity(demand: &Demand) -> Activity {
    Activity {
        waiting: demand.waiting,
        busy: demand.busy,
        overdue: demand.overdue,
        asked: demand.asked,
        used: demand
            .device_time
            .into_iter()
            .map(Duration::from_nanos)
            .sum(),
    }
}

fn word(grant: lease::Grant) -> Grant {
    match grant {
        lease::Grant::Open => Grant::Open,
        lease::Grant::Bounded => Grant::Bounded,
        lease::Grant::Until(end) | lease::Grant::Visit(end) => Grant::Until(nanos(end)),
        lease::Grant::Peers(end) => Grant::Peers(nanos(end)),
        lease::Grant::Closed => Grant::Closed,
    }
}

/// The clock that the slices' files use.
fn now() -> Duration {
    Duration::from_nanos(boot_time_ns())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
