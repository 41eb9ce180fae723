//! Suggestions of smaller requests: the largest parts that the GPUs have room for now.

use std::cmp::Reverse;
use std::num::NonZeroU32;

use crate::mig::{Attribute, MigProfile, Profile};
use crate::model::gpu::{GRANULE, Gpu, Mode};
use crate::model::request::{Amount, Request};
use crate::placement::occupancy::{FreePart, GpuUsage, NodeUsage};
use crate::units::{Bytes, Share};

/// Smaller requests that may find room where this one does not, nearest first.
///
/// For a part, one whole GPU comes last, in case only exclusive GPUs are free. For a whole GPU, the largest MIG
/// instance comes before a part. The caller has to place a request to know whether it fits.
pub(super) fn smaller_requests(node: &NodeUsage<'_>, request: &Request) -> Vec<Request> {
    let there = u32::try_from(node.gpus.len()).unwrap_or(u32::MAX);
    let fewer = |count: NonZeroU32| {
        (1..=there.min(count.get() - 1))
            .rev()
            .filter_map(NonZeroU32::new)
    };
    let shares = |most: Option<Share>| {
        let most = most.into_iter();
        most.flat_map(|most| largest_shares(node, request, most))
            .map(Amount::Share)
    };
    let mut amounts = Vec::new();
    match request.amount {
        Amount::Memory(wanted) => {
            let memories = largest_memories(node, request, wanted);
            amounts.extend(memories.into_iter().map(Amount::Memory));
            amounts.push(Amount::ONE_GPU);
        }
        Amount::Share(wanted) => {
            amounts.extend(shares(less_than(wanted)));
            amounts.push(Amount::ONE_GPU);
        }
        Amount::Shares { count, share } => {
            let on_fewer = |count| match count {
                NonZeroU32::MIN => Amount::Share(share),
                count => Amount::Shares { count, share },
            };
            amounts.extend(fewer(count).map(on_fewer));
            amounts.extend(shares(less_than(share)));
            amounts.push(Amount::ONE_GPU);
        }
        Amount::Whole(count) | Amount::Range { min: count, .. } => {
            amounts.extend(fewer(count).map(Amount::Whole));
            let instances = mig_gpus(node, request).flat_map(placeable_profiles);
            let largest = instances.max_by_key(|profile| profile.memory);
            amounts.extend(largest.map(|profile| Amount::Mig(profile.name)));
            amounts.extend(shares(less_than(Share::FULL)));
        }
        Amount::Mig(wanted) => {
            amounts.extend(other_profiles(node, request, wanted));
            amounts.push(Amount::Memory(wanted.nominal()));
            amounts.push(Amount::ONE_GPU);
        }
    }
    amounts
        .into_iter()
        .map(|amount| request.with_amount(amount))
        .collect()
}

/// The shared GPUs that the request allows.
pub(super) fn shared_gpus<'b, 'a>(
    node: &'b NodeUsage<'a>,
    request: &'b Request,
) -> impl Iterator<Item = &'b GpuUsage<'a>> {
    let may = |usage: &&GpuUsage<'_>| {
        usage.gpu.mode == Mode::Shared
            && usage.gpu.enforcement.satisfies(request.isolation)
            && request.allows(usage.gpu.index)
    };
    node.gpus.iter().filter(may)
}

/// The GPUs in MIG mode that the request allows.
pub(super) fn mig_gpus<'b, 'a>(
    node: &'b NodeUsage<'a>,
    request: &'b Request,
) -> impl Iterator<Item = &'b GpuUsage<'a>> {
    let may = |usage: &&GpuUsage<'_>| {
        usage.gpu.mode == Mode::Mig
            && request.isolation.takes_instances()
            && request.allows(usage.gpu.index)
    };
    node.gpus.iter().filter(may)
}

/// Profiles without attributes that have a free placement on a GPU in MIG mode.
pub(super) fn placeable_profiles<'a>(usage: &GpuUsage<'a>) -> Vec<&'a Profile> {
    let Some(mig) = usage
        .mig
        .as_ref()
        .filter(|_| usage.slice_before_mig().is_none())
    else {
        return Vec::new();
    };
    let plain = |profile: &&Profile| profile.name.attribute() == Attribute::None;
    let profiles = mig.table().profiles.iter().filter(plain);
    profiles
        .filter(|profile| mig.has_room(profile.id))
        .collect()
}

