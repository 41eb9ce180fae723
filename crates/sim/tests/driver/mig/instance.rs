//! GPU instances: where they come to lie, what they are called, when they are refused.

use super::*;

/// Everything that was made, and why no more.
fn create_all(admin: &mut Admin, profiles: &[u32]) -> (Vec<Part>, Result<(), u32>) {
    let mut made = Vec::new();
    for profile in profiles {
        match admin.create(*profile) {
            Ok(part) => made.push(part),
            Err(error) => return (made, Err(error)),
        }
    }
    (made, Ok(()))
}

fn on_map(map: &str) -> String {
    format!("[mig]\nenabled = [0]\nids = '{map}'\n")
}

/// A published transcript of an A100 with `-lgip` after each step.
#[test]
fn capacity_falls_with_what_is_made() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let capacities = |admin: &mut Admin| {
        [19, 20, 15, 14, 9, 5, 0].map(|profile| admin.capacity(profile).expect("divided"))
    };
    assert_eq!(capacities(&mut admin), [7, 1, 4, 3, 2, 1, 1]);
    let steps = [
        (5, [3, 1, 2, 1, 1, 0, 0]),
        (14, [1, 1, 1, 0, 0, 0, 0]),
        (19, [0; 7]),
    ];
    for (profile, expected) in steps {
        admin.create(profile).expect("room");
        assert_eq!(capacities(&mut admin), expected, "after {profile}");
    }
    assert_eq!(admin.capacity(1), Err(INVALID_ARGUMENT));
}

/// The same transcript; the MIG user guide; published transcripts of an A100-80GB and of an A100 on ESXi.
#[test]
fn the_driver_chooses_places_and_ids_as_on_the_boards_that_were_seen() {
    type Row = (&'static [u32], &'static [(u32, u32)], [&'static [u32]; 2]);
    let rows: [Row; 3] = [
        (
            &[5, 14, 19],
            &[(0, 4), (4, 2), (6, 1)],
            [&[1, 5, 13], &[2, 3, 9]],
        ),
        (&[9, 9], &[(4, 4), (0, 4)], [&[2, 1], &[1, 2]]),
        (
            &[9, 19, 14, 19],
            &[(4, 4), (0, 1), (2, 2), (1, 1)],
            [&[2, 7, 4, 8], &[1, 11, 6, 12]],
        ),
    ];
    for (profiles, expected, [on_a, on_b]) in rows {
        for (map, named) in [("a", on_a), ("b", on_b)] {
            let machine = Machine::new("a100-40gb:1");
            let Some(mut admin) = Admin::of(&machine.with_config(&on_map(map))) else {
                return;
            };
            let (made, end) = create_all(&mut admin, profiles);
            assert_eq!(end, Ok(()));
            assert_eq!(places(&made), expected, "{profiles:?}");
            assert_eq!(ids(&made), named, "{profiles:?} on map {map}");
        }
    }
}

/// MIG user guide, `-cgi 19,19,14,9`.
#[test]
fn a_series_that_does_not_fit_leaves_what_was_made() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let (made, end) = create_all(&mut admin, &[19, 19, 14, 9]);
    assert_eq!(places(&made), [(6, 1), (4, 1), (0, 2)]);
    assert_eq!(end, Err(INSUFFICIENT_RESOURCES));
    assert_eq!(admin.list(19).len() + admin.list(14).len(), 3);
    assert_eq!(admin.list(9), []);
}

/// nvml.h: a new instance fails where it overlaps what is there.
#[test]
fn overlap_is_refused_and_changes_nothing() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let left = admin.create_at(9, 0, 4).expect("room");
    assert_eq!(admin.create_at(5, 0, 4), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(admin.list(5), []);
    admin.destroy(left).expect("empty");
    admin.create_at(9, 4, 4).expect("room");
    admin.create_at(5, 0, 4).expect("room beside it");
    assert_eq!(admin.create_at(19, 1, 1), Err(INSUFFICIENT_RESOURCES));
}

#[test]
fn places_that_no_profile_has_are_invalid() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    for (profile, start, size) in [(9, 2, 4), (9, 0, 2), (19, 7, 1), (14, 6, 2), (1, 0, 1)] {
        let refused = admin.create_at(profile, start, size);
        assert_eq!(refused, Err(INVALID_ARGUMENT), "{profile} at {start}");
    }
    let order = "nvmlDeviceCreateGpuInstanceWithPlacement $device 9 0 &made";
    assert_eq!(admin.0.call(order), INVALID_ARGUMENT);
    assert_eq!(admin.capacity(0), Ok(1), "nothing is there");
}

/// The eighth memory slice belongs to no small instance, and these four have all eight.
#[test]
fn four_instances_of_twice_the_memory_leave_compute_slices_without_use() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let (made, end) = create_all(&mut admin, &[15, 15, 15, 15]);
    assert_eq!((made.len(), end), (4, Ok(())));
    assert_eq!(admin.create(19), Err(INSUFFICIENT_RESOURCES));
}

/// MIG user guide: a single 1g profile can include media extensions.
#[test]
fn only_one_instance_has_media_extensions() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    admin.create(20).expect("room");
    assert_eq!(admin.create(20), Err(INSUFFICIENT_RESOURCES));
    admin.create(19).expect("room without them");
}

