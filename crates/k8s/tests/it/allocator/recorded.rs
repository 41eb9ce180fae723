//! What the real scheduler did, and what the model does: outcomes recorded on a stock Kubernetes 1.36.2 with default feature
//! gates, each first on slices as they were then, written by hand, then on ours.
//!
//! `mixed.json` is one GPU as it was written then; the other GPUs of the recordings are that one's first device.

use divvy_core::mig::Attribute;
use divvy_core::units::Bytes;
use divvy_k8s::base::claim::{FRACTION_CLASS, mig_class};
use divvy_k8s::base::pod_request::Size;
use divvy_k8s::base::slices::Gpu;
use k8s_openapi::api::resource::v1::{ResourceClaimSpec, ResourceSlice};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use crate::allocator::gpus::{asks, cluster, cut, either, memory, part, shared, slices};
use crate::allocator::model::{Cluster, Given};

/// A GPU of a recording.
#[derive(Clone, Copy)]
enum Kind {
    /// So many GiB, in parts.
    Parts(u64),
    /// 80 GiB, in parts or in instances.
    Either,
}

/// The recordings' own slices of these GPUs, and ours.
fn both(gpus: &[Kind]) -> [Cluster; 2] {
    let ours = gpus.iter().enumerate().map(|(index, kind)| {
        let index = u32::try_from(index).unwrap();
        match kind {
            Kind::Parts(gib) => shared(index, *gib),
            Kind::Either => either(index, "h100-80gb"),
        }
    });
    let ours: Vec<_> = ours.collect();
    [cluster(as_recorded(gpus)), cluster(slices(&ours))]
}

fn as_recorded(gpus: &[Kind]) -> Vec<ResourceSlice> {
    let file = include_str!("mixed.json");
    let mut all = Vec::new();
    let mut devices = Vec::new();
    for (index, kind) in gpus.iter().enumerate() {
        let of_gpu = file
            .replace("gpu-0", &format!("gpu-{index}"))
            .replace("GPU-aaaa", &format!("GPU-{index}"));
        let recorded: Vec<ResourceSlice> = serde_json::from_str(&of_gpu).unwrap();
        let [counters, mut listed] = <[_; 2]>::try_from(recorded).unwrap();
        let listed = listed.spec.devices.take().unwrap();
        match kind {
            Kind::Parts(gib) => {
                let whole = listed.into_iter().next().unwrap();
                let json = serde_json::to_string(&whole).unwrap();
                let json = json.replace("80Gi", &format!("{gib}Gi"));
                let mut whole: k8s_openapi::api::resource::v1::Device =
                    serde_json::from_str(&json).unwrap();
                whole.consumes_counters = None;
                devices.push(whole);
            }
            Kind::Either => {
                devices.extend(listed);
                all.push(counters);
            }
        }
    }
    let mut slice: ResourceSlice = serde_json::from_str::<Vec<_>>(file).unwrap().remove(1);
    slice.spec.devices = Some(devices);
    all.push(slice);
    let count = i64::try_from(all.len()).unwrap();
    for (at, slice) in all.iter_mut().enumerate() {
        slice.metadata.name = Some(format!("node-a-{at}"));
        slice.spec.pool.resource_slice_count = count;
    }
    all
}

/// The GPU, by the order in which the cluster lists its parts, and how many MiB of it.
fn on(cluster: &Cluster, given: Option<Vec<Given>>) -> Option<(usize, u64)> {
    let devices = cluster
        .slices
        .iter()
        .flat_map(|s| s.spec.devices.iter().flatten());
    let mut parts = devices.filter(|device| device.allow_multiple_allocations == Some(true));
    let given = given?;
    let [given] = &given[..] else {
        panic!("{given:?}")
    };
    let at = parts
        .position(|device| device.name == given.device)
        .unwrap();
    Some((at, given.consumed.as_ref().unwrap()["memory"] >> 20))
}

/// The profile and where the instance begins.
fn lies(given: Option<Vec<Given>>) -> Option<(String, u8)> {
    let given = given?;
    let [given] = &given[..] else {
        panic!("{given:?}")
    };
    let (_, place) = given.device.split_once("-mig-").unwrap();
    let (profile, start) = place.rsplit_once('-').unwrap();
    Some((profile.to_owned(), start.parse().unwrap()))
}

