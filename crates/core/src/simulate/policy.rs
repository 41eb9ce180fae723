//! Ways to place an instance: those that are in use, and those that they are compared with.

use std::fmt;
use std::str::FromStr;

use super::pool::Held;
use crate::mig::{Placement, Profile, Table};

/// A way to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// The first GPU that has room, at its lowest start.
    FirstFit,
    /// The GPU that is least full, at its lowest start.
    Spread,
    /// The first GPU that has room, at the start that the driver would choose by itself.
    DriverDefault,
    /// Over all GPUs and starts, the one that takes away fewest possibilities: what the planner does.
    LeastLoss,
    /// The same with each possibility weighted by how often its profile is asked for.
    DemandWeighted,
    /// The best that any policy can do that refuses nothing it has a place for. For one GPU only.
    Optimal,
    /// Anything goes that would fit if all instances were laid anew at every request: no policy, but a bound for all.
    FreeRepack,
}

impl Policy {
    pub const ALL: [Self; 7] = [
        Self::FirstFit,
        Self::Spread,
        Self::DriverDefault,
        Self::LeastLoss,
        Self::DemandWeighted,
        Self::Optimal,
        Self::FreeRepack,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::Spread => "spread",
            Self::DriverDefault => "driver-default",
            Self::LeastLoss => "least-loss",
            Self::DemandWeighted => "demand-weighted",
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

/// Where a request goes.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub gpu: usize,
    pub placement: Placement,
    pub reuse: bool,
    pub reclaim: Vec<Placement>,
}

pub(super) struct Start<'a> {
    policy: Policy,
    table: &'a Table,
    wanted: Vec<(u32, f64)>,
}

fn mask(table: &Table, held: &[Placement]) -> u32 {
    held.iter()
        .map(|p| span(table.profile(p.profile).unwrap(), p.start))
        .fold(0, |a, b| a | b)
}
fn span(p: &Profile, start: u8) -> u32 {
    ((1_u32 << p.memory_slices) - 1) << start
}
pub(super) fn starts(table: &Table, held: &[Placement], id: u32) -> Vec<u8> {
    let used = mask(table, held);
    let p = table.profile(id).unwrap();
    if held.iter().filter(|h| h.profile == id).count() >= usize::from(p.most) {
        return vec![];
    }
    p.starts
        .iter()
        .copied()
        .filter(|s| used & span(p, *s) == 0)
        .collect()
}

impl<'a> Start<'a> {
    pub fn new(policy: Policy, table: &'a Table, wanted: &[(u32, f64)]) -> Self {
        Self {
            policy,
            table,
            wanted: wanted.to_vec(),
        }
    }

    fn left(&self, used: u32) -> f64 {
        let mut left = 0.0;
        for p in self.table.plain() {
            let free = p.starts.iter().filter(|s| used & span(p, **s) == 0).count() as f64;
            if self.policy == Policy::DemandWeighted {
                let w = self
                    .wanted
                    .iter()
                    .find(|w| w.0 == p.id)
                    .map_or(0.0, |w| w.1);
                left += free * w / p.starts.len() as f64;
            } else {
                left += free;
            }
        }
        left
    }

    pub fn choose(&self, held: &[Placement], id: u32) -> Option<u8> {
        let found = starts(self.table, held, id);
        let used = mask(self.table, held);
        let p = self.table.profile(id).unwrap();
        match self.policy {
            Policy::FirstFit | Policy::Spread => found.first().copied(),
            _ => found.into_iter().rev().max_by(|a, b| {
                self.left(used | span(p, *a))
                    .total_cmp(&self.left(used | span(p, *b)))
            }),
        }
    }

    pub fn place(&self, gpus: &[Held], id: u32) -> Option<Chosen> {
        let p = self.table.profile(id).unwrap();
        let mut best: Option<(f64, u32, usize, u8)> = None;
        for (at, gpu) in gpus.iter().enumerate() {
            let Some(start) = self.choose(&gpu.jobs, id) else {
                continue;
            };
            let used = mask(self.table, &gpu.jobs);
            let key = match self.policy {
                Policy::FirstFit | Policy::DriverDefault => (0.0, 0, at, start),
                Policy::Spread => (0.0, used.count_ones(), at, start),
                _ => (
                    self.left(used) - self.left(used | span(p, start)),
                    32 - used.count_ones(),
                    at,
                    start,
                ),
            };
            let better = |b: &(f64, u32, usize, u8)| {
                (key.0 - b.0).abs() < 1e-12 && (key.1, key.2) < (b.1, b.2) || key.0 < b.0 - 1e-12
            };
            if best.as_ref().is_none_or(better) {
                best = Some(key);
            }
        }
        let (.., gpu, start) = best?;
        let placement = Placement { profile: id, start };
        let span = |pl: &Placement| span(self.table.profile(pl.profile).unwrap(), pl.start);
        let reuse = gpus[gpu].idle.contains(&placement);
        let reclaim = gpus[gpu]
            .idle
            .iter()
            .filter(|i| !reuse && span(i) & span(&placement) != 0)
            .copied()
            .collect();
        Some(Chosen {
            gpu,
            placement,
            reuse,
            reclaim,
        })
    }
}
