//! Wait reasons: why a job waits, in one line with figures.

use std::fmt;
use std::sync::Arc;

use crate::explain::capacity::{NeverFits, out_of_service};
use crate::explain::constraint::may_hold;
use crate::explain::suggest::{largest_memories, largest_shares, mig_gpus, placeable_profiles};
use crate::mig::{BlockerOwner, Obstacle};
use crate::model::isolation::Isolation;
use crate::model::request::{Amount, Request};
use crate::placement::fit::{Fraction, RequestShape, UnmetConstraint, fit, size};
use crate::placement::occupancy::NodeUsage;
use crate::project::{PendingPreemption, QuotaAhead, QuotaExceeded};
use crate::units::{Bytes, JobId, QueueName, Share, gpus};

/// Why a job waits. `Display` is one line: `needs 1 whole GPU; 2.75 of 3 GPUs in use`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There is no room for it.
    Short(Arc<Shortage>),
    /// The planner stopped at a job ahead.
    Behind(Arc<JobAhead>),
    /// It fits, and starting it now might delay a job ahead.
    WouldDelay(Arc<JobAhead>),
    /// The GPUs that it needs are gone. It delays no other job.
    Never(Arc<NeverFits>),
    /// Its user's limit, or its project's quota or limit, is used up. It delays only jobs of that user or project.
    Quota(Arc<QuotaExceeded>),
    /// A job of its user or project waits for that.
    BehindQuota(Arc<QuotaAhead>),
    /// It is within its project's quota, and preempts jobs that are over quota.
    Preempting(Arc<PendingPreemption>),
}

/// A job ahead that other jobs wait for, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobAhead {
    pub job: JobId,
    pub queue: QueueName,
    pub short: Arc<Shortage>,
}

/// What a job lacks, counted over the GPUs that could ever serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub amount: Amount,
    /// The GPUs it asks for by index; empty means any.
    pub on: Vec<u32>,
    pub isolation: Isolation,
    /// Thousandths of GPUs held.
    pub used: u64,
    /// How many GPUs could ever serve it.
    pub gpus: u32,
    /// How many of them have room for its part: the GPUs in MIG mode or the others, whichever are more. The parts of
    /// one job are of one kind.
    pub room: u32,
    /// The largest free part of one of them, for a request of one part.
    pub most: Option<Amount>,
    /// Resuming jobs with reserved room on them.
    pub resuming: Vec<JobId>,
    /// GPUs where it would fit without memory held outside Divvy: index and that memory.
    pub unmanaged: Vec<(u32, Bytes)>,
    /// The part of it that the driver lists for no process.
    pub unlisted: Bytes,
    /// A job that may hold that part.
    pub unlisted_holder: Option<JobId>,
    /// The requested GPUs that are out of service, in words.
    pub out_of_service: Option<String>,
    /// GPUs that other daemons of the machine, or jobs with a latency goal, hold in part, or that are promised to parked
    /// jobs, and where it does not fit: index and what they hold.
    pub elsewhere: Vec<(u32, UnmetConstraint)>,
    /// GPUs in MIG mode where it would fit in another layout, or without instances that no job holds.
    pub fragmented: Vec<(u32, Obstacle)>,
}