fn ask(cluster: &mut Cluster, pod: &str, size: Size) -> Option<(usize, u64)> {
    let spec = asks(cluster, &[size]).unwrap();
    let given = cluster.pod(pod, &spec).unwrap();
    on(cluster, given)
}

fn plain(cluster: &mut Cluster, pod: &str, resource: &str) -> Option<Vec<Given>> {
    cluster.plain(pod, resource, 1).unwrap()
}

#[test]
fn d1_fractions_fill_one_gpu_and_go_to_the_next_and_what_is_too_much_waits() {
    for mut cluster in both(&[Kind::Parts(80), Kind::Parts(80)]) {
        let fractions = [
            ("a", "0.5"),
            ("b", "0.25"),
            ("c", "0.25"),
            ("d", "0.75"),
            ("e", "0.5"),
        ];
        let gpus = fractions.map(|(pod, size)| ask(&mut cluster, pod, part(size)));
        let gpus = gpus.map(|placed| placed.map(|(gpu, _)| gpu));
        assert_eq!(gpus, [Some(0), Some(0), Some(0), Some(1), None]);
    }
}

#[test]
fn d2_a_fraction_is_of_the_gpu_that_it_gets() {
    for mut cluster in both(&[Kind::Parts(24), Kind::Parts(80)]) {
        assert_eq!(ask(&mut cluster, "a", part("0.25")), Some((0, 6 << 10)));
        // The rest of the small one goes to another, so the next quarter is of the large one.
        assert_eq!(ask(&mut cluster, "b", memory(18)), Some((0, 18 << 10)));
        assert_eq!(ask(&mut cluster, "c", part("0.25")), Some((1, 20 << 10)));
    }
}

#[test]
fn d3_fractions_and_amounts_share_a_gpu() {
    for mut cluster in both(&[Kind::Parts(80), Kind::Parts(80)]) {
        assert_eq!(ask(&mut cluster, "a", part("0.25")), Some((0, 20 << 10)));
        assert_eq!(ask(&mut cluster, "b", memory(4)), Some((0, 4 << 10)));
    }
}

#[test]
fn d4_a_plain_request_for_an_instance_gets_one_place() {
    for mut cluster in both(&[Kind::Either]) {
        let given = plain(&mut cluster, "a", "nvidia.com/mig-1g.10gb");
        assert_eq!(lies(given).unwrap().0, "1g-10gb");
        assert_eq!(cluster.given().count(), 1);
    }
}

#[test]
fn d5_a_gpu_is_in_instances_or_in_parts_and_turns_when_it_is_free() {
    for mut cluster in both(&[Kind::Either]) {
        assert!(plain(&mut cluster, "mig", "nvidia.com/mig-1g.10gb").is_some());
        assert_eq!(ask(&mut cluster, "part", part("0.25")), None);
        cluster.gone("mig");
        assert_eq!(ask(&mut cluster, "part", part("0.25")), Some((0, 20 << 10)));
        assert_eq!(plain(&mut cluster, "mig", "nvidia.com/mig-1g.10gb"), None);
        // Another part joins the one that is there: the GPU's counters are taken once.
        assert_eq!(ask(&mut cluster, "more", part("0.5")), Some((0, 40 << 10)));
        cluster.gone("part");
        assert_eq!(plain(&mut cluster, "mig", "nvidia.com/mig-1g.10gb"), None);
        cluster.gone("more");
        assert!(plain(&mut cluster, "mig", "nvidia.com/mig-1g.10gb").is_some());
    }
}

