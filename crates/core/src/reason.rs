//! Why a job waits, in one line with figures.

use std::fmt;
use std::sync::Arc;

use crate::board::Board;
use crate::capacity::NeverFits;
use crate::fit::{Miss, Need, Part, fit, size};
use crate::ids::{JobId, QueueName};
use crate::isolation::Isolation;
use crate::obstacle::{Obstacle, Who};
use crate::project::{Overdraft, QuotaAhead, Reclaims};
use crate::request::{Amount, Request};
use crate::smaller::{carved, largest_memories, largest_shares, with_room};
use crate::units::{Bytes, Share, gpus};

/// Why a job waits. `Display` is one line: `needs 1 whole GPU; 2.75 of 3 GPUs in use`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is its turn, and it does not fit.
    Short(Arc<Shortage>),
    /// It waits for its turn.
    Behind(Arc<Ahead>),
    /// It fits, and starting it now might delay a job ahead.
    Yields(Arc<Ahead>),
    /// The GPUs that it needs are not there any more. It holds nobody up.
    Never(Arc<NeverFits>),
    /// Its project may not take so much, whatever there is room for. It holds up none but its project's.
    Quota(Arc<Overdraft>),
    /// A job of its project waits for that.
    BehindQuota(Arc<QuotaAhead>),
    /// It is within its project's quota, and others that are over quota give way to it.
    Reclaims(Arc<Reclaims>),
}

/// A job that others wait behind, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
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
    /// How many of them have room for its part: of those in MIG mode, or of the others, whichever are more. The parts of one job are
    /// of one kind.
    pub room: u32,
    /// The largest part of one of them that it could have, for a request of one part.
    pub most: Option<Amount>,
    /// Jobs that are to go on, for whom room is kept on them.
    pub due: Vec<JobId>,
    /// GPUs where it would fit, were it not for memory held outside Divvy: index and that memory.
    pub foreign: Vec<(u32, Bytes)>,
    /// GPUs in MIG mode where it would fit if instances lay otherwise, or some that are nobody's were gone.
    pub layout: Vec<(u32, Obstacle)>,
}

impl Shortage {
    pub(crate) fn of(board: &Board<'_>, request: &Request) -> Self {
        let (mut used, mut count) = (0, 0);
        let (mut divided, mut shared) = (0, 0);
        let (mut foreign, mut layout) = (Vec::new(), Vec::new());
        let mut due = Vec::new();
        for tile in board
            .tiles
            .iter()
            .filter(|tile| size(tile, request).is_ok())
        {
            used += tile.used_share();
            count += 1;
            due.extend(tile.due());
            match fit(tile, request) {
                Ok(_) if tile.seats.is_some() => divided += 1,
                Ok(_) => shared += 1,
                Err(misses) => {
                    for miss in misses {
                        match miss {
                            Miss::Foreign { .. } => foreign.push((tile.gpu.index, tile.foreign)),
                            Miss::Slots(obstacle) if is_telling(&obstacle) => {
                                layout.push((tile.gpu.index, obstacle));
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        let most = match Need::of(request.amount) {
            Need::Parts {
                count: 1,
                part: Part::Share(_),
            } => largest_shares(board, request, Share::FULL)
                .first()
                .copied()
                .map(Amount::Share),
            Need::Parts {
                count: 1,
                part: Part::Memory(_),
            } => largest_memories(board, request, Bytes::new(u64::MAX))
                .first()
                .copied()
                .map(Amount::Memory),
            Need::Parts {
                count: 1,
                part: Part::Profile(_),
            } => carved(board, request)
                .flat_map(with_room)
                .max_by_key(|profile| profile.memory)
                .map(|profile| Amount::Mig(profile.name)),
            Need::Parts { .. } | Need::Whole { .. } => None,
        };
        due.sort_unstable();
        due.dedup();
        Self {
            due,
            amount: request.amount,
            on: request.on.clone(),
            isolation: request.isolation,
            used,
            gpus: count,
            room: u32::max(divided, shared),
            most,
            foreign,
            layout,
        }
    }
}

/// Whether it says more than that the GPU is full.
fn is_telling(obstacle: &Obstacle) -> bool {
    let is_nobodys = |who: Who| matches!(who, Who::Nobody(_));
    let mut blockers = obstacle.blockers.iter();
    obstacle.by_layout || blockers.any(|blocker| is_nobodys(blocker.who))
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(short) => short.fmt(out),
            Self::Behind(ahead) => write!(out, "behind {ahead}"),
            Self::Yields(ahead) => write!(out, "would fit, but could delay {ahead}"),
            Self::Never(never) => never.fmt(out),
            Self::Quota(overdraft) => overdraft.fmt(out),
            Self::BehindQuota(ahead) => write!(out, "behind {ahead}"),
            Self::Reclaims(reclaims) => reclaims.fmt(out),
        }
    }
}

impl fmt::Display for Ahead {
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
        write!(out, "needs {}", self.amount.words())?;
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
                write!(out, ", at most {} free on one GPU", most.words())?;
            }
            Some(most) => write!(out, ", at most {most} free on one GPU")?,
            None if self.room > 0 => write!(out, ", room on {}", self.room)?,
            None => {}
        }
        for job in &self.due {
            write!(out, "; room is reserved for #{job}, which is resuming")?;
        }
        for (index, memory) in &self.foreign {
            write!(
                out,
                "; processes outside Divvy hold {} of GPU {index}",
                memory.human()
            )?;
        }
        if let Some((index, obstacle)) = self.layout.first() {
            write!(out, "; on GPU {index} {obstacle}")?;
        }
        match self.layout.len() {
            0 | 1 => Ok(()),
            count => write!(out, "; likewise on {} more GPUs", count - 1),
        }
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
