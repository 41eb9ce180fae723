//! What a job that waits for an instance is told of how the others lie.

use divvy_core::MigGrant;
use divvy_core::mig::{
    MigInventory, Placement, ProfileTable, UnallocatedInstance, UnallocatedState,
};
use divvy_core::{
    AllocatedJob, Amount, Bytes, Gpu, GpuUuid, Grant, JobId, Mode, PendingJob, Queue, QueueName,
    QueueSpec, Snapshot, why,
};

use crate::mig::rules::at;

/// A100s with these instances, each a job's, and one job that waits for a 3g.20gb.
fn node(gpus: &[&[Placement]]) -> Snapshot {
    let table = ProfileTable::of_model("a100-40gb").unwrap();
    let queue = QueueName::default_queue();
    let mut snapshot = Snapshot {
        queues: vec![Queue {
            spec: QueueSpec {
                name: queue.clone(),
                amount: None,
            },
            waiting: vec![PendingJob::new(
                JobId(99),
                Amount::Mig("3g.20gb".parse().unwrap()).into(),
            )],
        }],
        ..Snapshot::default()
    };
    for (index, placements) in (0..).zip(gpus) {
        let uuid = GpuUuid::from_bytes([index; 16]);
        for placement in *placements {
            let profile = table.profile(placement.profile).unwrap();
            let grant = Grant {
                gpu: uuid.clone(),
                index: u32::from(index),
                memory: profile.memory,
                share: table.share(profile),
                label: format!("gpu{index}.{}@{}", profile.name, placement.start),
                mig: Some(MigGrant {
                    profile: profile.name,
                    placement: *placement,
                }),
            };
            let job = JobId(u64::try_from(snapshot.held.len()).unwrap() + 1);
            snapshot
                .held
                .push(AllocatedJob::new(job, queue.clone(), vec![grant]));
        }
        snapshot.gpus.push(Gpu {
            uuid,
            index: u32::from(index),
            model: "A100 40GB".to_owned(),
            mode: Mode::Mig,
            away: false,
            out_of_service: None,
            total: Bytes::gib(40),
            reserved: Bytes::ZERO,
            unmanaged: Bytes::ZERO,
            unlisted: Bytes::ZERO,
            unlisted_holder: None,
            enforcement: divvy_core::Enforcement::Limiter,
            elsewhere: Vec::new(),
            context: Bytes::ZERO,
            mig: Some(MigInventory {
                table: table.clone(),
                instances: vec![],
            }),
        });
    }
    snapshot
}

fn summary(snapshot: &Snapshot) -> String {
    why(snapshot, JobId(99)).unwrap().summary
}

#[test]
fn a_refusal_for_want_of_order_over_the_gpus_is_told_from_one_for_want_of_room() {
    // Each GPU has a 4g on the left and a 1g on the right: the two 1g could be on one GPU.
    let apart = node(&[&[at(5, 0), at(19, 4)], &[at(5, 0), at(19, 5)]]);
    assert!(
        summary(&apart)
            .ends_with("; another layout of the instances over the GPUs would have room")
    );
    let full = node(&[&[at(5, 0), at(9, 4)], &[at(5, 0), at(19, 5)]]);
    assert!(
        !summary(&full).contains("another layout"),
        "{}",
        summary(&full)
    );
}

#[test]
fn what_one_gpu_would_have_room_for_is_told_of_that_gpu() {
    let lone = node(&[&[at(14, 0), at(19, 4)]]);
    let said = summary(&lone);
    assert!(
        said.contains("another layout of the instances would have room"),
        "{said}"
    );
    assert!(!said.contains("over the GPUs"), "{said}");
}

#[test]
fn what_is_not_ours_stays_where_it_is() {
    let mut apart = node(&[&[at(5, 0), at(19, 4)], &[at(5, 0)]]);
    let foreign = UnallocatedInstance {
        placement: at(19, 5),
        standing: UnallocatedState::Foreign,
    };
    apart.gpus[1].mig.as_mut().unwrap().instances.push(foreign);
    assert!(summary(&apart).contains("layout of the instances over the GPUs"));
    let also = UnallocatedInstance {
        placement: at(19, 4),
        standing: UnallocatedState::Foreign,
    };
    apart
        .held
        .retain(|held| held.grants[0].mig.unwrap().placement != at(19, 4));
    apart.gpus[0].mig.as_mut().unwrap().instances.push(also);
    assert!(!summary(&apart).contains("layout of the instances over the GPUs"));
}
