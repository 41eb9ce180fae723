//! Who may use a GPU's compute now: leases of time, in proportion to shares.
//!
//! ```text
//!             wants, and its GPUs are free             its time is up, or it is idle and another waits
//!   closed ─────────────────────────────► holding ─────────────────────────────► draining ──► closed
//!                                         bounded, while nobody else wants;       work already
//!                                         else until a time                       on the GPU ends
//! ```
//! A GPU has one holder at a time, so what a holder is charged is the time that nobody else could have: from its grant until its
//! work has left the GPU. That is measured here and nowhere else, so a tenant that lies about itself cannot gain by it. Each
//! tenant's time, divided by its share, is its **virtual time** on that GPU; whoever is furthest behind is next, and holds
//! until it is half a quantum ahead of whoever is then furthest behind. An overrun is a lead that has to be waited out, so long kernels
//! average out. Who comes back after a pause is put level with the others, at most half a quantum behind them: time that was
//! not used is not saved up.
//!
//! A tenant on several GPUs gets all of them in one step or none, so two such tenants never hold what the other waits for. While
//! it waits for one of them, the others may be used only until that one is due back.
//!
//! Who comes and goes, as one that answers requests does, need not wait for its turn and its GPU for it to be over. While it is behind the holder
//! it is let in beside it for a moment; the driver then orders the work of both. That is charged by the device time that it
//! reports, and one that wants more than a visit waits for a turn.
//!
//! Tenants whose use of a GPU adds up to less than all of it have it together. How much each uses is known from its turns; where they get
//! in each other's way after all, they take turns again.
//!
//! Visits and sharing go by what tenants report. Where a GPU's driver sees more used than they all report, somebody lies
//! or goes past the gate, and for a while there are only turns.
//!
//! A kernel may wait for another of the same tenant, as the ranks of a collective do, and a turn may end between the two. Work that
//! is overdue while its tenant stands at the gate is taken for such a case, and those with nothing on the GPU are let in, for
//! a moment and not again soon.
//!
//! `fair` shares go to whoever wants them, and what one does not want the others get. A `strict` tenant also earns its time,
//! at the rate of its share, and holds only while it has some. `none` takes no part: its launches are the driver's to order.
//!
//! What the tenants do is told by [`Event`]s; [`Arbiter::decide`] answers with the grants that change and when to ask again. Times are
//! since one fixed instant. Reading the tenants' accounts and writing their grants is the agent's business.

mod keeper;
mod meter;
mod tenant;

use std::time::Duration;

use crate::units::{ComputeMode, Share};

pub use keeper::{Arbiter, Decision};

/// Half of a quantum: how far ahead of the others a holder may get, in its own time on the GPU. Two equal tenants hold
/// for twice this in turn.
pub const HALF_QUANTUM: Duration = Duration::from_millis(20);
/// Nobody is interrupted sooner, however far behind another is.
pub const SHORTEST_HOLD: Duration = Duration::from_millis(4);
/// Longest time given at once; a longer turn is several in a row.
pub const LONGEST_HOLD: Duration = Duration::from_millis(50);
/// How long before its end a grant is renewed, so that a turn that goes on has no gap.
pub const LEAD: Duration = Duration::from_millis(1);
/// How long a holder may have nothing to do before it loses its turn to one that waits. A program that launches, waits for the
/// result and launches again has gaps far below this.
pub const GRACE: Duration = Duration::from_millis(1);
/// How long a holder that stood at the gate may take to begin; twice as long after each time that it did not, up to [`LONGEST_HOLD`], as
/// processes wake late where the processors are busy. One that is stopped never does: it has to ask again.
pub const WAKING: Duration = Duration::from_millis(5);
/// How long a visit lasts at most: what a turn lasts at least.
pub const VISIT: Duration = SHORTEST_HOLD;
/// How often holders are looked at while somebody waits for them.
pub const POLL: Duration = Duration::from_millis(1);
/// The same for one that uses its GPUs nearly all the time: who looks needs a processor, which may be the one that its program launches from.
pub const STEADY_POLL: Duration = Duration::from_millis(2);
/// The most that an overrun is waited out for, in the tenant's own time on the GPU.
pub const LARGEST_DEBT: Duration = Duration::from_secs(1);
/// How long the others wait for work that was begun inside a turn, after its end. Longer kernels overlap with the next
/// holder's work.
pub const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// Who takes part: a name that the caller chooses, one per slice.
pub type Tenant = u64;

/// On what terms a tenant takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantConfig {
    /// The GPUs it uses, by a number of the caller's choice; never empty, none twice.
    pub gpus: Vec<u32>,
    /// Its part of each of them.
    pub share: Share,
    pub mode: ComputeMode,
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
    /// A tenant is there, or its terms are others than before.
    Configured(Tenant, TenantConfig),
    /// What its processes are seen to do.
    Observed(Tenant, Activity),
    /// It is gone, with everything it held.
    Left(Tenant),
    /// So much of the time since about the last time, in thousandths, a GPU was used, as its driver says.
    DriverUtilisation(u32, u32),
}

/// What a tenant may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Launch nothing.
    Closed,
    /// Launch until then.
    Until(Duration),
    /// Until then, launch only on a GPU where the process has nothing, and stood at the gate with nothing before: what the work
    /// of others of its tenant may wait for.
    Peers(Duration),
    /// Launch until then, though another has its turn.
    Visit(Duration),
    /// Launch, until told otherwise, and keep little on the GPU ahead: somebody else may want it.
    Bounded,
    /// Launch at will, until told otherwise: nobody shares the GPUs.
    Open,
}