#[test]
fn d6_alternatives_are_instances_while_there_are_places_and_then_parts() {
    let clusters = both(&[Kind::Either, Kind::Parts(80)]);
    for (mut cluster, is_recorded) in clusters.into_iter().zip([true, false]) {
        // As it was then: in steps of 10 GiB.
        for slice in &mut cluster.slices {
            for device in slice.spec.devices.iter_mut().flatten() {
                for capacity in device.capacity.iter_mut().flat_map(|all| all.values_mut()) {
                    let policy = capacity.request_policy.as_mut();
                    if let Some(range) = policy.and_then(|policy| policy.valid_range.as_mut()) {
                        range.min = Quantity("10Gi".to_owned());
                        range.step = Some(Quantity("10Gi".to_owned()));
                    }
                }
            }
        }
        // 12 GiB were asked for, and 20 taken: of the GPU that is only in parts.
        let only_parts = "device.attributes['gpu.divvy.dev'].uuid == ";
        let uuid = uuid_of_parts_alone(&cluster);
        let twelve = json!({ "devices": { "requests": [{
            "name": "r",
            "exactly": {
                "deviceClassName": FRACTION_CLASS,
                "selectors": [{ "cel": { "expression": format!("{only_parts}'{uuid}'") } }],
                "capacity": { "requests": { "memory": "12Gi" } },
            },
        }] } });
        let twelve: ResourceClaimSpec = serde_json::from_value(twelve).unwrap();
        let given = cluster.pod("used", &twelve).unwrap().unwrap();
        assert_eq!(
            given[0].consumed.as_ref().unwrap()["memory"],
            Bytes::gib(20).get()
        );
        let spec = as_alternatives(&cluster, 15 << 10);
        let pods = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let given = pods.map(|pod| cluster.pod(pod, &spec).unwrap());
        let got = given.map(|given| given.map(|given| given[0].request.clone()));
        let got = got.each_ref().map(|request| request.as_deref());
        let part = Some("gpu-0/part");
        let expected = if is_recorded {
            let mig = Some("gpu-0/mig-2g-20gb");
            [mig, mig, mig, part, part, part, None, None]
        } else {
            // The smallest that has 15 GiB is one compute slice, which was not written down then, and there are four of it.

            let mig = Some("gpu-0/mig-1g-20gb");
            [mig, mig, mig, mig, part, part, part, None]
        };
        assert_eq!(got, expected);
    }
}

/// The device of each of so many pods that ask for this amount: `None` of a shared GPU's part, else the instance's profile.
fn by_memory(gpus: &[Gpu], mib: u64, pods: usize) -> Vec<Option<String>> {
    let mut cluster = cluster(slices(gpus));
    let spec = asks(&cluster, &[Size::Memory(mib)]).unwrap();
    let given = (0..pods).map(|pod| cluster.pod(&format!("pod-{pod}"), &spec).unwrap());
    let given: Vec<_> = given.flatten().collect();
    given
        .into_iter()
        .map(|given| match &given[0].consumed {
            Some(_) => None,
            None => lies(Some(given)).map(|(profile, _)| profile),
        })
        .collect()
}

#[test]
fn d10_memory_is_of_shared_gpus_first_and_then_the_smallest_instance_that_has_it() {
    let instance = |profile: &str| Some(profile.to_owned());
    let gpus = [cut(0, "h100-80gb"), shared(1, 24)];
    // Two of 12 GiB fill the shared GPU; of the other one four of 1g.20gb.
    let mut expected = vec![None, None];
    expected.extend([(); 4].map(|()| instance("1g-20gb")));
    assert_eq!(by_memory(&gpus, 12 << 10, 8), expected);
    // An amount that no shared GPU has is an instance at once: 3g.40gb before 4g.40gb.
    let large = vec![instance("3g-40gb"), instance("3g-40gb")];
    assert_eq!(by_memory(&gpus, 30 << 10, 3), large);
    // Over all GPUs of the node: the small instance of the second before the larger one of the first.
    let two = [cut(0, "h100-80gb"), cut(1, "a100-40gb")];
    assert_eq!(by_memory(&two, 4 << 10, 1), [instance("1g-5gb")]);
    // Never one with media engines, of which there is one more.
    let small = by_memory(&two[..1], 4 << 10, 9);
    assert_eq!(small, vec![instance("1g-10gb"); 7]);
}

/// The claim of the recording: every profile that has so much, the smallest first, and then a part.
fn as_alternatives(cluster: &Cluster, mib: u64) -> ResourceClaimSpec {
    let plain = divvy_k8s::base::slices::inventory_of(&cluster.slices).profiles;
    let plain = plain.into_iter().filter(|(profile, memory)| {
        profile.attribute() == Attribute::None && *memory >= Bytes::mib(mib)
    });
    let mut profiles: Vec<_> = plain.map(|(profile, memory)| (memory, profile)).collect();
    profiles.sort_unstable();
    let mut alternatives: Vec<_> = profiles
        .into_iter()
        .map(|(_, profile)| {
            let name = format!("mig-{}", profile.to_string().replace('.', "-"));
            json!({ "name": name, "deviceClassName": mig_class(profile), "count": 1 })
        })
        .collect();
    alternatives.push(json!({
        "name": "part", "deviceClassName": FRACTION_CLASS, "count": 1,
        "capacity": { "requests": { "memory": format!("{mib}Mi") } },
    }));
    let requests = json!([{ "name": "gpu-0", "firstAvailable": alternatives }]);
    serde_json::from_value(json!({ "devices": { "requests": requests } })).unwrap()
}

