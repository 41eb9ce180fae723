//! Tenants with a latency goal: their requests beside tenants that use the GPU all the time.

use std::time::Duration;

use divvy_core::ComputeMode::{self, Fair};
use divvy_core::lease::{Lease, MissCause, SHORTEST_HOLD, Served};
use proptest::prelude::*;

use crate::lease::world::{Load, STEP, World, ms, percentile, us};

const SECONDS: usize = 5;

const FLOOD: Load = Load::Flood { kernel: us(200) };
const TRAINING: Load = Load::Flood { kernel: ms(5) };
const LONG: Load = Load::Flood { kernel: ms(50) };

#[derive(Clone, Copy, Debug, PartialEq)]
enum Terms {
    WithoutLeases,
    Leases,
    /// With so many milliseconds as the goal.
    Goal(u64),
}

struct Seen {
    p50: Duration,
    p99: Duration,
    own: f64,
    other: f64,
}

/// Requests of some kernels, at a quarter of the GPU, with pauses that make a fifth of its time of them.
fn requests(kernels: u32, kernel: Duration, beside: Load, terms: Terms) -> Seen {
    let mut world = World::new(1);
    world.ungated = terms == Terms::WithoutLeases;
    let load = Load::Requests {
        kernels,
        kernel,
        gap: us(100),
        think: 3 * kernels * kernel,
    };
    match terms {
        Terms::Goal(goal) => world.join_urgent(250, ms(goal), load),
        _ => world.join(250, Fair, &[(0, load)]),
    };
    world.join(750, Fair, &[(0, beside)]);
    world.run(Duration::from_secs(SECONDS as u64));
    let taken = &world.players[0].processes[0].latencies;
    let [own, other] = [0, 1].map(|player| world.players[player].part(0..SECONDS));
    Seen {
        p50: percentile(taken, 50),
        p99: percentile(taken, 99),
        own,
        other,
    }
}

/// Kernels and time of a request, its goal in milliseconds, and what it may take beside kernels of 0.2, 5 and 50 ms, in
/// thousandths of its time alone. A kernel is not interrupted: the visitor and it divide the GPU until it ends. So
/// beside kernels that are no shorter than it, a request takes twice its time and a time slice. Beside shorter kernels
/// that are longer than the work ahead, it takes a little less.
type Row = (u32, Duration, u64, [u32; 3]);

const ROWS: [Row; 5] = [
    (1, ms(1), 4, [2300; 3]),
    (1, ms(5), 9, [1300, 2050, 2200]),
    (10, us(500), 9, [1400, 2500, 2750]),
    (1, ms(12), 16, [1200, 1450, 2050]),
    (12, ms(1), 16, [1300, 1750, 2000]),
];

#[test]
fn requests_with_a_latency_goal_are_served_first_and_training_keeps_its_share() {
    for (kernels, kernel, goal, most) in ROWS {
        let alone = kernel * kernels + us(100) * (kernels - 1);
        for (beside, most) in [FLOOD, TRAINING, LONG].into_iter().zip(most) {
            let [without, leases, seen] = [Terms::WithoutLeases, Terms::Leases, Terms::Goal(goal)]
                .map(|terms| requests(kernels, kernel, beside, terms));
            let row = format!(
                "{kernels} x {kernel:?} beside {beside:?}: without leases {:?} {:?} {:.3} {:.3}, leases {:?} {:?} \
                 {:.3} {:.3}, goal {:?} {:?} {:.3} {:.3}",
                without.p50,
                without.p99,
                without.own,
                without.other,
                leases.p50,
                leases.p99,
                leases.own,
                leases.other,
                seen.p50,
                seen.p99,
                seen.own,
                seen.other,
            );
            println!("{row}");
            assert!(seen.p99 <= alone * most / 1000, "{row}");
            assert!(seen.p99 <= without.p99 + us(300), "{row}");
            assert!(seen.other >= 1.0 - 0.25 - 0.05, "{row}");
            assert!(seen.p99 <= leases.p99, "{row}");
        }
    }
}

#[test]
fn a_neighbour_of_a_tenant_with_a_latency_goal_keeps_less_work_ahead_and_at_least_a_kernel() {
    let mut world = World::new(1);
    let flood = world.join(500, Fair, &[(0, FLOOD)]);
    assert_eq!(world.players[flood].window, ms(10));
    let urgent = world.join_urgent(250, ms(16), FLOOD);
    assert_eq!(world.players[flood].window, ms(2));
    assert_eq!(
        world.players[urgent].window,
        ms(10),
        "its own is not bounded"
    );
    let second = world.join_urgent(250, ms(8), FLOOD);
    assert_eq!(world.players[flood].window, ms(1));
    assert_eq!(world.players[urgent].window, ms(1));
    assert_eq!(world.players[second].window, ms(2));
    world.leave(second);
    world.leave(urgent);
    assert_eq!(world.players[flood].window, ms(10));
}

