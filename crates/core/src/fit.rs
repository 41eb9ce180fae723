//! Whether one GPU can serve one request now, what the job would get of it, and otherwise every cause why not.

use std::fmt;

use crate::board::Tile;
use crate::gpu::{GRANULE, Mode};
use crate::ids::JobId;
use crate::mig::MigProfile;
use crate::request::{Amount, Request};
use crate::units::{Bytes, Share, gpus};

/// The two shapes that every amount has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// As many whole GPUs as are free, within limits.
    Whole { min: u32, max: u32 },
    /// The same part of `count` different GPUs.
    Parts { count: u32, part: Part },
}

/// A part of one GPU, by the sum that decides its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Share(Share),
    Memory(Bytes),
    Profile(MigProfile),
}

impl Need {
    pub(crate) fn of(amount: Amount) -> Self {
        match amount {
            Amount::Share(Share::FULL) => Self::Whole { min: 1, max: 1 },
            Amount::Share(share) => Self::Parts {
                count: 1,
                part: Part::Share(share),
            },
            Amount::Memory(memory) => Self::Parts {
                count: 1,
                part: Part::Memory(memory),
            },
            Amount::Whole(count) => Self::Whole {
                min: count.get(),
                max: count.get(),
            },
            Amount::Range { min, max } => Self::Whole {
                min: min.get(),
                max: max.get(),
            },
            Amount::Shares {
                count,
                share: Share::FULL,
            } => Self::Whole {
                min: count.get(),
                max: count.get(),
            },
            Amount::Shares { count, share } => Self::Parts {
                count: count.get(),
                part: Part::Share(share),
            },
            Amount::Mig(profile) => Self::Parts {
                count: 1,
                part: Part::Profile(profile),
            },
        }
    }
}

/// Share and memory of one GPU, as they would be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) share: Share,
    pub(crate) memory: Bytes,
}

/// A cause why a GPU cannot serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The request names other GPUs.
    NotAskedFor,
    Unmanaged,
    /// Exclusive, and the request is for a part.
    Exclusive,
    /// The part is larger than the GPU, or so small that it rounds down to no memory.
    Size {
        needs: Bytes,
        usable: Bytes,
    },
    /// One job holds all of it.
    Held(JobId),
    /// A whole GPU is needed, and something is held.
    InUse {
        used: u64,
    },
    Share {
        free: u64,
        needs: Share,
    },
    Memory {
        free: Bytes,
        needs: Bytes,
    },
    /// It would fit, were it not for processes that belong to no slice.
    Foreign {
        foreign: Bytes,
        tolerated: Bytes,
    },
}

/// What a request would get of a GPU that nobody else uses.
///
/// # Errors
/// Why it never gets anything there.
pub(crate) fn size(tile: &Tile<'_>, request: &Request) -> Result<Size, Vec<Miss>> {
    let gpu = tile.gpu;
    let need = Need::of(request.amount);
    let mut misses = Vec::new();
    if !request.allows(gpu.index) {
        misses.push(Miss::NotAskedFor);
    }
    match (gpu.mode, need) {
        (Mode::Unmanaged, _) => misses.push(Miss::Unmanaged),
        (Mode::Exclusive, Need::Parts { .. }) => misses.push(Miss::Exclusive),
        (Mode::Exclusive, Need::Whole { .. }) | (Mode::Shared | Mode::Mig, _) => {}
    }
    let usable = gpu.usable();
    let (share, memory) = match need {
        Need::Whole { .. } => (Some(Share::FULL), usable.round_down(GRANULE)),
        Need::Parts {
            part: Part::Share(share),
            ..
        } => (Some(share), gpu.memory_of(share)),
        Need::Parts {
            part: Part::Memory(memory),
            ..
        } => (gpu.share_of(memory), memory.round_up(GRANULE)),
        Need::Parts {
            part: Part::Profile(_),
            ..
        } => (None, Bytes::ZERO),
    };
    match share.filter(|_| Bytes::ZERO < memory && memory <= usable) {
        Some(share) if misses.is_empty() => return Ok(Size { share, memory }),
        Some(_) => {}
        None => misses.push(Miss::Size {
            needs: memory,
            usable,
        }),
    }
    Err(misses)
}

/// What a request would get of a GPU now.
///
/// # Errors
/// Every cause why it gets nothing.
pub(crate) fn fit(tile: &Tile<'_>, request: &Request) -> Result<Size, Vec<Miss>> {
    let size = size(tile, request)?;
    let misses = match Need::of(request.amount) {
        Need::Whole { .. } => whole_misses(tile),
        Need::Parts { .. } => part_misses(tile, size),
    };
    if !misses.is_empty() {
        return Err(misses);
    }
    match Need::of(request.amount) {
        Need::Whole { .. } => Ok(Size {
            memory: tile.free_memory().round_down(GRANULE),
            ..size
        }),
        Need::Parts { .. } => Ok(size),
    }
}

fn held_whole(tile: &Tile<'_>) -> Option<Miss> {
    let holder = tile
        .holders
        .iter()
        .find(|holder| holder.grant.share == Share::FULL)?;
    Some(Miss::Held(holder.job))
}

fn whole_misses(tile: &Tile<'_>) -> Vec<Miss> {
    let mut misses = Vec::new();
    if !tile.holders.is_empty() {
        misses.push(held_whole(tile).unwrap_or(Miss::InUse {
            used: tile.used_share(),
        }));
    }
    let (foreign, tolerated) = (tile.foreign, tile.gpu.foreign_tolerated());
    if foreign > tolerated {
        misses.push(Miss::Foreign { foreign, tolerated });
    }
    misses
}

pub(crate) fn part_misses(tile: &Tile<'_>, size: Size) -> Vec<Miss> {
    if let Some(held) = held_whole(tile) {
        return vec![held];
    }
    let mut misses = Vec::new();
    if u64::from(size.share.thousandths()) > tile.free_share() {
        misses.push(Miss::Share {
            free: tile.free_share(),
            needs: size.share,
        });
    }
    if size.memory > tile.free_memory() {
        misses.push(Miss::Memory {
            free: tile.free_memory(),
            needs: size.memory,
        });
        if size.memory <= tile.unheld_memory() {
            let tolerated = tile.unheld_memory().saturating_sub(size.memory);
            misses.push(Miss::Foreign {
                foreign: tile.foreign,
                tolerated,
            });
        }
    }
    misses
}

impl fmt::Display for Miss {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAskedFor => out.write_str("not among the GPUs asked for"),
            Self::Unmanaged => out.write_str("unmanaged: never given out"),
            Self::Exclusive => out.write_str("exclusive: whole jobs only"),
            Self::Size {
                needs: Bytes::ZERO, ..
            } => out.write_str("so small a share of it is less than 2MiB"),
            Self::Size { needs, usable } => write!(out, "{usable} in all, {needs} needed"),
            Self::Held(job) => write!(out, "held whole by #{job}"),
            Self::InUse { used } => write!(out, "{} in use, a whole GPU is needed", gpus(*used)),
            Self::Share { free, needs } => write!(out, "{} free, {needs} needed", gpus(*free)),
            Self::Memory { free, needs } => write!(out, "{free} free, {needs} needed"),
            Self::Foreign { foreign, tolerated } => {
                write!(
                    out,
                    "processes outside Divvy hold {foreign}, {tolerated} would be tolerated"
                )
            }
        }
    }
}
