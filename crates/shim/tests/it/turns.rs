//! Compute time: launches stand at the gate while it is closed, and everything else goes on.

use std::path::PathBuf;
use std::time::Duration;

use divvy_ledger::{Control, Demand, DemandReader, Grant, Waker, boot_time_ns, wait_for_demand};

use crate::support::{Probe, ROOM, Rig, compiled};

fn tenant() -> PathBuf {
    compiled("../../../../tests/clients/c/tenant.c", "tenant", &[])
}

/// The slice's gate, kept by this process.
pub struct Gate {
    control: Control,
    lookout: DemandReader,
}

/// Longer than any test, in nanoseconds.
const HOUR: u64 = 3_600_000_000_000;

impl Gate {
    pub fn of(rig: &Rig) -> Self {
        Gate {
            control: Control::open_writable(&rig.slice_folder()).expect("a slice"),
            lookout: DemandReader::new(&rig.slice()).expect("a slice"),
        }
    }

    /// Grants something, and stands by it for as long as a test may take.
    pub fn set(&self, grant: Grant) {
        self.control.grant(grant, boot_time_ns() + HOUR);
    }

    pub fn await_demand(&mut self, mut will_do: impl FnMut(&Demand) -> bool) {
        let bell = Waker::default();
        while !will_do(&self.lookout.demand(boot_time_ns()).expect("a sound slice")) {
            let eyes = [&self.lookout].into_iter();
            wait_for_demand(&bell, bell.epoch(), eyes, Duration::from_millis(20));
        }
    }

    /// The call that has asked for the memory of the parked job.
    pub fn wake_call(&mut self) -> Option<String> {
        self.lookout.wake_call().expect("a sound slice")
    }

    pub fn await_wake_call(&mut self) -> String {
        let bell = Waker::default();
        loop {
            if let Some(call) = self.wake_call() {
                return call;
            }
            let eyes = [&self.lookout].into_iter();
            wait_for_demand(&bell, bell.epoch(), eyes, Duration::from_millis(20));
        }
    }

    /// For how long the slice's calls have stood here, in nanoseconds.
    pub fn waited(&mut self) -> u64 {
        let demand = self.lookout.demand(boot_time_ns());
        demand.expect("a sound slice").throttled_ns
    }
}

fn started(rig: &Rig) -> Probe {
    let mut tenant = Probe::start(&mut rig.limited(&tenant()));
    assert_eq!(tenant.hear(), [0]);
    tenant
}

#[test]
fn a_launch_waits_while_the_gate_is_closed() {
    let rig = Rig::new(1, ROOM);
    let mut tenant = started(&rig);
    let mut gate = Gate::of(&rig);
    assert_eq!(tenant.ask("launch 100 2"), [0]);
    gate.set(Grant::Closed);
    tenant.say("launch 100 1");
    gate.await_demand(|demand| demand.waiting && !demand.busy);
    gate.set(Grant::Open);
    assert_eq!(tenant.hear(), [0]);
    assert_eq!(tenant.ask("sync"), [0]);
    tenant.ends_silently();
}

#[test]
fn a_turn_that_ends_closes_the_gate_by_itself() {
    let rig = Rig::new(1, ROOM);
    let mut tenant = started(&rig);
    let mut gate = Gate::of(&rig);
    gate.set(Grant::Until(boot_time_ns()));
    tenant.say("launch 100 1");
    gate.await_demand(|demand| demand.waiting);
    gate.set(Grant::Until(boot_time_ns() + 60_000_000_000));
    assert_eq!(tenant.hear(), [0]);
    tenant.ends_silently();
}

#[test]
fn waiting_for_the_gpu_is_never_held_up() {
    let rig = Rig::new(1, ROOM);
    let mut tenant = started(&rig);
    let mut gate = Gate::of(&rig);
    assert_eq!(tenant.ask("launch 20000 2"), [0]);
    gate.set(Grant::Closed);
    assert_eq!(tenant.ask("sync"), [0]);
    assert_eq!(gate.waited(), 0);
    tenant.ends_silently();
}

#[test]
fn what_is_captured_is_not_held_up_and_its_launch_is() {
    let rig = Rig::new(1, ROOM);
    let mut tenant = started(&rig);
    let mut gate = Gate::of(&rig);
    gate.set(Grant::Closed);
    tenant.say("captured 100 5");
    gate.await_demand(|demand| demand.waiting);
    gate.set(Grant::Open);
    assert_eq!(tenant.hear(), [0]);
    assert_eq!(tenant.ask("sync"), [0]);
    tenant.ends_silently();
}

#[test]
fn a_launch_gate_without_a_compute_scheduler_stands_open() {
    let rig = Rig::new(1, ROOM);
    let mut tenant = started(&rig);
    let control = Control::open_writable(&rig.slice_folder()).expect("a slice");
    control.grant(Grant::Closed, boot_time_ns() - 2_000_000_000);
    assert_eq!(tenant.ask("launch 100 3"), [0]);
    assert_eq!(tenant.ask("sync"), [0]);
    tenant.ends_silently();
}

/// A second of kernels takes almost a second to be launched, whatever they take and whether a turn is being waited for.
#[test]
fn little_is_launched_ahead_of_the_gpu() {
    for (grant, kernel_us, count) in [
        (Grant::Bounded, 5_000, 200),
        (Grant::Bounded, 500, 2_000),
        (Grant::Until(boot_time_ns() + 600_000_000_000), 5_000, 200),
        (Grant::Until(boot_time_ns() + 600_000_000_000), 500, 2_000),
    ] {
        let rig = Rig::new(1, ROOM);
        let mut tenant = started(&rig);
        let gate = Gate::of(&rig);
        gate.set(grant);
        let start = tenant.ask("clock")[0];
        assert_eq!(tenant.ask(&format!("launch {kernel_us} {count}")), [0]);
        let took = tenant.ask("clock")[0] - start;
        assert!(
            took >= 900,
            "{kernel_us} us, {grant:?}: launched in {took} ms"
        );
        tenant.ends_silently();
    }
}

#[test]
fn a_killed_process_at_the_gate_asks_for_nothing_any_more() {
    let rig = Rig::new(1, ROOM);
    let mut tenant = started(&rig);
    let mut gate = Gate::of(&rig);
    gate.set(Grant::Closed);
    tenant.say("launch 100 1");
    gate.await_demand(|demand| demand.waiting);
    tenant.kill();
    rig.settle_the_dead();
    gate.await_demand(|demand| !demand.waiting);
}