#[test]
fn a_tenant_with_an_empty_bucket_interrupts_no_lease() {
    let mut world = World::new(1);
    let urgent = world.join_urgent(250, ms(16), FLOOD);
    let other = world.join(750, Fair, &[(0, FLOOD)]);
    while !world.keeper.is_over_share(urgent as u64) {
        world.step();
        assert!(world.now <= ms(600), "it is over its share by now");
    }
    // With all it can take, it has the GPU until the bucket is empty: what it holds, and what it earns meanwhile.
    assert!(world.now >= ms(300), "{:?}", world.now);
    let (mut since, mut held) = (None, 0);
    while world.now < ms(5_000) {
        let is_over = world.keeper.is_over_share(urgent as u64);
        world.step();
        match (since, world.players[other].holds(world.now)) {
            (None, true) => since = Some(world.now),
            (Some(start), false) => {
                let time = world.now - start;
                assert!(!is_over || time + STEP >= SHORTEST_HOLD, "{time:?}");
                held += u32::from(is_over);
                since = None;
            }
            _ => {}
        }
    }
    assert!(held > 0, "a lease ended while the bucket was empty");
    let part = world.players[urgent].part(1..5);
    assert!((0.23..=0.26).contains(&part), "{part:.3}");
}

#[test]
fn a_tenant_that_used_up_its_share_is_let_in_at_once_again_when_half_of_it_is_back() {
    let mut world = World::new(1);
    let urgent = world.join_urgent(250, ms(16), FLOOD);
    world.join(750, Fair, &[(0, FLOOD)]);
    world.run(ms(600));
    world.players[urgent].processes[0].stopped = true;
    world.run(ms(100));
    assert!(world.keeper.is_over_share(urgent as u64));
    world.run(ms(1_000));
    assert!(!world.keeper.is_over_share(urgent as u64));
    world.players[urgent].processes[0].stopped = false;
    let asked = world.now;
    while !world.players[urgent].holds(world.now) {
        world.step();
    }
    assert!(world.now <= asked + 2 * STEP, "{:?}", world.now - asked);
}

#[test]
fn of_two_visitors_the_one_whose_goal_is_due_first_goes_first() {
    let request = |kernel: Duration| Load::Requests {
        kernels: 1,
        kernel,
        gap: us(0),
        think: ms(60),
    };
    let mut world = World::new(1);
    let slow = world.join_urgent(250, ms(100), request(ms(12)));
    let quick = world.join_urgent(250, ms(4), request(ms(1)));
    world.join(500, Fair, &[(0, FLOOD)]);
    world.run(Duration::from_secs(10));
    let p99 = |player: usize| percentile(&world.players[player].processes[0].latencies, 99);
    // A kernel of 12 ms is not interrupted, so it costs the quick one time slices, and no more.
    assert!(p99(quick) <= us(3_300), "{:?}", p99(quick));
    assert!(p99(slow) <= ms(17), "{:?}", p99(slow));
}

#[test]
fn reports_change_nothing_for_a_tenant_with_a_latency_goal() {
    let mut world = World::new(1);
    let load = Load::Requests {
        kernels: 1,
        kernel: ms(5),
        gap: us(0),
        think: ms(20),
    };
    let urgent = world.join_urgent(250, ms(10), load);
    let liar = world.join(750, Fair, &[(0, FLOOD)]);
    world.players[liar].conceals = true;
    world.players[urgent].conceals = true;
    world.run(Duration::from_secs(6));
    let late = percentile(&world.players[urgent].processes[0].latencies, 99);
    assert!(late <= us(7_500), "{late:?}");
}

#[test]
fn a_visitor_that_is_stopped_gives_the_gpu_back() {
    let mut world = World::new(1);
    let urgent = world.join_urgent(400, ms(10), FLOOD);
    let other = world.join(600, Fair, &[(0, FLOOD)]);
    world.run(ms(100));
    world.players[urgent].processes[0].stopped = true;
    let from = world.now;
    while !world.players[other].holds(world.now) {
        world.step();
    }
    // What it had launched, and the moment for which it is waited.
    assert!(world.now <= from + ms(13), "{:?}", world.now - from);
    world.run(Duration::from_secs(3));
    let part = world.players[other].part(1..3);
    assert!(part >= 0.99, "{part:.3}");
}

#[test]
fn a_tenant_with_a_latency_goal_that_is_alone_has_an_open_gate() {
    let mut world = World::new(1);
    let urgent = world.join_urgent(250, ms(10), FLOOD);
    let other = world.join(750, Fair, &[(0, FLOOD)]);
    world.run(ms(100));
    world.leave(other);
    world.run(ms(20));
    assert_eq!(world.players[urgent].grant, Lease::Open);
}

/// What the keeper says of requests of 5 ms with a goal, in a second beside something.
fn causes(goal: u64, kernel: Duration, beside: &[(ComputeMode, Load)]) -> Vec<Option<MissCause>> {
    let mut world = World::new(1);
    let request = Load::Requests {
        kernels: 1,
        kernel,
        gap: us(0),
        think: ms(50),
    };
    let urgent = world.join_urgent(250, ms(goal), request);
    for (mode, load) in beside {
        world.join(350, *mode, &[(0, *load)]);
    }
    world.run(ms(1_500));
    let own = world
        .served
        .iter()
        .filter(|served| served.tenant == urgent as u64);
    own.map(|served| served.cause).collect()
}

