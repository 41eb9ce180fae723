//! Fit: whether one GPU can serve one request now, the size it would grant, and otherwise every unmet constraint.

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

/// A part of one GPU, by the quantity that decides its size.
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

/// A constraint of a request that a GPU does not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnmetConstraint {
    /// The request names other GPUs.
    NotAskedFor,
    Unmanaged,
    /// The GPU does not respond to the driver.
    Unresponsive,
    /// The GPU is out of service: [`Gpu::out_of_service`].
    OutOfService(String),
    /// Exclusive, and the request is for a part.
    Exclusive,
    /// In MIG mode, and the request is for whole GPUs; the largest profile of the GPU.
    InMigMode {
        largest: Option<MigProfile>,
    },
    /// Not in MIG mode, and the request is for an instance.
    NotInMigMode,
    /// The isolation that this GPU offers is not the requested one.
    Isolation(Isolation),
    /// The GPU has no MIG profile of this size or name; its largest profile.
    NoProfile {
        wanted: Fraction,
        largest: Option<(MigProfile, Bytes)>,
    },
    /// There is no free placement for the MIG instance.
    Slots(Obstacle),
    /// A job still holds a slice from before the change to MIG mode.
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
    /// One job holds the whole GPU.
    Held(JobId),
    /// Room is reserved for this job, which is resuming.
    Reserved(JobId),
    /// The job would not give the room back to this parked one in time.
    Promised(JobId),
    /// The request is for a whole GPU, and jobs hold parts of it.
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
    /// Jobs with a latency goal have this much of the compute time already, of at most so much.
    Latency {
        taken: u64,
        needs: Share,
        most: Share,
    },
    /// Other daemons of the machine hold this much; `others` more of them than the named one.
    Elsewhere {
        share: u64,
        memory: Bytes,
        holder: String,
        others: usize,
    },
    /// It would fit without the memory in use outside slices, of which so much is listed for no process. A job may hold
    /// that part.
    UnmanagedMemory {
        unmanaged: Bytes,
        unlisted: Bytes,
        holder: Option<JobId>,
        tolerated: Bytes,
    },
}

/// The size that an otherwise unused GPU would grant.
///
/// # Errors
/// The constraints that the GPU never meets.
pub(crate) fn size(
    usage: &GpuUsage<'_>,
    request: &Request,
) -> Result<GrantSize, Vec<UnmetConstraint>> {
    let gpu = usage.gpu;
    let need = RequestShape::of(request.amount);
    let mut unmet = Vec::new();
    if !request.allows(gpu.index) {
        unmet.push(UnmetConstraint::NotAskedFor);
    }
    let wish = request.isolation;
    match (gpu.mode, need) {
        (Mode::Unmanaged, _) => unmet.push(unmanaged(gpu)),
        (Mode::Exclusive, RequestShape::Parts { .. }) => unmet.push(UnmetConstraint::Exclusive),
        (Mode::Mig, RequestShape::Whole { .. }) => unmet.push(UnmetConstraint::InMigMode {
            largest: largest(usage.mig.as_ref()).map(|profile| profile.name),
        }),
        (Mode::Mig, RequestShape::Parts { part, .. }) => {
            if !wish.takes_instances() {
                unmet.push(UnmetConstraint::Isolation(wish));
            }
            match instance(usage, part, request.exact) {
                Ok(size) if unmet.is_empty() => return Ok(size),
                Ok(_) => {}
                Err(constraint) => unmet.push(constraint),
            }
        }
        (
            Mode::Shared,
            RequestShape::Parts {
                part: Fraction::Profile(_),
                ..
            },
        ) => unmet.push(UnmetConstraint::NotInMigMode),
        (Mode::Shared, RequestShape::Parts { .. }) if !gpu.enforcement.satisfies(wish) => {
            unmet.push(UnmetConstraint::Isolation(wish));
        }
        (Mode::Exclusive, RequestShape::Whole { .. }) | (Mode::Shared, _) => {}
    }
    let usable = gpu.usable();
    let (share, memory) = match need {
        // The arm for MIG mode above returns every size that such a GPU has.
        _ if gpu.mode == Mode::Mig => return Err(unmet),
        RequestShape::Whole { .. } => (Some(Share::FULL), usable.round_down(GRANULE)),
        RequestShape::Parts { part, .. } => match part {
            Fraction::Share(share) => (Some(share), gpu.memory_of(share)),
            Fraction::Memory(memory) => (gpu.share_of(memory), memory.round_up(GRANULE)),
            Fraction::Profile(_) => return Err(unmet),
        },
    };
    match share.filter(|_| Bytes::ZERO < memory && memory <= usable) {
        Some(_) if memory < gpu.context && matches!(need, RequestShape::Parts { .. }) => {
            unmet.push(UnmetConstraint::Context {
                needs: memory,
                context: gpu.context,
            });
        }
        Some(share) if unmet.is_empty() => {
            return Ok(GrantSize {
                share,
                memory,
                profile: None,
            });
        }
        Some(_) => {}
        None => unmet.push(UnmetConstraint::Size {
            needs: memory,
            usable,
        }),
    }
    Err(unmet)
}