impl Shortage {
    pub(crate) fn of(node: &NodeUsage<'_>, request: &Request) -> Self {
        let (mut used, mut count) = (0, 0);
        let (mut divided, mut shared) = (0, 0);
        let (mut foreign, mut layout, mut elsewhere) = (Vec::new(), Vec::new(), Vec::new());
        let mut resuming = Vec::new();
        let (mut unlisted, mut unlisted_holder) = (Bytes::ZERO, None);
        for usage in node
            .gpus
            .iter()
            .filter(|usage| size(usage, request).is_ok())
        {
            used += usage.used_share();
            count += 1;
            resuming.extend(usage.reserved_for());
            match fit(usage, request) {
                Ok(_) if usage.mig.is_some() => divided += 1,
                Ok(_) => shared += 1,
                Err(unmet) => {
                    for constraint in unmet {
                        match constraint {
                            UnmetConstraint::UnmanagedMemory { .. } => {
                                foreign.push((usage.gpu.index, usage.unmanaged));
                                unlisted = unlisted.saturating_add(usage.gpu.unlisted_outside());
                                unlisted_holder = unlisted_holder.or(usage.gpu.unlisted_holder);
                            }
                            held @ (UnmetConstraint::Elsewhere { .. }
                            | UnmetConstraint::Latency { .. }
                            | UnmetConstraint::Promised(_)) => {
                                elsewhere.push((usage.gpu.index, held));
                            }
                            UnmetConstraint::Slots(obstacle) if is_telling(&obstacle) => {
                                layout.push((usage.gpu.index, obstacle));
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        let most = match RequestShape::of(request.amount) {
            RequestShape::Parts {
                count: 1,
                part: Fraction::Share(_),
            } => largest_shares(node, request, Share::FULL)
                .first()
                .copied()
                .map(Amount::Share),
            RequestShape::Parts {
                count: 1,
                part: Fraction::Memory(_),
            } => largest_memories(node, request, Bytes::new(u64::MAX))
                .first()
                .copied()
                .map(Amount::Memory),
            RequestShape::Parts {
                count: 1,
                part: Fraction::Profile(_),
            } => mig_gpus(node, request)
                .flat_map(placeable_profiles)
                .max_by_key(|profile| profile.memory)
                .map(|profile| Amount::Mig(profile.name)),
            RequestShape::Parts { .. } | RequestShape::Whole { .. } => None,
        };
        resuming.sort_unstable();
        resuming.dedup();
        Self {
            resuming,
            amount: request.amount,
            on: request.on.clone(),
            isolation: request.isolation,
            used,
            gpus: count,
            room: u32::max(divided, shared),
            most,
            unmanaged: foreign,
            unlisted,
            unlisted_holder,
            out_of_service: out_of_service(node, request),
            elsewhere,
            fragmented: layout,
        }
    }
}

/// Whether the obstacle is more than a full GPU.
fn is_telling(obstacle: &Obstacle) -> bool {
    let is_unallocated = |who: BlockerOwner| matches!(who, BlockerOwner::Unallocated(_));
    let mut blockers = obstacle.blockers.iter();
    obstacle.is_fragmentation || blockers.any(|blocker| is_unallocated(blocker.who))
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(short) => short.fmt(out),
            Self::Behind(ahead) => write!(out, "behind {ahead}"),
            Self::WouldDelay(ahead) => write!(out, "would fit, but could delay {ahead}"),
            Self::Never(never) => never.fmt(out),
            Self::Quota(exceeded) => exceeded.fmt(out),
            Self::BehindQuota(ahead) => write!(out, "behind {ahead}"),
            Self::Preempting(reclaims) => reclaims.fmt(out),
        }
    }
}

impl fmt::Display for JobAhead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "#{} in queue {}, which {}",
            self.job, self.queue, self.short
        )
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |count| if count == 1 { "" } else { "s" };
        write!(out, "needs {}", self.amount.describe())?;
        if self.isolation != Isolation::Any {
            write!(out, " with {} isolation", self.isolation)?;
        }
        if !self.on.is_empty() {
            write!(out, ", GPU{} {} only", s(self.on.len()), indices(&self.on))?;
        }
        write!(
            out,
            "; {} of {} GPU{} in use",
            gpus(self.used),
            self.gpus,
            s(self.gpus as usize)
        )?;
        match self.most {
            Some(Amount::Memory(most)) => {
                write!(out, ", at most {} free on one GPU", most.spaced())?;
            }
            Some(most) => write!(out, ", at most {most} free on one GPU")?,
            None if self.room > 0 => write!(out, ", room on {}", self.room)?,
            None => {}
        }
        for job in &self.resuming {
            write!(out, "; room is reserved for #{job}, which is resuming")?;
        }
        if let Some(gpus) = &self.out_of_service {
            write!(out, "; {gpus}")?;
        }
        if let Some((index, held)) = self.elsewhere.first() {
            write!(out, "; gpu {index}: {held}")?;
        }
        match self.elsewhere.len() {
            0 | 1 => {}
            count => write!(out, ", likewise {} more", count - 1)?,
        }
        if !self.unmanaged.is_empty() {
            let held = held_outside(&self.unmanaged);
            match self.unlisted {
                Bytes::ZERO => write!(out, "; processes outside Divvy hold {held}")?,
                listed_for_none => write!(
                    out,
                    "; outside Divvy {held} are in use, {} by no listed process{}",
                    listed_for_none.human(),
                    may_hold(self.unlisted_holder)
                )?,
            }
        }
        if let Some((index, obstacle)) = self.fragmented.first() {
            write!(out, "; on GPU {index} {obstacle}")?;
        }
        match self.fragmented.len() {
            0 | 1 => Ok(()),
            count => write!(out, "; likewise on {} more GPUs", count - 1),
        }
    }
}

/// Most GPUs that a reason names with the memory that processes outside Divvy hold there. One line of a terminal holds
/// four; the others are counted, and `divvy gpus` has them all. A longer list would not fit one line of a terminal.
const MOST_NAMED: usize = 4;

/// `9.0 GiB of GPU 1`; `40.4 GiB of each of GPUs 0, 1, 2`; `40.4 GiB of GPU 0, 9.0 GiB of GPU 1`.
fn held_outside(unmanaged: &[(u32, Bytes)]) -> String {
    let figures: Vec<String> = unmanaged.iter().map(|(_, held)| held.human()).collect();
    if figures.len() > 1 && figures.iter().all(|figure| *figure == figures[0]) {
        let gpus: Vec<u32> = unmanaged.iter().map(|(index, _)| *index).collect();
        return format!("{} of each of GPUs {}", figures[0], indices(&gpus));
    }
    let named = unmanaged.iter().zip(&figures).take(MOST_NAMED);
    let named = named.map(|((index, _), held)| format!("{held} of GPU {index}"));
    let named = named.collect::<Vec<_>>().join(", ");
    match unmanaged.len().saturating_sub(MOST_NAMED) {
        0 => named,
        more => format!("{named}, and memory of {more} more"),
    }
}

/// `0, 1, 3`.
pub(crate) fn indices(indices: &[u32]) -> String {
    indices
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
