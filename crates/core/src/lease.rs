//! Leases of compute time: the arbiter gives each tenant of a GPU its time slice, in proportion to the shares.
//!
//! ```text
//!             wants, and its GPUs are free             its time is up, or it is idle and another waits
//!   closed ─────────────────────────────► holding ─────────────────────────────► draining ──► closed
//!                                         bounded, while no other tenant wants;   work already
//!                                         else until a time                       on the GPU ends
//! ```
//! **Charging.** A GPU has one lease holder at a time. The arbiter charges the holder from the grant until its work has
//! left the GPU. It measures that time itself, so a tenant gains nothing by a false report. A tenant's charged time
//! divided by its share is its **virtual time** on that GPU. The tenant that is furthest behind is next, and holds
//! until it is half a quantum ahead of the one that is furthest behind then. A tenant waits out an overrun, so long
//! kernels average out. A tenant that returns after a pause is at most half a quantum behind: unused time is not saved.
//!
//! **Several GPUs.** A tenant on several GPUs gets all of them in one step or none, so two such tenants never deadlock.
//! While it waits for one of them, other tenants may use the rest only until that one returns.
//!
//! **Visits.** An interactive tenant, such as an inference server, runs beside the holder for a moment while it is
//! behind it; the driver then orders the work of both. A visit is charged by the device time that the tenant reports. A
//! tenant that wants more waits for a lease.
//!
//! **Latency goals.** A tenant with a goal that asks is let in at once, even if it is ahead, and the gates of the other
//! tenants on its GPUs close in the same step: the holder is *paused*. Its turn goes on when the visitor has been quiet
//! for a moment. The visitor is charged for that time by the clock, so no report is believed. A bucket bounds it to its
//! share; with an empty one it is a tenant like the others. Beside such a tenant the others keep less work ahead.
//!
//! **Co-scheduling.** Tenants share the lease if their utilisation of a GPU adds up to less than all of it. Their turns
//! show how much each uses; if they get in each other's way, they take turns again.
//!
//! **Distrust.** Visits and co-scheduling rely on reports. Where the driver sees more use than all tenants report, a
//! tenant reports falsely or bypasses the gate, and for a while there are only turns.
//!
//! **Dependent kernels.** A kernel may wait for another of the same tenant, as in a collective, and the lease may end
//! between the two. If work is overdue while its tenant waits at the gate, the arbiter lets in tenants without work on
//! the GPU, for a moment and not again soon.
//!
//! | mode | meaning |
//! |---|---|
//! | `fair` | the share of each tenant that wants it; the rest goes to the others |
//! | `strict` | also earns its time at the rate of its share, and holds only while it has some |
//! | `none` | takes no part: the driver orders its launches |
//!
//! [`TenantEvent`]s report what tenants do. [`Arbiter::decide`] answers with the leases that change, and when to ask
//! again. Times count from one fixed instant. The agent reads the tenants' ledgers and writes their leases.
//!
//! May use: `units`.

mod arbiter;
mod bucket;
mod meter;
mod tenant;

use std::time::Duration;

use crate::units::{ComputeMode, Share};

pub use arbiter::{Arbiter, Decision};

/// Half of a quantum: how far ahead of the others a holder may get, in its own time on the GPU. Two equal tenants hold
/// for twice this in turn.
pub const HALF_QUANTUM: Duration = Duration::from_millis(20);
/// No holder is interrupted sooner, however far behind another tenant is. A change of turn takes up to 0.2 ms (`LOOK`
/// of the ledger's gate), so half would spend a tenth on changes. Double would make small tenants wait twice as long
/// (015).
pub const SHORTEST_HOLD: Duration = Duration::from_millis(4);
/// Longest time given at once; a longer turn is several in a row.
pub const LONGEST_HOLD: Duration = Duration::from_millis(50);
/// How long before its end a grant is renewed, so that a turn that goes on has no gap.
pub const LEAD: Duration = Duration::from_millis(1);
/// How long before the work of a turn that is over leaves the GPU the next turn begins: on busy processors the scheduler
/// and the next program wake so late. Programs that wake earlier run beside this work. With half, a delay of 1 ms costs
/// another point of the GPU; double would put two tenants on it for a tenth of a turn.
pub const EARLY: Duration = Duration::from_millis(2);
/// How long a holder may have nothing to do before it loses its turn to one that waits. A program that launches, waits
/// for the result and launches again has gaps far below this. Twice as much would leave the GPU idle for a quarter of
/// the shortest hold.
pub const GRACE: Duration = Duration::from_millis(1);
/// How long a holder that stood at the gate may take to begin; twice as long after each time that it did not, up to
/// [`LONGEST_HOLD`], as processes wake late where the processors are busy. One that is stopped never does: it has to
/// ask again.
pub const WAKING: Duration = Duration::from_millis(5);
/// How long a visit lasts at most: what a turn lasts at least.
pub const VISIT: Duration = SHORTEST_HOLD;
/// How often the holders are polled while a tenant waits for them. As long as [`GRACE`], so that an idle holder is seen
/// within two of it; a shorter one would wake the thread for nothing.
pub const POLL: Duration = Duration::from_millis(1);
/// The same for a tenant that uses its GPUs nearly all the time: polling takes CPU time, perhaps from its own program.
pub const STEADY_POLL: Duration = Duration::from_millis(2);
/// The most that an overrun is waited out for, in the tenant's own time on the GPU. A kernel of a second averages out
/// within ten at half a GPU. A longer debt would stop a slice for what looks like a hang (015).
pub const LARGEST_DEBT: Duration = Duration::from_secs(1);
/// How long other tenants wait for work that was begun inside a turn, after its end. Longer kernels overlap with the
/// next holder's work.
pub const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// The most work that a process keeps on the GPU ahead while slices take turns: the limiter's own figure
/// (`WINDOW` of its `flight`), so the daemon need not write it.
pub const LONGEST_AHEAD: Duration = Duration::from_millis(10);
/// The least that a latency goal makes the others keep ahead. Five looks of the ledger's gate (`LOOK`): with half, a
/// program that wakes late would leave the GPU idle between its launches.
pub const SHORTEST_AHEAD: Duration = Duration::from_millis(1);

