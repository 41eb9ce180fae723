//! What must hold of every snapshot, whoever made it. The agent's debug builds and the simulations check it after every
//! step. That something fits *now* is the planner's business: foreign memory may grow later, and breaks nothing here.

use std::collections::{BTreeMap, BTreeSet};

use crate::gpu::{GRANULE, Gpu};
use crate::ids::{GpuUuid, JobId, QueueName};
use crate::slice::Grant;
use crate::snapshot::Snapshot;
use crate::units::{Bytes, Share, gpus};

/// Checks a snapshot. GPUs that grants name and the inventory lacks are allowed: a GPU may be lost under a running job.
///
/// # Errors
/// The first [`Violation`] found, in the order of its variants.
pub fn check(snapshot: &Snapshot) -> Result<(), Violation> {
    let mut gpus = BTreeMap::new();
    for gpu in &snapshot.gpus {
        if gpus.insert(&gpu.uuid, gpu).is_some() {
            return Err(Violation::GpuTwice(gpu.uuid.clone()));
        }
    }
    check_jobs(snapshot)?;
    let mut held: BTreeMap<&GpuUuid, Vec<&Grant>> = BTreeMap::new();
    for grant in snapshot.held.iter().flat_map(|held| &held.grants) {
        held.entry(&grant.gpu).or_default().push(grant);
    }
    for (uuid, grants) in held {
        check_grants(gpus.get(uuid).copied(), &grants)?;
    }
    Ok(())
}

fn check_jobs(snapshot: &Snapshot) -> Result<(), Violation> {
    let (mut queues, mut jobs) = (BTreeSet::new(), BTreeSet::new());
    for queue in &snapshot.queues {
        if !queues.insert(&queue.spec.name) {
            return Err(Violation::QueueTwice(queue.spec.name.clone()));
        }
    }
    let waiting = snapshot
        .queues
        .iter()
        .flat_map(|queue| &queue.waiting)
        .map(|waiting| waiting.job);
    for job in snapshot.held.iter().map(|held| held.job).chain(waiting) {
        if !jobs.insert(job) {
            return Err(Violation::JobTwice(job));
        }
    }
    for held in &snapshot.held {
        if held.grants.is_empty() {
            return Err(Violation::HoldsNothing(held.job));
        }
        let mut gpus = BTreeSet::new();
        if let Some(twice) = held.grants.iter().find(|grant| !gpus.insert(&grant.gpu)) {
            return Err(Violation::TwiceOnGpu {
                job: held.job,
                index: twice.index,
            });
        }
    }
    Ok(())
}

fn check_grants(gpu: Option<&Gpu>, grants: &[&Grant]) -> Result<(), Violation> {
    let index = grants.first().map_or(0, |grant| grant.index);
    let mut labels = BTreeSet::new();
    for grant in grants {
        if grant.memory == Bytes::ZERO || grant.memory != grant.memory.round_down(GRANULE) {
            return Err(Violation::Ragged {
                label: grant.label.clone(),
                memory: grant.memory,
            });
        }
        if !labels.insert(&grant.label) {
            return Err(Violation::LabelTwice(grant.label.clone()));
        }
    }
    if let Some(whole) = grants
        .iter()
        .find(|grant| grant.share == Share::FULL && grants.len() > 1)
    {
        return Err(Violation::NotAlone(whole.label.clone()));
    }
    let share = grants
        .iter()
        .map(|grant| u64::from(grant.share.thousandths()))
        .sum();
    if share > 1000 {
        return Err(Violation::Share { index, share });
    }
    let memory: Bytes = grants.iter().map(|grant| grant.memory).sum();
    match gpu.map(Gpu::usable) {
        Some(usable) if memory > usable => Err(Violation::Memory {
            index,
            memory,
            usable,
        }),
        _ => Ok(()),
    }
}

/// What does not hold. Always a bug of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("GPU {0} is in the inventory twice")]
    GpuTwice(GpuUuid),
    #[error("queue {0} is there twice")]
    QueueTwice(QueueName),
    #[error("job #{0} is there twice")]
    JobTwice(JobId),
    #[error("job #{0} is held without holding anything")]
    HoldsNothing(JobId),
    #[error("job #{job} holds GPU {index} twice")]
    TwiceOnGpu { job: JobId, index: u32 },
    #[error("slice {label} has {memory}, which is not a positive multiple of 2MiB")]
    Ragged { label: String, memory: Bytes },
    #[error("there are two slices {0}")]
    LabelTwice(String),
    #[error("{0} has the whole GPU, and is not alone there")]
    NotAlone(String),
    #[error("{} of GPU {index} is promised", gpus(*share))]
    Share { index: u32, share: u64 },
    #[error("{memory} of GPU {index} is promised, and {usable} is usable")]
    Memory {
        index: u32,
        memory: Bytes,
        usable: Bytes,
    },
}
