//! Why a job waits, in one line with figures.

use std::fmt;
use std::sync::Arc;

use crate::board::Board;
use crate::capacity::NeverFits;
use crate::fit::{Miss, Need, Part, fit, size};
use crate::ids::{JobId, QueueName};
use crate::request::{Amount, Request};
use crate::smaller::{largest_memory, largest_share, shared};
use crate::units::{Bytes, gpus};

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
    /// Thousandths of GPUs held.
    pub used: u64,
    /// How many GPUs could ever serve it.
    pub gpus: u32,
    /// How many of them have room for its part.
    pub room: u32,
    /// The largest part of one of them that it could have, for a request of one part.
    pub most: Option<Amount>,
    /// GPUs where it would fit, were it not for memory held outside Divvy: index and that memory.
    pub foreign: Vec<(u32, Bytes)>,
}

impl Shortage {
    pub(crate) fn of(board: &Board<'_>, request: &Request) -> Self {
        let (mut used, mut count, mut room, mut foreign) = (0, 0, 0, Vec::new());
        for tile in board
            .tiles
            .iter()
            .filter(|tile| size(tile, request).is_ok())
        {
            used += tile.used_share();
            count += 1;
            match fit(tile, request) {
                Ok(_) => room += 1,
                Err(misses)
                    if misses
                        .iter()
                        .any(|miss| matches!(miss, Miss::Foreign { .. })) =>
                {
                    foreign.push((tile.gpu.index, tile.foreign));
                }
                Err(_) => {}
            }
        }
        let most = match Need::of(request.amount) {
            Need::Parts {
                count: 1,
                part: Part::Share(_),
            } => shared(board, request)
                .filter_map(largest_share)
                .max()
                .map(Amount::Share),
            Need::Parts {
                count: 1,
                part: Part::Memory(_),
            } => shared(board, request)
                .map(largest_memory)
                .max()
                .map(Amount::Memory),
            Need::Parts { .. } | Need::Whole { .. } => None,
        };
        Self {
            amount: request.amount,
            on: request.on.clone(),
            used,
            gpus: count,
            room,
            most,
            foreign,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(short) => short.fmt(out),
            Self::Behind(ahead) => write!(out, "behind {ahead}"),
            Self::Yields(ahead) => write!(out, "would fit, but might delay {ahead}"),
            Self::Never(never) => never.fmt(out),
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
            Some(most) => write!(out, ", at most {most} free on one")?,
            None if self.room > 0 => write!(out, ", room on {}", self.room)?,
            None => {}
        }
        for (index, memory) in &self.foreign {
            write!(
                out,
                "; processes outside Divvy hold {memory} of GPU {index}"
            )?;
        }
        Ok(())
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
