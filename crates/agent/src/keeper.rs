//! Takes turns of compute time between the slices of the node: one thread between the slices' files and the law of the core.
//!
//! ```text
//! cycle ── Keep, Change, Release ──► keeper ◄── what the slices' processes want (woken by them, or every so often)
//!                                      └──► divvy_core::lease ──► grants in the slices' control files
//! ```
//! With at most one slice that wants a GPU, the thread sleeps. It writes no journal: after a restart every slice begins
//! level with the others. When it is not heard of for a second, the slices' processes go on without it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use divvy_core::lease::{self, Activity, Event, Terms, Turn};
use divvy_core::{self as core, ComputeMode, JobId, Share};
use divvy_ledger::{
    Bell, Control, Demand, Grant, Lookout, OpenError, Slice, boot_time_ns, wait_for_demand,
};

/// How often a slice that is not open is told that its grant still counts: well within the second that it waits for that.
const KEEP: Duration = Duration::from_millis(250);
/// How long the thread sleeps when nothing is due.
const SLEEP: Duration = Duration::from_secs(60);

/// What a slice got so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// Time that it had its GPUs to itself while others may have wanted them.
    pub held: Duration,
    /// Time that its threads stood at the gate, all together.
    pub throttled: Duration,
    /// Whether it has to wait for turns at this time.
    pub gated: bool,
}

/// The thread, for whoever tells it about slices.
pub struct Keeper {
    orders: Sender<Order>,
    bell: Arc<Bell>,
    got: Arc<Mutex<BTreeMap<JobId, Got>>>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Keep {
        job: JobId,
        folder: PathBuf,
        terms: Terms,
    },
    Change {
        job: JobId,
        terms: Terms,
    },
    Release {
        job: JobId,
    },
}