/// Of the GPU that has no counters.
fn uuid_of_parts_alone(cluster: &Cluster) -> String {
    let mut devices = cluster
        .slices
        .iter()
        .flat_map(|s| s.spec.devices.iter().flatten());
    let device = devices
        .find(|device| device.consumes_counters.is_none())
        .unwrap();
    let uuid = &device.attributes.as_ref().unwrap()["uuid"];
    uuid.string.clone().unwrap()
}

#[test]
fn d7_a_plain_request_for_a_gpu_has_it_alone() {
    for mut cluster in both(&[Kind::Parts(80), Kind::Parts(80)]) {
        let gpus = ["a", "b", "c"].map(|pod| {
            let given = plain(&mut cluster, pod, "nvidia.com/gpu");
            on(&cluster, given)
        });
        assert_eq!(gpus, [Some((0, 80 << 10)), Some((1, 80 << 10)), None]);
        assert_eq!(ask(&mut cluster, "d", memory(4)), None);
    }
}

#[test]
fn d8_pods_that_name_one_claim_share_what_it_has() {
    for mut cluster in both(&[Kind::Parts(80)]) {
        let spec = asks(&cluster, &[memory(8)]).unwrap();
        cluster.claim("ours", &spec);
        let first = cluster.bind("one", &["ours"]).unwrap();
        let second = cluster.bind("two", &["ours"]).unwrap();
        assert!(first.is_some());
        assert_eq!(first, second);
        let all: u64 = cluster
            .given()
            .map(|g| g.consumed.as_ref().unwrap()["memory"])
            .sum();
        assert_eq!(all, Bytes::gib(8).get());
        // While one of them is there, it is taken.
        cluster.gone("one");
        assert_eq!(cluster.given().count(), 1);
        cluster.gone("two");
        assert_eq!(cluster.given().count(), 0);
    }
}

#[test]
fn d9_an_instance_is_refused_where_smaller_ones_lie_and_goes_beside_them() {
    for mut cluster in both(&[Kind::Either]) {
        for at in 0..7 {
            let given = plain(
                &mut cluster,
                &format!("small-{at}"),
                "nvidia.com/mig-1g.10gb",
            );
            assert!(given.is_some(), "{at}");
        }
        assert_eq!(plain(&mut cluster, "large", "nvidia.com/mig-3g.40gb"), None);
        assert_eq!(
            plain(&mut cluster, "eighth", "nvidia.com/mig-1g.10gb"),
            None
        );
    }
    let [mut recorded, mut ours] = both(&[Kind::Either]);
    for cluster in [&mut recorded, &mut ours] {
        for at in 0..3 {
            plain(cluster, &format!("small-{at}"), "nvidia.com/mig-1g.10gb").unwrap();
        }
    }
    let given = plain(&mut recorded, "large", "nvidia.com/mig-3g.40gb");
    assert_eq!(lies(given), Some(("3g-40gb".to_owned(), 4)));
    // Ours lie elsewhere, where they leave as much, and there is room for it too.
    let given = plain(&mut ours, "large", "nvidia.com/mig-3g.40gb");
    assert_eq!(lies(given).unwrap().0, "3g-40gb");
}

#[test]
fn what_was_recorded_of_two_gpus_for_one_claim_holds() {
    for mut cluster in both(&[Kind::Parts(80), Kind::Parts(80)]) {
        let spec = asks(&cluster, &[part("0.5"), part("0.5")]).unwrap();
        let given = cluster.pod("a", &spec).unwrap().unwrap();
        assert_ne!(given[0].device, given[1].device);
        assert!(cluster.pod("b", &spec).unwrap().is_some());
        assert_eq!(cluster.pod("c", &spec).unwrap(), None);
    }
}
