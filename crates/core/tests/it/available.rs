//! The largest job that a GPU has room for, against the planner: it starts, and one that is a step larger does not.

use divvy_core::{
    Amount, Available, Bytes, HeldElsewhere, Mode, Request, Share, Snapshot, available, plan,
};
use proptest::prelude::*;

use crate::node::{Node, cut};

fn on(snapshot: &Snapshot) -> Option<Available> {
    available(snapshot.gpus.clone(), snapshot.held.clone()).pop()
}

/// Whether a job for this amount would start now.
fn starts(snapshot: &Snapshot, amount: Amount) -> bool {
    let mut node = Node::new(1, "");
    node.snapshot.gpus.clone_from(&snapshot.gpus);
    node.snapshot.held.clone_from(&snapshot.held);
    // The jobs that hold slices have the numbers from 1.
    for _ in &snapshot.held {
        node.ask("0.001");
    }
    let mut queues = node.snapshot.queues.iter_mut();
    queues.by_ref().for_each(|queue| queue.waiting.clear());
    node.submit_request("default", Request::from(amount));
    !plan(&node.snapshot).starts.is_empty()
}

fn check(snapshot: &Snapshot) -> Result<(), TestCaseError> {
    let found = on(snapshot);
    let share = found.as_ref().and_then(|found| found.share);
    let memory = found.as_ref().map_or(Bytes::ZERO, |found| found.memory);
    if let Some(share) = share {
        prop_assert!(starts(snapshot, Amount::Share(share)), "{share}");
    }
    let next = Share::from_thousandths(share.map_or(1, |share| share.thousandths() + 1));
    if let Some(next) = next {
        prop_assert!(
            !starts(snapshot, Amount::Share(next)),
            "{next} after {share:?}"
        );
    }
    if memory > Bytes::ZERO {
        prop_assert!(starts(snapshot, Amount::Memory(memory)), "{memory}");
    }
    // Amounts of memory are in steps of 2 MiB, and a GPU's shares in thousandths: less than a step may still fit.
    let next = memory.saturating_add(Bytes::mib(2));
    prop_assert!(
        !starts(snapshot, Amount::Memory(next)),
        "{next} after {memory}"
    );
    Ok(())
}

#[test]
fn with_half_of_a_gpu_in_use_outside_divvy_less_than_half_is_free() {
    let mut node = Node::new(1, "");
    node.snapshot.gpus[0].unmanaged = Bytes::mib(41_375);
    let found = on(&node.snapshot).unwrap();
    assert_eq!(found.share, Share::from_thousandths(494));
    assert_eq!(found.memory, Bytes::mib(40_544));
    // A display server does not keep the whole GPU from a job, but its memory is not there.
    node.snapshot.gpus[0].unmanaged = Bytes::gib(1);
    let found = on(&node.snapshot).unwrap();
    assert_eq!(
        (found.share, found.memory),
        (Some(Share::FULL), Bytes::gib(79))
    );
}

#[test]
fn an_exclusive_gpu_has_room_for_a_whole_job_alone_and_an_unmanaged_one_for_none() {
    let mut node = Node::new(1, "");
    node.snapshot.gpus[0].mode = Mode::Exclusive;
    let found = on(&node.snapshot).unwrap();
    assert_eq!(
        (found.share, found.memory),
        (Some(Share::FULL), Bytes::ZERO)
    );
    node.snapshot.gpus[0].mode = Mode::Unmanaged;
    assert_eq!(on(&node.snapshot), None);
}

proptest! {
    #[test]
    fn what_is_available_starts_and_a_step_more_does_not(
        jobs in proptest::collection::vec(1u16..1000, 0..4),
        unmanaged in prop_oneof![Just(0), 0u64..82_000],
        elsewhere in prop_oneof![Just((0, 0)), (0u64..1000, 0u64..80)],
        reserved in 0u64..800,
        context in prop_oneof![Just(0), 0u64..600],
    ) {
        let mut node = Node::new(1, "");
        let gpu = &mut node.snapshot.gpus[0];
        (gpu.reserved, gpu.context) = (Bytes::mib(reserved), Bytes::mib(context));
        for thousandths in jobs {
            node.ask(&format!("0.{thousandths:03}"));
        }
        node.step();
        let gpu = &mut node.snapshot.gpus[0];
        gpu.unmanaged = Bytes::mib(unmanaged);
        let (share, gib) = elsewhere;
        gpu.elsewhere = vec![HeldElsewhere {
            holder: "ana's daemon".to_owned(),
            share,
            memory: Bytes::gib(gib),
            used: Bytes::ZERO,
        }];
        check(&node.snapshot)?;
    }

    #[test]
    fn it_is_so_for_mig_instances_too(
        jobs in proptest::collection::vec(prop_oneof![Just("0.125"), Just("0.25"), Just("0.5")], 0..8),
        ends in proptest::collection::vec(1u64..9, 0..4),
        model in prop_oneof![Just("a100-40gb"), Just("h100-80gb")],
    ) {
        let mut node = Node::new(1, "");
        cut(&mut node.snapshot.gpus[0], model);
        for job in jobs {
            node.ask(job);
        }
        node.step();
        for job in ends {
            node.end(job);
        }
        check(&node.snapshot)?;
    }
}