impl Keeper {
    /// # Errors
    /// The thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let (orders, received) = channel();
        let (bell, got) = (Arc::new(Bell::default()), Arc::default());
        let round = Round {
            received,
            bell: Arc::clone(&bell),
            got: Arc::clone(&got),
            law: lease::Keeper::default(),
            kept: BTreeMap::new(),
            told_at: Duration::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || round.run())?;
        Ok(Self {
            orders,
            bell,
            got,
            thread: Some(thread),
        })
    }

    /// Has a slice take turns from now on, also one that did under an earlier agent. One that has its GPUs to itself takes none.
    pub fn keep(&self, job: JobId, folder: &Path, grants: &[core::Grant], mode: ComputeMode) {
        let Some(terms) = terms(grants, mode) else {
            return;
        };
        self.order(Order::Keep {
            job,
            folder: folder.to_owned(),
            terms,
        });
    }

    /// Changes share or mode while the slice goes on.
    pub fn change(&self, job: JobId, grants: &[core::Grant], mode: ComputeMode) {
        if let Some(terms) = terms(grants, mode) {
            self.order(Order::Change { job, terms });
        }
    }

    /// The slice is gone.
    pub fn release(&self, job: JobId) {
        self.order(Order::Release { job });
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

/// On what terms a slice takes turns: with the least of its shares, for it has all its GPUs at once.
fn terms(grants: &[core::Grant], mode: ComputeMode) -> Option<Terms> {
    let share = grants.iter().map(|grant| grant.share).min()?;
    let gpus = grants.iter().map(|grant| grant.index).collect();
    (share < Share::FULL).then_some(Terms { gpus, share, mode })
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Kept {
    control: Control,
    lookout: Lookout,
    activity: Activity,
    granted: lease::Grant,
    throttled: Duration,
}

struct Round {
    received: Receiver<Order>,
    bell: Arc<Bell>,
    got: Arc<Mutex<BTreeMap<JobId, Got>>>,
    law: lease::Keeper,
    kept: BTreeMap<JobId, Kept>,
    /// When the slices were last told that their grants count.
    told_at: Duration,
}

impl Round {
    fn run(mut self) {
        loop {
            let seen = self.bell.seen();
            if !self.take_orders() {
                break;
            }
            let now = now();
            self.observe(now);
            let turn = self.law.turn(now);
            self.apply(&turn, now);
            let due = turn.again.into_iter().chain(self.next_keep()).min();
            let patience = due.map_or(SLEEP, |due| due.saturating_sub(self::now()).min(SLEEP));
            let lookouts = self.kept.values().map(|kept| &kept.lookout);
            wait_for_demand(&self.bell, seen, lookouts, patience);
        }
        let now = boot_time_ns();
        for kept in self.kept.values() {
            kept.control.grant(Grant::Open, now);
        }
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
            Order::Keep { job, folder, terms } => match Kept::open(&folder) {
                Ok(kept) => {
                    kept.control.grant(Grant::Closed, boot_time_ns());
                    self.kept.insert(job, kept);
                    self.law.on(now(), Event::Terms(job.0, terms));
                }
                Err(error) => {
                    tracing::warn!(%job, %error, "compute time is not shared with this slice");
                }
            },
            Order::Change { job, terms } => {
                if self.kept.contains_key(&job) {
                    self.law.on(now(), Event::Terms(job.0, terms));
                }
            }
            Order::Release { job } => self.forget(job),
        }
    }

    fn forget(&mut self, job: JobId) {
        self.kept.remove(&job);
        self.law.on(now(), Event::Left(job.0));
        lock(&self.got).remove(&job);
    }

    fn observe(&mut self, now: Duration) {
        let mut damaged = Vec::new();
        for (job, kept) in &mut self.kept {
            match kept.lookout.demand(nanos(now)) {
                Ok(demand) => {
                    kept.throttled = Duration::from_nanos(demand.throttled);
                    let activity = activity(&demand);
                    if activity != kept.activity {
                        tracing::trace!(%job, ?activity, ?now);
                        kept.activity = activity;
                        self.law.on(now, Event::Seen(job.0, activity));
                    }
                }
                Err(error) => {
                    tracing::warn!(%job, %error, "this slice takes no more turns of compute time");
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
            for kept in self.kept.values() {
                kept.control.keep(nanos(now));
            }
        }
        let mut got = lock(&self.got);
        for (job, kept) in &self.kept {
            let held = self.law.held(job.0).unwrap_or_default();
            let gated = is_gated(kept.granted);
            got.insert(
                *job,
                Got {
                    held,
                    throttled: kept.throttled,
                    gated,
                },
            );
        }
    }

    fn next_keep(&self) -> Option<Duration> {
        let gated = |kept: &Kept| is_gated(kept.granted);
        self.kept.values().any(gated).then(|| self.told_at + KEEP)
    }
}

impl Kept {
    fn open(folder: &Path) -> Result<Self, OpenError> {
        let slice = Slice::open(folder)?;
        Ok(Self {
            control: Control::open_writable(folder)?,
            lookout: Lookout::new(&slice)?,
            activity: Activity::default(),
            granted: lease::Grant::Closed,
            throttled: Duration::ZERO,
        })
    }
}

fn activity(demand: &Demand) -> Activity {
    Activity {
        waiting: demand.waiting,
        busy: demand.busy,
        overdue: demand.overdue,
        asked: demand.asked,
    }
}

fn word(grant: lease::Grant) -> Grant {
    match grant {
        lease::Grant::Open => Grant::Open,
        lease::Grant::Bounded => Grant::Bounded,
        lease::Grant::Until(end) => Grant::Until(nanos(end)),
        lease::Grant::Peers(end) => Grant::Peers(nanos(end)),
        lease::Grant::Closed => Grant::Closed,
    }
}

/// Whether a slice's processes look at the time, or wait.
fn is_gated(grant: lease::Grant) -> bool {
    !matches!(grant, lease::Grant::Open | lease::Grant::Bounded)
}

/// The clock that the slices' files use.
fn now() -> Duration {
    Duration::from_nanos(boot_time_ns())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
