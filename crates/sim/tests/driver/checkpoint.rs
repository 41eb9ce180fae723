//! Process checkpoints: one program locks another, offloads its memory, and restores it. docs/simulator.md has the codes and
//! their sources.

mod interruption;
mod refusal;

use crate::launch::{load, parameters};
use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::CUcheckpointLockArgs;
use std::fs::read_to_string;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_INITIALIZED: u32 = 3;
const OPERATING_SYSTEM: u32 = 304;
const ILLEGAL_STATE: u32 = 401;
const NOT_READY: u32 = 600;
const NOT_SUPPORTED: u32 = 801;

const RUNNING: u32 = 0;
const LOCKED: u32 = 1;
const CHECKPOINTED: u32 = 2;

const GIB: u64 = 1 << 30;
/// An L4's context.
const CONTEXT: u64 = 262 * MIB;

const LAUNCH: &str = "1 1 1 1 1 1 0 0 0 0";

/// One who drives other processes: CUDA initialised, no context, GPU 0's NVML handle in `device`.
fn driver(mut client: Client) -> Client {
    client.ok(&[
        "cuInit 0",
        "nvmlInit_v2",
        "nvmlDeviceGetHandleByIndex_v2 0 &device",
    ]);
    client
}

/// One who is driven: a gibibyte of `42` in `a`.
fn target(mut client: Client) -> Client {
    client.start();
    client.ok(&["cuMemAlloc_v2 &a 1073741824", "cuMemsetD8_v2 $a 42 4096"]);
    client
}

/// The result of `cuCheckpointProcess…` on a program, without arguments.
fn does(driver: &mut Client, what: &str, pid: u32) -> u32 {
    driver.call(&format!("cuCheckpointProcess{what} {pid} 0"))
}

#[track_caller]
fn all(driver: &mut Client, steps: &[&str], pid: u32) {
    for step in steps {
        assert_eq!(does(driver, step, pid), 0, "{step}");
    }
}

#[track_caller]
fn state(driver: &mut Client, pid: u32) -> u32 {
    driver.ok(&[&format!("cuCheckpointProcessGetState {pid} &state")]);
    driver.small_value("state")
}

/// Gives up after so many milliseconds.
fn lock_within(driver: &mut Client, pid: u32, milliseconds: u32) -> u32 {
    let args = CUcheckpointLockArgs {
        timeoutMs: milliseconds,
        ..Default::default()
    };
    driver.set("args", args);
    driver.call(&format!("cuCheckpointProcessLock {pid} &args"))
}

/// Bytes in use on a GPU, as NVML says it, beyond what the driver reserves.
fn used(watcher: &mut Client, index: usize) -> u64 {
    watcher.ok(&[
        &format!("nvmlDeviceGetHandleByIndex_v2 {index} &asked"),
        "nvmlDeviceGetMemoryInfo $asked &memory",
    ]);
    let bytes = watcher.bytes("memory");
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8"));
    word(16)
}

/// Whether NVML lists a process on GPU 0.
fn is_listed(watcher: &mut Client, pid: u32) -> bool {
    watcher.set("count", 8u64);
    watcher.ok(&["nvmlDeviceGetComputeRunningProcesses_v3 $device &count &list"]);
    let (count, bytes) = (watcher.value("count") as usize, watcher.bytes("list"));
    let mut pids = bytes.chunks(24).take(count);
    pids.any(|row| row[..4] == pid.to_ne_bytes())
}

#[track_caller]
fn first_byte(client: &mut Client) -> u8 {
    client.ok(&["cuMemcpyDtoH_v2 &byte $a 1"]);
    client.bytes("byte")[0]
}

/// Comes back when a program sleeps in the driver: a call of its waits.
fn until_it_waits(client: &Client) {
    let path = format!("/proc/{}/syscall", client.pid());
    let futex = format!("{} ", libc::SYS_futex);
    while !read_to_string(&path).is_ok_and(|now| now.starts_with(&futex)) {
        std::thread::yield_now();
    }
}