#[test]
fn a_missed_goal_has_one_cause() {
    let met = causes(9, ms(5), &[(Fair, FLOOD)]);
    assert!(met.len() > 15 && met.iter().all(Option::is_none), "{met:?}");
    let own = causes(4, ms(5), &[(Fair, FLOOD)]);
    assert!(own.contains(&Some(MissCause::OwnWork(ms(5)))), "{own:?}");
    let long = causes(9, ms(5), &[(Fair, LONG)]);
    let is_long = |cause: &Option<MissCause>| matches!(cause, Some(MissCause::Neighbour(1, left)) if *left <= ms(50));
    assert!(long.iter().any(is_long), "{long:?}");
    let beside_none = causes(9, ms(5), &[(Fair, FLOOD), (ComputeMode::None, LONG)]);
    assert!(
        beside_none.contains(&Some(MissCause::Ungated)),
        "{beside_none:?}"
    );
    let mut world = World::new(1);
    world.join_urgent(
        100,
        ms(20),
        Load::Burst {
            kernel: ms(1),
            work: ms(400),
            rest: ms(50),
        },
    );
    world.join(750, Fair, &[(0, FLOOD)]);
    world.run(ms(3_000));
    let is_over = |served: &Served| served.cause == Some(MissCause::OverShare);
    assert!(world.served.iter().any(is_over), "{:?}", world.served);
}

/// A tenant with a latency goal that asks for as much as it can get, or for requests.
fn urgent() -> impl Strategy<Value = (u16, u64, Load)> {
    let load = prop_oneof![
        Just(FLOOD),
        Just(TRAINING),
        (1..20_u32, 1..5_u64, 1..60_u64).prop_map(|(kernels, kernel, think)| Load::Requests {
            kernels,
            kernel: ms(kernel),
            gap: us(100),
            think: ms(think),
        }),
        (1..60_u64, 1..300_u64).prop_map(|(work, rest)| Load::Burst {
            kernel: ms(1),
            work: ms(work),
            rest: ms(rest),
        }),
    ];
    (50..=250_u16, 1..50_u64, load)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn no_tenant_with_a_latency_goal_takes_from_the_shares_of_fair_ones(
        visitors in proptest::collection::vec(urgent(), 1..3),
        loads in proptest::collection::vec(
            prop_oneof![Just(FLOOD), Just(TRAINING), Just(Load::Sync { kernel: us(400), think: us(0) })],
            1..3,
        ),
    ) {
        let mut world = World::new(1);
        let mut left = 1000;
        for (share, goal, load) in &visitors {
            world.join_urgent(*share, ms(*goal), *load);
            left -= share;
        }
        let each = left / loads.len() as u16;
        let fair: Vec<usize> =
            loads.iter().map(|load| world.join(each, Fair, &[(0, *load)])).collect();
        world.run(Duration::from_secs(12));
        for player in fair {
            let part = world.players[player].part(2..12);
            prop_assert!(part >= f64::from(each) / 1000.0 - 0.02, "{part:.3} at a share of {each}");
        }
    }

    #[test]
    fn tenants_with_and_without_goals_all_get_on_and_no_gpu_stands_idle(
        visitors in proptest::collection::vec((urgent(), 0..2_u32), 1..4),
        loads in proptest::collection::vec((0..2_u32, prop_oneof![Just(FLOOD), Just(TRAINING)]), 1..4),
    ) {
        let mut world = World::new(2);
        for ((share, goal, load), gpu) in &visitors {
            let gpus = [(*gpu, *load), (1, *load)];
            world.join_with(*share, Fair, Some(ms(*goal)), &gpus[..1 + usize::from(*gpu == 0)]);
        }
        world.join(200, ComputeMode::Strict, &[(0, FLOOD), (1, FLOOD)]);
        for (gpu, load) in &loads {
            world.join(200, Fair, &[(*gpu, *load)]);
        }
        let mut waits = vec![Duration::ZERO; world.players.len()];
        let mut idle = Duration::ZERO;
        while world.now < Duration::from_secs(3) {
            world.step();
            for (number, wait) in waits.iter_mut().enumerate() {
                let waiting = world.is_waiting(number) && !world.is_used_by(number);
                *wait = if waiting { *wait + STEP } else { Duration::ZERO };
                prop_assert!(*wait <= Duration::from_secs(2), "tenant {number} waited {wait:?}");
            }
            let is_asked_for = (0..world.players.len())
                .any(|number| world.players[number].terms.mode == Fair && world.is_waiting(number));
            let is_used = (0..world.players.len()).any(|number| world.is_used_by(number));
            idle = if is_asked_for && !is_used { idle + STEP } else { Duration::ZERO };
            prop_assert!(idle <= ms(10), "a fair tenant waits while nothing runs, since {idle:?}");
        }
    }
}