/// nvml.h of the ALL_ME profiles.
#[test]
fn beside_all_media_engines_there_are_only_instances_without() {
    let machine = Machine::new("rtxpro6000-96gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    admin.create_at(65, 0, 3).expect("room");
    for profile in [14, 21, 47, 5, 65, 64] {
        assert_eq!(
            admin.create(profile),
            Err(INSUFFICIENT_RESOURCES),
            "{profile}"
        );
    }
    admin.create(67).expect("it has no media engines");
}

/// The driver generates UUIDs from the GPU and the slot (open-gpu-kernel-modules, `gpu_uuid.c`).
#[test]
fn what_is_made_again_in_its_place_has_its_names_again_and_other_handles() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let make = |admin: &mut Admin| {
        let part = admin.create_at(19, 3, 1).expect("room");
        let compute = admin.create_compute(part, 0).expect("room");
        let device = admin.device_of(compute).expect("there");
        let uuid = admin.text("nvmlDeviceGetUUID", device).expect("there");
        (part, compute, device, uuid)
    };
    let (part, compute, device, uuid) = make(&mut admin);
    assert!(
        uuid.starts_with("MIG-") && uuid.as_bytes()[18] == b'5',
        "{uuid}"
    );
    admin
        .0
        .ok(&[&format!("nvmlComputeInstanceDestroy {compute}")]);
    admin.destroy(part).expect("empty");
    let (part_2, compute_2, device_2, uuid_2) = make(&mut admin);
    assert_eq!((part.id, &uuid), (part_2.id, &uuid_2));
    assert_ne!(
        (part.handle, compute, device),
        (part_2.handle, compute_2, device_2)
    );
    assert_eq!(admin.part(part.handle), Err(INVALID_ARGUMENT));
    assert_eq!(admin.destroy(part), Err(INVALID_ARGUMENT));
    assert_eq!(admin.device_of(compute), Err(INVALID_ARGUMENT));
    assert_eq!(
        admin.text("nvmlDeviceGetUUID", device),
        Err(INVALID_ARGUMENT)
    );
    assert_eq!(admin.text("nvmlDeviceGetUUID", device_2), Ok(uuid));
    let other = admin.create_at(19, 2, 1).expect("room");
    let compute = admin.create_compute(other, 0).expect("room");
    let device = admin.device_of(compute).expect("there");
    assert_ne!(admin.text("nvmlDeviceGetUUID", device), Ok(uuid_2));
}

#[test]
fn a_driver_may_take_a_stale_handle_for_what_is_there_now() {
    let machine = Machine::new("a100-40gb:1");
    let config = "[mig]\nenabled = [0]\nreuse_handles = true\n";
    let Some(mut admin) = Admin::of(&machine.with_config(config)) else {
        return;
    };
    let part = admin.create_at(9, 0, 4).expect("room");
    admin.destroy(part).expect("empty");
    assert_eq!(
        admin.part(part.handle),
        Err(INVALID_ARGUMENT),
        "nothing is there"
    );
    admin.create_at(5, 0, 4).expect("room");
    let found = admin.part(part.handle).expect("another, of the same id");
    assert_eq!((found.id, found.size), (part.id, 4));
    assert_eq!(admin.list(5).len(), 1);
}

/// The choice is in no documentation: nobody may rely on it.
#[test]
fn the_adversary_chooses_otherwise_and_legally() {
    let machine = Machine::new("a100-40gb:1");
    let config = "[mig]\nenabled = [0]\nplacement = 'adversarial'\n";
    let Some(mut admin) = Admin::of(&machine.with_config(config)) else {
        return;
    };
    let part = admin.create(9).expect("room");
    assert_eq!(part.start, 0);
    assert_eq!(admin.create(5), Err(INSUFFICIENT_RESOURCES));
}

/// Computed from the model of the driver's choice: an exact search fits all twelve orders.
#[test]
fn placed_one_by_one_by_the_driver_most_orders_of_a_set_that_fits_do_not_fit() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let mut refused = 0;
    let mut orders = 0;
    for second in 0..4 {
        for third in (0..4).filter(|third| *third != second) {
            let mut order = [19; 4];
            (order[second], order[third]) = (14, 9);
            let (made, end) = create_all(&mut admin, &order);
            orders += 1;
            refused += usize::from(end.is_err());
            for part in made {
                admin.destroy(part).expect("empty");
            }
        }
    }
    assert_eq!((orders, refused), (12, 9));
    for (profile, start, size) in [(19, 0, 1), (19, 1, 1), (14, 2, 2), (9, 4, 4)] {
        admin.create_at(profile, start, size).expect("said where");
    }
}

#[test]
fn instances_outlive_their_maker_and_are_found_by_id_and_by_profile() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut maker) = Admin::with(&machine) else {
        return;
    };
    let made = maker.create_at(14, 2, 2).expect("room");
    maker.0.kill();
    let mut finder = Admin::on(machine.client()).expect("a client");
    let found = finder.list(14);
    assert_eq!((places(&found), ids(&found)), (vec![(2, 2)], vec![made.id]));
    let by_id = |id| format!("nvmlDeviceGetGpuInstanceById $device {id} &found");
    let handle = finder.value(&by_id(made.id), "found").expect("there");
    assert_eq!(handle, found[0].handle);
    assert_eq!(finder.value(&by_id(made.id + 1), "found"), Err(NOT_FOUND));
    assert_eq!(finder.value(&by_id(99), "found"), Err(NOT_FOUND));
    finder.destroy(found[0]).expect("empty");
    assert_eq!(finder.list(14), []);
}

#[test]
fn of_many_processes_that_make_instances_at_once_as_many_succeed_as_there_is_room_for() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let makers: Vec<Admin> = (0..4)
        .map(|_| Admin::on(machine.client()).expect("a client"))
        .collect();
    let made: Vec<Part> = std::thread::scope(|scope| {
        let threads: Vec<_> = makers
            .into_iter()
            .map(|mut maker| scope.spawn(move || create_all(&mut maker, &[19; 8]).0))
            .collect();
        let made = threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"));
        made.collect()
    });
    let mut starts: Vec<u32> = made.iter().map(|part| part.start).collect();
    starts.sort_unstable();
    assert_eq!(starts, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(admin.list(19).len(), 7);
}
