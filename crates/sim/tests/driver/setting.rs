//! What can be set on a GPU, who may, what it changes; accounts and samples of what was done.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::nvml::*;

const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const DEVICE_UNAVAILABLE: u32 = 46;

/// From uapi/linux: any user but root.
const NOBODY: u32 = 65_534;

fn watcher(machine: &Machine) -> Client {
    let mut client = machine.client();
    client.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &device"]);
    client
}

/// Whether these tests may set anything.
fn is_root() -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Sets something if these tests may; otherwise that is refused, and there is nothing more to try.
#[track_caller]
fn set(client: &mut Client, order: &str) -> bool {
    let expected = if is_root() { 0 } else { NO_PERMISSION };
    assert_eq!(client.call(order), expected, "{order}");
    is_root()
}

#[test]
fn a_prohibited_gpu_takes_no_context_and_an_exclusive_one_those_of_one_process() {
    let machine = Machine::new("l4-24gb:2");
    let (mut admin, mut one, mut two) = (watcher(&machine), machine.client(), machine.client());
    if !set(&mut admin, "nvmlDeviceSetComputeMode $device 2") {
        return;
    }
    one.ok(&["cuInit 0"]);
    two.ok(&["cuInit 0"]);
    assert_eq!(
        one.call("cuDevicePrimaryCtxRetain &c 0"),
        DEVICE_UNAVAILABLE
    );
    one.ok(&[
        "cuDevicePrimaryCtxRetain &c 1",
        "cuDevicePrimaryCtxRelease_v2 1",
    ]);
    one.ok(&["cuDeviceGetAttribute &mode 20 0"]);
    assert_eq!(one.value("mode"), 2);

    admin.ok(&[
        "nvmlDeviceSetComputeMode $device 3",
        "nvmlDeviceGetComputeMode $device &mode",
    ]);
    assert_eq!(admin.value("mode"), 3);
    one.ok(&["cuDevicePrimaryCtxRetain &c 0", "cuCtxCreate_v2 &own 0 0"]);
    assert_eq!(
        two.call("cuDevicePrimaryCtxRetain &c 0"),
        DEVICE_UNAVAILABLE
    );
    assert_eq!(two.call("cuCtxCreate_v2 &c 0 0"), DEVICE_UNAVAILABLE);
    one.kill();
    two.start();
    admin.ok(&["nvmlDeviceSetComputeMode $device 0"]);
    let mut three = machine.client();
    three.start();
    for (mode, error) in [
        (1, NOT_SUPPORTED),
        (4, INVALID_ARGUMENT),
        (u32::MAX, INVALID_ARGUMENT),
    ] {
        let order = format!("nvmlDeviceSetComputeMode $device {mode}");
        assert_eq!(admin.call(&order), error);
    }
}

#[test]
fn modes_power_and_clocks_of_a_gpu_are_what_they_were_set_to_for_every_process() {
    let machine = Machine::new("h100-80gb:2");
    let (mut admin, mut other) = (watcher(&machine), watcher(&machine));
    if !set(&mut admin, "nvmlDeviceSetPersistenceMode $device 0") {
        return;
    }
    other.set("mode", 9u64);
    other.ok(&["nvmlDeviceGetPersistenceMode $device &mode"]);
    assert_eq!(other.small_value("mode"), 0);
    admin.ok(&[
        "nvmlDeviceSetPersistenceMode $device 1",
        "nvmlDeviceSetPowerManagementLimit $device 400000",
        "nvmlDeviceSetApplicationsClocks $device 2619 1980",
    ]);
    other.ok(&[
        "nvmlDeviceGetPowerManagementLimit $device &limit",
        "nvmlDeviceGetEnforcedPowerLimit $device &enforced",
        "nvmlDeviceGetPowerManagementDefaultLimit $device &default",
        "nvmlDeviceGetHandleByIndex_v2 1 &second",
        "nvmlDeviceGetPowerManagementLimit $second &untouched",
        "nvmlDeviceGetApplicationsClock $device 1 &clock",
    ]);
    let values = ["limit", "enforced", "default", "untouched", "clock"];
    let values = values.map(|name| other.small_value(name));
    assert_eq!(values, [400_000, 400_000, 700_000, 700_000, 1980]);
    for order in [
        "nvmlDeviceSetPersistenceMode $device 2",
        "nvmlDeviceSetPowerManagementLimit $device 700001",
        "nvmlDeviceSetPowerManagementLimit $device 0",
        "nvmlDeviceSetApplicationsClocks $device 2619 1",
        "nvmlDeviceSetApplicationsClocks $device 1 1980",
        "nvmlDeviceSetComputeMode 77 0",
        "nvmlDeviceGetComputeMode $device 0",
    ] {
        assert_eq!(admin.call(order), INVALID_ARGUMENT, "{order}");
    }
    admin.ok(&["nvmlDeviceResetApplicationsClocks $device"]);
}

