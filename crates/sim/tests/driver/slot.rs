//! A program's place on the machine, whatever it does to its descriptors.

use crate::machine::{MIB, Machine};

const CONTEXT: u64 = 262 * MIB;

#[test]
fn a_program_that_closes_what_it_does_not_know_keeps_its_memory() {
    let machine = Machine::new("l4-24gb:1");
    let (mut watcher, mut client) = (machine.client(), machine.client());
    watcher.start();
    let free = watcher.memory().0;
    client.start();
    client.ok(&["cuMemAlloc_v2 &a 1048576", "close_range 3 150 0"]);
    assert_eq!(free - watcher.memory().0, CONTEXT + 2 * MIB);
    client.ok(&["cuMemFree_v2 $a"]);
    assert_eq!(free - watcher.memory().0, CONTEXT);
}

#[test]
fn a_program_that_closed_the_drivers_descriptor_is_found_alive_when_it_looks_first() {
    let machine = Machine::new("l4-24gb:1");
    let (mut watcher, mut client) = (machine.client(), machine.client());
    watcher.start();
    let free = watcher.memory().0;
    client.start();
    client.ok(&["close_range 3 1000 0"]);
    // Another file of the program's has the number now.
    let numbers: Vec<u32> = (0..200)
        .map(|_| client.call("memfd_create \"own\" 0"))
        .collect();
    assert!(numbers.contains(&200), "{numbers:?}");
    client.ok(&["cuMemGetInfo_v2 &free &total", "cuMemAlloc_v2 &a 1048576"]);
    assert_eq!(free - watcher.memory().0, CONTEXT + 2 * MIB);
    client.kill();
    assert_eq!(watcher.memory().0, free);
}
