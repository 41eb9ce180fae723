//! Pinned allocation: devices that another scheduler has chosen are allocated exactly, or refused with the cause.
//!
//! Only the share of compute of a part is chosen here. A refused claim does not wait; the other scheduler asks again.

use crate::mig::occupancy::MigOccupancy;
use crate::mig::{MigProfile, Obstacle, Placement, Profile};
use crate::model::gpu::{GRANULE, Mode};
use crate::model::isolation::Isolation;
use crate::model::request::{Amount, Request};
use crate::model::slice::{Grant, MigGrant};
use crate::model::snapshot::Snapshot;
use crate::placement::fit::{
    GrantSize, UnmetConstraint, fit, fraction_constraints, size, unmanaged,
};
use crate::placement::occupancy::{Assignment, GpuUsage, NodeUsage};
use crate::placement::{MigPlacementChoice, Offer};
use crate::units::{Bytes, GpuUuid, JobId, QueueName, Share};

/// One requested device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// Memory of a shared GPU, rounded up to 2 MiB. Several parts of one GPU count as one part of their sum.
    Part { gpu: GpuUuid, memory: Bytes },
    /// A MIG instance at a given start.
    Instance {
        gpu: GpuUuid,
        profile: MigProfile,
        /// The first memory slice.
        start: u8,
    },
    /// A whole GPU.
    Whole { gpu: GpuUuid },
}

impl Device {
    pub fn gpu(&self) -> &GpuUuid {
        match self {
            Self::Part { gpu, .. } | Self::Instance { gpu, .. } | Self::Whole { gpu } => gpu,
        }
    }
}

/// The grants, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedAllocation {
    pub grants: Vec<Grant>,
    /// Idle MIG instances in the way, to be removed first.
    pub reclaim: Vec<(GpuUuid, Placement)>,
}

/// Why devices cannot be allocated as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationError {
    /// The claim requests no device.
    Nothing,
    /// The claim mixes MIG instances with parts of shared GPUs.
    Mixed,
    NoGpu(GpuUuid),
    /// The devices of the claim exclude each other on this GPU.
    Conflict(u32),
    /// The GPU cannot serve it, even without any holder.
    Never {
        index: u32,
        constraint: PinnedConstraint,
    },
    /// The GPU cannot serve it now.
    Unavailable {
        index: u32,
        constraint: PinnedConstraint,
    },
}

/// What one GPU lacks for a pinned device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinnedConstraint {
    Unmet(Vec<UnmetConstraint>),
    /// In MIG mode, and the device is a part of a shared GPU.
    OnlyMigInstances,
    /// In MIG mode, and the driver does not list its profiles.
    ProfilesUnknown,
    NoProfile(MigProfile),
    /// The profile cannot start at this memory slice.
    Start {
        profile: MigProfile,
        start: u8,
        /// Memory slices at which it can start.
        starts: Vec<u8>,
    },
}

/// Allocates these devices beside all jobs of the snapshot, all or none.
///
/// # Errors
/// [`AllocationError`], for the first device that cannot be allocated.
pub fn allocate_pinned(
    snapshot: &Snapshot,
    devices: &[Device],
) -> Result<PinnedAllocation, AllocationError> {
    let devices = merge_parts(devices);
    let is_instance = |device: &&Device| matches!(device, Device::Instance { .. });
    let instances = devices.iter().filter(is_instance).count();
    if devices.is_empty() {
        return Err(AllocationError::Nothing);
    }
    if ![0, devices.len()].contains(&instances) {
        return Err(AllocationError::Mixed);
    }
    let others = NodeUsage::of(snapshot);
    let mut node = others.clone();
    let mut placed = PinnedAllocation::default();
    for device in &devices {
        let offer = offer(&node, device).map_err(|error| match offer(&others, device) {
            // It fits beside other jobs, so the devices of the claim exclude each other.
            Ok(offer) => AllocationError::Conflict(others.gpus[offer.position].gpu.index),
            Err(_) => error,
        })?;
        let Assignment { grants, reclaim } =
            node.assign(CLAIM, &QueueName::default_queue(), &[offer]);
        placed.grants.extend(grants);
        placed.reclaim.extend(reclaim);
    }
    Ok(placed)
}

/// Stands for the claim: no job has this number.
const CLAIM: JobId = JobId(u64::MAX);

