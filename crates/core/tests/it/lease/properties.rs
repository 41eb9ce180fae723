//! What holds for any tenants with any loads. [`World`] itself checks after every turn that no GPU has two holders.

use std::time::Duration;

use divvy_core::ComputeMode::{self, Fair, None, Strict};
use proptest::prelude::*;

use crate::lease::world::{Load, STEP, World, ms, us};

const TIME: Duration = Duration::from_secs(3);

fn load() -> impl Strategy<Value = Load> {
    let kernel = prop_oneof![Just(us(200)), Just(us(400)), Just(ms(3)), Just(ms(50))];
    prop_oneof![
        (kernel.clone(), 0..4_u64).prop_map(|(kernel, think)| Load::Sync {
            kernel,
            think: ms(think)
        }),
        kernel.clone().prop_map(|kernel| Load::Flood { kernel }),
        (kernel, 1..40_u64, 1..100_u64).prop_map(|(kernel, work, rest)| Load::Burst {
            kernel,
            work: kernel + ms(work),
            rest: ms(rest),
        }),
    ]
}

/// Share in thousandths, mode, and a load for each GPU it uses.
type Sketch = (u16, ComputeMode, Vec<(u32, Load)>);

fn tenant(gpus: u32) -> impl Strategy<Value = Sketch> {
    let loads = proptest::collection::vec((0..gpus, load()), 1..4);
    (
        150..=500_u16,
        prop_oneof![3 => Just(Fair), 2 => Just(Strict), 1 => Just(None)],
        loads,
    )
}

fn build(tenants: &[Sketch]) -> World {
    let mut world = World::new(3);
    for (share, mode, loads) in tenants {
        world.join(*share, *mode, loads);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_waiting_tenant_gets_a_lease_and_no_gpu_stands_idle(
        tenants in proptest::collection::vec(tenant(3), 1..7)
    ) {
        let mut world = build(&tenants);
        let mut waits = vec![Duration::ZERO; tenants.len()];
        let mut idle = Duration::ZERO;
        let beside = 1 + tenants
            .iter()
            .filter(|(_, mode, _)| *mode == None)
            .map(|(_, _, loads)| loads.len() as u32)
            .sum::<u32>();
        while world.now < TIME {
            world.step();
            for (number, (share, mode, _)) in tenants.iter().enumerate() {
                waits[number] = if world.is_waiting(number) && !world.is_used_by(number) { waits[number] + STEP } else { Duration::ZERO };
                // Its share of what the others, each a kernel of 50 ms over, may take before it is due again. Those that take no
                // turns run in between, and a kernel takes as much longer.
                let due = Duration::from_secs(1) * 1000 / u32::from(*share) / 4 * beside + ms(400);
                prop_assert!(waits[number] <= due, "tenant {number} ({mode:?} {share}) waited {:?}", waits[number]);
            }
            let waits_for_nobody = (0..tenants.len())
                .any(|number| tenants[number].1 == Fair && world.is_waiting(number))
                && (0..tenants.len()).all(|number| !world.is_used_by(number));
            idle = if waits_for_nobody { idle + STEP } else { Duration::ZERO };
            prop_assert!(idle <= ms(10), "a fair tenant waits while nothing runs, since {idle:?}");
        }
    }

    #[test]
    fn a_strict_tenant_never_has_more_than_its_share(tenants in proptest::collection::vec(tenant(2), 1..5)) {
        let mut world = build(&tenants);
        world.run(TIME);
        for (number, (share, mode, loads)) in tenants.iter().enumerate() {
            let mut gpus: Vec<u32> = loads.iter().map(|(gpu, _)| *gpu).collect();
            gpus.sort_unstable();
            gpus.dedup();
            if *mode == Strict {
                let part = world.players[number].part(0..TIME.as_secs() as usize) / gpus.len() as f64;
                // At most one turn's worth saved, and one kernel of 50 ms a process over.
                let over = (0.02 + 0.05 * loads.len() as f64) / TIME.as_secs_f64();
                prop_assert!(part <= f64::from(*share) / 1000.0 + over, "{part:.3} of each GPU at a share of {share}");
            }
        }
    }

    #[test]
    fn the_same_events_give_the_same_grants(tenants in proptest::collection::vec(tenant(3), 1..5)) {
        let used = || {
            let mut world = build(&tenants);
            world.run(Duration::from_secs(1));
            world.players.into_iter().map(|player| player.used).collect::<Vec<_>>()
        };
        prop_assert_eq!(used(), used());
    }
}
