//! Processes of a slice that are locked and put aside by the driver (`cuCheckpointProcess*`), from outside of it: nobody else of the slice, and no other
//! slice, waits for them, and what they are charged stays right.

use std::fs::read_to_string;
use std::path::PathBuf;

use divvy_ledger::{Grant, boot_time_ns};
use divvy_testkit::until;

use crate::support::{CONTEXT, MIB, Probe, ROOM, Rig, compiled};
use crate::turns::Gate;

const OUT_OF_MEMORY: u64 = 2;

fn actor() -> PathBuf {
    compiled("actor.c", "actor", &[])
}

/// One who drives other processes; outside of the slice.
fn driver(rig: &Rig) -> Probe {
    let mut driver = Probe::start(&mut rig.bare(&actor()));
    assert_eq!(driver.ask("cuInit 0"), [0]);
    driver
}

fn inside(rig: &Rig) -> Probe {
    let mut actor = Probe::start(&mut rig.limited(&actor()));
    assert_eq!(actor.ask("cuInit 0"), [0]);
    let context = actor.ask("cuDevicePrimaryCtxRetain & 0")[1];
    assert_eq!(actor.ask(&format!("cuCtxSetCurrent {context}")), [0]);
    actor
}

#[track_caller]
fn do_to(target: &Probe, driver: &mut Probe, steps: &[&str]) {
    for step in steps {
        let call = format!("cuCheckpointProcess{step} {} 0", target.pid());
        assert_eq!(driver.ask(&call), [0], "{step}");
    }
}

/// Comes back when a program sleeps in the driver.
fn until_it_waits(probe: &Probe) {
    let path = format!("/proc/{}/syscall", probe.pid());
    let futex = format!("{} ", libc::SYS_futex);
    until("the allocation waits", || {
        read_to_string(&path).is_ok_and(|now| now.starts_with(&futex))
    });
}

#[test]
fn an_allocation_that_waits_in_a_locked_process_is_counted_and_delays_no_other() {
    let rig = Rig::new(2, ROOM);
    let (mut driver, mut one, mut two) = (driver(&rig), inside(&rig), inside(&rig));
    assert_eq!(one.ask(&format!("cuMemAlloc_v2 & {}", 64 * MIB))[0], 0);
    do_to(&one, &mut driver, &["Lock"]);
    one.say(&format!("cuMemAlloc_v2 & {}", 64 * MIB));
    until_it_waits(&one);

    let rest = ROOM - 128 * MIB;
    let taken = two.ask(&format!("cuMemAlloc_v2 & {rest}"));
    assert_eq!(taken[0], 0);
    assert_eq!(two.ask("cuMemAlloc_v2 & 512")[0], OUT_OF_MEMORY);

    do_to(&one, &mut driver, &["Checkpoint"]);
    assert_eq!(rig.truth(), CONTEXT + rest);
    assert_eq!(
        two.ask("cuMemAlloc_v2 & 512")[0],
        OUT_OF_MEMORY,
        "who is put aside keeps its charge"
    );
    assert_eq!(two.ask(&format!("cuMemFree_v2 {}", taken[1])), [0]);
    assert_eq!(two.ask(&format!("cuMemAlloc_v2 & {rest}"))[0], 0);

    do_to(&one, &mut driver, &["Restore", "Unlock"]);
    assert_eq!(one.hear()[0], 0);
    assert_eq!((rig.charged(), rig.truth()), (rig.limit, rig.limit));
}

#[test]
fn a_process_that_dies_put_aside_leaves_no_charge() {
    let rig = Rig::new(2, ROOM);
    let (mut driver, mut one, mut two) = (driver(&rig), inside(&rig), inside(&rig));
    assert_eq!(one.ask(&format!("cuMemAlloc_v2 & {}", 64 * MIB))[0], 0);
    do_to(&one, &mut driver, &["Lock", "Checkpoint"]);
    one.kill();
    rig.settle_the_dead();
    assert_eq!((rig.charged(), rig.truth()), (CONTEXT, CONTEXT));
    assert_eq!(two.ask(&format!("cuMemAlloc_v2 & {ROOM}"))[0], 0);
}

/// A program that launches kernels when it is told to.
fn tenant(rig: &Rig) -> Probe {
    let tenant = compiled("../../../../tests/clients/c/tenant.c", "tenant", &[]);
    let mut tenant = Probe::start(&mut rig.limited(&tenant));
    assert_eq!(tenant.hear(), [0]);
    tenant
}

#[test]
fn a_launch_that_waits_in_a_locked_process_keeps_its_turn_no_longer_than_it_should_take() {
    let rig = Rig::new(1, ROOM);
    let (mut driver, mut tenant, mut gate) = (driver(&rig), tenant(&rig), Gate::of(&rig));
    gate.set(Grant::Closed);
    tenant.say("launch 100 1");
    // It asks, finds that nothing of its is on the GPU, and asks again: from then on it waits without the driver.
    let (mut put, mut first) = (0, None);
    gate.await_demand(|demand| {
        put = demand.submitted;
        demand.waiting && demand.requests >= *first.get_or_insert(demand.requests) + 3
    });
    do_to(&tenant, &mut driver, &["Lock"]);
    gate.set(Grant::Until(boot_time_ns() + 60_000_000_000));
    gate.await_demand(|demand| demand.submitted != put && !demand.waiting && !demand.busy);
    do_to(&tenant, &mut driver, &["Checkpoint", "Restore", "Unlock"]);
    assert_eq!(tenant.hear(), [0]);
    assert_eq!(tenant.ask("sync"), [0]);
    tenant.ends_silently();
}

#[test]
fn a_process_locked_at_the_gate_with_work_on_the_gpu_is_not_waited_for() {
    let rig = Rig::new(1, ROOM);
    let (mut driver, mut tenant, mut gate) = (driver(&rig), tenant(&rig), Gate::of(&rig));
    assert_eq!(tenant.ask("launch 20000 5"), [0]);
    gate.set(Grant::Closed);
    tenant.say("launch 100 1");
    gate.await_demand(|demand| demand.waiting);
    do_to(&tenant, &mut driver, &["Lock"]);
    // It asks the driver whether its work is done, which does not answer.
    gate.await_demand(|demand| !demand.waiting && !demand.busy);
    do_to(&tenant, &mut driver, &["Unlock"]);
    gate.await_demand(|demand| demand.waiting);
    gate.set(Grant::Open);
    assert_eq!(tenant.hear(), [0]);
    assert_eq!(tenant.ask("sync"), [0]);
    tenant.ends_silently();
}
