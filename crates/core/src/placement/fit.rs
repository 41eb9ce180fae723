//! Whether one GPU can serve one request now, what the job would get of it, and otherwise every cause why not.

use crate::mig::occupancy::MigOccupancy;
use crate::mig::{InstanceSize, MigProfile, Obstacle, Profile, smallest};
use crate::model::gpu::{GRANULE, Gpu, Mode};
use crate::model::isolation::Isolation;
use crate::model::request::{Amount, Request};
use crate::placement::occupancy::GpuUsage;
use crate::units::{Bytes, JobId, Share};

/// The two shapes that every amount has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestShape {
    /// As many whole GPUs as are free, within limits.
    Whole { min: u32, max: u32 },
    /// The same part of `count` different GPUs.
    Parts { count: u32, part: Fraction },
}

/// A part of one GPU, by the sum that decides its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fraction {
    Share(Share),
    Memory(Bytes),
    /// A MIG instance of this profile.
    Profile(MigProfile),
}

impl RequestShape {
    pub(crate) fn of(amount: Amount) -> Self {
        match amount {
            Amount::Share(Share::FULL) => Self::Whole { min: 1, max: 1 },
            Amount::Share(share) => Self::Parts {
                count: 1,
                part: Fraction::Share(share),
            },
            Amount::Memory(memory) => Self::Parts {
                count: 1,
                part: Fraction::Memory(memory),
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
                part: Fraction::Share(share),
            },
            Amount::Mig(profile) => Self::Parts {
                count: 1,
                part: Fraction::Profile(profile),
            },
        }
    }
}

/// Share and memory of one GPU, as they would be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantSize {
    pub(crate) share: Share,
    pub(crate) memory: Bytes,
    /// The id of the MIG profile that gives them.
    pub(crate) profile: Option<u32>,
}

/// A cause why a GPU cannot serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmetConstraint {
    /// The request names other GPUs.
    NotAskedFor,
    Unmanaged,
    /// It does not answer.
    Unresponsive,
    /// Exclusive, and the request is for a part.
    Exclusive,
    /// In MIG mode, and the request is for whole GPUs; the largest instance there is.
    InMigMode {
        largest: Option<MigProfile>,
    },
    /// Not in MIG mode, and the request is for an instance.
    NotInMigMode,
    /// What would hold the limit here is not what was asked for.
    Isolation(Isolation),
    /// No MIG profile here gives so much, or is called so; the largest there is.
    NoProfile {
        wanted: Fraction,
        largest: Option<(MigProfile, Bytes)>,
    },
    /// There is no place for the MIG instance.
    Slots(Obstacle),
    /// It was put in MIG mode, and a job holds a part of it from before.
    SliceBeforeMig(JobId),
    /// The part is larger than the GPU, or so small that it rounds down to no memory.
    Size {
        needs: Bytes,
        usable: Bytes,
    },
    /// A CUDA context alone takes more than the part.
    Context {
        needs: Bytes,
        context: Bytes,
    },
    /// One job holds all of it.
    Held(JobId),
    /// Room is kept for this job, which is to go on.
    Reserved(JobId),
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
    UnmanagedMemory {
        foreign: Bytes,
        tolerated: Bytes,
    },
}

/// What a request would get of a GPU that nobody else uses.
///
/// # Errors
/// Why it never gets anything there.
pub(crate) fn size(
    tile: &GpuUsage<'_>,
    request: &Request,
) -> Result<GrantSize, Vec<UnmetConstraint>> {
    let gpu = tile.gpu;
    let need = RequestShape::of(request.amount);
    let mut misses = Vec::new();
    if !request.allows(gpu.index) {
        misses.push(UnmetConstraint::NotAskedFor);
    }
    let wish = request.isolation;
    match (gpu.mode, need) {
        (Mode::Unmanaged, _) => misses.push(unmanaged(gpu)),
        (Mode::Exclusive, RequestShape::Parts { .. }) => misses.push(UnmetConstraint::Exclusive),
        (Mode::Mig, RequestShape::Whole { .. }) => misses.push(UnmetConstraint::InMigMode {
            largest: largest(tile.mig.as_ref()).map(|profile| profile.name),
        }),
        (Mode::Mig, RequestShape::Parts { part, .. }) => {
            if !wish.takes_instances() {
                misses.push(UnmetConstraint::Isolation(wish));
            }
            match instance(tile, part, request.exact) {
                Ok(size) if misses.is_empty() => return Ok(size),
                Ok(_) => {}
                Err(miss) => misses.push(miss),
            }
        }
        (
            Mode::Shared,
            RequestShape::Parts {
                part: Fraction::Profile(_),
                ..
            },
        ) => misses.push(UnmetConstraint::NotInMigMode),
        (Mode::Shared, RequestShape::Parts { .. }) if !wish.takes_parts() => {
            misses.push(UnmetConstraint::Isolation(wish));
        }
        (Mode::Exclusive, RequestShape::Whole { .. }) | (Mode::Shared, _) => {}
    }
    let usable = gpu.usable();
    let (share, memory) = match need {
        // An instance is weighed above, and nothing else has a profile.
        _ if gpu.mode == Mode::Mig => return Err(misses),
        RequestShape::Whole { .. } => (Some(Share::FULL), usable.round_down(GRANULE)),
        RequestShape::Parts { part, .. } => match part {
            Fraction::Share(share) => (Some(share), gpu.memory_of(share)),
            Fraction::Memory(memory) => (gpu.share_of(memory), memory.round_up(GRANULE)),
            Fraction::Profile(_) => return Err(misses),
        },
    };
    match share.filter(|_| Bytes::ZERO < memory && memory <= usable) {
        Some(_) if memory < gpu.context && matches!(need, RequestShape::Parts { .. }) => {
            misses.push(UnmetConstraint::Context {
                needs: memory,
                context: gpu.context,
            });
        }
        Some(share) if misses.is_empty() => {
            return Ok(GrantSize {
                share,
                memory,
                profile: None,
            });
        }
        Some(_) => {}
        None => misses.push(UnmetConstraint::Size {
            needs: memory,
            usable,
        }),
    }
    Err(misses)
}