/// The devices, with all parts of one GPU merged into one.
fn merge_parts(devices: &[Device]) -> Vec<Device> {
    let mut all: Vec<Device> = Vec::new();
    for device in devices {
        let same = |other: &&mut Device| {
            matches!(other, Device::Part { .. }) && other.gpu() == device.gpu()
        };
        match (device, all.iter_mut().find(same)) {
            (Device::Part { memory: more, .. }, Some(Device::Part { memory, .. })) => {
                *memory = memory.saturating_add(*more);
            }
            _ => all.push(device.clone()),
        }
    }
    all
}

fn offer(node: &NodeUsage<'_>, device: &Device) -> Result<Offer, AllocationError> {
    let at = |usage: &GpuUsage<'_>| usage.gpu.uuid == *device.gpu();
    let place = node.gpus.iter().position(at);
    let place = place.ok_or_else(|| AllocationError::NoGpu(device.gpu().clone()))?;
    let usage = &node.gpus[place];
    let (size, choice) = match device {
        Device::Part { memory, .. } => (part(usage, *memory)?, None),
        Device::Whole { .. } => (whole(usage)?, None),
        Device::Instance { profile, start, .. } => {
            let (size, choice) = instance(usage, *profile, *start)?;
            (size, Some(choice))
        }
    };
    Ok(Offer {
        position: place,
        size,
        mig: choice,
    })
}

/// The size of a part. It takes at most the free share, so that rounded shares never refuse memory that fits.
fn part(usage: &GpuUsage<'_>, memory: Bytes) -> Result<GrantSize, AllocationError> {
    let gpu = usage.gpu;
    if gpu.mode == Mode::Mig {
        return Err(never(usage, PinnedConstraint::OnlyMigInstances));
    }
    let memory = memory.round_up(GRANULE);
    let request = request_on(usage, Amount::Memory(memory));
    let mut unmet = size(usage, &request).err().unwrap_or_default();
    // The other scheduler has chosen the size; the agent warns of a part that is too small for a context.
    unmet.retain(|constraint| !matches!(constraint, UnmetConstraint::Context { .. }));
    if !unmet.is_empty() {
        return Err(to_error(usage, unmet));
    }
    let size = GrantSize {
        share: share_of_part(usage, memory),
        memory,
        profile: None,
    };
    match fraction_constraints(usage, size) {
        unmet if unmet.is_empty() => Ok(size),
        unmet => Err(unavailable(usage, PinnedConstraint::Unmet(unmet))),
    }
}

/// The share that a part counts as. The other scheduler writes a fraction as memory, rounded down: 0.25 of 81050 MiB is
/// 20262 MiB, which is 249.99 thousandths. A part within two steps of a thousandth counts as that thousandth.
///
/// Any other part is rounded down, unlike the share of a job's request, so that the sum over a full GPU is at most 1.
fn share_of_part(usage: &GpuUsage<'_>, memory: Bytes) -> Share {
    let usable = usage.gpu.usable();
    let most = usage.free_share().min(999);
    let below = u128::from(memory.get()) * 1000 / u128::from(usable.get().max(1));
    let below = u64::try_from(below).unwrap_or(most).clamp(1, most.max(1));
    let share = |thousandths: u64| {
        let thousandths = u16::try_from(thousandths).ok();
        thousandths.and_then(Share::from_thousandths)
    };
    // The last thousandth stays for memory that is left, or a later part of it would be refused.
    let left = usage.free_memory().saturating_sub(memory);
    let has_reserve = below + 1 < usage.free_share() || left.get() < usable.get() / 1000;
    let asked = share(below + 1).filter(|asked| {
        let whole = usage.gpu.memory_of(*asked);
        below < most && has_reserve && whole <= memory.saturating_add(GRANULE)
    });
    asked.or_else(|| share(below)).unwrap_or(Share::FULL)
}

fn whole(usage: &GpuUsage<'_>) -> Result<GrantSize, AllocationError> {
    let request = request_on(usage, Amount::ONE_GPU);
    size(usage, &request).map_err(|unmet| to_error(usage, unmet))?;
    fit(usage, &request).map_err(|unmet| unavailable(usage, PinnedConstraint::Unmet(unmet)))
}

