//! What could be asked for instead: the largest parts that a board has room for.

use std::cmp::Reverse;
use std::num::NonZeroU32;

use crate::mig::{Attribute, MigProfile, Profile};
use crate::model::gpu::{GRANULE, Gpu, Mode};
use crate::model::request::{Amount, Request};
use crate::placement::occupancy::{FreePart, GpuUsage, NodeUsage};
use crate::units::{Bytes, Share};

/// Smaller requests that may find room where this one does not, nearest first. For a part, one whole GPU comes last, in
/// case exclusive GPUs are all that is left; for a whole GPU, the largest MIG instance comes before a part. Being listed
/// promises nothing: place it.
pub(super) fn smaller_requests(board: &NodeUsage<'_>, request: &Request) -> Vec<Request> {
    let there = u32::try_from(board.gpus.len()).unwrap_or(u32::MAX);
    let fewer = |count: NonZeroU32| {
        (1..=there.min(count.get() - 1))
            .rev()
            .filter_map(NonZeroU32::new)
    };
    let shares = |most: Option<Share>| {
        let most = most.into_iter();
        most.flat_map(|most| largest_shares(board, request, most))
            .map(Amount::Share)
    };
    let mut amounts = Vec::new();
    match request.amount {
        Amount::Memory(wanted) => {
            let memories = largest_memories(board, request, wanted);
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
            let instances = mig_gpus(board, request).flat_map(placeable_profiles);
            let largest = instances.max_by_key(|profile| profile.memory);
            amounts.extend(largest.map(|profile| Amount::Mig(profile.name)));
            amounts.extend(shares(less_than(Share::FULL)));
        }
        Amount::Mig(wanted) => {
            amounts.extend(other_profiles(board, request, wanted));
            amounts.push(Amount::Memory(wanted.nominal()));
            amounts.push(Amount::ONE_GPU);
        }
    }
    amounts
        .into_iter()
        .map(|amount| request.with_amount(amount))
        .collect()
}

/// The GPUs that the request may have parts of.
pub(super) fn shared_gpus<'b, 'a>(
    board: &'b NodeUsage<'a>,
    request: &'b Request,
) -> impl Iterator<Item = &'b GpuUsage<'a>> {
    let may = |tile: &&GpuUsage<'_>| {
        tile.gpu.mode == Mode::Shared
            && request.isolation.takes_parts()
            && request.allows(tile.gpu.index)
    };
    board.gpus.iter().filter(may)
}

/// The GPUs that the request may have MIG instances of.
pub(super) fn mig_gpus<'b, 'a>(
    board: &'b NodeUsage<'a>,
    request: &'b Request,
) -> impl Iterator<Item = &'b GpuUsage<'a>> {
    let may = |tile: &&GpuUsage<'_>| {
        tile.gpu.mode == Mode::Mig
            && request.isolation.takes_instances()
            && request.allows(tile.gpu.index)
    };
    board.gpus.iter().filter(may)
}

/// Profiles without attributes that a GPU in MIG mode has a place for now.
pub(super) fn placeable_profiles<'a>(tile: &GpuUsage<'a>) -> Vec<&'a Profile> {
    let Some(seats) = tile
        .mig
        .as_ref()
        .filter(|_| tile.slice_before_mig().is_none())
    else {
        return Vec::new();
    };
    let plain = |profile: &&Profile| profile.name.attribute() == Attribute::None;
    let profiles = seats.table().profiles.iter().filter(plain);
    profiles
        .filter(|profile| seats.has_room(profile.id))
        .collect()
}

/// What a profile counts as where memory is asked for: what it has, or what its name says.
pub(super) fn memory_of(profile: &Profile, request: &Request) -> Bytes {
    match request.exact {
        true => profile.memory,
        false => profile.name.nominal(),
    }
}

/// Amounts of memory below this that may fit one GPU now, the largest first.
pub(super) fn largest_memories(
    board: &NodeUsage<'_>,
    request: &Request,
    below: Bytes,
) -> Vec<Bytes> {
    let parts = shared_gpus(board, request)
        .map(|usage| largest_memory(usage.gpu, usage.free()))
        .max();
    let instances = mig_gpus(board, request).flat_map(placeable_profiles);
    let instances = instances.map(|profile| memory_of(profile, request));
    let mut all: Vec<Bytes> = parts.into_iter().chain(instances).collect();
    all.retain(|memory| (Bytes::new(1)..below).contains(memory));
    all.sort_unstable_by_key(|memory| Reverse(*memory));
    all.dedup();
    all
}

/// Shares up to this one that may fit one GPU now, the largest first.
pub(super) fn largest_shares(board: &NodeUsage<'_>, request: &Request, most: Share) -> Vec<Share> {
    let parts = shared_gpus(board, request)
        .filter_map(|usage| largest_share(usage.gpu, usage.free()))
        .max();
    let of_tile = |tile| {
        let share = |profile: &Profile| tile_share(tile, profile);
        placeable_profiles(tile)
            .into_iter()
            .map(share)
            .collect::<Vec<_>>()
    };
    let instances = mig_gpus(board, request).flat_map(of_tile);
    let mut all: Vec<Share> = parts
        .map(|share| share.min(most))
        .into_iter()
        .chain(instances.filter_map(|share| share.filter(|share| *share <= most)))
        .collect();
    all.sort_unstable_by_key(|share| Reverse(*share));
    all.dedup();
    all
}

fn tile_share(tile: &GpuUsage<'_>, profile: &Profile) -> Option<Share> {
    let seats = tile.mig.as_ref()?;
    Some(seats.table().share(profile))
}

/// Other profiles that have a place: the next smaller ones first where some GPU has the wanted one, else the next larger ones.
fn other_profiles(board: &NodeUsage<'_>, request: &Request, wanted: MigProfile) -> Vec<Amount> {
    let is_known = mig_gpus(board, request)
        .filter_map(|tile| tile.mig.as_ref())
        .any(|seats| seats.table().named(wanted).is_some());
    let order = |name: MigProfile| (name.nominal(), name.compute_slices());
    let there = mig_gpus(board, request).flat_map(placeable_profiles);
    let mut there: Vec<MigProfile> = there.map(|profile| profile.name).collect();
    there.retain(|name| *name != wanted);
    there.sort_unstable_by_key(|name| order(*name));
    there.dedup();
    let (smaller, larger): (Vec<_>, Vec<_>) = there
        .into_iter()
        .partition(|name| order(*name) < order(wanted));
    let smaller = smaller.into_iter().rev();
    let names: Vec<MigProfile> = match is_known {
        true => smaller.chain(larger).collect(),
        false => larger.into_iter().chain(smaller).collect(),
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
