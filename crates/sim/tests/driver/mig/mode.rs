//! The mode: who may change it, when it takes effect, what it and a restart do to what is there.

use super::*;
use crate::machine::Client;

/// nvml.h of `nvmlDeviceSetMigMode`.
#[test]
fn the_mode_of_a_busy_ampere_is_pending() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::of(&machine.with_config("")) else {
        return;
    };
    let mut client = machine.client();
    client.start();
    assert_eq!(admin.set_mode(1), Ok(IN_USE));
    assert_eq!(admin.mode(), (0, 1));
    assert_eq!(admin.create(19), Err(NOT_SUPPORTED));
    assert_eq!(admin.control("reset:0"), IN_USE);
    client.kill();
    assert_eq!(admin.set_mode(1), Ok(RESET_REQUIRED));
    assert_eq!(admin.mode(), (0, 1));
    assert_eq!(admin.create(19), Err(NOT_SUPPORTED));
    assert_eq!(admin.control("reset:0"), 0);
    assert_eq!(admin.mode(), (1, 1));
    admin.create(19).expect("divided");
}

#[test]
fn a_pending_mode_can_be_taken_back() {
    let machine = Machine::new("a100-40gb:1");
    let Some(mut admin) = Admin::of(&machine.with_config("")) else {
        return;
    };
    assert_eq!(admin.set_mode(1), Ok(RESET_REQUIRED));
    assert_eq!(admin.set_mode(0), Ok(0));
    assert_eq!(admin.mode(), (0, 0));
    assert_eq!(admin.control("reset:0"), 0);
    assert_eq!(admin.mode(), (0, 0));
}

/// MIG user guide, "GPU Reset on Hopper+ GPUs".
#[test]
fn hopper_changes_its_mode_at_once() {
    let machine = Machine::new("h100-80gb:1");
    let Some(mut admin) = Admin::of(&machine.with_config("")) else {
        return;
    };
    assert_eq!(admin.set_mode(1), Ok(0));
    assert_eq!(admin.mode(), (1, 1));
    let part = admin.create(19).expect("divided");
    assert_eq!(admin.set_mode(0), Ok(IN_USE));
    assert_eq!(admin.mode(), (1, 0));
    admin.destroy(part).expect("empty");
    assert_eq!(admin.set_mode(0), Ok(0));
    assert_eq!(admin.mode(), (0, 0));
}

#[test]
fn an_ampere_on_bare_metal_may_reset_itself() {
    let machine = Machine::new("a100-40gb:1");
    let config = "[mig]\nneeds_reset = false\n";
    let Some(mut admin) = Admin::of(&machine.with_config(config)) else {
        return;
    };
    assert_eq!(admin.set_mode(1), Ok(0));
    assert_eq!(admin.mode(), (1, 1));
}

#[test]
fn handles_may_be_invalid_after_the_mode_has_changed() {
    let machine = Machine::new("h100-80gb:2");
    let config = "[mig]\nrebinds = true\n";
    let Some(mut admin) = Admin::of(&machine.with_config(config)) else {
        return;
    };
    admin.0.ok(&["nvmlDeviceGetHandleByIndex_v2 1 &other"]);
    assert_eq!(admin.set_mode(1), Ok(0));
    let order = "nvmlDeviceGetMigMode $device &current &pending";
    assert_eq!(admin.0.call(order), INVALID_ARGUMENT);
    admin
        .0
        .ok(&["nvmlDeviceGetMigMode $other &current &pending"]);
    admin.0.ok(&["nvmlDeviceGetHandleByIndex_v2 0 &device"]);
    assert_eq!(admin.mode(), (1, 1));
}

/// A public log of a GH200, where a profiler had the GPU's device file open; open-gpu-kernel-modules,
/// `kmigmgr_ga100.c`.
#[test]
fn the_first_instance_needs_a_gpu_that_no_process_has_open_and_later_ones_do_not() {
    let machine = Machine::new("h100-80gb:1");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    assert_eq!(admin.control("hold:0"), 0);
    assert_eq!(admin.create(19), Err(IN_USE));
    assert_eq!(admin.control("release:0"), 0);
    let first = admin.create(19).expect("idle");
    assert_eq!(admin.control("hold:0"), 0);
    let second = admin.create(19).expect("not the first");
    admin.destroy(second).expect("empty");
    admin.destroy(first).expect("empty");
    assert_eq!(admin.create(19), Err(IN_USE), "it would be the first again");
}

/// MIG user guide: instances are not persistent across reboots, and the mode is, on Ampere.
#[test]
fn a_restart_takes_all_instances_and_on_hopper_the_mode() {
    let machine = Machine::new("a100-40gb:1,h100-80gb:1");
    let Some(mut admin) = Admin::of(&machine.with_config("[mig]\nenabled = [0, 1]\n")) else {
        return;
    };
    for order in ["reload", "reboot"] {
        let parts: Vec<Part> = [9, 14, 19]
            .iter()
            .map(|profile| admin.create(*profile).expect("room"))
            .collect();
        let compute = admin.create_compute(parts[0], 2).expect("room");
        let device = admin.device_of(compute).expect("there");
        assert_eq!(admin.control(order), 0);
        assert_eq!(admin.mode(), (1, 1));
        for (profile, part) in [9, 14, 19].into_iter().zip(parts) {
            assert_eq!(admin.list(profile), []);
            assert_eq!(admin.part(part.handle), Err(INVALID_ARGUMENT));
        }
        let name = admin.text("nvmlDeviceGetName", device);
        assert_eq!(name, Err(INVALID_ARGUMENT));
        admin.0.ok(&[
            "nvmlDeviceGetHandleByIndex_v2 1 &hopper",
            "nvmlDeviceGetMigMode $hopper &current &pending",
        ]);
        let mode = (
            admin.0.small_value("current"),
            admin.0.small_value("pending"),
        );
        assert_eq!(mode, (0, 0));
        admin.0.ok(&["nvmlDeviceSetMigMode $hopper 1 &activation"]);
    }
    let mut client = machine.client();
    assert_eq!(admin.control("release:0"), 0);
    admin.0.ok(&["nvmlDeviceSetMigMode $hopper 0 &activation"]);
    client.ok(&["cuInit 0"]);
    assert_eq!(admin.control("reboot"), IN_USE, "a process has a GPU");
    client.kill();
    assert_eq!(admin.control("reboot"), 0);
}

