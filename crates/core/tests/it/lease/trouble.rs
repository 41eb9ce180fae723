use std::time::Duration;

use divvy_core::ComputeMode::{Fair, Strict};
use divvy_core::lease::{HALF_QUANTUM, LARGEST_DEBT, LONGEST_DRAIN, LONGEST_HOLD, Lease};

use crate::lease::world::{Load, WINDOW, World, ms, us};

const SMALL: Load = Load::Flood { kernel: us(200) };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How long until the tenant has finished a kernel more.
fn until_served(world: &mut World, player: usize) -> Duration {
    let (start, before) = (world.now, world.finished(player));
    while world.finished(player) == before {
        world.step();
        assert!(
            world.now - start < seconds(10),
            "not served within ten seconds"
        );
    }
    world.now - start
}

/// What becomes of a tenant that has the turn, and work on the GPU, while another waits.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Nothing.
    GoesOn,
    Dies,
    Stops,
    Sleeps,
}

/// The other's longest time without a kernel of its own, from the so manieth moment of the holder's turns on.
fn longest_wait(load: Load, end: End, moment: u32) -> Duration {
    let mut world = World::new(1);
    let holder = world.join(500, Fair, &[(0, load)]);
    let waits = world.join(500, Fair, &[(0, SMALL)]);
    world.run(seconds(1));
    let mut moments = 0;
    while moments < moment {
        world.step();
        let has_turn = world.players[holder].holds(world.now) && world.is_waiting(waits);
        moments += u32::from(has_turn && world.is_used_by(holder));
    }
    match end {
        End::GoesOn => {}
        End::Dies => world.leave(holder),
        End::Stops => world.players[holder].processes[0].stopped = true,
        End::Sleeps => world.fall_asleep(holder),
    }
    let (over, mut longest) = (world.now + seconds(1), Duration::ZERO);
    while world.now < over {
        longest = longest.max(until_served(&mut world, waits));
    }
    longest
}

