//! What is refused, and that nothing changes by it.

use super::*;
use divvy_driver::sys::cuda::*;

#[test]
fn every_step_is_for_one_state_alone() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    let stands = |driver: &mut Client, wanted: u32, wrong: &[&str]| {
        for step in wrong {
            assert_eq!(does(driver, step, pid), ILLEGAL_STATE, "{step}");
        }
        assert_eq!(state(driver, pid), wanted);
    };
    stands(&mut driver, RUNNING, &["Checkpoint", "Restore", "Unlock"]);
    all(&mut driver, &["Lock"], pid);
    stands(&mut driver, LOCKED, &["Lock", "Restore"]);
    all(&mut driver, &["Checkpoint"], pid);
    stands(&mut driver, CHECKPOINTED, &["Lock", "Checkpoint", "Unlock"]);
    all(&mut driver, &["Restore"], pid);
    stands(&mut driver, LOCKED, &["Lock", "Restore"]);
    all(&mut driver, &["Unlock"], pid);
    stands(&mut driver, RUNNING, &["Checkpoint", "Restore", "Unlock"]);
    assert_eq!(first_byte(&mut target), 42);
}

#[test]
fn what_is_no_process_with_cuda_says_so() {
    let machine = Machine::new("l4-24gb:1");
    let mut driver = driver(machine.client());
    let mut plain = machine.client();
    let (pid, gone) = (plain.pid(), plain.pid());
    plain.ok(&["nvmlInit_v2"]);
    for step in ["Lock", "Checkpoint", "Restore", "Unlock"] {
        assert_eq!(does(&mut driver, step, pid), NOT_INITIALIZED, "{step}");
        assert_eq!(does(&mut driver, step, 0), INVALID_VALUE, "{step}");
    }
    for call in ["GetState", "GetRestoreThreadId"] {
        let call = |pid| format!("cuCheckpointProcess{call} {pid} &place");
        assert_eq!(driver.call(&call(pid)), NOT_INITIALIZED);
    }
    plain.kill();
    assert_eq!(does(&mut driver, "Lock", gone), OPERATING_SYSTEM);
    let mut caller = machine.client();
    let own = caller.pid();
    assert_eq!(does(&mut caller, "Lock", own), NOT_INITIALIZED);
}

#[test]
fn arguments_that_mean_something_else_are_refused() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    let refused = |driver: &mut Client, step: &str, code: u32| {
        let call = format!("cuCheckpointProcess{step} {pid} &args");
        assert_eq!(driver.call(&call), code, "{step}");
    };
    let lock = CUcheckpointLockArgs {
        reserved0: 1,
        ..Default::default()
    };
    driver.set("args", lock);
    refused(&mut driver, "Lock", INVALID_VALUE);
    all(&mut driver, &["Lock"], pid);
    driver.set("args", [1u8; 64]);
    refused(&mut driver, "Checkpoint", INVALID_VALUE);
    refused(&mut driver, "Unlock", INVALID_VALUE);
    let stored = driver.address("view");
    driver.set("args", [stored, 0, 0, 0, 0, 0, 0, 0]);
    refused(&mut driver, "Checkpoint", NOT_SUPPORTED);
    driver.set("args", [0u64; 8]);
    refused(&mut driver, "Checkpoint", 0);

    // One pair of UUIDs: first from itself to itself, then to another GPU.
    let pairs = driver.address("pairs");
    driver.set("pairs", [[3u8; 16], [4u8; 16]]);
    driver.set("args", [pairs, 1, 0, 0, 0, 0, 0, 0]);
    refused(&mut driver, "Restore", NOT_SUPPORTED);
    driver.set("args", [0, 1u64, 0, 0, 0, 0, 0, 0]);
    refused(&mut driver, "Restore", INVALID_VALUE);
    driver.set("pairs", [3u8; 32]);
    driver.set("args", [pairs, 1, 0, 0, 0, 0, 0, 0]);
    refused(&mut driver, "Restore", 0);
    assert_eq!(
        driver.call(&format!("cuCheckpointProcessGetState {pid} 0")),
        INVALID_VALUE
    );
    assert_eq!(
        driver.call("cuCheckpointOperationComplete 0"),
        NOT_SUPPORTED
    );
    let thread = format!("cuCheckpointProcessGetRestoreThreadId {pid} &tid");
    driver.ok(&[&thread]);
    assert_eq!(driver.small_value("tid"), pid);
}

/// The target is refused as long as it has what `order` made, and put aside once `undo` has taken it away.
#[track_caller]
fn refused_with(driver: &mut Client, target: &mut Client, order: &[&str], undo: &[&str]) {
    let pid = target.pid();
    target.ok(order);
    let before = used(driver, 0);
    all(driver, &["Lock"], pid);
    assert_eq!(does(driver, "Checkpoint", pid), NOT_SUPPORTED, "{order:?}");
    assert_eq!((state(driver, pid), used(driver, 0)), (LOCKED, before));
    all(driver, &["Unlock"], pid);
    assert_eq!(first_byte(target), 42);
    target.ok(undo);
    all(driver, &["Lock", "Checkpoint", "Restore", "Unlock"], pid);
}

