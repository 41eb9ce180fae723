//! Whatever pods come and go: nothing is given out twice, and what would fit is given.

use std::collections::BTreeMap;

use divvy_core::MigProfile;
use divvy_core::mig::{Layout, Placement, ProfileTable, models};
use divvy_core::units::Bytes;
use divvy_k8s::base::pod_request::Size;
use divvy_k8s::base::slices::{Carving, DeviceAllocation, Gpu, Offer, resolve_device};
use proptest::prelude::*;

use crate::allocator::gpus::{asks, carving, cluster, gpu, part, pool_of, slices};
use crate::allocator::model::{Cluster, Given};

#[derive(Clone, Debug)]
enum Event {
    Fraction(u8, usize),
    Memory(u16, usize),
    Whole(u8),
    Plain(u8),
    /// A profile of those that are there, by number.
    Mig(usize, u8),
    Several(Vec<u8>),
    Gone(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..8_u8, 1..4_usize).prop_map(|(eighths, count)| Event::Fraction(eighths, count)),
        4 => (1..60_000_u16, 1..4_usize).prop_map(|(mib, count)| Event::Memory(mib, count)),
        1 => (1..3_u8).prop_map(Event::Whole),
        1 => (1..3_u8).prop_map(Event::Plain),
        6 => (any::<usize>(), 1..3_u8).prop_map(|(at, count)| Event::Mig(at, count)),
        2 => prop::collection::vec(0..8_u8, 2..4).prop_map(Event::Several),
        6 => any::<usize>().prop_map(Event::Gone),
    ]
}

fn gpus() -> impl Strategy<Value = Vec<Gpu>> {
    let keys: Vec<String> = models().iter().map(|model| model.key.clone()).collect();
    let model = prop::sample::select(keys);
    let offer = prop_oneof![
        Just(0), // parts
        Just(1), // instances
        Just(2), // either
        Just(3), // whole
    ];
    let one = (
        model,
        offer,
        9_000..90_000_u64,
        any::<prop::sample::Index>(),
    );
    let made = one.prop_map(|(model, offer, mib, foreign)| {
        let mut carved = carving(&model);
        // Of every other GPU somebody else has a piece.
        let places: Vec<Placement> = all_places(&carved.table);
        if foreign.index(2) == 1 {
            carved.taken = vec![places[foreign.index(places.len())]];
        }
        let offer = match offer {
            0 => Offer::Parts(None),
            1 => Offer::Instances(carved),
            2 => {
                // Where parts are given out nobody else's instance lies.
                carved.taken.clear();
                Offer::Parts(Some(carved))
            }
            _ => Offer::Whole,
        };
        (Bytes::mib(mib / 2 * 2), offer)
    });
    prop::collection::vec(made, 1..4).prop_map(|all| {
        let numbered = (0..).zip(all);
        numbered
            .map(|(index, (memory, offer))| gpu(index, memory, offer))
            .collect()
    })
}

fn all_places(table: &ProfileTable) -> Vec<Placement> {
    let places = table.profiles.iter().flat_map(|profile| {
        let starts = profile.starts.iter();
        starts.map(|start| Placement {
            profile: profile.id,
            start: *start,
        })
    });
    places.collect()
}

fn carved(gpu: &Gpu) -> Option<&Carving> {
    match &gpu.offer {
        Offer::Instances(carving) | Offer::Parts(Some(carving)) => Some(carving),
        _ => None,
    }
}

/// What lies on each GPU, by UUID.
#[derive(Default)]
struct Load {
    parts: u64,
    wholes: usize,
    instances: Vec<Placement>,
}

