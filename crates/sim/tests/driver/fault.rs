//! Faults by configuration, and the call log.

use crate::machine::{Client, Machine};

/// A client of a machine with two GPUs that holds both, as `device` and `other`.
fn with_both(machine: &Machine) -> Client {
    let mut client = machine.client();
    client.ok(&[
        "nvmlInit_v2",
        "nvmlDeviceGetHandleByIndex_v2 0 &device",
        "nvmlDeviceGetHandleByIndex_v2 1 &other",
    ]);
    client
}

#[test]
fn the_chosen_call_fails_and_the_others_do_not() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine
        .with_config("[[fault]]\nfunction = 'cuMemAlloc_v2'\ncall = 3\ntimes = 2\ncode = 2")
        .client();
    client.start();
    let before = client.memory();
    let codes: Vec<u32> = (0..5)
        .map(|_| client.call("cuMemAlloc_v2 &a 512"))
        .collect();
    assert_eq!(codes, [0, 0, 2, 2, 0]);
    assert_eq!(before.0 - client.memory().0, 3 * 512);
}

#[test]
fn initialisation_can_be_made_to_fail() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_config("[[fault]]\nfunction = 'cuInit'\ncode = 999\n[[fault]]\nfunction = 'nvmlInit*'\ntimes = 0\ncode = 18").client();
    assert_eq!([client.call("cuInit 0"), client.call("cuInit 0")], [999, 0]);
    assert_eq!(
        [
            client.call("nvmlInit_v2"),
            client.call("nvmlInitWithFlags 0")
        ],
        [18, 18]
    );
}

#[test]
fn a_lost_gpu_is_lost_to_every_process_and_reported() {
    let machine = Machine::new("l4-24gb:2");
    let mut watcher = with_both(&machine);
    watcher.ok(&[
        "nvmlEventSetCreate &set",
        "nvmlDeviceRegisterEvents $device 8 $set",
    ]);
    assert_eq!(watcher.call("nvmlEventSetWait_v2 $set &event 1"), 10);
    let mut client = machine
        .with_config("[[fault]]\nfunction = 'cuMemFree_v2'\nlose_gpu = 0")
        .client();
    client.start();
    client.ok(&["cuMemAlloc_v2 &a 512"]);
    watcher.tell("nvmlEventSetWait_v2 $set &event 60000");
    assert_eq!(client.call("cuMemFree_v2 $a"), 999);
    assert_eq!(client.call("cuMemAlloc_v2 &a 512"), 999);
    assert_eq!(watcher.answer(), "0");
    let event = watcher.bytes("event");
    assert_eq!((event[8], event[16]), (8, 79), "Xid 79");
    assert_eq!(watcher.call("nvmlDeviceGetMemoryInfo $device &memory"), 15);
    assert_eq!(watcher.call("nvmlDeviceGetMemoryInfo $other &memory"), 0);
}

#[test]
fn a_gpu_falls_off_the_bus_when_it_is_told_to() {
    let machine = Machine::new("l4-24gb:2");
    let mut client = with_both(&machine);
    client.ok(&[
        "divvy_sim_control \"lose:1\"",
        "nvmlDeviceGetMemoryInfo $device &memory",
    ]);
    assert_eq!(client.call("nvmlDeviceGetMemoryInfo $other &memory"), 15);
}

#[test]
fn the_log_has_one_line_a_call_with_arguments_and_result() {
    let machine = Machine::new("l4-24gb:1");
    let log = machine.path("calls.log");
    let mut client = machine
        .with("DIVVY_SIM_LOG", log.to_str().expect("text"))
        .client();
    client.start();
    client.ok(&["cuGetProcAddress_v2 \"cuMemFree\" &pfn 12000 0 0"]);
    client.call("cuMemAlloc_v2 &a 0");
    client.call("cuCoredumpGetAttribute 0 0 0");
    let (pid, text) = (client.pid(), std::fs::read_to_string(log).expect("written"));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert_eq!(lines[0], format!("{pid} cuInit(0) = CUDA_SUCCESS (0)"));
    assert!(
        lines[3].starts_with(&format!("{pid} cuGetProcAddress_v2(\"cuMemFree\", 0x")),
        "{}",
        lines[3]
    );
    assert!(
        lines[4].ends_with(", 0) = CUDA_ERROR_INVALID_VALUE (1)"),
        "{}",
        lines[4]
    );
    assert_eq!(
        lines[5],
        format!("{pid} cuCoredumpGetAttribute() = CUDA_ERROR_NOT_SUPPORTED (801)")
    );
}

#[test]
fn a_configured_kernel_takes_the_configured_time() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine
        .with_config("clock = 'virtual'\n[[kernel]]\nname = 'configured*'\nns = 3000000")
        .client();
    client.start();
    crate::launch::load(&mut client, &machine);
    client.ok(&[
        "cuModuleGetFunction &f $module \"configured_kernel\"",
        "cuEventCreate &begin 0",
        "cuEventCreate &end 0",
        "cuEventRecord $begin 0",
    ]);
    client.ok(&[
        "cuLaunchKernel $f 1 1 1 1 1 1 0 0 0 0",
        "cuEventRecord $end 0",
        "cuEventSynchronize $end",
        "cuEventElapsedTime &ms $begin $end",
    ]);
    let ms = f32::from_ne_bytes(client.bytes("ms")[..4].try_into().expect("four"));
    assert_eq!(ms, 3.0);
}
