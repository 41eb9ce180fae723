//! Available room: the largest job that one GPU would serve now.
//!
//! The figures come from the rules of `placement::fit`, so a request for one of them finds room on that GPU. Quotas,
//! limits of users and pending jobs ahead are not considered: they depend on the submitter.

use crate::explain::suggest::{
    instance_share, largest_memory, largest_share, memory_of, placeable_profiles,
};
use crate::model::gpu::{GRANULE, Gpu};
use crate::model::request::{Amount, Request};
use crate::model::snapshot::{AllocatedJob, Snapshot};
use crate::placement::fit::fit;
use crate::placement::occupancy::{GpuUsage, NodeUsage};
use crate::units::{Bytes, GpuUuid, Share};

/// The largest job that a GPU has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    pub gpu: GpuUuid,
    /// The largest share of the GPU; `None` if only a request by memory fits.
    pub share: Option<Share>,
    /// The largest amount of memory, in steps of 2 MiB; zero if only a request by share fits, as on an exclusive GPU.
    pub memory: Bytes,
}

/// The GPUs that have room for a job while these jobs hold their slices.
pub fn available(gpus: Vec<Gpu>, held: Vec<AllocatedJob>) -> Vec<Available> {
    let snapshot = Snapshot {
        gpus,
        held,
        ..Snapshot::default()
    };
    let node = NodeUsage::of(&snapshot);
    node.gpus.iter().filter_map(on_gpu).collect()
}

fn on_gpu(usage: &GpuUsage<'_>) -> Option<Available> {
    let fits = |amount: Amount| fit(usage, &Request::from(amount)).is_ok();
    let profiles = placeable_profiles(usage);
    let share = largest_share(usage.gpu, usage.free());
    let instances = profiles.iter();
    let instances = instances.filter_map(|profile| instance_share(usage, profile));
    // The largest instance serves any part of a GPU, but no request for a whole one.
    let part = Share::from_thousandths(Share::FULL.thousandths() - 1);
    let shares = [Some(Share::FULL), part, share].into_iter().flatten();
    let share = (shares.chain(instances))
        .filter(|share| fits(Amount::Share(*share)))
        .max();
    let by_name = Request::from(Amount::ONE_GPU);
    let instances = profiles.iter().map(|profile| memory_of(profile, &by_name));
    // The share of an amount of memory is rounded, so one step more may fit.
    let by_share = largest_memory(usage.gpu, usage.free());
    let memory = [by_share, by_share.saturating_add(GRANULE)].into_iter();
    let memory = memory
        .chain(instances)
        .filter(|memory| *memory > Bytes::ZERO && fits(Amount::Memory(*memory)))
        .max();
    (share.is_some() || memory.is_some()).then(|| Available {
        gpu: usage.gpu.uuid.clone(),
        share,
        memory: memory.unwrap_or(Bytes::ZERO),
    })
}
