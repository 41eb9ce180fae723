use super::*;
use proptest::prelude::*;

fn seat(gpu: &str, uid: &str, units: u8) -> AssignedPod {
    AssignedPod {
        gpu: gpu.to_owned(),
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: format!("pod-{uid}"),
        units,
    }
}

fn ids(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn pod_devices(uid: &str, text: &str) -> PodDevices {
    PodDevices {
        namespace: "team".to_owned(),
        name: format!("pod-{uid}"),
        units: ids(text).iter().map(|id| id.parse().unwrap()).collect(),
    }
}

fn held(text: &str, pod: Option<&str>) -> AgentClaim {
    let ids = Ids::read(&ids(text)).unwrap();
    AgentClaim {
        claim: ids.claim(),
        gpu: ids.gpu,
        pod: pod.map(str::to_owned),
        processes: 0,
        age: PENDING_GRACE * 2,
    }
}

#[test]
fn ids_of_two_gpus_are_refused_and_named() {
    let refused = Ids::read(&ids("GPU-a/0 GPU-b/1")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "one container requests sixteenths of 2 GPUs: GPU-a, GPU-b; a fraction must be of one GPU"
    );
    assert_eq!(Ids::read(&[]), Err(AllocateError::Nothing));
    assert!(matches!(
        Ids::read(&ids("GPU-a/16")),
        Err(AllocateError::Unknown(_))
    ));
    let four = Ids::read(&ids("GPU-A/4 GPU-A/5 GPU-A/7 GPU-A/6")).unwrap();
    assert_eq!(
        (four.claim().as_str(), four.units()),
        ("carrier-gpu-a-00f0", 4)
    );
    assert_eq!(units_of(&four.claim()), 4);
}

#[test]
fn only_assigned_sixteenths_are_allocated() {
    let seats = [seat("GPU-a", "1", 4), seat("GPU-b", "2", 2)];
    let free = unfilled_assignments(&seats, &[], &[]);
    let choose = |text: &str| choose(&Ids::read(&ids(text)).unwrap(), &free);
    assert_eq!(choose("GPU-b/0 GPU-b/9"), Ok(()));
    assert!(
        matches!(choose("GPU-b/0"), Err(AllocateError::NoneOpen { .. })),
        "another size"
    );
    assert!(
        matches!(
            choose("GPU-a/0 GPU-a/1"),
            Err(AllocateError::NoneOpen { .. })
        ),
        "another GPU's"
    );
    assert!(
        matches!(choose("GPU-c/0"), Err(AllocateError::NoneOpen { .. })),
        "a GPU of others"
    );
}

#[test]
fn two_pods_in_each_others_seats_are_both_served_and_count_once_each() {
    let seats = [seat("GPU-a", "1", 2), seat("GPU-b", "2", 2)];
    let made = [held("GPU-b/0 GPU-b/1", Some("1"))];
    let list = [pod_devices("1", "GPU-b/0 GPU-b/1")];
    let left = UnfilledAssignment {
        gpu: "GPU-a".to_owned(),
        units: 2,
    };
    assert_eq!(
        unfilled_assignments(&seats, &made, &list),
        [left],
        "the other one's seat is left"
    );
    assert_eq!(attribute_claims(&seats, &made, &list)[0].1, "2");
    let both = [made[0].clone(), held("GPU-a/5 GPU-a/6", Some("2"))];
    let list = [list[0].clone(), pod_devices("2", "GPU-a/5 GPU-a/6")];
    assert!(unfilled_assignments(&seats, &both, &list).is_empty());
    let uids: BTreeSet<String> = attribute_claims(&seats, &both, &list)
        .into_iter()
        .map(|(_, uid)| uid)
        .collect();
    assert_eq!(uids.len(), 2);
    assert_eq!(
        attribute_claims(&seats[1..], &both, &list)[0].1,
        "2",
        "its own, once the other is over"
    );
}

#[test]
fn kubelet_is_asked_to_stay_on_the_gpu_where_a_seat_is_open() {
    let open = [UnfilledAssignment {
        gpu: "GPU-b".to_owned(),
        units: 2,
    }];
    let available = ids("GPU-a/0 GPU-a/1 GPU-b/3 GPU-b/5 GPU-b/7");
    assert_eq!(prefer(&available, &[], 2, &open), ids("GPU-b/3 GPU-b/5"));
    assert_eq!(
        prefer(&available, &ids("GPU-b/7"), 2, &open),
        ids("GPU-b/7 GPU-b/3")
    );
    assert!(prefer(&available, &ids("GPU-a/0"), 2, &open).is_empty());
    assert!(prefer(&available, &[], 3, &open).is_empty());
}

#[test]
fn a_claim_is_left_over_when_neither_kubelet_nor_a_seat_nor_a_process_has_it() {
    let made = [held("GPU-a/0", Some("1"))];
    assert_eq!(orphaned_claims(&[], &made, &[]).len(), 1);
    let seats = [seat("GPU-a", "1", 1)];
    assert!(
        orphaned_claims(&seats, &made, &[]).is_empty(),
        "kubelet has only just started"
    );
    assert!(orphaned_claims(&[], &made, &[pod_devices("x", "GPU-a/0")]).is_empty());
    let busy = [AgentClaim {
        processes: 1,
        ..made[0].clone()
    }];
    assert!(orphaned_claims(&[], &busy, &[]).is_empty());
    let unknown = held("GPU-a/0", None);
    assert_eq!(
        orphaned_claims(&seats, std::slice::from_ref(&unknown), &[]).len(),
        1,
        "kubelet refused the pod after all"
    );
    let young = [AgentClaim {
        age: Duration::ZERO,
        ..unknown
    }];
    assert!(orphaned_claims(&seats, &young, &[]).is_empty());
    assert!(unfilled_assignments(&seats, &young, &[]).is_empty());
}

proptest! {
    /// Kubelet admits pods in any order: every assigned pod gets its sixteenths, and no other pod does.
    #[test]
    fn every_assigned_pod_gets_its_sixteenths_in_any_order(
        sizes in prop::collection::vec((0_usize..2, 1_u8..8), 1..10),
        order in prop::collection::vec(any::<prop::sample::Index>(), 10),
    ) {
        let gpus = ["GPU-a", "GPU-b"];
        let mut used = [0_u8; 2];
        let mut seats = Vec::new();
        for (at, (gpu, units)) in sizes.into_iter().enumerate() {
            if used[gpu] + units <= UNITS {
                used[gpu] += units;
                seats.push(seat(gpus[gpu], &at.to_string(), units));
            }
        }
        let units = gpus.iter().flat_map(|gpu| crate::carrier::units::of_gpu(gpu));
        let mut free: Vec<String> = units.map(|unit| unit.to_string()).collect();
        let mut left: Vec<AssignedPod> = seats.clone();
        let (mut claims, mut list) = (Vec::new(), Vec::new());
        for index in order {
            if left.is_empty() {
                break;
            }
            let pod = left.remove(index.index(left.len()));
            let size = usize::from(pod.units);
            let chosen = prefer(&free, &[], size, &unfilled_assignments(&seats, &claims, &list));
            prop_assert_eq!(chosen.len(), size, "a seat of this size is open, and has ids");
            let ids = Ids::read(&chosen).unwrap();
            prop_assert_eq!(choose(&ids, &unfilled_assignments(&seats, &claims, &list)), Ok(()));
            claims.push(AgentClaim { claim: ids.claim(), gpu: ids.gpu, pod: Some(pod.uid.clone()), processes: 0, age: PENDING_GRACE });
            let units = chosen.iter().map(|id| id.parse().unwrap()).collect();
            list.push(PodDevices { namespace: pod.namespace, name: pod.name, units });
            free.retain(|id| !chosen.contains(id));
            let uids: BTreeSet<String> = attribute_claims(&seats, &claims, &list).into_iter().map(|(_, uid)| uid).collect();
            prop_assert_eq!(uids.len(), claims.len(), "each counts once");
            prop_assert!(uids.iter().all(|uid| seats.iter().any(|seat| seat.uid == *uid)));
        }
        prop_assert!(orphaned_claims(&seats, &claims, &list).is_empty());
        if left.is_empty() {
            prop_assert!(unfilled_assignments(&seats, &claims, &list).is_empty());
        }
    }
}