#[test]
fn no_process_but_roots_sets_anything_on_a_gpu() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = watcher(&machine);
    // The state file stays open, so the client can go on without its rights.
    if is_root() {
        client.ok(&[&format!("setresuid {NOBODY} {NOBODY} {NOBODY}")]);
    }
    for order in [
        "nvmlDeviceSetComputeMode $device 2",
        "nvmlDeviceSetPersistenceMode $device 0",
        "nvmlDeviceSetAccountingMode $device 1",
        "nvmlDeviceClearAccountingPids $device",
        "nvmlDeviceSetPowerManagementLimit $device 60000",
        "nvmlDeviceSetApplicationsClocks $device 1 1",
        "nvmlDeviceResetApplicationsClocks $device",
    ] {
        assert_eq!(client.call(order), NO_PERMISSION, "{order}");
    }
    client.ok(&["nvmlDeviceGetComputeMode $device &mode"]);
    assert_eq!(client.value("mode"), 0);
}

fn stats(client: &mut Client, pid: u32) -> [u64; 6] {
    client.set("stats", [0u8; 64]);
    client.ok(&[&format!(
        "nvmlDeviceGetAccountingStats $device {pid} &stats"
    )]);
    let bytes = client.bytes("stats");
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let percent = word(0) & u64::from(u32::MAX);
    // Busy percent, peak, time, beginning, running.
    [percent, word(8), word(16), word(24), word(32) & 1, 0]
}

#[test]
fn accounts_tell_what_a_process_did_while_it_runs_and_after() {
    let machine = Machine::new("l4-24gb:1");
    let mut admin = watcher(&machine);
    for order in [
        "nvmlDeviceGetAccountingPids $device &count &pids",
        "nvmlDeviceGetAccountingStats $device 1 &stats",
        "nvmlDeviceGetAccountingBufferSize $device &size",
    ] {
        assert_eq!(admin.call(order), NOT_SUPPORTED, "{order}");
    }
    if !set(&mut admin, "nvmlDeviceSetAccountingMode $device 1") {
        return;
    }
    admin.ok(&["nvmlDeviceGetAccountingMode $device &mode"]);
    assert_eq!(admin.value("mode"), 1);
    let mut client = machine.client();
    client.start();
    client.ok(&["cuMemAlloc_v2 &a 1073741824", "cuMemFree_v2 $a"]);
    let pid = client.pid();
    let context = 262 * MIB;
    let running = stats(&mut admin, pid);
    assert_eq!(
        (running[1], running[2], running[4]),
        (context + 1024 * MIB, 0, 1)
    );
    assert!(running[3] > 1_600_000_000_000_000, "a time of this century");

    admin.set("count", 0u64);
    let list = "nvmlDeviceGetAccountingPids $device &count &pids";
    assert_eq!(admin.call(list), INSUFFICIENT_SIZE);
    admin.ok(&[list]);
    assert_eq!((admin.value("count"), admin.small_value("pids")), (1, pid));
    client.kill();
    let ended = stats(&mut admin, pid);
    assert_eq!((ended[1], ended[3], ended[4]), (running[1], running[3], 0));
    assert_eq!(
        admin.call("nvmlDeviceGetAccountingStats $device 1 &stats"),
        NOT_FOUND
    );
    assert_eq!(
        admin.call(&format!("nvmlDeviceGetAccountingStats $device {pid} 0")),
        INVALID_ARGUMENT
    );
    admin.set("second", [u64::from(pid), 0]);
    admin.ok(&["nvmlDeviceGetAccountingStats_v2 $device &second"]);

    admin.ok(&["nvmlDeviceClearAccountingPids $device"]);
    let gone = format!("nvmlDeviceGetAccountingStats $device {pid} &stats");
    assert_eq!(admin.call(&gone), NOT_FOUND);
}