/// The constraint of an unmanaged GPU.
pub(crate) fn unmanaged(gpu: &Gpu) -> UnmetConstraint {
    match (gpu.away, &gpu.out_of_service) {
        (true, _) => UnmetConstraint::Unresponsive,
        (false, Some(why)) => UnmetConstraint::OutOfService(why.clone()),
        (false, None) => UnmetConstraint::Unmanaged,
    }
}

/// The size of the smallest MIG instance that satisfies the part.
fn instance(
    usage: &GpuUsage<'_>,
    part: Fraction,
    exact: bool,
) -> Result<GrantSize, UnmetConstraint> {
    let mig = usage.mig.as_ref();
    let none = || UnmetConstraint::NoProfile {
        wanted: part,
        largest: largest(mig).map(|profile| (profile.name, profile.memory)),
    };
    let mig = mig.ok_or_else(none)?;
    let size = match part {
        Fraction::Share(share) => InstanceSize::Share(share),
        Fraction::Memory(memory) if exact => InstanceSize::Exact(memory),
        Fraction::Memory(memory) => InstanceSize::Memory(memory),
        Fraction::Profile(name) => InstanceSize::Named(name),
    };
    let profile = smallest(mig.table(), size).ok_or_else(none)?;
    Ok(GrantSize {
        share: mig.table().share(profile),
        memory: profile.memory.round_down(GRANULE),
        profile: Some(profile.id),
    })
}

/// The largest profile without attributes.
fn largest<'a>(mig: Option<&MigOccupancy<'a>>) -> Option<&'a Profile> {
    mig?.table().plain().last()
}

/// The size that the GPU would grant now.
///
/// # Errors
/// Every unmet constraint.
pub(crate) fn fit(
    usage: &GpuUsage<'_>,
    request: &Request,
) -> Result<GrantSize, Vec<UnmetConstraint>> {
    let size = size(usage, request)?;
    let is_whole = matches!(RequestShape::of(request.amount), RequestShape::Whole { .. });
    let mut unmet = match size.profile {
        Some(profile) => instance_constraints(usage, profile),
        None if is_whole => whole_gpu_constraints(usage),
        None => fraction_constraints(usage, size),
    };
    unmet.extend(latency_constraint(usage, request, size).filter(|_| !is_whole));
    unmet.extend(park_constraint(usage, request.gives_way, size));
    if !unmet.is_empty() {
        return Err(unmet);
    }
    Ok(if is_whole {
        GrantSize {
            memory: usage.free_memory().round_down(GRANULE),
            ..size
        }
    } else {
        size
    })
}

/// The promise to a parked job that a new holder of this size would break.
pub(crate) fn park_constraint(
    usage: &GpuUsage<'_>,
    gives_way: bool,
    size: GrantSize,
) -> Option<UnmetConstraint> {
    let broken = usage.broken_promise(size).filter(|_| !gives_way)?;
    Some(UnmetConstraint::Promised(broken))
}