#[test]
fn a_holder_that_dies_or_stops_or_sleeps_blocks_the_others_for_a_turn_and_its_kernel_at_most() {
    for kernel in [us(200), ms(50), ms(500)] {
        let sync = Load::Sync {
            kernel,
            think: Duration::ZERO,
        };
        for load in [sync, Load::Flood { kernel }] {
            for end in [End::GoesOn, End::Dies, End::Stops, End::Sleeps] {
                for moment in [1, 50, 333] {
                    let longest = longest_wait(load, end, moment);
                    let most = match end {
                        End::Dies => ms(1),
                        // Of short kernels it keeps so much ahead.
                        End::GoesOn => LONGEST_HOLD + kernel.max(WINDOW),
                        End::Stops | End::Sleeps => LONGEST_HOLD + kernel,
                    };
                    assert!(
                        longest <= most,
                        "{load:?} {end:?} at moment {moment} of its turns: {longest:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_holder_that_is_stopped_leaves_the_whole_gpu_to_the_others() {
    let mut world = World::new(1);
    let stops = world.join(500, Fair, &[(0, SMALL)]);
    let waits = world.join(500, Fair, &[(0, SMALL)]);
    world.run(seconds(1));
    while world.players[waits].grant != Lease::Closed {
        world.step();
    }
    world.players[stops].processes[0].stopped = true;
    let from = world.now.as_secs() as usize + 1;
    world.run(seconds(4));
    assert!(world.players[waits].part(from..from + 2) >= 0.99);
}

/// While nobody is there to end its turn, a tenant is charged for all of it.
#[test]
fn a_long_overrun_is_waited_out_for_the_largest_debt_and_no_longer() {
    for (own, other) in [(500_u16, 500_u16), (250, 750), (750, 250)] {
        for overrun in [2, 5, 20] {
            let mut world = World::new(1);
            let overruns = world.join(own, Fair, &[(0, SMALL)]);
            let waits = world.join(other, Fair, &[(0, SMALL)]);
            world.run(seconds(1));
            // The other's work has been gone for longer than the keeper takes to see it.
            let mut gone = 0;
            while !world.players[overruns].holds(world.now) || gone < 30 {
                world.step();
                let is_gone = world.is_waiting(waits) && !world.is_used_by(waits);
                gone = if is_gone { gone + 1 } else { 0 };
            }
            world.run_without_keeper(seconds(overrun));
            let waited = until_served(&mut world, overruns);
            // The other's time for the debt, by their shares; each may have been half a quantum before or behind the other, and is let
            // as far ahead.
            let debt = LARGEST_DEBT * u32::from(other) / u32::from(own);
            let leeway = 2 * (HALF_QUANTUM + HALF_QUANTUM * u32::from(other) / u32::from(own));
            let is_due = debt - leeway..=debt + leeway;
            assert!(
                is_due.contains(&waited),
                "{own}:{other}, {overrun} s over: waited {waited:?} of {debt:?}"
            );
        }
    }
}

#[test]
fn a_strict_tenants_overrun_is_earned_back_for_the_largest_debt_and_no_longer() {
    for overrun in [5, 20] {
        let mut world = World::new(1);
        let overruns = world.join(250, Strict, &[(0, SMALL)]);
        world.run(seconds(1));
        while !world.players[overruns].holds(world.now) {
            world.step();
        }
        world.run_without_keeper(seconds(overrun));
        let waited = until_served(&mut world, overruns);
        // It begins again with half a quantum earned.
        let due = (LARGEST_DEBT + HALF_QUANTUM) * 4;
        assert!(
            due - ms(10) <= waited && waited <= due + ms(10),
            "{overrun} s over: waited {waited:?} of {due:?}"
        );
    }
}

#[test]
fn a_tenant_that_is_stopped_at_the_gate_costs_the_others_next_to_nothing() {
    let mut world = World::new(1);
    let stops = world.join(500, Fair, &[(0, SMALL)]);
    let other = world.join(500, Fair, &[(0, SMALL)]);
    world.run(seconds(1));
    while !world.is_waiting(stops) {
        world.step();
    }
    world.players[stops].processes[0].stopped = true;
    let from = world.now.as_secs() as usize + 1;
    world.run(seconds(4));
    let part = world.players[other].part(from..from + 3);
    assert!(part >= 0.99, "the other gets {:.1} %", part * 100.0);

    world.players[stops].processes[0].stopped = false;
    world.run(seconds(3));
    let part = world.players[stops].part(from + 4..from + 6);
    assert!(part >= 0.45, "continued, it gets {:.1} %", part * 100.0);
}

#[test]
fn a_tenant_that_says_it_is_always_busy_hurts_only_itself() {
    let mut world = World::new(1);
    let liar = world.join(
        500,
        Fair,
        &[(
            0,
            Load::Sync {
                kernel: us(200),
                think: ms(5),
            },
        )],
    );
    let honest = world.join(500, Fair, &[(0, SMALL)]);
    world.players[liar].lies = true;
    let mut longest = Duration::ZERO;
    while world.now < seconds(20) {
        longest = longest.max(until_served(&mut world, honest));
    }
    assert!(
        longest <= LONGEST_HOLD + LONGEST_DRAIN + ms(2),
        "{longest:?} without the GPU"
    );
    let part = world.players[honest].part(10..20);
    assert!(part >= 0.45, "the honest one gets {:.1} %", part * 100.0);
}

#[test]
fn a_tenant_that_conceals_what_it_uses_gets_no_more_than_turns() {
    let burst = Load::Burst {
        kernel: us(200),
        work: us(3800),
        rest: ms(2),
    };
    let mut world = World::new(1);
    let liar = world.join(250, Fair, &[(0, burst)]);
    let honest = world.join(750, Fair, &[(0, SMALL)]);
    world.players[liar].conceals = true;
    world.run(seconds(12));
    let part = world.players[honest].part(2..12);
    assert!(part >= 0.70, "the honest one gets {:.1} %", part * 100.0);
}

#[test]
fn a_tenant_that_conceals_a_flood_is_not_let_in_with_those_that_leave_room() {
    let light = Load::Sync {
        kernel: us(300),
        think: us(700),
    };
    let mut world = World::new(1);
    let liar = world.join(500, Fair, &[(0, SMALL)]);
    let honest = world.join(500, Fair, &[(0, light)]);
    world.players[liar].conceals = true;
    world.run(seconds(12));
    // Half of the time to itself, of which it uses three tenths.
    let part = world.players[honest].part(3..12);
    assert!(part >= 0.13, "the honest one gets {:.1} %", part * 100.0);
}

#[test]
fn a_visitor_does_not_keep_a_tenant_on_two_gpus_from_giving_its_turn_up() {
    let [long, short] = [(0, ms(50), ms(1)), (1, ms(3), ms(0))]
        .map(|(gpu, kernel, think)| (gpu, Load::Sync { kernel, think }));
    let small = Load::Sync {
        kernel: us(200),
        think: ms(0),
    };
    let comes_and_goes = Load::Sync {
        kernel: us(400),
        think: ms(3),
    };
    let mut world = World::new(2);
    world.join(160, Fair, &[long, short]);
    let waits = world.join(460, Fair, &[(0, small)]);
    world.join(150, Fair, &[(0, comes_and_goes)]);
    let mut longest = Duration::ZERO;
    while world.now < seconds(5) {
        longest = longest.max(until_served(&mut world, waits));
    }
    assert!(longest <= ms(200), "{longest:?} without the GPU");
}

#[test]
fn ranks_that_wait_for_each_other_on_two_gpus_are_never_held_apart() {
    let [early, late] = [0, 300].map(|think| Load::Collective {
        kernel: us(400),
        think: us(think),
    });
    let mut world = World::new(2);
    let gang = world.join(500, Fair, &[(0, early), (1, late)]);
    world.join(500, Fair, &[(0, SMALL)]);
    world.join(500, Fair, &[(1, SMALL)]);
    world.run(seconds(12));
    // Alone they make one every 700 us, and half of the GPUs' time is theirs.
    let (made, most) = (world.finished(gang) / 2, 12_000_000 / 700 / 2);
    assert!(made * 10 >= most * 9, "{made} collectives of {most}");
}

/// On a machine whose processors are all taken a process may wake far later than a turn lasts at least.
#[test]
fn a_tenant_that_wakes_late_gets_its_lease_too() {
    for wakes_in in [ms(3), ms(6), ms(12), ms(30)] {
        let mut world = World::new(1);
        let tenants = [0, 1].map(|_| world.join(500, Fair, &[(0, SMALL)]));
        for late in tenants {
            world.players[late].wakes_in = wakes_in;
        }
        world.run(seconds(12));
        for late in tenants {
            let part = world.players[late].part(2..12);
            assert!(
                part >= 0.27,
                "awake in {wakes_in:?} it gets {:.1} %",
                part * 100.0
            );
        }
    }
}

#[test]
fn ranks_that_wake_late_get_on_beside_a_flood() {
    let [early, late] = [0, 300].map(|think| Load::Collective {
        kernel: us(400),
        think: us(think),
    });
    for wakes_in in [ms(3), ms(6), ms(12), ms(30)] {
        let mut world = World::new(2);
        let gang = world.join(500, Fair, &[(0, early), (1, late)]);
        world.join(500, Fair, &[(0, SMALL)]);
        world.players[gang].wakes_in = wakes_in;
        let (mut before, mut since, mut longest) = (0, Duration::ZERO, Duration::ZERO);
        while world.now < seconds(12) {
            world.step();
            let made = world.finished(gang);
            if made != before {
                longest = longest.max(world.now - since);
                (before, since) = (made, world.now);
            }
        }
        longest = longest.max(world.now - since);
        assert!(longest <= ms(400), "awake in {wakes_in:?}: {longest:?}");
    }
}

#[test]
fn two_gangs_that_overlap_in_one_gpu_both_get_on() {
    let mut world = World::new(3);
    let left = world.join(500, Fair, &[(0, SMALL), (1, SMALL)]);
    let right = world.join(500, Fair, &[(1, SMALL), (2, SMALL)]);
    let single = world.join(500, Fair, &[(2, SMALL)]);
    world.run(seconds(12));
    for player in [left, right, single] {
        let gpus = world.players[player].terms.gpus.len() as f64;
        let part = world.players[player].part(2..12) / gpus;
        assert!(
            part >= 0.40,
            "tenant {player} gets {:.1} % of each GPU",
            part * 100.0
        );
    }
}

#[test]
fn a_tenant_on_many_gpus_is_not_starved_by_single_ones() {
    let mut world = World::new(4);
    let gang = world.join(500, Fair, &[(0, SMALL), (1, SMALL), (2, SMALL), (3, SMALL)]);
    for gpu in 0..4 {
        world.join(
            500,
            Fair,
            &[(
                gpu,
                Load::Sync {
                    kernel: ms(7),
                    think: us(300),
                },
            )],
        );
    }
    world.run(seconds(12));
    let part = world.players[gang].part(2..12) / 4.0;
    assert!(part >= 0.40, "{:.1} % of each GPU", part * 100.0);
}

#[test]
fn a_newcomer_beside_a_capped_tenant_is_not_starved_and_does_not_starve() {
    let mut world = World::new(1);
    world.join(250, Strict, &[(0, SMALL)]);
    let first = world.join(250, Fair, &[(0, SMALL)]);
    world.run(seconds(10));
    let second = world.join(250, Fair, &[(0, SMALL)]);
    world.run(seconds(3));
    let [first, second] = [first, second].map(|player| world.players[player].part(11..13));
    assert!((first - second).abs() <= 0.05, "{first:.3} and {second:.3}");
}
