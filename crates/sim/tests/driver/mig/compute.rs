//! Compute instances, and the MIG devices that they are.

use super::*;
use crate::machine::MIB;

fn compute_capacity(admin: &mut Admin, part: Part, profile: u32) -> u32 {
    let handle = part.handle;
    let order =
        format!("nvmlGpuInstanceGetComputeInstanceRemainingCapacity {handle} {profile} &capacity");
    admin.number(&order, "capacity").expect("a profile of it")
}

/// Ids of a GPU instance's compute profiles, by nvml.h's numbers.
fn compute_profiles(admin: &mut Admin, part: Part) -> Vec<u32> {
    let handle = part.handle;
    let mut found = Vec::new();
    for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
        let order =
            format!("nvmlGpuInstanceGetComputeInstanceProfileInfo {handle} {number} 0 &profile");
        match admin.number(&order, "profile") {
            Ok(id) => found.push(id),
            Err(error) => assert_eq!(error, NOT_SUPPORTED),
        }
    }
    found
}

fn by_index(admin: &mut Admin, index: u32) -> Result<u64, u32> {
    let order = format!("nvmlDeviceGetMigDeviceHandleByIndex $device {index} &mig");
    admin.value(&order, "mig")
}

/// A published transcript of an A100 with `-lcip` after each step.
#[test]
fn two_halves_of_a_2g_lie_side_by_side() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let part = admin.create(14).expect("room");
    let capacities =
        |admin: &mut Admin| [0, 1].map(|profile| compute_capacity(admin, part, profile));
    assert_eq!(capacities(&mut admin), [2, 1]);
    for (id, left) in [(0, [1, 0]), (1, [0, 0])] {
        let compute = admin.create_compute(part, 0).expect("room");
        admin.device_of(compute).expect("there");
        // The GPU and the GPU instance, then the id, the profile, the place.
        let [_, _, _, _, found, profile, start, size] = admin.words("own");
        assert_eq!((found, profile, start, size), (id, 0, id, 1));
        assert_eq!(capacities(&mut admin), left);
    }
    assert_eq!(admin.create_compute(part, 0), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(admin.create_compute(part, 1), Err(INSUFFICIENT_RESOURCES));
    assert_eq!(admin.create_compute(part, 3), Err(INVALID_ARGUMENT));
}

/// A public log of a GH200: `-cgi 15 -C`. The other boards of its chip are taken to be the same.
#[test]
fn on_hopper_twice_the_memory_has_compute_profile_7() {
    let machine = Machine::new("h200-141gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let part = admin.create(15).expect("room");
    assert_eq!(compute_profiles(&mut admin, part), [7]);
    assert_eq!(admin.create_compute(part, 0), Err(INVALID_ARGUMENT));
    let compute = admin.create_compute(part, 7).expect("room");
    let device = admin.device_of(compute).expect("there");
    admin
        .0
        .ok(&[&format!("nvmlDeviceGetAttributes_v2 {device} &all")]);
    let [multiprocessors, ..]: [u32; 2] = admin.words("all");
    assert_eq!(multiprocessors, 26);
    let ordinary = admin.create(19).expect("room");
    assert_eq!(compute_profiles(&mut admin, ordinary), [0]);
}

/// nvml.h of `nvmlGpuInstanceDestroy`; a transcript of `-dgi` before `-dci`.
#[test]
fn a_gpu_instance_is_not_destroyed_while_it_has_a_compute_instance() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let part = admin.create(9).expect("room");
    let compute = admin.create_compute(part, 2).expect("room");
    assert_eq!(admin.destroy(part), Err(IN_USE));
    assert_eq!(admin.list(9), [part]);
    admin.device_of(compute).expect("still there");
    admin
        .0
        .ok(&[&format!("nvmlComputeInstanceDestroy {compute}")]);
    admin.destroy(part).expect("empty");
}

#[test]
fn what_a_process_is_in_is_not_destroyed() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let part = admin.create(9).expect("room");
    let compute = admin.create_compute(part, 2).expect("room");
    let device = admin.device_of(compute).expect("there");
    let uuid = admin.text("nvmlDeviceGetUUID", device).expect("there");
    let mut tenant = machine.with("CUDA_VISIBLE_DEVICES", &uuid).client();
    tenant.start();
    let destroy = format!("nvmlComputeInstanceDestroy {compute}");
    assert_eq!(admin.0.call(&destroy), IN_USE);
    // Others go on.
    let beside = admin.create(14).expect("room, and no need for an idle GPU");
    admin.destroy(beside).expect("nobody is in it");
    tenant.kill();
    admin.0.ok(&[&destroy]);
    admin.destroy(part).expect("empty");
}