/// How much work the neighbours of a tenant with this goal keep ahead. An eighth: a visitor waits for this work, and
/// with a quarter a request of 12 ms took 1.34 times its own time beside short kernels, with an eighth 1.2 (061).
pub fn ahead_beside(goal: Duration) -> Duration {
    (goal / 8).clamp(SHORTEST_AHEAD, LONGEST_AHEAD)
}

/// The name of a tenant: chosen by the caller, one per slice.
pub type Tenant = u64;

/// On what terms a tenant takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantConfig {
    /// The GPUs it uses, by a number of the caller's choice; never empty, none twice.
    pub gpus: Vec<u32>,
    /// Its part of each of them.
    pub share: Share,
    pub mode: ComputeMode,
    /// In this time its requests should be answered: it is let in at once. Counts with [`ComputeMode::Fair`] only.
    pub goal: Option<Duration>,
}

/// What a tenant's processes do, taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// At least one of them stands at the gate with work.
    pub waiting: bool,
    /// Work of theirs is on a GPU.
    pub busy: bool,
    /// That work takes longer than they reckoned: it may wait for something that stands at the gate.
    pub overdue: bool,
    /// Moves on whenever one of them asks at the gate, for the first time or again.
    pub requests: u64,
    /// Device time that they reckon they used, ever, on all GPUs together.
    pub used: Duration,
    /// So many of them have work on a GPU.
    pub workers: u32,
    /// When they reckon that their work leaves the GPUs.
    pub ends_at: Duration,
}

impl Activity {
    /// Neither at the gate nor on a GPU.
    pub fn is_idle(self) -> bool {
        !self.waiting && !self.busy
    }
}

/// What the keeper is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantEvent {
    /// A tenant is new, or its terms have changed.
    Configured(Tenant, TenantConfig),
    /// What its processes are seen to do.
    Observed(Tenant, Activity),
    /// It is gone, with everything it held.
    Left(Tenant),
    /// So much of the time since about the last time, in thousandths, a GPU was used, as its driver says.
    DriverUtilisation(u32, u32),
}

/// A request of a tenant with a latency goal that has been served: from when it asked at the gate until it had no more
/// work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub tenant: Tenant,
    /// At the gate.
    pub waited: Duration,
    /// On the GPU, beside the work that was there.
    pub worked: Duration,
    /// Why it took longer than its goal.
    pub cause: Option<MissCause>,
}

/// The cause of a request that took longer than its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissCause {
    /// The tenant had used up its share.
    OverShare,
    /// Its own kernels take longer than the goal, by its reports.
    OwnWork(Duration),
    /// A tenant without leases runs beside it.
    Ungated,
    /// Work of this tenant was on the GPU, for about so long. A kernel is not interrupted.
    Neighbour(Tenant, Duration),
    /// None of these: perhaps the host was busy, or the goal is below a time slice of the driver.
    Unknown,
}

/// What a tenant may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Launch nothing.
    Closed,
    /// Launch until then.
    Until(Duration),
    /// Until then, launch only on a GPU where the process has nothing, and stood at the gate with nothing before: what
    /// the work of others of its tenant may wait for.
    Peers(Duration),
    /// Launch until then, though another has its turn.
    Visit(Duration),
    /// Launch until further notice, and queue little work ahead: another tenant may want the GPU.
    Bounded,
    /// Launch freely until further notice: no other tenant shares the GPUs.
    Open,
}