/// The memory that a profile counts for: its exact memory, or the nominal memory of its name.
pub(super) fn memory_of(profile: &Profile, request: &Request) -> Bytes {
    if request.exact {
        profile.memory
    } else {
        profile.name.nominal()
    }
}

/// Amounts of memory below this that may fit one GPU now, the largest first.
pub(super) fn largest_memories(
    node: &NodeUsage<'_>,
    request: &Request,
    below: Bytes,
) -> Vec<Bytes> {
    let parts = shared_gpus(node, request)
        .map(|usage| largest_memory(usage.gpu, usage.free()))
        .max();
    let instances = mig_gpus(node, request).flat_map(placeable_profiles);
    let instances = instances.map(|profile| memory_of(profile, request));
    let mut all: Vec<Bytes> = parts.into_iter().chain(instances).collect();
    all.retain(|memory| (Bytes::new(1)..below).contains(memory));
    all.sort_unstable_by_key(|memory| Reverse(*memory));
    all.dedup();
    all
}

/// Shares up to this one that may fit one GPU now, the largest first.
pub(super) fn largest_shares(node: &NodeUsage<'_>, request: &Request, most: Share) -> Vec<Share> {
    let parts = shared_gpus(node, request)
        .filter_map(|usage| largest_share(usage.gpu, usage.free()))
        .max();
    let of_usage = |usage| {
        let share = |profile: &Profile| instance_share(usage, profile);
        placeable_profiles(usage)
            .into_iter()
            .map(share)
            .collect::<Vec<_>>()
    };
    let instances = mig_gpus(node, request).flat_map(of_usage);
    let mut all: Vec<Share> = parts
        .map(|share| share.min(most))
        .into_iter()
        .chain(instances.filter_map(|share| share.filter(|share| *share <= most)))
        .collect();
    all.sort_unstable_by_key(|share| Reverse(*share));
    all.dedup();
    all
}

pub(super) fn instance_share(usage: &GpuUsage<'_>, profile: &Profile) -> Option<Share> {
    let mig = usage.mig.as_ref()?;
    Some(mig.table().share(profile))
}

/// Other placeable profiles: the next smaller ones first where a GPU has the wanted profile, else the next larger ones.
fn other_profiles(node: &NodeUsage<'_>, request: &Request, wanted: MigProfile) -> Vec<Amount> {
    let is_known = mig_gpus(node, request)
        .filter_map(|usage| usage.mig.as_ref())
        .any(|mig| mig.table().named(wanted).is_some());
    let order = |name: MigProfile| (name.nominal(), name.compute_slices());
    let there = mig_gpus(node, request).flat_map(placeable_profiles);
    let mut there: Vec<MigProfile> = there.map(|profile| profile.name).collect();
    there.retain(|name| *name != wanted);
    there.sort_unstable_by_key(|name| order(*name));
    there.dedup();
    let (smaller, larger): (Vec<_>, Vec<_>) = there
        .into_iter()
        .partition(|name| order(*name) < order(wanted));
    let smaller = smaller.into_iter().rev();
    let names: Vec<MigProfile> = if is_known {
        smaller.chain(larger).collect()
    } else {
        larger.into_iter().chain(smaller).collect()
    };
    names.into_iter().map(Amount::Mig).collect()
}

fn less_than(share: Share) -> Option<Share> {
    Share::from_thousandths(share.thousandths() - 1)
}

/// The largest share that fits the free part of the GPU.
pub(super) fn largest_share(gpu: &Gpu, free: FreePart) -> Option<Share> {
    let fits = |share: &Share| {
        let memory = gpu.memory_of(*share);
        Bytes::ZERO < memory && memory <= free.memory
    };
    let most = u16::try_from(free.share).ok()?;
    (1..=most)
        .rev()
        .filter_map(Share::from_thousandths)
        .find(fits)
}

/// The largest amount of memory, in steps of 2 MiB, that fits the free part of the GPU; zero where nothing fits.
pub(super) fn largest_memory(gpu: &Gpu, free: FreePart) -> Bytes {
    let by_share = u128::from(gpu.usable().get()) * u128::from(free.share) / 1000;
    let by_share = Bytes::new(u64::try_from(by_share).unwrap_or(u64::MAX));
    free.memory.min(by_share).round_down(GRANULE)
}