/// Why one that is unmanaged is given to nobody.
pub(crate) fn unmanaged(gpu: &Gpu) -> UnmetConstraint {
    match gpu.away {
        true => UnmetConstraint::Unresponsive,
        false => UnmetConstraint::Unmanaged,
    }
}

/// The smallest instance that gives so much.
fn instance(
    tile: &GpuUsage<'_>,
    part: Fraction,
    exact: bool,
) -> Result<GrantSize, UnmetConstraint> {
    let seats = tile.mig.as_ref();
    let none = || UnmetConstraint::NoProfile {
        wanted: part,
        largest: largest(seats).map(|profile| (profile.name, profile.memory)),
    };
    let seats = seats.ok_or_else(none)?;
    let size = match part {
        Fraction::Share(share) => InstanceSize::Share(share),
        Fraction::Memory(memory) if exact => InstanceSize::Exact(memory),
        Fraction::Memory(memory) => InstanceSize::Memory(memory),
        Fraction::Profile(name) => InstanceSize::Named(name),
    };
    let profile = smallest(seats.table(), size).ok_or_else(none)?;
    Ok(GrantSize {
        share: seats.table().share(profile),
        memory: profile.memory.round_down(GRANULE),
        profile: Some(profile.id),
    })
}

/// The largest profile without attributes.
fn largest<'a>(seats: Option<&MigOccupancy<'a>>) -> Option<&'a Profile> {
    seats?.table().plain().last()
}

/// What a request would get of a GPU now.
///
/// # Errors
/// Every cause why it gets nothing.
pub(crate) fn fit(
    tile: &GpuUsage<'_>,
    request: &Request,
) -> Result<GrantSize, Vec<UnmetConstraint>> {
    let size = size(tile, request)?;
    let is_whole = matches!(RequestShape::of(request.amount), RequestShape::Whole { .. });
    let misses = match size.profile {
        Some(profile) => instance_misses(tile, profile),
        None if is_whole => whole_gpu_constraints(tile),
        None => fraction_constraints(tile, size),
    };
    if !misses.is_empty() {
        return Err(misses);
    }
    Ok(match is_whole {
        true => GrantSize {
            memory: tile.free_memory().round_down(GRANULE),
            ..size
        },
        false => size,
    })
}

fn held_whole(tile: &GpuUsage<'_>) -> Option<UnmetConstraint> {
    let mut holders = tile.holders.iter().filter(|holder| !holder.is_reserved);
    let holder = holders.find(|holder| holder.grant.share == Share::FULL)?;
    Some(UnmetConstraint::Held(holder.job))
}

pub(crate) fn whole_gpu_constraints(tile: &GpuUsage<'_>) -> Vec<UnmetConstraint> {
    let mut misses = Vec::new();
    if tile.holders.iter().any(|holder| !holder.is_reserved) {
        misses.push(held_whole(tile).unwrap_or(UnmetConstraint::InUse {
            used: tile.held_share(),
        }));
    }
    misses.extend(tile.reserved_for().map(UnmetConstraint::Reserved));
    let (foreign, tolerated) = (tile.unmanaged, tile.gpu.unmanaged_tolerated());
    if foreign > tolerated {
        misses.push(UnmetConstraint::UnmanagedMemory { foreign, tolerated });
    }
    misses
}

/// Memory of strangers is no matter here: an instance has its own.
fn instance_misses(tile: &GpuUsage<'_>, profile: u32) -> Vec<UnmetConstraint> {
    if let Some(old) = tile.slice_before_mig() {
        return vec![UnmetConstraint::SliceBeforeMig(old)];
    }
    let seats = tile.mig.as_ref();
    let (Some(seats), Some(profile)) = (
        seats,
        seats.and_then(|seats| seats.table().profile(profile)),
    ) else {
        return Vec::new();
    };
    match seats.has_room(profile.id) {
        true => Vec::new(),
        false => vec![UnmetConstraint::Slots(seats.obstacle(profile))],
    }
}

pub(crate) fn fraction_constraints(tile: &GpuUsage<'_>, size: GrantSize) -> Vec<UnmetConstraint> {
    if let Some(held) = held_whole(tile) {
        return vec![held];
    }
    let mut misses = Vec::new();
    if u64::from(size.share.thousandths()) > tile.free_share() {
        misses.push(UnmetConstraint::Share {
            free: tile.free_share(),
            needs: size.share,
        });
    }
    if size.memory > tile.free_memory() {
        misses.push(UnmetConstraint::Memory {
            free: tile.free_memory(),
            needs: size.memory,
        });
        if size.memory <= tile.unallocated_memory() {
            let tolerated = tile.unallocated_memory().saturating_sub(size.memory);
            misses.push(UnmetConstraint::UnmanagedMemory {
                foreign: tile.unmanaged,
                tolerated,
            });
        }
    }
    if !misses.is_empty() {
        misses.extend(tile.reserved_for().map(UnmetConstraint::Reserved));
    }
    misses
}