#[test]
fn managed_memory_is_not_supported() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    refused_with(
        &mut driver,
        &mut target,
        &["cuMemAllocManaged &m 4096 1"],
        &["cuMemFree_v2 $m"],
    );
    let managed = CUmemPoolProps {
        allocType: CUmemAllocationType::MANAGED,
        ..Default::default()
    };
    target.set("properties", managed);
    refused_with(
        &mut driver,
        &mut target,
        &[
            "cuMemPoolCreate &pool &properties",
            "cuMemAllocFromPoolAsync &m 4096 $pool 0",
        ],
        &["cuMemFree_v2 $m", "cuMemPoolDestroy $pool"],
    );
}

#[test]
fn memory_that_other_processes_know_is_not_supported_on_either_side() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, mut maker) = (driver(machine.client()), target(machine.client()));
    refused_with(
        &mut driver,
        &mut maker,
        &["cuMemAlloc_v2 &b 4194304", "cuIpcGetMemHandle &handle $b"],
        &["cuMemFree_v2 $b"],
    );
    maker.ok(&["cuMemAlloc_v2 &b 4194304", "cuIpcGetMemHandle &handle $b"]);
    let handle: [u8; 64] = maker.bytes("handle")[..64].try_into().expect("64 bytes");
    let mut importer = target(machine.client());
    importer.set("handle", handle);
    refused_with(
        &mut driver,
        &mut importer,
        &["cuIpcOpenMemHandle_v2 &p 1 0 0 0 0 %handle"],
        &["cuIpcCloseMemHandle $p"],
    );
    let (type_, id) = (CUmemLocationType::DEVICE, 0);
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { type_, id },
        ..Default::default()
    };
    importer.set("properties", properties);
    refused_with(
        &mut driver,
        &mut importer,
        &[
            "cuMemCreate &physical 2097152 &properties 0",
            "cuMemExportToShareableHandle &fd $physical 1 0",
        ],
        &["cuMemRelease $physical"],
    );
}

#[test]
fn a_process_on_a_gpu_instance_is_not_put_aside() {
    let machine = Machine::new("a100-40gb:1");
    let divided =
        "[mig]\nenabled = [0]\n[[mig.instance]]\ngpu = 0\nprofile = '3g.20gb'\nstart = 4\n";
    let environment = machine.with_config(divided);
    let mut driver = environment.client();
    driver.ok(&["cuInit 0"]);
    let mut target = target(environment.client());
    let pid = target.pid();
    all(&mut driver, &["Lock"], pid);
    assert_eq!(does(&mut driver, "Checkpoint", pid), OUT_OF_MEMORY);
    assert_eq!(state(&mut driver, pid), LOCKED);
    all(&mut driver, &["Unlock"], pid);
    assert_eq!(first_byte(&mut target), 42);
}

#[test]
fn a_gpu_that_another_process_has_alone_takes_no_process_back() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    all(&mut driver, &["Lock", "Checkpoint"], pid);
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    driver.ok(&["nvmlDeviceSetComputeMode $device 3"]);
    let mut other = machine.client();
    other.start();
    const DEVICE_UNAVAILABLE: u32 = 46;
    assert_eq!(does(&mut driver, "Restore", pid), DEVICE_UNAVAILABLE);
    other.kill();
    all(&mut driver, &["Restore", "Unlock"], pid);
    assert_eq!(first_byte(&mut target), 42);
}

#[test]
fn a_lost_gpu_delays_no_checkpoint_and_takes_no_process_back() {
    let machine = Machine::new("l4-24gb:2");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    spin(&mut target, &machine);
    driver.ok(&["divvy_sim_control \"lose:0\""]);
    all(&mut driver, &["Lock", "Checkpoint"], pid);
    const UNKNOWN: u32 = 999;
    assert_eq!(does(&mut driver, "Restore", pid), UNKNOWN);
    assert_eq!(state(&mut driver, pid), CHECKPOINTED);
}

#[test]
fn a_driver_before_570_does_not_know_them() {
    let machine = Machine::new("l4-24gb:1");
    let environment = machine.with_config("[checkpoint]\nunknown = true");
    let mut driver = driver(environment.client());
    let (target, pid) = (machine.client(), driver.pid());
    assert_eq!(does(&mut driver, "Lock", pid), NOT_SUPPORTED);
    let find = "cuGetProcAddress_v2 \"cuCheckpointProcessLock\" &pfn 12080 0 &status";
    driver.ok(&[find]);
    let found = |client: &mut Client| (client.small_value("status"), client.value("pfn") != 0);
    assert_eq!(found(&mut driver), (1, false));
    let mut newer = target;
    newer.ok(&[find]);
    assert_eq!(found(&mut newer), (0, true));
}