/// Bytes that a program can still allocate in one piece, and how to.
fn rest(client: &mut Client) -> (u64, String) {
    let room = client.memory().0 / (2 * MIB) * (2 * MIB);
    (room, format!("cuMemAlloc_v2 &b {room}"))
}

/// Has a program occupy its GPU until another one comes to meet it.
fn spin(client: &mut Client, machine: &Machine) {
    load(client, machine);
    meet(client);
}

fn meet(client: &mut Client) {
    client.ok(&[
        "cuModuleGetFunction &meet $module \"sim_rendezvous_2\"",
        &format!("cuLaunchKernel $meet {LAUNCH}"),
    ]);
}

#[test]
fn what_is_put_aside_is_free_for_others_and_comes_back_as_it_was() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    let empty = used(&mut driver, 0) - GIB - CONTEXT;
    let address = target.value("a");
    assert_eq!(state(&mut driver, pid), RUNNING);
    all(&mut driver, &["Lock"], pid);
    assert_eq!(state(&mut driver, pid), LOCKED);
    assert!(is_listed(&mut driver, pid), "locked, it holds all it had");
    assert_eq!(used(&mut driver, 0), empty + GIB + CONTEXT);

    all(&mut driver, &["Checkpoint"], pid);
    assert_eq!(state(&mut driver, pid), CHECKPOINTED);
    assert!(!is_listed(&mut driver, pid));
    assert_eq!(used(&mut driver, 0), empty);

    let mut other = machine.client();
    other.start();
    let (room, take) = rest(&mut other);
    other.ok(&[&take, "cuMemsetD8_v2 $b 7 4096"]);
    assert_eq!(does(&mut driver, "Restore", pid), OUT_OF_MEMORY);
    assert_eq!(state(&mut driver, pid), CHECKPOINTED);
    assert_eq!(
        used(&mut driver, 0),
        empty + CONTEXT + room,
        "nothing taken"
    );
    other.ok(&["cuMemFree_v2 $b"]);

    all(&mut driver, &["Restore"], pid);
    assert_eq!(state(&mut driver, pid), LOCKED);
    assert!(is_listed(&mut driver, pid));
    assert_eq!(used(&mut driver, 0), empty + GIB + 2 * CONTEXT);
    all(&mut driver, &["Unlock"], pid);
    assert_eq!(state(&mut driver, pid), RUNNING);
    assert_eq!((first_byte(&mut target), target.value("a")), (42, address));
    target.ok(&["cuMemFree_v2 $a"]);
    assert_eq!(used(&mut driver, 0), empty + 2 * CONTEXT);
}

#[test]
fn calls_of_a_locked_process_wait_for_its_unlocking_and_questions_do_not() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let (pid, before) = (target.pid(), used(&mut driver, 0));
    all(&mut driver, &["Lock"], pid);
    target.ok(&[
        "cuDriverGetVersion &version",
        "cuDeviceGetCount &count",
        "cuCtxGetCurrent &current",
        "cuInit 0",
    ]);
    target.tell("cuMemAlloc_v2 &b 1073741824");
    until_it_waits(&target);
    assert_eq!(used(&mut driver, 0), before);
    all(&mut driver, &["Checkpoint"], pid);
    until_it_waits(&target);
    assert_eq!(used(&mut driver, 0), before - GIB - CONTEXT);
    all(&mut driver, &["Restore"], pid);
    until_it_waits(&target);
    assert_eq!(used(&mut driver, 0), before);
    all(&mut driver, &["Unlock"], pid);
    assert_eq!(target.answer(), "0");
    assert_eq!(used(&mut driver, 0), before + GIB);
}