fn instance(
    usage: &GpuUsage<'_>,
    name: MigProfile,
    start: u8,
) -> Result<(GrantSize, MigPlacementChoice), AllocationError> {
    let mig: &MigOccupancy<'_> = match (&usage.mig, usage.gpu.mode) {
        (Some(mig), Mode::Mig) => mig,
        (_, Mode::Unmanaged) => return Err(to_error(usage, vec![unmanaged(usage.gpu)])),
        (_, Mode::Mig) => {
            return Err(never(usage, PinnedConstraint::ProfilesUnknown));
        }
        (_, Mode::Shared | Mode::Exclusive) => {
            let unmet = PinnedConstraint::Unmet(vec![UnmetConstraint::NotInMigMode]);
            return Err(never(usage, unmet));
        }
    };
    let table = mig.table();
    let Some(profile) = table.named(name) else {
        return Err(never(usage, PinnedConstraint::NoProfile(name)));
    };
    if !profile.starts.contains(&start) {
        let constraint = PinnedConstraint::Start {
            profile: name,
            start,
            starts: profile.starts.clone(),
        };
        return Err(never(usage, constraint));
    }
    if let Some(old) = usage.slice_before_mig() {
        let unmet = vec![UnmetConstraint::SliceBeforeMig(old)];
        return Err(unavailable(usage, PinnedConstraint::Unmet(unmet)));
    }
    let candidates = mig.candidates(profile.id).into_iter();
    let mut there = candidates.filter(|candidate| candidate.placement.start == start);
    let Some(candidate) = there.next() else {
        let only = Profile {
            starts: vec![start],
            ..profile.clone()
        };
        let obstacle = Obstacle {
            // Another layout would not help, as the start is given.
            is_fragmentation: false,
            ..mig.obstacle(&only)
        };
        let unmet = vec![UnmetConstraint::Slots(obstacle)];
        return Err(unavailable(usage, PinnedConstraint::Unmet(unmet)));
    };
    let size = GrantSize {
        share: table.share(profile),
        memory: profile.memory.round_down(GRANULE),
        profile: Some(profile.id),
    };
    let grant = MigGrant {
        profile: profile.name,
        placement: candidate.placement,
    };
    Ok((size, MigPlacementChoice { grant, candidate }))
}

/// A request for this amount on this GPU.
fn request_on(usage: &GpuUsage<'_>, amount: Amount) -> Request {
    Request {
        on: vec![usage.gpu.index],
        isolation: Isolation::Any,
        ..amount.into()
    }
}

/// A constraint of the GPU itself is permanent; a GPU that is unmanaged now may be managed again.
fn to_error(usage: &GpuUsage<'_>, unmet: Vec<UnmetConstraint>) -> AllocationError {
    if unmet.contains(&unmanaged(usage.gpu)) {
        unavailable(usage, PinnedConstraint::Unmet(unmet))
    } else {
        never(usage, PinnedConstraint::Unmet(unmet))
    }
}

fn never(usage: &GpuUsage<'_>, constraint: PinnedConstraint) -> AllocationError {
    AllocationError::Never {
        index: usage.gpu.index,
        constraint,
    }
}