fn loads(gpus: &[Gpu], given: &[Given]) -> BTreeMap<String, Load> {
    let mut loads: BTreeMap<String, Load> = BTreeMap::new();
    for given in given {
        let consumed = given.consumed.as_ref().map(|all| Bytes::new(all["memory"]));
        match resolve_device(&given.device, consumed, gpus).expect("what was published can be held")
        {
            DeviceAllocation::Part { gpu, memory } => {
                loads.entry(gpu).or_default().parts += memory.get()
            }
            DeviceAllocation::Whole { gpu } => loads.entry(gpu).or_default().wholes += 1,
            DeviceAllocation::Mig {
                gpu,
                profile,
                start,
            } => {
                let table = &carved(gpus.iter().find(|one| one.uuid == gpu).unwrap())
                    .unwrap()
                    .table;
                let profile = table.named(profile).unwrap().id;
                loads
                    .entry(gpu)
                    .or_default()
                    .instances
                    .push(Placement { profile, start });
            }
        }
    }
    loads
}

/// No GPU has more than it has, by the rules of the core.
fn is_sound(gpus: &[Gpu], cluster: &Cluster) -> Result<(), TestCaseError> {
    let given: Vec<Given> = cluster.given().cloned().collect();
    let loads = loads(gpus, &given);
    for gpu in gpus {
        let Some(load) = loads.get(&gpu.uuid) else {
            continue;
        };
        let kinds = [load.parts > 0, load.wholes > 0, !load.instances.is_empty()];
        prop_assert!(
            kinds.iter().filter(|kind| **kind).count() == 1,
            "{:?} on {}",
            kinds,
            gpu.index
        );
        prop_assert!(load.parts <= gpu.memory.get());
        prop_assert!(load.wholes <= 1);
        let Some(carving) = carved(gpu) else {
            continue;
        };
        let mut layout = Layout::of(&carving.table, carving.taken.iter().copied());
        for place in &load.instances {
            let with = layout.with(&carving.table, *place);
            prop_assert!(with.is_some(), "{} beside {:?}", place, load.instances);
            layout = with.unwrap();
        }
    }
    Ok(())
}

/// Different GPUs for what one pod asked for, and instances or none: a node holds no other claim.
fn is_apart(gpus: &[Gpu], given: &[Given]) -> Result<(), TestCaseError> {
    let loads = loads(gpus, given);
    prop_assert_eq!(loads.len(), given.len(), "{:?}", given);
    let cut = loads.values().filter(|load| !load.instances.is_empty());
    prop_assert!([0, loads.len()].contains(&cut.count()), "{:?}", given);
    Ok(())
}

