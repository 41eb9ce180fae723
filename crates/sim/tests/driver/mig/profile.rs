//! What can be asked of a GPU before anything is made.

use super::*;

/// Starts and the size of a profile.
fn placements(admin: &mut Admin, profile: u32) -> Result<(Vec<u32>, u32), u32> {
    let function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
    // Without an array the count alone.
    let count = admin.number(&format!("{function} $device {profile} 0 &count"), "count")?;
    assert_eq!(
        admin
            .0
            .call(&format!("{function} $device {profile} &all &count")),
        0
    );
    assert_eq!(admin.0.small_value("count"), count);
    let words: [u32; 32] = admin.words("all");
    let list: Vec<(u32, u32)> = words
        .chunks(2)
        .take(count as usize)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    assert!(list.iter().all(|(_, size)| *size == list[0].1));
    Ok((list.iter().map(|(start, _)| *start).collect(), list[0].1))
}

/// Profile ids by nvml.h's numbers, up to the number that ends the loop; what answers something else is left out.
fn walk(admin: &mut Admin) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for number in 0.. {
        let order = format!("nvmlDeviceGetGpuInstanceProfileInfo $device {number} &profile");
        match admin.number(&order, "profile") {
            Ok(id) => found.push((number, id)),
            Err(NOT_SUPPORTED) => {}
            Err(INVALID_ARGUMENT) => {
                assert_eq!(number, NVML_GPU_INSTANCE_PROFILE_COUNT);
                return found;
            }
            Err(error) => panic!("{number}: {error}"),
        }
    }
    unreachable!("the loop ends")
}

/// MIG user guide, `nvidia-smi mig -lgipp` on an A100-SXM4-40GB.
#[test]
fn an_empty_a100_has_the_placements_of_the_user_guide() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let expected: [(u32, &[u32], u32); 7] = [
        (19, &[0, 1, 2, 3, 4, 5, 6], 1),
        (20, &[0, 1, 2, 3, 4, 5, 6], 1),
        (15, &[0, 2, 4, 6], 2),
        (14, &[0, 2, 4], 2),
        (9, &[0, 4], 4),
        (5, &[0], 4),
        (0, &[0], 8),
    ];
    for (profile, starts, size) in expected {
        let found = placements(&mut admin, profile);
        assert_eq!(found, Ok((starts.to_vec(), size)), "{profile}");
    }
    assert_eq!(placements(&mut admin, 1), Err(INVALID_ARGUMENT));
    // Occupied or not.
    admin.create_at(0, 0, 8).expect("room");
    assert_eq!(placements(&mut admin, 5), Ok((vec![0], 4)));
}