fn unavailable(usage: &GpuUsage<'_>, constraint: PinnedConstraint) -> AllocationError {
    AllocationError::Unavailable {
        index: usage.gpu.index,
        constraint,
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::mig::{MigInventory, ProfileTable, UnallocatedInstance, UnallocatedState};
    use crate::model::gpu::Gpu;
    use crate::model::snapshot::AllocatedJob;

    fn uuid(index: u32) -> GpuUuid {
        GpuUuid::from_bytes([u8::try_from(index).unwrap(); 16])
    }

    fn gpu(index: u32, mode: Mode) -> Gpu {
        Gpu {
            mode,
            mig: (mode == Mode::Mig).then(|| MigInventory {
                table: ProfileTable::of_model("a100-40gb").unwrap(),
                instances: Vec::new(),
            }),
            ..Gpu::sample(u8::try_from(index).unwrap(), Bytes::mib(40_960))
        }
    }

    fn node(modes: &[Mode]) -> Snapshot {
        let gpus = (0..).zip(modes).map(|(index, mode)| gpu(index, *mode));
        Snapshot {
            gpus: gpus.collect(),
            ..Snapshot::default()
        }
    }

    fn part(index: u32, mib: u64) -> Device {
        Device::Part {
            gpu: uuid(index),
            memory: Bytes::mib(mib),
        }
    }

    fn instance(profile: &str, start: u8) -> Device {
        Device::Instance {
            gpu: uuid(0),
            profile: profile.parse().unwrap(),
            start,
        }
    }

    fn hold(node: &mut Snapshot, devices: &[Device]) -> PinnedAllocation {
        let placed = allocate_pinned(node, devices).unwrap();
        let job = JobId(node.held.len() as u64 + 1);
        let held = AllocatedJob::new(job, QueueName::default_queue(), placed.grants.clone());
        node.held.push(held);
        crate::model::invariants::check(node).unwrap();
        placed
    }

    fn refused(node: &Snapshot, devices: &[Device]) -> String {
        allocate_pinned(node, devices).unwrap_err().to_string()
    }

    #[test]
    fn a_part_below_a_context_is_held_as_the_other_scheduler_has_chosen_it() {
        let mut node = node(&[Mode::Shared]);
        node.gpus[0].context = Bytes::mib(415);
        let placed = hold(&mut node, &[part(0, 2)]);
        assert_eq!(placed.grants[0].memory, Bytes::mib(2));
        assert!(refused(&node, &[part(0, 50_000)]).contains("in total"));
    }

    #[test]
    fn thirds_of_a_gpu_fit_three_times_whatever_rounding_does_to_their_shares() {
        let mut node = node(&[Mode::Shared]);
        for _ in 0..3 {
            let placed = hold(&mut node, &[part(0, 13_652)]);
            assert_eq!(placed.grants[0].share.thousandths(), 333);
            assert_eq!(placed.grants[0].memory, Bytes::mib(13_652));
        }
        assert_eq!(
            refused(&node, &[part(0, 6)]),
            "GPU 0: 4.0 MiB free, 6.0 MiB needed"
        );
        hold(&mut node, &[part(0, 3)]);
        assert_eq!(
            node.held[3].grants[0].memory,
            Bytes::mib(4),
            "in steps of 2MiB"
        );
    }

    /// A100 80GB: 81920 MiB in total, 870 MiB of them reserved. The memory is that of the fraction, rounded down to 2 MiB.
    #[test]
    fn a_fraction_that_was_rounded_down_to_memory_counts_as_that_fraction() {
        for (mib, parts, thousandths) in [
            (20_262, 4, 250),
            (40_524, 2, 500),
            (10_130, 8, 125),
            (60_786, 1, 750),
            (8_104, 10, 100),
        ] {
            let mut node = node(&[Mode::Shared]);
            node.gpus[0].total = Bytes::mib(81_920);
            node.gpus[0].reserved = Bytes::mib(870);
            for _ in 0..parts {
                let placed = hold(&mut node, &[part(0, mib)]);
                assert_eq!(placed.grants[0].share.thousandths(), thousandths, "{mib}");
            }
        }
    }

    /// 200 times 0.005 leaves 250 MiB, because 405.25 MiB are rounded down to 404 MiB.
    #[test]
    fn rounding_up_never_takes_the_share_of_memory_that_is_left() {
        let mut node = node(&[Mode::Shared]);
        node.gpus[0].total = Bytes::mib(81_050);
        for _ in 0..200 {
            hold(&mut node, &[part(0, 404)]);
        }
        assert_eq!(node.held[0].grants[0].share.thousandths(), 5);
        hold(&mut node, &[part(0, 250)]);
    }

    #[test]
    fn all_of_the_memory_is_a_part_and_all_of_the_gpu_is_held_alone() {
        let mut node = node(&[Mode::Shared, Mode::Exclusive]);
        assert_eq!(
            hold(&mut node, &[part(0, 40_960)]).grants[0].label,
            "gpu0.999a"
        );
        let whole = Device::Whole { gpu: uuid(1) };
        assert_eq!(
            hold(&mut node, std::slice::from_ref(&whole)).grants[0].label,
            "gpu1"
        );
        assert_eq!(refused(&node, &[whole]), "GPU 1: whole GPU held by #2");
        assert_eq!(
            refused(&node, &[part(1, 2)]),
            "GPU 1: exclusive: whole GPUs only"
        );
    }

    #[test]
    fn several_gpus_are_had_together_or_not_at_all_and_parts_of_one_are_merge_parts() {
        let mut node = node(&[Mode::Shared, Mode::Shared]);
        let placed = hold(&mut node, &[part(1, 100), part(0, 200), part(1, 100)]);
        let got: Vec<_> = placed
            .grants
            .iter()
            .map(|grant| (grant.index, grant.memory))
            .collect();
        assert_eq!(got, [(1, Bytes::mib(200)), (0, Bytes::mib(200))]);
        let both = [part(0, 2), Device::Whole { gpu: uuid(1) }];
        assert!(refused(&node, &both).starts_with("GPU 1: "));
        let twice = [
            Device::Whole { gpu: uuid(0) },
            Device::Whole { gpu: uuid(0) },
        ];
        node.held.clear();
        assert_eq!(
            refused(&node, &twice),
            "the requested devices do not fit together on GPU 0"
        );
    }

    #[test]
    fn an_instance_lies_where_it_is_to_lie_and_an_overlap_is_named() {
        let mut node = node(&[Mode::Mig]);
        let placed = hold(&mut node, &[instance("2g.10gb", 2)]);
        assert_eq!(placed.grants[0].label, "gpu0.2g.10gb@2");
        assert_eq!(
            refused(&node, &[instance("1g.5gb", 3)]),
            "GPU 0: 1g.5gb needs memory slice 3; #1 2g.10gb is at 2-3"
        );
        // Several of one GPU in one claim.
        let placed = hold(&mut node, &[instance("1g.5gb", 0), instance("1g.5gb", 1)]);
        assert_eq!(placed.grants.len(), 2);
        let among = [instance("1g.5gb", 6), instance("1g.5gb", 6)];
        assert!(refused(&node, &among).contains("fit together"));
    }

    #[test]
    fn idle_instances_are_taken_as_they_lie_or_make_room() {
        let mut node = node(&[Mode::Mig]);
        let inventory = node.gpus[0].mig.as_mut().unwrap();
        let one = inventory.table.named("1g.5gb".parse().unwrap()).unwrap().id;
        let place = Placement {
            profile: one,
            start: 3,
        };
        inventory.instances.push(UnallocatedInstance {
            placement: place,
            standing: UnallocatedState::Idle,
        });
        let reused = allocate_pinned(&node, &[instance("1g.5gb", 3)]).unwrap();
        assert_eq!(reused.reclaim, []);
        let over = allocate_pinned(&node, &[instance("2g.10gb", 2)]).unwrap();
        assert_eq!(over.reclaim, [(uuid(0), place)]);
        // A foreign instance makes no room.
        node.gpus[0].mig.as_mut().unwrap().instances[0].standing = UnallocatedState::Foreign;
        assert!(refused(&node, &[instance("2g.10gb", 2)]).contains("foreign 1g.5gb"));
    }

    #[test]
    fn what_can_never_be_is_told_from_what_cannot_be_now() {
        let of = |mode, device: Device| allocate_pinned(&node(&[mode]), &[device]).unwrap_err();
        for (mode, device) in [
            (Mode::Mig, part(0, 2)),
            (Mode::Mig, Device::Whole { gpu: uuid(0) }),
            (Mode::Shared, instance("1g.5gb", 0)),
            (Mode::Mig, instance("3g.20gb", 2)),
            (Mode::Mig, instance("1g.10gb+me", 0)),
            (Mode::Shared, part(0, 40_962)),
            (Mode::Shared, part(0, 0)),
        ] {
            let error = of(mode, device.clone());
            assert!(
                matches!(error, AllocationError::Never { .. }),
                "{device:?}: {error}"
            );
        }
        for device in [part(0, 2), instance("1g.5gb", 0)] {
            let error = of(Mode::Unmanaged, device);
            assert!(
                matches!(error, AllocationError::Unavailable { .. }),
                "{error}"
            );
        }
        assert_eq!(
            of(Mode::Shared, part(7, 2)),
            AllocationError::NoGpu(uuid(7))
        );
        let mixed = [part(0, 2), instance("1g.5gb", 0)];
        let node = node(&[Mode::Shared]);
        assert_eq!(allocate_pinned(&node, &mixed), Err(AllocationError::Mixed));
        assert_eq!(allocate_pinned(&node, &[]), Err(AllocationError::Nothing));
    }

    #[test]
    fn what_strangers_hold_is_not_given_away() {
        let mut node = node(&[Mode::Shared]);
        node.gpus[0].unmanaged = Bytes::mib(1024);
        assert_eq!(
            refused(&node, &[part(0, 40_000)]),
            "GPU 0: 39.0 GiB free, 39.1 GiB needed; processes outside Divvy hold 1.0 GiB, 960.0 MiB allowed"
        );
    }
}