#[test]
fn the_mode_can_be_kept_or_lost_by_configuration() {
    let machine = Machine::new("a100-40gb:1");
    let config = "[mig]\nenabled = [0]\nmode_is_kept = false\n";
    let Some(mut admin) = Admin::of(&machine.with_config(config)) else {
        return;
    };
    assert_eq!(admin.control("reboot"), 0);
    assert_eq!(admin.mode(), (0, 0));
}

#[test]
fn orders_that_mean_nothing_are_invalid() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    for order in [
        "",
        "reset",
        "reset:1",
        "reset:0/1/0",
        "reboot:0",
        "hold:0/1",
        "hold:x",
        "lose:1",
        "lose:0/1/0",
        "sleep:0",
        "reset:0=1",
        "sick:0",
        "sick:1=214",
        "sick:0/1/0=214",
        "sick:0=ill",
        "remap:0=soon",
        "xid:0=-1",
    ] {
        let answer = client.call(&format!("divvy_sim_control \"{order}\""));
        assert_eq!(answer, INVALID_ARGUMENT, "{order:?}");
    }
}

/// What needs privileges by nvml.h is refused, and what does not is answered.
#[test]
fn a_process_without_root_changes_no_instance() {
    let machine = Machine::new("a100-40gb:1");
    let config = "unprivileged = true\n[mig]\nenabled = [0]\n";
    let mut admin = Admin::on(machine.with_config(config).client()).expect("a client");
    assert_eq!(admin.create(19), Err(NO_PERMISSION));
    assert_eq!(admin.create_at(19, 0, 1), Err(NO_PERMISSION));
    assert_eq!(admin.capacity(19), Err(NO_PERMISSION));
    assert_eq!(admin.set_mode(0), Err(NO_PERMISSION));
    for order in [
        "nvmlDeviceGetGpuInstances $device 19 &all &count",
        "nvmlDeviceGetGpuInstanceById $device 1 &found",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2 $device 19 0 &count",
        "nvmlDeviceSetPersistenceMode $device 0",
    ] {
        assert_eq!(admin.0.call(order), NO_PERMISSION, "{order}");
    }
    assert_eq!(admin.mode(), (1, 1));
    admin
        .0
        .ok(&["nvmlDeviceGetGpuInstanceProfileInfo $device 0 &profile"]);
    if !is_root() {
        return;
    }
    let mut other = Admin::on(machine.client()).expect("a client");
    let part = other.create(19).expect("room");
    let compute = other.create_compute(part, 0).expect("room");
    let device = other.device_of(compute).expect("there");
    // Handles are what they are in every process; the MIG device is everybody's to look at.
    admin.text("nvmlDeviceGetName", device).expect("there");
    assert_eq!(admin.destroy(part), Err(NO_PERMISSION));
    let order = format!("nvmlComputeInstanceDestroy {compute}");
    assert_eq!(admin.0.call(&order), NO_PERMISSION);
    assert_eq!(admin.create_compute(part, 0), Err(NO_PERMISSION));
}

fn wait(client: &mut Client) -> u32 {
    client.call("nvmlEventSetWait_v2 $set &event 1000")
}

#[test]
fn every_change_of_an_instance_is_an_event_for_processes_that_watch_the_gpu() {
    let machine = Machine::new("a100-40gb:2");
    let Some(mut admin) = Admin::with(&machine) else {
        return;
    };
    let mut watcher = Admin::on(machine.client()).expect("a client").0;
    watcher.ok(&[
        "nvmlDeviceGetSupportedEventTypes $device &types",
        "nvmlEventSetCreate &set",
        "nvmlDeviceRegisterEvents $device 256 $set",
    ]);
    let types = watcher.value("types");
    assert_eq!(types & nvmlEventMigConfigChange, nvmlEventMigConfigChange);
    let part = admin.create(9).expect("room");
    let compute = admin.create_compute(part, 2).expect("room");
    assert_eq!(admin.create(0), Err(INSUFFICIENT_RESOURCES));
    admin
        .0
        .ok(&[&format!("nvmlComputeInstanceDestroy {compute}")]);
    admin.destroy(part).expect("empty");
    for change in 0..4 {
        assert_eq!(wait(&mut watcher), 0, "change {change}");
        let bytes = watcher.bytes("event");
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
        assert_eq!((word(0), word(8)), (watcher.value("device"), 256));
    }
    assert_eq!(
        watcher.call("nvmlEventSetWait_v2 $set &event 0"),
        10,
        "no more"
    );
}