/// Published `-lgipp` output of an RTX PRO 6000 Blackwell.
#[test]
fn an_rtx_pro_6000_has_twelve_memory_slices() {
    let machine = Machine::new("rtxpro6000-96gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    assert_eq!(placements(&mut admin, 14), Ok((vec![0, 3, 6, 9], 3)));
    assert_eq!(placements(&mut admin, 5), Ok((vec![0, 6], 6)));
    assert_eq!(placements(&mut admin, 0), Ok((vec![0], 12)));
    let quarters: Vec<Part> = (0..4).map(|_| admin.create(14).expect("room")).collect();
    let mut starts: Vec<u32> = quarters.iter().map(|part| part.start).collect();
    starts.sort_unstable();
    assert_eq!(starts, [0, 3, 6, 9]);
    let mut known = ids(&quarters);
    known.sort_unstable();
    assert_eq!(known, [3, 4, 5, 6]);
    assert_eq!(admin.create(67), Err(INSUFFICIENT_RESOURCES));
}

#[test]
fn numbers_are_not_ids_and_the_loop_over_them_ends() {
    for (spec, expected) in [
        (
            "a100-40gb:1",
            &[(0, 19), (1, 14), (2, 9), (3, 5), (4, 0), (7, 20), (9, 15)][..],
        ),
        ("a30-24gb:1", &[(0, 14), (1, 5), (3, 0), (7, 21), (8, 6)]),
    ] {
        let machine = Machine::new(spec);
        let mut admin = Admin::on(machine.with_config(ENABLED).client()).expect("a client");
        assert_eq!(walk(&mut admin), expected, "{spec}");
    }
    let other = Machine::new("l4-24gb:1");
    let mut admin = Admin::on(other.client()).expect("a client");
    let order = "nvmlDeviceGetGpuInstanceProfileInfo $device 0 &profile";
    assert_eq!(admin.0.call(order), NOT_SUPPORTED);
}

/// A program that knows no more than the numbers of an older nvml.h must still find the others.
#[test]
fn a_profile_that_programs_do_not_know_is_one_of_several() {
    let machine = Machine::new("a100-40gb:1");
    let config = "[mig]\nenabled = [0]\n[[mig.profile]]\nname = '3g.20gb+gfx'\nenum = 17\nid = 68\ncompute_slices = 3\n\
                  size = 4\nstarts = [0, 4]\nmost = 2\nmemory_mib = 19968\nmultiprocessors = 42\n";
    let mut admin = Admin::on(machine.with_config(config).client()).expect("a client");
    let found = walk(&mut admin);
    assert!(found.contains(&(17, 68)));
    assert_eq!(found.len(), 8);
}

#[test]
fn two_boards_of_one_machine_may_have_drivers_that_name_a_profile_otherwise() {
    let machine = Machine::new("a100-40gb:2");
    let config = "[mig]\nenabled = [0, 1]\n[[mig.profile]]\ngpus = [1]\nname = '3g.39gb'\nenum = 2\nid = 9\ncompute_slices = 3\n\
                  size = 4\nstarts = [0, 4]\nmost = 2\nmemory_mib = 19840\n";
    let mut admin = Admin::on(machine.with_config(config).client()).expect("a client");
    admin.0.ok(&["nvmlDeviceGetHandleByIndex_v2 1 &second"]);
    for (device, name, mib) in [
        ("$device", "MIG 3g.20gb", 19_968),
        ("$second", "MIG 3g.39gb", 19_840),
    ] {
        admin.0.set(
            "profile",
            struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2),
        );
        admin.0.ok(&[&format!(
            "nvmlDeviceGetGpuInstanceProfileInfoV {device} 2 &profile"
        )]);
        let bytes = admin.0.bytes("profile");
        let at = std::mem::offset_of!(nvmlGpuInstanceProfileInfo_v2_t, name);
        assert!(bytes[at..].starts_with(format!("{name}\0").as_bytes()));
        let at = std::mem::offset_of!(nvmlGpuInstanceProfileInfo_v2_t, memorySizeMB);
        let memory = u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        assert_eq!(memory, mib);
    }
}

#[test]
fn profiles_come_in_three_versions_and_by_id() {
    let machine = Machine::new("a100-40gb:1");
    let mut admin = Admin::on(machine.with_config(ENABLED).client()).expect("a client");
    admin
        .0
        .ok(&["nvmlDeviceGetGpuInstanceProfileInfo $device 1 &one"]);
    let [id, p2p, slices, most, sms, copies, decoders, ..]: [u32; 16] = admin.words("one");
    assert_eq!((id, p2p, slices, most, sms), (14, 0, 2, 3, 28));
    assert_eq!((copies, decoders), (2, 1));
    for (version, size) in [
        (2, size_of::<nvmlGpuInstanceProfileInfo_v2_t>()),
        (3, size_of::<nvmlGpuInstanceProfileInfo_v3_t>()),
    ] {
        let by_id = "nvmlDeviceGetGpuInstanceProfileInfoByIdV $device 14 &all";
        admin.0.set("all", size as u32 | version << 24);
        admin.0.ok(&[by_id]);
        let [_, id, ..]: [u32; 4] = admin.words("all");
        assert_eq!(id, 14);
        let bytes = admin.0.bytes("all");
        assert!(divvy_testkit::mentions(&bytes, "MIG 2g.10gb\0"));
    }
    admin.0.set("all", 0u32);
    let order = "nvmlDeviceGetGpuInstanceProfileInfoByIdV $device 14 &all";
    assert_eq!(admin.0.call(order), 25);
}

/// nvml.h of each function.
#[test]
fn without_the_mode_there_are_placements_and_no_capacity() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::of(&machine.with_config("")) else {
        return;
    };
    let order = "nvmlDeviceGetMaxMigDeviceCount $device &count";
    assert_eq!(admin.number(order, "count"), Ok(0));
    assert_eq!(admin.capacity(19), Err(NOT_SUPPORTED));
    assert_eq!(admin.create(19), Err(NOT_SUPPORTED));
    let starts = placements(&mut admin, 19).expect("listed").0;
    assert_eq!(starts, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(walk(&mut admin).len(), 7);

    let old = Machine::new("a100-40gb:1");
    let mut admin = Admin::of(&old.with_config("[mig]\nold_driver = true\n")).expect("root");
    assert_eq!(placements(&mut admin, 19), Err(NOT_SUPPORTED));
    assert_eq!(walk(&mut admin), []);
}