/// A monitor's handle that nobody let go of: go-nvml issue 146, DCGM issue 276.
#[test]
fn a_leaked_handle_keeps_a_compute_instance_without_a_process() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let part = admin.create(9).expect("room");
    let compute = admin.create_compute(part, 2).expect("room");
    let device = admin.device_of(compute).expect("there");
    let place = format!("0/{}/0", part.id);
    assert_eq!(admin.control(&format!("hold:{place}")), 0);
    let destroy = format!("nvmlComputeInstanceDestroy {compute}");
    assert_eq!(admin.0.call(&destroy), IN_USE);
    admin.0.set("count", 8u64);
    admin.0.ok(&[&format!(
        "nvmlDeviceGetComputeRunningProcesses_v3 {device} &count &list"
    )]);
    assert_eq!(admin.0.small_value("count"), 0);
    assert_eq!(admin.control(&format!("release:{place}")), 0);
    admin.0.ok(&[&destroy]);
    assert_eq!(admin.control(&format!("hold:{place}")), NOT_FOUND);
}

/// k8s-dra-driver-gpu issue 1452: such an orphan is found by no walk over MIG devices.
#[test]
fn a_gpu_instance_without_a_compute_instance_is_no_device() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let part = admin.create(14).expect("room");
    let order = "nvmlDeviceGetMaxMigDeviceCount $device &count";
    assert_eq!(admin.number(order, "count"), Ok(7));
    for index in 0..7 {
        assert_eq!(by_index(&mut admin, index), Err(NOT_FOUND));
    }
    assert_eq!(by_index(&mut admin, 7), Err(INVALID_ARGUMENT));
    assert_eq!(admin.list(14), [part]);
}

#[test]
fn indices_have_holes_that_the_next_device_fills() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let made: Vec<(Part, u64)> = (0..3)
        .map(|at| {
            let part = admin.create_at(19, at, 1).expect("room");
            let compute = admin.create_compute(part, 0).expect("room");
            (part, compute)
        })
        .collect();
    let devices: Vec<u64> = made
        .iter()
        .map(|(_, compute)| admin.device_of(*compute).expect("there"))
        .collect();
    let listed: Vec<_> = (0..3).map(|index| by_index(&mut admin, index)).collect();
    assert_eq!(
        listed,
        devices.iter().map(|device| Ok(*device)).collect::<Vec<_>>()
    );
    admin
        .0
        .ok(&[&format!("nvmlComputeInstanceDestroy {}", made[1].1)]);
    assert_eq!(by_index(&mut admin, 1), Err(NOT_FOUND));
    assert_eq!(by_index(&mut admin, 2), Ok(devices[2]));
    let part = admin.create_at(19, 5, 1).expect("room");
    let compute = admin.create_compute(part, 0).expect("room");
    let device = admin.device_of(compute).expect("there");
    assert_eq!(by_index(&mut admin, 1), Ok(device));
}

#[test]
fn a_mig_device_says_what_it_is() {
    let machine = Machine::new("a100-40gb:1");
    let config = "[mig]\nenabled = [0]\nextra_memory_mib = 128\n";
    let Some(mut admin) = Admin::of(&machine.with_config(config)) else {
        return;
    };
    let part = admin.create_at(9, 4, 4).expect("room");
    let compute = admin.create_compute(part, 2).expect("room");
    let device = admin.device_of(compute).expect("there");
    let name = admin.text("nvmlDeviceGetName", device);
    assert_eq!(name.as_deref(), Ok("NVIDIA A100-SXM4-40GB MIG 3g.20gb"));
    let mut ask = |function: &str, name: &str| {
        let order = format!("{function} {device} &{name}");
        admin.value(&order, name)
    };
    assert_eq!(
        ask("nvmlDeviceIsMigDeviceHandle", "is").map(|is| is as u32),
        Ok(1)
    );
    let id = ask("nvmlDeviceGetGpuInstanceId", "id").map(|id| id as u32);
    assert_eq!(id, Ok(part.id));
    let id = ask("nvmlDeviceGetComputeInstanceId", "id").map(|id| id as u32);
    assert_eq!(id, Ok(0));
    let parent = ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "parent");
    assert_eq!(parent, Ok(admin.0.value("device")));

    admin
        .0
        .ok(&[&format!("nvmlDeviceGetAttributes_v2 {device} &all")]);
    // Multiprocessors, copy engines, decoders, encoders, JPEG, OFA, slices of both instances, memory.
    let words: [u32; 9] = admin.words("all");
    assert_eq!(words, [42, 3, 2, 0, 0, 0, 3, 3, 19_968 + 128]);
    admin
        .0
        .ok(&[&format!("nvmlDeviceGetMemoryInfo {device} &memory")]);
    assert_eq!(admin.0.value("memory"), (19_968 + 128) * MIB);

    // What is the whole GPU's is not a part's.
    let whole = admin.0.value("device");
    let order = format!("nvmlDeviceGetGpuInstanceId {whole} &id");
    assert_eq!(admin.0.call(&order), NOT_SUPPORTED);
    let order = format!("nvmlDeviceGetAttributes_v2 {whole} &all");
    assert_eq!(admin.0.call(&order), NOT_SUPPORTED);
    let order = format!("nvmlDeviceIsMigDeviceHandle {whole} &is");
    assert_eq!(admin.number(&order, "is"), Ok(0));
    let order = format!("nvmlDeviceGetPersistenceMode {device} &mode");
    assert_eq!(admin.0.call(&order), NOT_SUPPORTED);
}

