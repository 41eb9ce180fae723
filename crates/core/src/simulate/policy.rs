//! Placement policies: the ones in use, and the ones that they are compared with.

use std::fmt;
use std::str::FromStr;

use super::mix::Demand;
use crate::mig::{self, Candidate, MigGpu};

/// A way to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// The first GPU that has room, at its lowest start.
    FirstFit,
    /// The GPU that is least full, at its lowest start.
    Spread,
    /// The first GPU that has room, at the start that the driver would choose by itself.
    DriverDefault,
    /// Over all GPUs and starts, the one that takes away fewest possibilities.
    LeastLoss,
    /// The same with each possibility weighted by how often its profile is asked for.
    DemandWeighted,
    /// Least loss where what jobs leave is kept as idle instances and taken again: what the daemon does.
    Planner,
    /// The least loss with a price for profiles that run short in the pool. Idle instances decide nothing, and after each
    /// change they are created anew where the next request for their profile goes.
    IdleRepack,
    /// The best that any policy can do that refuses nothing it has a place for. For one GPU only.
    Optimal,
    /// Accepts each request that would fit after a repack of all instances: no policy, but a bound for all.
    FreeRepack,
}

impl Policy {
    pub const ALL: [Self; 9] = [
        Self::FirstFit,
        Self::Spread,
        Self::DriverDefault,
        Self::LeastLoss,
        Self::DemandWeighted,
        Self::Planner,
        Self::IdleRepack,
        Self::Optimal,
        Self::FreeRepack,
    ];

    /// Whether what jobs leave is kept, to be taken again.
    pub fn keeps_idle(self) -> bool {
        matches!(self, Self::Planner | Self::IdleRepack)
    }

    /// Whether idle instances move to the places that are taken next.
    pub fn repacks_idle(self) -> bool {
        self == Self::IdleRepack
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::Spread => "spread",
            Self::DriverDefault => "driver-default",
            Self::LeastLoss => "least-loss",
            Self::DemandWeighted => "demand-weighted",
            Self::Planner => "planner",
            Self::IdleRepack => "idle-repack",
            Self::Optimal => "optimal",
            Self::FreeRepack => "free-repack",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| PolicyError(text.to_owned()))
    }
}

/// The word is not a way to place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a way to place")]
pub struct PolicyError(String);

impl PolicyError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        format!("write {}", Policy::ALL.map(Policy::name).join(", "))
    }
}

/// A policy that places, ready for a demand.
#[derive(Clone, Debug)]
pub(super) enum Placer {
    Plain(mig::PlacementPolicy<'static>),
    /// By id, how often each profile is asked for, in millionths.
    Weighted(Vec<(u32, u32)>),
}

impl Placer {
    /// `None` for what is no way to place: a bound, or what follows from a whole chain.
    pub fn of(policy: Policy, demand: &Demand) -> Option<Self> {
        Some(match policy {
            Policy::FirstFit => Self::Plain(mig::PlacementPolicy::FirstFit),
            Policy::Spread => Self::Plain(mig::PlacementPolicy::Spread),
            Policy::DriverDefault => Self::Plain(mig::PlacementPolicy::DriverDefault),
            Policy::LeastLoss | Policy::Planner => Self::Plain(mig::PlacementPolicy::LeastLoss),
            Policy::IdleRepack => Self::Plain(mig::PlacementPolicy::PoolLoss),
            Policy::DemandWeighted => {
                let weight = |(id, part): &(u32, f64)| (*id, (part * 1e6).round() as u32);
                Self::Weighted(demand.parts.iter().map(weight).collect())
            }
            Policy::Optimal | Policy::FreeRepack => return None,
        })
    }

    /// Where an instance of the profile goes on these GPUs, by the function that places real ones.
    pub fn place(&self, sites: &[MigGpu<'_>], profile: u32) -> Option<(usize, Candidate)> {
        let policy = match self {
            Self::Plain(policy) => *policy,
            Self::Weighted(weights) => mig::PlacementPolicy::DemandWeighted(weights),
        };
        mig::place(sites, |_| Some(profile), policy)
    }
}