#[test]
fn an_account_has_the_share_of_time_that_its_process_was_busy() {
    let machine = Machine::new("l4-24gb:1");
    let environment = machine.with_virtual_clock();
    let mut admin = environment.client();
    admin.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &device"]);
    if !set(&mut admin, "nvmlDeviceSetAccountingMode $device 1") {
        return;
    }
    let mut client = environment.client();
    client.start();
    let ptx = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/driver/kernels.ptx");
    client.ok(&[
        &format!("cuModuleLoad &module \"{ptx}\""),
        "cuModuleGetFunction &busy $module \"sim_busy_ms_5\"",
        "cuModuleGetFunction &idle $module \"sim_idle_ms_45\"",
        "again 3 cuLaunchKernel $busy 1 1 1 1 1 1 0 0 0 0",
        "cuLaunchKernel $idle 1 1 1 1 1 1 0 0 0 0",
        "cuCtxSynchronize",
    ]);
    let running = stats(&mut admin, client.pid());
    assert_eq!((running[0], running[4]), (25, 1));
    client.ok(&["cuDevicePrimaryCtxReset_v2 0"]);
    let ended = stats(&mut admin, client.pid());
    assert_eq!(
        (ended[0], ended[2], ended[4]),
        (25, 60, 0),
        "of simulated time"
    );
}

#[test]
fn samples_are_windows_of_the_last_seconds() {
    let machine = Machine::new("l4-24gb:1");
    let mut watcher = watcher(&machine);
    let ask = |samples: &str| format!("nvmlDeviceGetSamples $device 1 0 &type &count {samples}");
    watcher.ok(&[&ask("0")]);
    let most = watcher.value("count");
    assert!((1..=32).contains(&most), "{most}");
    watcher.ok(&[&ask("&samples")]);
    assert_eq!(
        (watcher.small_value("type"), watcher.value("count") <= most),
        (1, true)
    );
    let bytes = watcher.bytes("samples");
    let entry = size_of::<nvmlSample_t>();
    let time = |at: usize| u64::from_ne_bytes(bytes[at * entry..][..8].try_into().expect("8"));
    let period = time(1) - time(0);
    assert!((166_000..167_000).contains(&period), "{period}");
    watcher.set("count", 1u64);
    watcher.ok(&[&ask("&samples")]);
    assert_eq!(watcher.value("count"), 1, "the newest");
    watcher.set("count", 0u64);
    assert_eq!(watcher.call(&ask("&samples")), INVALID_ARGUMENT);
    watcher.set("count", 40u64);
    let later = "nvmlDeviceGetSamples $device 1 9223372036854775807 &type &count &samples";
    assert_eq!(watcher.call(later), NOT_FOUND);
    for (kind, answer) in [
        (0, 0),
        (2, 0),
        (3, 0),
        (5, 0),
        (6, 0),
        (9, NOT_SUPPORTED),
        (10, INVALID_ARGUMENT),
    ] {
        watcher.set("count", 40u64);
        let order = format!("nvmlDeviceGetSamples $device {kind} 0 &type &count &samples");
        assert_eq!(watcher.call(&order), answer, "{order}");
    }
    assert_eq!(
        watcher.call("nvmlDeviceGetSamples $device 1 0 0 &count &samples"),
        INVALID_ARGUMENT
    );
}
