//! The time room: queues of work and the engine of one GPU, which decides the process that runs, in simulated
//! nanoseconds.
//!
//! It may use no other room.
//!
//! Each process has one queue of work per GPU, in issue order over all its streams (so streams of one process never
//! overlap: a simplification). Processes take turns, [`SLICE_NS`] each; a process without work gives its turn away at
//! once. Nothing runs in the background: a process that needs to know the state of the GPU takes the state file's lock
//! and advances the model to the present, exactly as far as the queued work allows. GPUs know nothing of each other,
//! except where queues meet ([`Work::Meet`]): then all advance together (`advance`).
//!
//! ```text
//! owner pushes, without the lock            the holder of the lock
//!   pushed ──►  [ e e e e | head … ]  ──►  done        entry: {when: arrival, later end; work: kind, ns}
//! ```
//!
//! All of it lives in shared memory and survives the death of a writer: entries are counted once `done` moves, so a
//! kill in the middle of a step costs at most that step.
//!
//! May use: no other room.
//! Used by: `machine`, `objects`, `process`, `work`.

pub mod together;
pub mod windows;

use crate::engine::time::windows::Windows;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// How long a process keeps the GPU while others wait, without MPS: the time slice that NVIDIA's open kernel modules
/// 595.45 give a channel group as long as `nvidia-smi compute-policy` sets none. Not measured on hardware.
pub const SLICE_NS: u64 = 1_024_000;

/// Utilisation is kept in windows of 1/6 s, the sampling period NVML documents for `nvmlDeviceGetUtilizationRates`.
pub const WINDOW_NS: u64 = 1_000_000_000 / 6;

/// Entries one process can have in flight on one GPU; a launch beyond it waits. As many as launches that a GPU's queue
/// takes before `cuLaunchKernel` waits (inferred).
pub const DEPTH: u64 = 1024;

/// What an entry of a queue does when it reaches the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Occupies the GPU for so many nanoseconds.
    Busy(u64),
    /// Takes so long without occupying the GPU: copies, and markers of length 0.
    Delay(u64),
    /// Waits until the owner opens it: a host function that has not returned.
    Gate,
    /// Occupies the GPU, in the turns of its process, until so many queues of the machine run one with the same key: a
    /// collective that spins.
    Meet { key: u32, parties: u16 },
}

/// The kind is in the two highest bits, so that a length of work fits below: a century of nanoseconds.
const KIND_SHIFT: u32 = 62;

const LENGTH_MASK: u64 = (1 << KIND_SHIFT) - 1;

/// The third kind that fits two bits, besides none.
const MEET: u64 = 3 << KIND_SHIFT;

/// So 32 bits are left for the key of a meeting, and 16 for its parties.
const PARTIES_SHIFT: u32 = 32;

/// What has become of a meeting's party, in two bits of its entry. So they are below the kind.
const STAGE_SHIFT: u32 = 60;

impl Work {
    fn pack(self) -> u64 {
        match self {
            Work::Busy(ns) => ns.min(LENGTH_MASK),
            Work::Delay(ns) => ns.min(LENGTH_MASK) | 1 << KIND_SHIFT,
            Work::Gate => 2 << KIND_SHIFT,
            Work::Meet { key, parties } => {
                MEET | u64::from(parties) << PARTIES_SHIFT | u64::from(key)
            }
        }
    }

    fn unpack(word: u64) -> Work {
        match word >> KIND_SHIFT {
            0 => Work::Busy(word & LENGTH_MASK),
            1 => Work::Delay(word & LENGTH_MASK),
            2 => Work::Gate,
            _ => Work::Meet {
                key: word as u32,
                parties: (word >> PARTIES_SHIFT) as u16,
            },
        }
    }
}

#[repr(C)]
struct Entry {
    when: AtomicU64,
    work: AtomicU64,
}

/// The work one process has given one GPU. Zeroed memory is an empty queue.
#[repr(C)]
pub struct Queue {
    pushed: AtomicU64,
    done: AtomicU64,
    /// Nanoseconds the entry at `done` has had so far.
    head_spent: AtomicU64,
    busy: AtomicU64,
    windows: Windows,
    ring: [Entry; DEPTH as usize],
}

impl Queue {
    /// Appends an entry that arrives at `now` and gives the ticket by which to ask for it; None while [`DEPTH`] entries
    /// are in flight. Only the owning process calls this, one thread at a time.
    pub fn push(&self, now: u64, work: Work) -> Option<u64> {
        let pushed = self.pushed.load(Relaxed);
        if pushed - self.done.load(SeqCst) >= DEPTH {
            return None;
        }
        let entry = &self.ring[(pushed % DEPTH) as usize];
        entry.when.store(now, Relaxed);
        entry.work.store(work.pack(), Relaxed);
        self.pushed.store(pushed + 1, Release);
        Some(pushed + 1)
    }

