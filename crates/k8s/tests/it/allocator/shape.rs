//! What a slice may be, what ours say, and what their names mean on the way back.

use std::collections::BTreeSet;

use divvy_core::mig::{Layout, Placement, models};
use divvy_core::units::Bytes;
use divvy_core::{AllocatedJob, JobId, Mode, QueueName, Snapshot, pinned};
use divvy_k8s::base::role::Role;
use divvy_k8s::base::slices::{
    Carving, DeviceAllocation, Gpu, Health, NoDevice, Offer, Taints, Withheld, bytes, inventory_of,
    names, pool, resolve_device,
};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

use crate::allocator::gpus::{
    carving, cut, either, gpu, may_cut, name, node, place, pool_of, shared, slices,
};

/// The limits of resource.k8s.io/v1 (`types.go` and the validation of 1.36), as far as ours could come near them.
pub fn check(slices: &[ResourceSlice]) {
    let mut names = BTreeSet::new();
    for slice in slices {
        let spec = &slice.spec;
        let named = slice.metadata.name.as_ref().unwrap();
        assert!(
            named.len() <= 253 && named.bytes().all(is_subdomain),
            "{named}"
        );
        assert_ne!(
            spec.devices.is_some(),
            spec.shared_counters.is_some(),
            "one of them"
        );
        assert_eq!(
            usize::try_from(spec.pool.resource_slice_count),
            Ok(slices.len())
        );
        let devices = spec.devices.as_deref().unwrap_or_default();
        let is_advanced =
            |device: &Device| device.consumes_counters.is_some() || device.taints.is_some();
        let most = if devices.iter().any(is_advanced) {
            64
        } else {
            128
        };
        assert!(devices.len() <= most, "{}", devices.len());
        let sets = spec.shared_counters.as_deref().unwrap_or_default();
        assert!(sets.len() <= 8);
        for set in sets {
            assert!(is_label(&set.name), "{}", set.name);
            assert!(set.counters.len() <= 32, "{}", set.counters.len());
            assert!(set.counters.keys().all(|name| is_label(name)));
        }
        for device in devices {
            assert!(is_label(&device.name), "{}", device.name);
            assert!(names.insert(device.name.clone()), "{} twice", device.name);
            check_device(device);
        }
    }
}