/// Whether the GPU has jobs with a latency goal that leave no room for this one's share.
fn latency_constraint(
    usage: &GpuUsage<'_>,
    request: &Request,
    size: GrantSize,
) -> Option<UnmetConstraint> {
    request.compute.latency?;
    let (taken, most) = usage.latency_shares()?;
    let needs = request.compute.share.unwrap_or(size.share);
    let sum = taken + u64::from(needs.thousandths());
    (sum > u64::from(most.thousandths())).then_some(UnmetConstraint::Latency { taken, needs, most })
}

fn held_whole(usage: &GpuUsage<'_>) -> Option<UnmetConstraint> {
    let mut holders = usage.holders.iter().filter(|holder| !holder.is_reserved);
    let holder = holders.find(|holder| holder.grant.share == Share::FULL)?;
    Some(UnmetConstraint::Held(holder.job))
}

pub(crate) fn whole_gpu_constraints(usage: &GpuUsage<'_>) -> Vec<UnmetConstraint> {
    let mut unmet = Vec::new();
    if usage.holders.iter().any(|holder| !holder.is_reserved) {
        unmet.push(held_whole(usage).unwrap_or(UnmetConstraint::InUse {
            used: usage.held_share(),
        }));
    }
    unmet.extend(usage.constraint_elsewhere());
    unmet.extend(usage.reserved_for().map(UnmetConstraint::Reserved));
    let (unmanaged, tolerated) = (usage.unmanaged, usage.gpu.unmanaged_tolerated());
    if unmanaged > tolerated {
        unmet.push(UnmetConstraint::UnmanagedMemory {
            unmanaged,
            unlisted: usage.gpu.unlisted_outside(),
            holder: usage.gpu.unlisted_holder,
            tolerated,
        });
    }
    unmet
}

/// Unmanaged memory does not matter here: an instance has its own memory.
fn instance_constraints(usage: &GpuUsage<'_>, profile: u32) -> Vec<UnmetConstraint> {
    if let Some(old) = usage.slice_before_mig() {
        return vec![UnmetConstraint::SliceBeforeMig(old)];
    }
    // Two daemons that create and destroy instances of one GPU would mistake each other's for strays.
    if let Some(elsewhere) = usage.constraint_elsewhere() {
        return vec![elsewhere];
    }
    let mig = usage.mig.as_ref();
    let (Some(mig), Some(profile)) = (mig, mig.and_then(|mig| mig.table().profile(profile))) else {
        return Vec::new();
    };
    if mig.has_room(profile.id) {
        Vec::new()
    } else {
        vec![UnmetConstraint::Slots(mig.obstacle(profile))]
    }
}

pub(crate) fn fraction_constraints(usage: &GpuUsage<'_>, size: GrantSize) -> Vec<UnmetConstraint> {
    if let Some(held) = held_whole(usage) {
        return vec![held];
    }
    let mut unmet = Vec::new();
    if u64::from(size.share.thousandths()) > usage.free_share() {
        unmet.push(UnmetConstraint::Share {
            free: usage.free_share(),
            needs: size.share,
        });
    }
    if size.memory > usage.free_memory() {
        unmet.push(UnmetConstraint::Memory {
            free: usage.free_memory(),
            needs: size.memory,
        });
        if size.memory <= usage.unallocated_memory() {
            let tolerated = usage.unallocated_memory().saturating_sub(size.memory);
            unmet.push(UnmetConstraint::UnmanagedMemory {
                unmanaged: usage.unmanaged,
                unlisted: usage.gpu.unlisted_outside(),
                holder: usage.gpu.unlisted_holder,
                tolerated,
            });
        }
    }
    if !unmet.is_empty() {
        unmet.extend(usage.constraint_elsewhere());
        unmet.extend(usage.reserved_for().map(UnmetConstraint::Reserved));
    }
    unmet
}