#[test]
fn mig_devices_are_found_by_the_names_of_new_drivers_and_of_old_ones() {
    let machine = Machine::new("a100-40gb:2");
    let config = "[mig]\nenabled = [0, 1]\n";
    let Some(mut admin) = Admin::of(&machine.with_config(config)) else {
        return;
    };
    let part = admin.create_at(14, 4, 2).expect("room");
    admin.create_compute(part, 0).expect("room");
    let compute = admin.create_compute(part, 0).expect("room");
    let device = admin.device_of(compute).expect("there");
    let uuid = admin.text("nvmlDeviceGetUUID", device).expect("there");
    let whole = admin.0.value("device");
    let gpu = admin.text("nvmlDeviceGetUUID", whole).expect("there");
    let find = |admin: &mut Admin, text: &str| {
        let order = format!("nvmlDeviceGetHandleByUUID \"{text}\" &found");
        admin.value(&order, "found")
    };
    assert_eq!(find(&mut admin, &uuid), Ok(device));
    assert_eq!(
        find(&mut admin, &format!("MIG-{gpu}/{}/1", part.id)),
        Ok(device)
    );
    assert_eq!(
        find(&mut admin, &format!("MIG-{gpu}/{}/2", part.id)),
        Err(NOT_FOUND)
    );
    assert_eq!(find(&mut admin, &gpu), Ok(whole));
    admin
        .0
        .ok(&[&format!("nvmlComputeInstanceDestroy {compute}")]);
    assert_eq!(find(&mut admin, &uuid), Err(NOT_FOUND));
}

#[test]
fn compute_instances_are_found_by_id_and_by_profile() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let part = admin.create(5).expect("room");
    let handle = part.handle;
    admin
        .0
        .set("at", nvmlComputeInstancePlacement_t { start: 2, size: 2 });
    let order =
        format!("nvmlGpuInstanceCreateComputeInstanceWithPlacement {handle} 1 &at &compute");
    let compute = admin.value(&order, "compute").expect("room");
    let one = admin.create_compute(part, 0).expect("room");
    let order = format!("nvmlGpuInstanceGetComputeInstances {handle} 1 &all &count");
    admin.0.ok(&[&order]);
    assert_eq!(
        (admin.0.small_value("count"), admin.0.value("all")),
        (1, compute)
    );
    let order = format!("nvmlGpuInstanceGetComputeInstanceById {handle} 1 &found");
    assert_eq!(admin.value(&order, "found"), Ok(one));
    let order = format!("nvmlGpuInstanceGetComputeInstanceById {handle} 2 &found");
    assert_eq!(admin.value(&order, "found"), Err(NOT_FOUND));
    let order =
        format!("nvmlGpuInstanceGetComputeInstancePossiblePlacements {handle} 1 &all &count");
    admin.0.ok(&[&order]);
    let words: [u32; 4] = admin.words("all");
    assert_eq!((admin.0.small_value("count"), words), (2, [0, 2, 2, 2]));
    admin
        .0
        .set("at", nvmlComputeInstancePlacement_t { start: 1, size: 2 });
    let order =
        format!("nvmlGpuInstanceCreateComputeInstanceWithPlacement {handle} 1 &at &compute");
    assert_eq!(admin.0.call(&order), INVALID_ARGUMENT);

    // The first version of the structure names the GPU for its device.
    admin
        .0
        .ok(&[&format!("nvmlComputeInstanceGetInfo {compute} &info")]);
    let whole = admin.0.value("device");
    assert_eq!(admin.0.value("info"), whole);
    for version in [2, 3] {
        let size = if version == 2 {
            size_of::<nvmlComputeInstanceProfileInfo_v2_t>()
        } else {
            size_of::<nvmlComputeInstanceProfileInfo_v3_t>()
        };
        admin.0.set("profile", size as u32 | version << 24);
        let order = format!("nvmlGpuInstanceGetComputeInstanceProfileInfoV {handle} 1 0 &profile");
        admin.0.ok(&[&order]);
        let bytes = admin.0.bytes("profile");
        assert!(divvy_testkit::mentions(&bytes, "MIG 2c.4g.20gb\0"));
    }
}