fn check_device(device: &Device) {
    let attributes = device.attributes.as_ref().map_or(0, |all| all.len());
    let capacities = device.capacity.iter().flatten();
    assert!(attributes + capacities.clone().count() <= 32);
    for (name, value) in device.attributes.iter().flatten() {
        assert!(name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert!(value.string.as_ref().is_none_or(|text| text.len() <= 64));
        let set = [value.string.is_some(), value.int.is_some()];
        assert_eq!(set.iter().filter(|set| **set).count(), 1, "{name}");
    }
    assert!(device.consumes_counters.iter().flatten().count() <= 2);
    for (_, capacity) in capacities {
        let Some(policy) = &capacity.request_policy else {
            continue;
        };
        assert_eq!(device.allow_multiple_allocations, Some(true));
        let amount = |quantity| bytes(quantity).unwrap().get();
        let range = policy.valid_range.as_ref().unwrap();
        let (value, default) = (
            amount(&capacity.value),
            amount(policy.default.as_ref().unwrap()),
        );
        let (min, max) = (amount(&range.min), amount(range.max.as_ref().unwrap()));
        let step = amount(range.step.as_ref().unwrap());
        assert!(min <= default && default <= max && max <= value);
        assert!((default - min) % step == 0 && (max - min) % step == 0 && min + step <= value);
    }
}

fn is_label(text: &str) -> bool {
    let middle = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(middle)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_subdomain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.'
}

#[test]
fn what_sixteen_gpus_of_any_kind_are_keeps_within_what_slices_may_hold() {
    for model in models() {
        let gpus: Vec<Gpu> = (0..16).map(|index| cut(index, &model.key)).collect();
        check(&slices(&gpus));
        let gpus: Vec<Gpu> = (0..16).map(|index| either(index, &model.key)).collect();
        check(&slices(&gpus));
    }
    let many: Vec<Gpu> = (0..300).map(|index| shared(index, 80)).collect();
    let slices = slices(&many);
    check(&slices);
    assert_eq!(slices.len(), 3);
    assert_eq!(slices[0].spec.devices.as_ref().unwrap().len(), 128);
}

#[test]
fn a_node_holds_as_many_of_the_smallest_parts_as_the_scheduler_gives_out() {
    // The most that is published as so much: memory is in whole steps there.
    for published in [Bytes::mib(2004), Bytes::mib(82_000)] {
        let device = &pool_of(&[gpu(0, published, Offer::Parts(None))]).devices[0];
        let memory = &device.capacity.as_ref().unwrap()["memory"];
        let policy = memory.request_policy.as_ref().unwrap();
        let least = bytes(&policy.valid_range.as_ref().unwrap().min).unwrap();
        let there = pinned::Device::Part {
            gpu: "GPU-00000000-0000-4000-8000-000000000000".parse().unwrap(),
            memory: least,
        };
        let mut node = Snapshot {
            gpus: vec![divvy_core::Gpu {
                uuid: there.gpu().clone(),
                index: 0,
                model: String::new(),
                mode: Mode::Shared,
                away: false,
                out_of_service: None,
                total: Bytes::new(published.get() + (2 << 20) - 1),
                reserved: Bytes::ZERO,
                unmanaged: Bytes::ZERO,
                unlisted: Bytes::ZERO,
                unlisted_holder: None,
                enforcement: divvy_core::Enforcement::Limiter,
                elsewhere: Vec::new(),
                context: Bytes::ZERO,
                mig: None,
            }],
            ..Snapshot::default()
        };
        for job in 1..=published.get() / least.get() {
            let placed = pinned::allocate_pinned(&node, std::slice::from_ref(&there));
            let placed = placed.unwrap_or_else(|why| panic!("part {job} of {least}: {why}"));
            let queue = QueueName::default_queue();
            node.held
                .push(AllocatedJob::new(JobId(job), queue, placed.grants));
        }
    }
}

#[test]
fn the_scheduler_reads_slices_in_our_order_of_devices() {
    let gpus: Vec<Gpu> = (0..24).map(|index| either(index, "h100-80gb")).collect();
    let mut slices = slices(&gpus);
    assert!(slices.len() > 10, "more than one digit: {}", slices.len());
    slices.reverse();
    slices.sort_by_key(|slice| slice.metadata.name.clone());
    let read = slices
        .iter()
        .flat_map(|slice| slice.spec.devices.iter().flatten());
    assert!(read.eq(&pool_of(&gpus).devices));
}

#[test]
fn a_node_of_any_name_has_slices_of_its_own() {
    let long = format!("{}.{}", "a".repeat(120), "b".repeat(120));
    let other = format!("{long}c");
    let pool = pool_of(&[shared(0, 80)]);
    let name = |node_name: &str| {
        let slices = pool.slices(&node(node_name), 1);
        check(&slices);
        slices[0].metadata.name.clone().unwrap()
    };
    assert_eq!(
        name("worker-1.example"),
        "worker-1.example-gpu.divvy.dev-000"
    );
    assert_ne!(name(&long), name(&other));
}

#[test]
fn slices_go_with_their_node() {
    let slices = slices(&[shared(0, 80)]);
    let owners = slices[0].metadata.owner_references.as_ref().unwrap();
    assert_eq!(
        (owners[0].kind.as_str(), owners[0].uid.as_str()),
        ("Node", "uid-of-a")
    );
    assert_eq!(slices[0].spec.node_name.as_deref(), Some("a"));
    assert_eq!(slices[0].spec.pool.name, "a");
}

#[test]
fn what_was_packed_when_it_was_written_by_hand_is_what_is_published() {
    let recorded: Vec<ResourceSlice> = serde_json::from_str(include_str!("mixed.json")).unwrap();
    let recorded = recorded[1].spec.devices.as_ref().unwrap();
    let ours = pool_of(&[either(0, "h100-80gb")]).devices;
    let is_plain = |device: &&Device| {
        // Those with media engines were not written by hand, nor that with double memory.
        !device.name.contains("-me-") && !device.name.contains("1g-20gb")
    };
    let slices = |device: &Device| {
        let all = device.consumes_counters.as_ref().unwrap()[0]
            .counters
            .keys();
        let memory = all
            .filter(|name| name.starts_with("memory-slice-"))
            .cloned();
        let profile = device.attributes.as_ref().unwrap().get("profile").cloned();
        (
            profile.and_then(|profile| profile.string),
            memory.collect::<BTreeSet<String>>(),
        )
    };
    let recorded: BTreeSet<_> = recorded.iter().map(slices).collect();
    let ours: BTreeSet<_> = ours.iter().filter(is_plain).map(slices).collect();
    assert_eq!(recorded, ours);
}

#[test]
fn parts_go_to_gpus_that_cannot_be_cut_and_to_small_ones_first() {
    let whole = gpu(9, Bytes::gib(80), Offer::Whole);
    let gpus = [
        either(0, "h100-80gb"),
        shared(1, 80),
        shared(2, 24),
        whole.clone(),
    ];
    let devices = pool_of(&gpus).devices;
    let first: Vec<&str> = devices[..4]
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    let gpu = |gpu: &Gpu| names(gpu)[0].clone();
    assert_eq!(
        first,
        [gpu(&whole), gpu(&gpus[2]), gpu(&gpus[1]), gpu(&gpus[0])]
    );
}

#[test]
fn places_of_a_gpu_stand_together() {
    // `distinctAttribute` looks back at one device alone, so a request for several must not come back to a GPU.
    let gpus = [
        cut(0, "a100-40gb"),
        cut(1, "h100-80gb"),
        either(2, "h100-80gb"),
    ];
    let devices = pool_of(&gpus).devices;
    let profile = |device: &&Device| {
        let attributes = device.attributes.as_ref().unwrap();
        let profile = attributes
            .get("profile")
            .and_then(|value| value.string.as_deref());
        profile == Some("1g.10gb")
    };
    let uuids: Vec<_> = devices
        .iter()
        .filter(profile)
        .map(|device| device.attributes.as_ref().unwrap()["uuid"].string.clone())
        .collect();
    let runs = uuids.chunk_by(|one, other| one == other).count();
    assert_eq!(runs, 3);
}

#[test]
fn what_is_not_published_has_a_reason() {
    let nothing = |why| gpu(0, Bytes::gib(80), Offer::Nothing(why));
    let gpus = [cut(1, "h100-80gb"), nothing(Withheld::Unmanaged(0))];
    let without_role = pool(&gpus, &Role::Fractions, Taints::Known);
    assert_eq!(without_role.devices, []);
    assert_eq!(without_role.slices(&node("a"), 1), []);
    assert_eq!(
        without_role.withheld,
        [(0, Withheld::Unmanaged(0)), (1, Withheld::NoRole)]
    );
    let mut strange = shared(3, 80);
    strange.uuid = "GPU of mine".to_owned();
    let uuid = strange.uuid.clone();
    assert_eq!(pool_of(&[strange]).withheld, [(3, Withheld::NoName(uuid))]);
}

#[test]
fn without_a_role_a_gpu_that_could_be_cut_is_in_parts_alone() {
    let pool = pool(&[either(0, "h100-80gb")], &Role::Fractions, Taints::Known);
    assert_eq!((pool.devices.len(), pool.counters.len()), (1, 0));
    assert_eq!(pool.devices[0].consumes_counters, None);
}

#[test]
fn a_gpu_that_is_not_well_is_marked_or_left_out() {
    for (health, effect) in [
        (Health::Troubled, "NoSchedule"),
        (Health::Drained, "NoSchedule"),
        (Health::Silent, "NoSchedule"),
        (Health::Lost, "NoExecute"),
    ] {
        let mut ill = cut(0, "h100-80gb");
        ill.health = health;
        let gpus = [ill, shared(1, 80)];
        let marked = pool(&gpus, &may_cut(), Taints::Known);
        check(&marked.slices(&node("a"), 1));
        let of_ill = marked
            .devices
            .iter()
            .filter(|device| device.name.contains("-mig-"));
        assert!(of_ill.clone().count() > 7);
        for device in of_ill {
            assert_eq!(device.taints.as_ref().unwrap()[0].effect, effect);
        }
        assert_eq!(marked.devices[0].taints, None);
        let left = pool(&gpus, &may_cut(), Taints::Unknown);
        assert_eq!((left.devices.len(), left.counters.len()), (1, 0));
    }
}

#[test]
fn no_device_is_published_in_the_place_of_an_unmanaged_instance() {
    let mut carved = carving("h100-80gb");
    carved.taken = vec![place(&carved.table, "3g.40gb", 0)];
    let layout = Layout::of(&carved.table, carved.taken.iter().copied());
    let gpu = gpu(0, Bytes::gib(80), Offer::Instances(carved.clone()));
    let places = places(&pool_of(std::slice::from_ref(&gpu)).devices, &gpu);
    assert!(!places.is_empty());
    for place in &places {
        assert!(layout.allows(&carved.table, *place), "{place}");
    }
    // One that nobody understands keeps the whole GPU.
    carved.taken = vec![Placement {
        profile: 999,
        start: 0,
    }];
    let gpu = self::gpu(0, Bytes::gib(80), Offer::Instances(carved));
    assert_eq!(pool_of(&[gpu]).devices, []);
}

/// Where the devices of a GPU lie, by their names.
fn places(devices: &[Device], gpu: &Gpu) -> Vec<Placement> {
    let (Offer::Instances(carving) | Offer::Parts(Some(carving))) = &gpu.offer else {
        return Vec::new();
    };
    let gpus = std::slice::from_ref(gpu);
    let held = devices
        .iter()
        .filter_map(|device| resolve_device(&device.name, None, gpus).ok());
    let place = |held| match held {
        DeviceAllocation::Mig { profile, start, .. } => Some(Placement {
            profile: carving.table.named(profile).unwrap().id,
            start,
        }),
        _ => None,
    };
    held.filter_map(place).collect()
}

#[test]
fn every_legal_place_of_every_model_has_a_device_that_is_held_as_it() {
    for model in models() {
        let gpu = cut(5, &model.key);
        let devices = pool_of(std::slice::from_ref(&gpu)).devices;
        let found: BTreeSet<Placement> = places(&devices, &gpu).into_iter().collect();
        let named = model.table.profiles.iter().filter(|profile| {
            model.table.named(profile.name).map(|first| first.id) == Some(profile.id)
        });
        let legal: BTreeSet<Placement> = named
            .flat_map(|profile| {
                let starts = Layout::EMPTY.starts(&model.table, profile.id);
                starts.map(|start| Placement {
                    profile: profile.id,
                    start,
                })
            })
            .collect();
        assert_eq!(found, legal, "{}", model.key);
        assert_eq!(found.len(), devices.len(), "{}", model.key);
        let known: BTreeSet<String> = names(&gpu).into_iter().collect();
        assert!(devices.iter().all(|device| known.contains(&device.name)));
    }
}

#[test]
fn what_was_given_is_what_is_held() {
    let gpus = [
        shared(0, 80),
        cut(1, "h100-80gb"),
        gpu(2, Bytes::gib(48), Offer::Whole),
    ];
    let all = gpus.each_ref().map(|gpu| names(gpu)[0].clone());
    let uuid = |at: usize| gpus[at].uuid.clone();
    let part = DeviceAllocation::Part {
        gpu: uuid(0),
        memory: Bytes::gib(20),
    };
    assert_eq!(
        resolve_device(&all[0], Some(Bytes::gib(20)), &gpus),
        Ok(part)
    );
    for consumed in [Some(Bytes::gib(80)), None] {
        assert_eq!(
            resolve_device(&all[0], consumed, &gpus),
            Ok(DeviceAllocation::Whole { gpu: uuid(0) })
        );
    }
    assert_eq!(
        resolve_device(&all[2], None, &gpus),
        Ok(DeviceAllocation::Whole { gpu: uuid(2) })
    );
    let instance = DeviceAllocation::Mig {
        gpu: uuid(1),
        profile: name("3g.40gb"),
        start: 4,
    };
    let place = format!("{}-mig-3g-40gb-4", all[1]);
    assert_eq!(resolve_device(&place, None, &gpus), Ok(instance));
}

#[test]
fn what_the_node_does_not_have_is_not_held() {
    let gpus = [shared(0, 80), cut(1, "h100-80gb")];
    let all = gpus.each_ref().map(|gpu| names(gpu)[0].clone());
    for memory in [Bytes::ZERO, Bytes::gib(81)] {
        let refused = resolve_device(&all[0], Some(memory), &gpus);
        assert!(
            matches!(refused, Err(NoDevice::TooMuch { .. })),
            "{refused:?}"
        );
    }
    // The mode was changed since.
    for device in [&all[1], &format!("{}-mig-1g-10gb-0", all[0])] {
        let refused = resolve_device(device, Some(Bytes::gib(1)), &gpus);
        assert!(
            matches!(refused, Err(NoDevice::Changed { .. })),
            "{refused:?}"
        );
    }
    let (one, far) = (format!("{}-mig-3g-40gb-1", all[1]), format!("{}0", all[1]));
    for device in [one.as_str(), &far, "gpu-0", ""] {
        let refused = resolve_device(device, None, &gpus);
        assert!(matches!(refused, Err(NoDevice::Unknown(_))), "{refused:?}");
    }
}

#[test]
fn the_inventory_is_what_is_offered() {
    let gpus = [
        shared(0, 24),
        shared(1, 80),
        shared(2, 80),
        cut(3, "h100-80gb"),
        gpu(4, Bytes::gib(48), Offer::Whole),
    ];
    let mut all = slices(&gpus);
    let inventory = inventory_of(&all);
    assert_eq!(inventory.sizes, [Bytes::gib(24), Bytes::gib(80)].into());
    let Offer::Instances(Carving { table, .. }) = &gpus[3].offer else {
        panic!("it is cut")
    };
    let profile = table.named(name("1g.10gb")).unwrap();
    assert_eq!(
        inventory.profiles[&profile.name],
        profile.memory.round_down(Bytes::MIB)
    );
    assert_eq!(inventory.profiles.len(), table.profiles.len());
    // What a newer generation does not have is gone, and others' devices are none of ours.
    all.extend(pool_of(&gpus[..1]).slices(&node("a"), 2));
    let mut others = pool_of(&gpus[1..2]).slices(&node("b"), 1);
    others[0].spec.driver = "gpu.example.com".to_owned();
    all.append(&mut others);
    let inventory = inventory_of(&all);
    assert_eq!(inventory.sizes, [Bytes::gib(24)].into());
    assert!(inventory.profiles.is_empty());
}