    /// The ticket of the newest entry.
    pub fn newest(&self) -> u64 {
        self.pushed.load(SeqCst)
    }

    pub fn is_done(&self, ticket: u64) -> bool {
        self.done.load(SeqCst) >= ticket
    }

    /// When the entry ended. Known until [`DEPTH`] further entries are pushed.
    pub fn ended_at(&self, ticket: u64) -> Option<u64> {
        let known = self.is_done(ticket) && self.newest() - ticket < DEPTH;
        known.then(|| {
            self.ring[((ticket - 1) % DEPTH) as usize]
                .when
                .load(Relaxed)
        })
    }

    /// Lets the work behind a gate go on, from `now` and not from when the engine last advanced.
    pub fn open_gate(&self, ticket: u64, now: u64) {
        let entry = &self.ring[((ticket - 1) % DEPTH) as usize];
        entry.when.store(now, SeqCst);
        entry.work.store(Work::Delay(0).pack(), SeqCst);
    }

    /// A lower bound, in nanoseconds, on how long the queue needs to reach `ticket`: what is left with the GPU to
    /// itself.
    pub fn at_least(&self, ticket: u64) -> u64 {
        let done = self.done.load(SeqCst);
        let left = (done..ticket).fold(0u64, |sum, at| match self.entry(at).1 {
            Work::Busy(ns) | Work::Delay(ns) => sum.saturating_add(ns),
            Work::Gate | Work::Meet { .. } => sum,
        });
        left.saturating_sub(self.head_spent.load(Relaxed))
    }

    /// Nanoseconds in which it occupied the GPU, since its process began.
    pub fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Forgets everything: the slot changes hands.
    pub fn clear(&self) {
        self.done.store(self.pushed.load(SeqCst), SeqCst);
        self.head_spent.store(0, Relaxed);
        self.busy.store(0, Relaxed);
        self.windows.clear();
    }

    /// Makes the counters consistent after their writer died in the middle of a step.
    pub fn repair(&self) {
        let pushed = self.pushed.load(SeqCst);
        let done = self
            .done
            .load(SeqCst)
            .clamp(pushed.saturating_sub(DEPTH), pushed);
        self.done.store(done, SeqCst);
    }

    fn has_work(&self) -> bool {
        self.done.load(SeqCst) < self.pushed.load(SeqCst)
    }

    fn entry(&self, at: u64) -> (u64, Work) {
        let entry = &self.ring[(at % DEPTH) as usize];
        (
            entry.when.load(Relaxed),
            Work::unpack(entry.work.load(SeqCst)),
        )
    }

    fn head(&self) -> Option<Head> {
        let done = self.done.load(SeqCst);
        if done >= self.pushed.load(SeqCst) {
            return None;
        }
        let (arrival, work) = self.entry(done);
        let spent = self.head_spent.load(Relaxed);
        Some(match work {
            Work::Busy(ns) => Head {
                arrival,
                left: ns.saturating_sub(spent),
                kind: Kind::Busy,
            },
            Work::Delay(ns) => Head {
                arrival,
                left: ns.saturating_sub(spent),
                kind: Kind::Delay,
            },
            Work::Gate => Head {
                arrival,
                left: u64::MAX,
                kind: Kind::Gate,
            },
            Work::Meet { key, parties } => Head {
                arrival,
                left: u64::MAX,
                kind: Kind::Meet {
                    key,
                    parties,
                    stage: self.stage(done),
                },
            },
        })
    }

    fn stage(&self, at: u64) -> Stage {
        match self.ring[(at % DEPTH) as usize].work.load(SeqCst) >> STAGE_SHIFT & 3 {
            0 => Stage::Expected,
            1 => Stage::Arrived,
            _ => Stage::Released,
        }
    }

    fn set_stage_of_head(&self, stage: Stage) {
        let entry = &self.ring[(self.done.load(SeqCst) % DEPTH) as usize];
        let word = entry.work.load(SeqCst) & !(3 << STAGE_SHIFT);
        entry
            .work
            .store(word | (stage as u64) << STAGE_SHIFT, SeqCst);
    }

    fn spend(&self, ns: u64) {
        self.head_spent
            .store(self.head_spent.load(Relaxed) + ns, Relaxed);
    }

