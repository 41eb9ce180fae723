//! Exact placement over random nodes: what is held breaks no law, and what is refused could not be held.

use divvy_core::mig::{Layout, MigInventory, Placement, ProfileTable};
use divvy_core::pinned::{AllocationError, Device, allocate_pinned};
use divvy_core::{
    AllocatedJob, Bytes, Gpu, GpuUuid, JobId, Mode, QueueName, Share, Snapshot, invariants,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

#[derive(Clone, Debug)]
enum Step {
    Claim(Vec<Wish>),
    GiveBack(Index),
    Foreign(Index, Bytes),
}

/// A device of one of the GPUs, whatever that one is.
#[derive(Clone, Debug)]
enum Wish {
    Part(Index, Bytes),
    Instance(Index, Index, Index),
    Whole(Index),
}

fn uuid(index: u32) -> GpuUuid {
    GpuUuid::from_bytes([u8::try_from(index).expect("few GPUs"); 16])
}

fn table() -> std::sync::Arc<ProfileTable> {
    ProfileTable::of_model("a100-40gb").expect("a model of data/mig.toml")
}

fn node(modes: &[Mode]) -> Snapshot {
    let gpu = |(index, mode): (u32, &Mode)| Gpu {
        uuid: uuid(index),
        index,
        model: "A100".to_owned(),
        mode: *mode,
        away: false,
        out_of_service: None,
        total: Bytes::mib(40_537),
        reserved: Bytes::mib(7),
        unmanaged: Bytes::ZERO,
        unlisted: Bytes::ZERO,
        unlisted_holder: None,
        enforcement: divvy_core::Enforcement::Limiter,
        elsewhere: Vec::new(),
        context: Bytes::ZERO,
        mig: (*mode == Mode::Mig).then(|| MigInventory {
            table: table(),
            instances: Vec::new(),
        }),
    };
    Snapshot {
        gpus: (0..).zip(modes).map(gpu).collect(),
        ..Snapshot::default()
    }
}

fn wishes() -> impl Strategy<Value = Wish> {
    let memory = prop_oneof![
        4 => (1..=40_600_u64).prop_map(Bytes::mib),
        2 => select(vec![13_510_u64, 10_132, 5066, 2533]).prop_map(Bytes::mib),
        1 => (1..=1_u64 << 32).prop_map(Bytes::new),
    ];
    prop_oneof![
        4 => (any::<Index>(), memory).prop_map(|(gpu, memory)| Wish::Part(gpu, memory)),
        3 => (any::<Index>(), any::<Index>(), any::<Index>())
            .prop_map(|(gpu, profile, start)| Wish::Instance(gpu, profile, start)),
        1 => any::<Index>().prop_map(Wish::Whole),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => vec(wishes(), 1..3).prop_map(Step::Claim),
        2 => any::<Index>().prop_map(Step::GiveBack),
        1 => (any::<Index>(), 0..=2048_u64).prop_map(|(gpu, mib)| Step::Foreign(gpu, Bytes::mib(mib))),
    ]
}

fn device(wish: &Wish, gpus: &[Gpu]) -> Device {
    match wish {
        Wish::Part(gpu, memory) => Device::Part {
            gpu: gpu.get(gpus).uuid.clone(),
            memory: *memory,
        },
        Wish::Whole(gpu) => Device::Whole {
            gpu: gpu.get(gpus).uuid.clone(),
        },
        Wish::Instance(gpu, profile, start) => {
            let table = table();
            let profile = profile.get(&table.profiles);
            Device::Instance {
                gpu: gpu.get(gpus).uuid.clone(),
                profile: profile.name,
                start: *start.get(&profile.starts),
            }
        }
    }
}

/// Whether one device alone could be held, by sums that are written down here a second time.
fn could_be_held(node: &Snapshot, device: &Device) -> bool {
    let Some(gpu) = node.gpus.iter().find(|gpu| gpu.uuid == *device.gpu()) else {
        return false;
    };
    let grants = node.held.iter().flat_map(|held| &held.grants);
    let here: Vec<_> = grants.filter(|grant| grant.gpu == gpu.uuid).collect();
    let used: Bytes = here.iter().map(|grant| grant.memory).sum();
    let free = gpu
        .usable()
        .saturating_sub(used)
        .saturating_sub(gpu.unmanaged);
    match device {
        Device::Part { memory, .. } => {
            let is_alone = |grant: &&&divvy_core::Grant| grant.share == Share::FULL;
            gpu.mode == Mode::Shared
                && !here.iter().any(|grant| is_alone(&grant))
                && memory.round_up(Bytes::mib(2)) <= free
        }
        Device::Whole { .. } => {
            let tolerated = gpu.usable().get() / 10;
            matches!(gpu.mode, Mode::Shared | Mode::Exclusive)
                && here.is_empty()
                && gpu.unmanaged.get() <= tolerated
        }
        Device::Instance { profile, start, .. } => {
            let table = table();
            let profile = table.named(*profile).expect("it was chosen from the table");
            let placement = Placement {
                profile: profile.id,
                start: *start,
            };
            let there = here.iter().filter_map(|grant| Some(grant.mig?.placement));
            gpu.mode == Mode::Mig && Layout::of(&table, there).with(&table, placement).is_some()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_held_breaks_no_law_and_one_device_is_refused_only_where_it_cannot_be(
        modes in vec(select(vec![Mode::Shared, Mode::Shared, Mode::Mig, Mode::Exclusive, Mode::Unmanaged]), 1..4),
        steps in vec(steps(), 1..40),
    ) {
        let mut node = node(&modes);
        for (job, step) in (1..).zip(steps) {
            match step {
                Step::GiveBack(which) if !node.held.is_empty() => {
                    let at = which.index(node.held.len());
                    node.held.remove(at);
                }
                Step::GiveBack(_) => {}
                Step::Foreign(gpu, memory) => {
                    let at = gpu.index(node.gpus.len());
                    node.gpus[at].unmanaged = memory;
                }
                Step::Claim(wishes) => {
                    let devices: Vec<Device> = wishes.iter().map(|wish| device(wish, &node.gpus)).collect();
                    let before = node.clone();
                    let placed = allocate_pinned(&node, &devices);
                    prop_assert_eq!(&before, &node);
                    prop_assert_eq!(&placed, &allocate_pinned(&node, &devices));
                    if let [one] = &devices[..] {
                        prop_assert_eq!(placed.is_ok(), could_be_held(&node, one), "{:?}: {:?}", one, placed);
                    }
                    let Ok(placed) = placed else { continue };
                    prop_assert!(devices.iter().all(|device| could_be_held(&node, device)));
                    for grant in &placed.grants {
                        let asked: Bytes = devices.iter().filter_map(|device| match device {
                            Device::Part { gpu, memory } if *gpu == grant.gpu => Some(*memory),
                            _ => None,
                        }).sum();
                        prop_assert!(asked <= grant.memory, "nobody gets less than was asked");
                    }
                    let held = AllocatedJob::new(JobId(job), QueueName::default_queue(), placed.grants);
                    node.held.push(held);
                    prop_assert_eq!(invariants::check(&node), Ok(()));
                }
            }
        }
    }
}

#[test]
fn every_place_of_every_profile_is_listed_once_and_the_best_of_each_comes_first() {
    for model in ["a30-24gb", "a100-40gb", "h200-141gb", "b200-180gb"] {
        let table = ProfileTable::of_model(model).expect("a model of data/mig.toml");
        let all = divvy_core::mig::all_placements(&table);
        let count: usize = table
            .profiles
            .iter()
            .map(|profile| profile.starts.len())
            .sum();
        assert_eq!(all.len(), count, "{model}");
        for profile in &table.profiles {
            let first = all.iter().find(|one| one.profile == profile.id);
            let site = divvy_core::mig::MigGpu::new(&table, [], &[]);
            let taken = divvy_core::mig::place(
                &[site],
                |_| Some(profile.id),
                divvy_core::mig::PlacementPolicy::default(),
            );
            assert_eq!(
                first,
                taken.map(|(_, candidate)| candidate.placement).as_ref(),
                "{model} {}",
                profile.name
            );
        }
    }
}

#[test]
fn a_misfit_says_which_gpu_and_why() {
    let node = node(&[Mode::Shared]);
    let beyond = Device::Part {
        gpu: uuid(0),
        memory: Bytes::gib(80),
    };
    let misfit = allocate_pinned(&node, &[beyond]).expect_err("it is larger than the GPU");
    assert!(
        matches!(misfit, AllocationError::Never { index: 0, .. }),
        "{misfit}"
    );
}
