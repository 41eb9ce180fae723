//! CUDA does not survive a fork; NVML does.

use crate::machine::{MIB, Machine};

const NOT_INITIALIZED: u32 = 3;

#[test]
fn a_fork_child_of_an_initialised_process_is_refused_and_the_parent_goes_on() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    client.ok(&["cuMemAlloc_v2 &a 1048576"]);
    let before = client.memory();
    for order in [
        "fork cuInit 0",
        "fork cuMemAlloc_v2 &b 1048576",
        "fork cuCtxSynchronize",
        "fork cuMemFree_v2 $a",
    ] {
        assert_eq!(client.call(order), NOT_INITIALIZED, "{order}");
    }
    assert_eq!(client.memory(), before);
    client.ok(&["cuMemFree_v2 $a"]);
    assert_eq!(client.memory().0, before.0 + 2 * MIB);
}

#[test]
fn a_child_forked_before_initialisation_may_use_cuda() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.ok(&["fork cuInit 0", "cuInit 0"]);
}

#[test]
fn a_living_fork_child_does_not_keep_its_parents_memory() {
    let machine = Machine::new("l4-24gb:1");
    let (mut watcher, mut parent) = (machine.client(), machine.client());
    watcher.start();
    let before = watcher.memory();
    parent.start();
    parent.ok(&["cuMemAlloc_v2 &a 1048576"]);
    assert_ne!(watcher.memory(), before);
    // The child says that it lives, then waits for the end of its standard input, which outlives the parent.
    parent.ok(&["bytes newline 0a"]);
    parent.tell("fork write 1 &newline 1 ; read 0 &x 1");
    assert_eq!(parent.answer(), "");
    parent.stop();
    assert_eq!(watcher.memory(), before);
}

#[test]
fn nvml_answers_in_a_fork_child() {
    let machine = Machine::new("l4-24gb:2");
    let mut client = machine.client();
    client.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 1 &device"]);
    client.start();
    client.ok(&[
        "fork nvmlDeviceGetCount_v2 &count",
        "fork nvmlDeviceGetMemoryInfo $device &memory",
    ]);
}