/// A plain request for one instance was refused: there is no room for one.
fn had_no_room(gpus: &[Gpu], cluster: &Cluster, profile: &str) -> Result<(), TestCaseError> {
    let given: Vec<Given> = cluster.given().cloned().collect();
    let loads = loads(gpus, &given);
    for gpu in gpus {
        let load = loads.get(&gpu.uuid);
        let is_in_parts = load.is_some_and(|load| load.parts > 0 || load.wholes > 0);
        let (Some(carving), false) = (carved(gpu), is_in_parts) else {
            continue;
        };
        let table = &carving.table;
        // The cluster compares names alone: a GPU whose driver calls the profile otherwise has none of this name.
        let wanted: MigProfile = profile.parse().unwrap();
        let Some(profile) = table.profiles.iter().find(|one| one.name == wanted) else {
            continue;
        };
        let instances = load.iter().flat_map(|load| &load.instances);
        let layout = Layout::of(table, carving.taken.iter().chain(instances).copied());
        let room: Vec<u8> = layout.starts(table, profile.id).collect();
        prop_assert!(
            room.is_empty(),
            "{} at {:?} of GPU {}",
            profile.name,
            room,
            gpu.index
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn whatever_the_scheduler_gives_out_of_our_slices_is_there(
        gpus in gpus(),
        events in prop::collection::vec(event(), 1..30),
    ) {
        let mut cluster = cluster(slices(&gpus));
        let profiles: Vec<String> = divvy_k8s::base::slices::inventory_of(&cluster.slices)
            .profiles
            .keys()
            .map(ToString::to_string)
            .collect();
        let mut pods: Vec<String> = Vec::new();
        for (at, event) in events.iter().enumerate() {
            let pod = format!("pod-{at}");
            let fraction = |eighths: u8| part(&format!("0.{:03}", u16::from(eighths) * 125));
            let sizes = match event {
                Event::Fraction(eighths, count) => vec![fraction(*eighths); *count],
                Event::Memory(mib, count) => vec![Size::Memory(u64::from(*mib)); *count],
                Event::Whole(count) => vec![Size::Whole; usize::from(*count)],
                Event::Several(all) => {
                    let size = |eighths: &u8| match eighths {
                        0 => Size::Whole,
                        eighths => fraction(*eighths),
                    };
                    all.iter().map(size).collect()
                }
                _ => Vec::new(),
            };
            let given = match event {
                Event::Gone(at) => {
                    if !pods.is_empty() {
                        let gone = pods.remove(at % pods.len());
                        cluster.gone(&gone);
                    }
                    None
                }
                Event::Plain(count) => cluster.plain(&pod, "nvidia.com/gpu", i64::from(*count)).unwrap(),
                Event::Mig(at, count) if !profiles.is_empty() => {
                    let profile = &profiles[at % profiles.len()];
                    let resource = format!("nvidia.com/mig-{}", profile.replace('+', "."));
                    let given = cluster.plain(&pod, &resource, i64::from(*count)).unwrap();
                    if given.is_none() && *count == 1 {
                        had_no_room(&gpus, &cluster, profile)?;
                    }
                    given
                }
                Event::Mig(..) => None,
                _ => {
                    let Some(spec) = asks(&cluster, &sizes) else { continue };
                    let given = cluster.pod(&pod, &spec).unwrap();
                    if let Some(given) = &given {
                        prop_assert_eq!(given.len(), sizes.len());
                        is_apart(&gpus, given)?;
                    }
                    given
                }
            };
            if given.is_some() {
                pods.push(pod);
            }
            is_sound(&gpus, &cluster)?;
        }
        // When all are gone, everything is as at first.
        pods.iter().for_each(|pod| cluster.gone(pod));
        prop_assert_eq!(cluster.given().count(), 0);
    }

    #[test]
    fn counters_allow_what_the_core_allows_and_nothing_else(
        model in 0..models().len(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 1..12),
    ) {
        let model = &models()[model];
        let gpus = [gpu(0, Bytes::gib(80), Offer::Instances(carving(&model.key)))];
        let cluster = cluster(slices(&gpus));
        let places = all_places(&model.table);
        let mut layout = Layout::EMPTY;
        let mut left: BTreeMap<String, i64> = BTreeMap::new();
        let pool = pool_of(&gpus);
        for (name, counter) in &pool.counters[0].counters {
            left.insert(name.clone(), counter.value.0.parse().unwrap());
        }
        for choice in choices {
            let place = places[choice.index(places.len())];
            let profile = model.table.profile(place.profile).unwrap();
            let device = pool.devices.iter().find(|device| {
                matches!(
                    resolve_device(&device.name, None, &gpus),
                    Ok(DeviceAllocation::Mig { profile: name, start, .. })
                        if name == profile.name && start == place.start
                )
            });
            let device = device.expect("every place has a device");
            let taken = &device.consumes_counters.as_ref().unwrap()[0].counters;
            let fits = taken.iter().all(|(name, counter)| {
                left[name] >= counter.value.0.parse::<i64>().unwrap()
            });
            prop_assert_eq!(fits, layout.allows(&model.table, place), "{} on {}", device.name, model.key);
            if let Some(with) = layout.with(&model.table, place) {
                layout = with;
                for (name, counter) in taken {
                    *left.get_mut(name).unwrap() -= counter.value.0.parse::<i64>().unwrap();
                }
            }
        }
        drop(cluster);
    }
}