#[test]
fn a_lock_waits_for_work_on_all_gpus_and_for_host_functions() {
    let machine = Machine::new("l4-24gb:2");
    let environment = machine.with_virtual_clock();
    let (mut driver, mut target) = (driver(environment.client()), target(environment.client()));
    let pid = target.pid();
    target.ok(&[
        "cuDevicePrimaryCtxRetain &second 1",
        "cuCtxSetCurrent $second",
    ]);
    load(&mut target, &machine);
    target.set("value", 5u32);
    target.set("count", 1u32);
    target.ok(&["cuMemAlloc_v2 &a 512"]);
    parameters(&mut target, &["a", "value", "count"]);
    target.ok(&[
        "cuModuleGetFunction &busy $module \"sim_busy_ms_5\"",
        "cuModuleGetFunction &fill $module \"sim_fill_u32\"",
        "cuEventCreate &end 0",
        &format!("again 20 cuLaunchKernel $busy {LAUNCH}"),
        "cuLaunchKernel $fill 1 1 1 1 1 1 0 0 &parameters 0",
        "cuEventRecord $end 0",
    ]);
    assert_eq!(target.call("cuEventQuery $end"), NOT_READY);
    all(&mut driver, &["Lock"], pid);
    all(&mut driver, &["Unlock"], pid);
    assert_eq!(target.call("cuEventQuery $end"), 0);
    assert_eq!(first_byte(&mut target), 5);
}

#[test]
fn a_locked_process_does_not_stop_a_virtual_clock_for_others() {
    let machine = Machine::new("l4-24gb:1");
    let environment = machine.with_virtual_clock();
    let (mut driver, target) = (driver(environment.client()), target(environment.client()));
    all(&mut driver, &["Lock"], target.pid());
    let mut other = environment.client();
    other.start();
    load(&mut other, &machine);
    other.ok(&[
        "cuModuleGetFunction &busy $module \"sim_busy_ms_5\"",
        &format!("again 20 cuLaunchKernel $busy {LAUNCH}"),
        "cuCtxSynchronize",
    ]);
}

#[test]
fn a_process_on_two_gpus_comes_back_whole_or_not_at_all() {
    let machine = Machine::new("l4-24gb:2");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    target.ok(&[
        "cuDevicePrimaryCtxRetain &second 1",
        "cuCtxSetCurrent $second",
        "cuMemAlloc_v2 &b 2147483648",
        "cuMemsetD8_v2 $b 9 4096",
        "cuCtxSetCurrent $context",
    ]);
    let held = [used(&mut driver, 0), used(&mut driver, 1)];
    all(&mut driver, &["Lock", "Checkpoint"], pid);
    let empty = [used(&mut driver, 0), used(&mut driver, 1)];
    assert_eq!(held[0] - empty[0], GIB + CONTEXT);
    assert_eq!(held[1] - empty[1], 2 * GIB + CONTEXT);

    let mut other = machine.client();
    other.ok(&[
        "cuInit 0",
        "cuDevicePrimaryCtxRetain &context 1",
        "cuCtxSetCurrent $context",
    ]);
    let free = other.memory().0;
    other.ok(&[&format!("cuMemAlloc_v2 &c {}", free - 2 * GIB)]);
    assert_eq!(does(&mut driver, "Restore", pid), OUT_OF_MEMORY);
    assert_eq!(used(&mut driver, 0), empty[0]);
    assert_eq!(state(&mut driver, pid), CHECKPOINTED);
    other.kill();
    all(&mut driver, &["Restore", "Unlock"], pid);
    assert_eq!([used(&mut driver, 0), used(&mut driver, 1)], held);
    assert_eq!(first_byte(&mut target), 42);
    target.ok(&["cuMemcpyDtoH_v2 &byte $b 1"]);
    assert_eq!(target.bytes("byte")[0], 9);
}

#[test]
fn a_process_can_put_itself_aside_and_two_take_turns_on_a_gpu() {
    let machine = Machine::new("l4-24gb:1");
    let mut clients = [(); 2].map(|()| machine.client());
    for (client, value) in clients.iter_mut().zip([1, 2]) {
        let pid = client.pid();
        client.start();
        // More than half of the GPU.
        client.ok(&[
            "cuMemAlloc_v2 &a 17179869184",
            &format!("cuMemsetD8_v2 $a {value} 4096"),
        ]);
        all(client, &["Lock", "Checkpoint"], pid);
    }
    for (client, value) in clients.iter_mut().zip([1, 2]) {
        let pid = client.pid();
        all(client, &["Restore", "Unlock"], pid);
        assert_eq!(first_byte(client), value);
        all(client, &["Lock", "Checkpoint"], pid);
    }
}
