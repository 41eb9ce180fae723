//! A GPU that is not well: contexts that cannot be made, errors in its memory, Xid events.

use crate::machine::{Client, Machine};
use divvy_driver::sys::nvml::nvmlEventData_t;

const NOT_SUPPORTED: u32 = 3;
const TIMEOUT: u32 = 10;
const IN_USE: u32 = 19;
const ECC_UNCORRECTABLE: u32 = 214;

fn control(client: &mut Client, order: &str) -> u32 {
    client.call(&format!("divvy_sim_control \"{order}\""))
}

/// A client of NVML that holds GPU 0 as `device`.
fn watcher(machine: &Machine) -> Client {
    let mut client = machine.client();
    client.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &device"]);
    client
}

#[test]
fn a_sick_gpu_makes_no_new_context_and_keeps_those_it_has() {
    let machine = Machine::new("h100-80gb:2");
    let (mut old, mut new) = (machine.client(), machine.client());
    old.start();
    new.ok(&["cuInit 0", "cuDeviceGetDevResource 0 &whole 1"]);
    new.ok(&["cuDevResourceGenerateDesc &described &whole 1"]);
    assert_eq!(control(&mut old, "sick:0=214"), 0);
    for order in [
        "cuDevicePrimaryCtxRetain &context 0",
        "cuCtxCreate &context 0 0",
        "cuCtxCreate_v2 &context 0 0",
        "cuCtxCreate_v3 &context 0 0 0 0",
        "cuCtxCreate_v4 &context 0 0 0",
        "cuGreenCtxCreate &green $described 0 1",
    ] {
        assert_eq!(new.call(order), ECC_UNCORRECTABLE, "{order}");
    }
    new.ok(&["cuDevicePrimaryCtxRetain &other 1"]);
    old.ok(&["cuMemAlloc_v2 &a 512", "cuDevicePrimaryCtxRetain &again 0"]);
    assert_eq!(control(&mut old, "sick:0=0"), 0);
    new.ok(&["cuDevicePrimaryCtxRetain &context 0"]);
}

#[test]
fn errors_in_the_memory_of_a_gpu_are_told_to_all_and_a_reset_ends_them() {
    let machine = Machine::new("a100-40gb:1");
    let (mut admin, mut watcher) = (machine.client(), watcher(&machine));
    let mut errors = |kind: u32, counter: u32| {
        let order = format!("nvmlDeviceGetTotalEccErrors $device {kind} {counter} &count");
        watcher.ok(&[&order]);
        watcher.value("count")
    };
    assert_eq!(errors(1, 0), 0);
    assert_eq!(control(&mut admin, "ecc:0=3"), 0);
    assert_eq!([errors(1, 0), errors(1, 1), errors(0, 0)], [3, 3, 0]);
    let mut rows = || {
        watcher.ok(&["nvmlDeviceGetRemappedRows $device &a &b &c &d"]);
        ["a", "b", "c", "d"].map(|name| watcher.small_value(name))
    };
    assert_eq!(rows(), [0, 0, 0, 0]);
    assert_eq!(control(&mut admin, "remap:0=failed"), 0);
    assert_eq!(rows(), [0, 0, 0, 1]);
    assert_eq!(control(&mut admin, "remap:0=pending"), 0);
    assert_eq!(rows(), [0, 1, 1, 0]);
    assert_eq!(control(&mut admin, "sick:0=999"), 0);
    assert_eq!(control(&mut admin, "reset:0"), 0);
    assert_eq!(rows(), [0, 1, 0, 0], "the row is remapped");
    let mut client = machine.client();
    client.start();
    assert_eq!(control(&mut admin, "reset:0"), IN_USE);
    client.kill();
    watcher.ok(&["nvmlDeviceGetTotalEccErrors $device 1 0 &count"]);
    assert_eq!(watcher.value("count"), 0);
    for (order, expected) in [("remap:0=failed", 1), ("reboot", 1), ("remap:0=none", 0)] {
        assert_eq!(control(&mut admin, order), 0);
        watcher.ok(&["nvmlDeviceGetRemappedRows $device &a &b &c &d"]);
        assert_eq!(watcher.small_value("d"), expected, "{order}");
    }
}

#[test]
fn a_gpu_without_ecc_and_one_in_mig_mode_tell_no_remapped_rows() {
    let gaming = Machine::new("rtx4090-24gb:1");
    let mut gamer = watcher(&gaming);
    for order in ["ecc:0=1", "remap:0=failed"] {
        assert_eq!(control(&mut gamer, order), NOT_SUPPORTED, "{order}");
    }
    let divided = Machine::new("a100-40gb:1");
    let environment = divided.with_config("[mig]\nenabled = [0]\n");
    let mut divided = environment.client();
    divided.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &device"]);
    let rows = "nvmlDeviceGetRemappedRows $device &a &b &c &d";
    assert_eq!([gamer.call(rows), divided.call(rows)], [NOT_SUPPORTED; 2]);
    let errors = "nvmlDeviceGetTotalEccErrors $device 1 0 &count";
    assert_eq!(
        [gamer.call(errors), divided.call(errors)],
        [NOT_SUPPORTED, 0]
    );
}

/// The Xid events that are there, and for which GPU's handle.
fn xids(client: &mut Client) -> Vec<u64> {
    let mut found = Vec::new();
    while client.call("nvmlEventSetWait_v2 $set &event 0") == 0 {
        let event = client.bytes("event");
        let word = |at: usize| u64::from_ne_bytes(event[at..at + 8].try_into().expect("eight"));
        let kind = word(std::mem::offset_of!(nvmlEventData_t, eventType));
        assert_eq!((word(0), kind), (client.value("device"), 8));
        found.push(word(std::mem::offset_of!(nvmlEventData_t, eventData)));
    }
    assert_eq!(client.call("nvmlEventSetWait_v2 $set &event 0"), TIMEOUT);
    found
}

#[test]
fn every_watcher_of_a_gpu_is_told_its_xid_events_one_by_one() {
    let machine = Machine::new("l4-24gb:2");
    let watch = [
        "nvmlEventSetCreate &set",
        "nvmlDeviceRegisterEvents $device 8 $set",
    ];
    let [mut one, mut two, mut late] = [(); 3].map(|()| watcher(&machine));
    one.ok(&watch);
    two.ok(&watch);
    for order in ["xid:0=48", "xid:1=31", "xid:0=13"] {
        assert_eq!(control(&mut late, order), 0);
    }
    assert_eq!(xids(&mut one), [48, 13]);
    late.ok(&watch);
    for xid in 1..=20 {
        assert_eq!(control(&mut late, &format!("xid:0={xid}")), 0);
    }
    let last: Vec<u64> = (5..=20).collect();
    assert_eq!((xids(&mut late), xids(&mut two)), (last.clone(), last));
    // Someone who asks in time misses none.
    assert_eq!(control(&mut late, "lose:0"), 0);
    assert_eq!(control(&mut late, "lose:0"), 0);
    assert_eq!(xids(&mut two), [79], "it falls off the bus once");
}
