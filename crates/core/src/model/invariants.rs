//! Invariants: conditions of every snapshot. The agent's debug builds and the simulations check them after every step.
//!
//! Whether a job fits *now* is no invariant: unmanaged memory may grow later and breaks nothing here.

use std::collections::{BTreeMap, BTreeSet};

use crate::mig::{Layout, Placement, ProfileTable};
use crate::model::gpu::{GRANULE, Gpu};
use crate::model::slice::Grant;
use crate::model::snapshot::Snapshot;
use crate::units::{Bytes, GpuUuid, JobId, QueueName, Share, gpus};

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
    // A resuming job holds nothing yet, and other jobs may still hold its former room.
    let holders = snapshot
        .held
        .iter()
        .filter(|held| held.resuming_since.is_none());
    for grant in holders.flat_map(|held| &held.grants) {
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
        let instances = held.grants.iter().filter(|grant| grant.mig.is_some());
        if ![0, held.grants.len()].contains(&instances.count()) {
            return Err(Violation::BothKinds(held.job));
        }
        // Instances are known by their places, of which a claim may have several on one GPU.
        let mut gpus = BTreeSet::new();
        let mut parts = held.grants.iter().filter(|grant| grant.mig.is_none());
        if let Some(twice) = parts.find(|grant| !gpus.insert(&grant.gpu)) {
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
    let placements: Vec<Placement> = grants
        .iter()
        .filter_map(|grant| Some(grant.mig?.placement))
        .collect();
    if let Some(carving) = gpu.and_then(|gpu| gpu.mig.as_ref()) {
        check_instances(&carving.table, index, &placements)?;
    }
    // What an instance is, MIG holds: the largest has all of the GPU, and the sums of its memory are the driver's.
    if placements.len() == grants.len() {
        return Ok(());
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

/// The instances of jobs form a legal layout: placements of their own, no more of a profile than there may
/// be.
fn check_instances(
    table: &ProfileTable,
    index: u32,
    placements: &[Placement],
) -> Result<(), Violation> {
    let mut layout = Layout::EMPTY;
    for placement in placements {
        layout = layout
            .with(table, *placement)
            .ok_or_else(|| Violation::Overlap {
                index,
                instance: table.label(*placement),
            })?;
    }
    Ok(())
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
    #[error(
        "job {0} holds parts of shared GPUs and MIG instances: its limiter would hold nothing or too much"
    )]
    BothKinds(JobId),
    #[error("job #{job} holds GPU {index} twice")]
    TwiceOnGpu { job: JobId, index: u32 },
    #[error("slice {label} has {memory}, which is not a positive multiple of 2 MiB")]
    Ragged { label: String, memory: Bytes },
    #[error("there are two slices {0}")]
    LabelTwice(String),
    #[error("{0} has the whole GPU, and is not alone there")]
    NotAlone(String),
    #[error("the MIG instance {instance} of GPU {index} cannot lie there beside the others")]
    Overlap { index: u32, instance: String },
    #[error("{} of GPU {index} is allocated", gpus(*share))]
    Share { index: u32, share: u64 },
    #[error("{memory} of GPU {index} is allocated, and {usable} is usable")]
    Memory {
        index: u32,
        memory: Bytes,
        usable: Bytes,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::gpu::Mode;
    use crate::model::queue::QueueSpec;
    use crate::model::request::Amount;
    use crate::model::slice::MigGrant;
    use crate::model::snapshot::{AllocatedJob, PendingJob, Queue};

    fn uuid(index: u32) -> GpuUuid {
        GpuUuid::from_bytes([u8::try_from(index).unwrap(); 16])
    }

    fn grant(index: u32, thousandths: u16, mib: u64, label: &str) -> Grant {
        let share = Share::from_thousandths(thousandths).unwrap();
        Grant {
            gpu: uuid(index),
            index,
            memory: Bytes::mib(mib),
            share,
            label: label.to_owned(),
            mig: None,
        }
    }

    /// Two GPUs of 100 MiB, one job for each list of grants, one job that waits.
    fn snapshot(held: Vec<Vec<Grant>>) -> Snapshot {
        let gpu = |index| Gpu {
            uuid: uuid(index),
            index,
            model: "small".to_owned(),
            mode: Mode::Shared,
            away: false,
            out_of_service: None,
            total: Bytes::mib(100),
            reserved: Bytes::ZERO,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            unlisted_holder: None,
            enforcement: crate::model::enforcement::Enforcement::Limiter,
            elsewhere: Vec::new(),
            context: Bytes::ZERO,
            mig: None,
        };
        let default = QueueName::default_queue();
        let held = (1..)
            .zip(held)
            .map(|(job, grants)| AllocatedJob::new(JobId(job), default.clone(), grants));
        Snapshot {
            gpus: vec![gpu(0), gpu(1)],
            held: held.collect(),
            queues: vec![Queue {
                spec: QueueSpec::open(default.clone()),
                waiting: vec![PendingJob::new(JobId(99), Amount::ONE_GPU.into())],
            }],
            ..Snapshot::default()
        }
    }

    fn violation(held: Vec<Vec<Grant>>) -> String {
        check(&snapshot(held)).unwrap_err().to_string()
    }

    #[test]
    fn a_full_gpu_is_no_violation_and_neither_is_a_lost_one() {
        let halves = vec![
            vec![grant(0, 500, 50, "gpu0.5a")],
            vec![grant(0, 500, 50, "gpu0.5b")],
        ];
        assert_eq!(check(&snapshot(halves)), Ok(()));
        assert_eq!(
            check(&snapshot(vec![vec![grant(7, 1000, 800, "gpu7")]])),
            Ok(())
        );
        let mut foreign = snapshot(vec![vec![grant(0, 1000, 100, "gpu0")]]);
        foreign.gpus[0].unmanaged = Bytes::mib(50);
        assert_eq!(check(&foreign), Ok(()));
    }

    #[test]
    fn a_gpu_is_not_promised_beyond_its_share_or_its_memory() {
        let share = vec![
            vec![grant(0, 500, 2, "gpu0.5a")],
            vec![grant(0, 501, 2, "gpu0.501a")],
        ];
        assert_eq!(violation(share), "1.001 of GPU 0 is allocated");
        let memory = vec![
            vec![grant(0, 500, 50, "gpu0.5a")],
            vec![grant(0, 500, 52, "gpu0.5b")],
        ];
        assert_eq!(
            violation(memory),
            "102MiB of GPU 0 is allocated, and 100MiB is usable"
        );
    }

    #[test]
    fn a_whole_gpu_is_held_by_one() {
        let held = vec![
            vec![grant(0, 1000, 98, "gpu0")],
            vec![grant(0, 1, 2, "gpu0.001a")],
        ];
        assert_eq!(
            violation(held),
            "gpu0 has the whole GPU, and is not alone there"
        );
    }

    #[test]
    fn a_slice_has_memory_in_steps_and_a_label_of_its_own() {
        assert_eq!(
            violation(vec![vec![grant(0, 500, 3, "x")]]),
            "slice x has 3MiB, which is not a positive multiple of 2 MiB"
        );
        assert_eq!(
            violation(vec![vec![grant(0, 500, 0, "x")]]),
            "slice x has 0B, which is not a positive multiple of 2 MiB"
        );
        let twins = vec![
            vec![grant(0, 500, 2, "gpu0.5a")],
            vec![grant(0, 500, 2, "gpu0.5a")],
        ];
        assert_eq!(violation(twins), "there are two slices gpu0.5a");
    }

    #[test]
    fn a_job_is_there_once_and_holds_something_on_different_gpus() {
        let twice = vec![vec![grant(0, 100, 2, "a"), grant(0, 100, 2, "b")]];
        assert_eq!(violation(twice), "job #1 holds GPU 0 twice");
        assert_eq!(
            violation(vec![vec![]]),
            "job #1 is held without holding anything"
        );
        let mut held_and_waiting = snapshot(vec![vec![grant(0, 100, 2, "a")]]);
        held_and_waiting.queues[0].waiting[0].job = JobId(1);
        assert_eq!(check(&held_and_waiting), Err(Violation::JobTwice(JobId(1))));
    }

    #[test]
    fn instances_lie_beside_each_other_and_no_more_of_a_kind_than_there_may_be() {
        let instance = |name: &str, start: u8| {
            let table = ProfileTable::of_model("a100-40gb").unwrap();
            let profile = table.named(name.parse().unwrap()).unwrap();
            let mig = MigGrant {
                profile: profile.name,
                placement: Placement {
                    profile: profile.id,
                    start,
                },
            };
            Grant {
                memory: profile.memory,
                mig: Some(mig),
                ..grant(0, 125, 2, &mig.label(0))
            }
        };
        let on_a_cut_gpu = |grants: Vec<Grant>| {
            let mut cut = snapshot(grants.into_iter().map(|grant| vec![grant]).collect());
            cut.gpus[0].mode = Mode::Mig;
            cut.gpus[0].mig = Some(crate::mig::MigInventory {
                table: ProfileTable::of_model("a100-40gb").unwrap(),
                instances: Vec::new(),
            });
            check(&cut).map_err(|violation| violation.to_string())
        };
        // More memory than the 100 MiB of these GPUs: an instance's memory is the driver's affair.
        let beside = vec![instance("3g.20gb", 4), instance("2g.10gb", 0)];
        assert_eq!(on_a_cut_gpu(beside), Ok(()));
        let across = vec![instance("3g.20gb", 4), instance("1g.5gb", 5)];
        assert_eq!(
            on_a_cut_gpu(across).unwrap_err(),
            "the MIG instance 1g.5gb@5 of GPU 0 cannot lie there beside the others"
        );
        let unlisted = on_a_cut_gpu(vec![instance("3g.20gb", 2)]);
        assert!(unlisted.unwrap_err().contains("3g.20gb@2"));
        let media = vec![instance("1g.5gb+me", 0), instance("1g.5gb+me", 1)];
        assert!(on_a_cut_gpu(media).unwrap_err().contains("1g.5gb+me@1"));
    }

    #[test]
    fn gpus_and_queues_are_there_once() {
        let mut gpus = snapshot(vec![]);
        gpus.gpus[1].uuid = uuid(0);
        assert_eq!(check(&gpus), Err(Violation::GpuTwice(uuid(0))));
        let mut queues = snapshot(vec![]);
        queues.queues.push(Queue {
            waiting: vec![],
            ..queues.queues[0].clone()
        });
        assert_eq!(
            check(&queues),
            Err(Violation::QueueTwice(QueueName::default_queue()))
        );
    }
}