    fn finish_head(&self, now: u64) {
        let done = self.done.load(SeqCst);
        self.ring[(done % DEPTH) as usize].when.store(now, Relaxed);
        self.head_spent.store(0, Relaxed);
        self.done.store(done + 1, SeqCst);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Busy,
    Delay,
    Gate,
    Meet {
        key: u32,
        parties: u16,
        stage: Stage,
    },
}

/// Where one party of a meeting stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Has not run yet.
    Expected = 0,
    /// Has run, and spins for the others.
    Arrived = 1,
    /// All have arrived; it ends as soon as it runs again.
    Released = 2,
}

impl Kind {
    fn occupies(self) -> bool {
        matches!(self, Kind::Busy | Kind::Meet { .. })
    }

    /// Whether it gets on without a further call.
    fn gets_on(self) -> bool {
        match self {
            Kind::Busy | Kind::Delay => true,
            Kind::Gate => false,
            Kind::Meet { stage, .. } => stage != Stage::Arrived,
        }
    }
}

#[derive(Clone, Copy)]
struct Head {
    arrival: u64,
    left: u64,
    kind: Kind,
}

/// One process's queue on the GPU being advanced; `id` is its slot.
#[derive(Clone, Copy)]
pub struct Lane<'a> {
    pub id: usize,
    pub queue: &'a Queue,
}

/// The part of the model that belongs to the GPU. Zeroed memory is a GPU that has never worked.
#[repr(C)]
pub struct Engine {
    now: AtomicU64,
    /// Slot with the turn, plus one.
    turn: AtomicU64,
    slice_left: AtomicU64,
    busy: AtomicU64,
    windows: Windows,
}

/// The next stretch of time in which nothing changes.
struct Interval {
    runs: Option<usize>,
    new_turn: bool,
    ns: u64,
}

impl Engine {
    pub fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// Nanoseconds in which any process used the GPU.
    pub fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    fn finish_heads(&self, lanes: &[Lane<'_>]) {
        let now = self.now();
        for lane in lanes {
            while lane
                .queue
                .head()
                .is_some_and(|head| head.arrival <= now && head.left == 0)
            {
                lane.queue.finish_head(now);
            }
        }
    }

    fn next_step(&self, lanes: &[Lane<'_>]) -> Option<Interval> {
        let now = self.now();
        let heads: Vec<Option<Head>> = lanes.iter().map(|lane| lane.queue.head()).collect();
        let runnable =
            |at: &usize| heads[*at].is_some_and(|head| head.kind.occupies() && head.arrival <= now);

        let turn = self.turn.load(Relaxed) as usize;
        let slice_left = self.slice_left.load(Relaxed);
        let holder = (0..lanes.len())
            .find(|at| lanes[*at].id + 1 == turn)
            .filter(runnable)
            .filter(|_| slice_left > 0);
        let after = lanes
            .iter()
            .position(|lane| lane.id + 1 > turn)
            .unwrap_or(0);
        let runs = holder.or_else(|| (after..lanes.len()).chain(0..after).find(runnable));
        let new_turn = holder.is_none();

        let own = runs.map(|at| {
            let left = heads[at].map_or(0, |head| head.left);
            left.min(if new_turn { SLICE_NS } else { slice_left })
        });
        let others = heads.iter().flatten().filter_map(|head| match head.kind {
            _ if head.arrival > now => Some(head.arrival - now),
            Kind::Delay => Some(head.left),
            Kind::Busy | Kind::Gate | Kind::Meet { .. } => None,
        });
        let ns = own.into_iter().chain(others).min()?;
        Some(Interval { runs, new_turn, ns })
    }

    fn take(&self, lanes: &[Lane<'_>], step: &Interval, ns: u64) {
        let now = self.now();
        for (at, lane) in lanes.iter().enumerate() {
            let Some(head) = lane.queue.head().filter(|head| head.arrival <= now) else {
                continue;
            };
            if head.kind == Kind::Delay {
                lane.queue.spend(ns);
            } else if step.runs == Some(at) {
                if step.new_turn {
                    self.turn.store(lane.id as u64 + 1, Relaxed);
                    self.slice_left.store(SLICE_NS, Relaxed);
                }
                self.slice_left
                    .store(self.slice_left.load(Relaxed).saturating_sub(ns), Relaxed);
                self.busy.store(self.busy.load(Relaxed) + ns, Relaxed);
                self.windows.add(now, ns);
                lane.queue
                    .busy
                    .store(lane.queue.busy.load(Relaxed) + ns, Relaxed);
                lane.queue.windows.add(now, ns);
                lane.queue.spend(ns);
            }
        }
        self.now.store(now + ns, Relaxed);
    }
}

#[cfg(test)]
mod tests;
