use std::time::Duration;

use divvy_core::ComputeMode::{self, Fair, Strict};

use crate::lease::world::{Load, World, ms, p99, us};

const WARM_UP: usize = 2;
const WINDOW: usize = 5;

const SYNC: Load = Load::Sync {
    kernel: us(200),
    think: us(0),
};
const SMALL: Load = Load::Flood { kernel: us(200) };
const LARGE: Load = Load::Flood { kernel: ms(50) };
const HUGE: Load = Load::Flood { kernel: ms(500) };

/// Runs tenants with these shares beside each other on one GPU.
fn beside(mode: ComputeMode, tenants: &[(u16, &[Load])], seconds: usize) -> World {
    let mut world = World::new(1);
    for (share, loads) in tenants {
        let loads: Vec<(u32, Load)> = loads.iter().map(|load| (0, *load)).collect();
        world.join(*share, mode, &loads);
    }
    world.run(Duration::from_secs(seconds as u64));
    world
}

/// Mean over the tenants and windows of how far the part of the GPU got is from the share asked, in points.
fn error(world: &World, window: usize) -> f64 {
    let seconds = world.players[0].used.len() - 1;
    let asked: u32 = world
        .players
        .iter()
        .map(|player| u32::from(player.terms.share.thousandths()))
        .sum();
    let mut errors = Vec::new();
    for start in (WARM_UP..=seconds - window).step_by(window) {
        for player in &world.players {
            let share = f64::from(player.terms.share.thousandths()) / f64::from(asked);
            errors.push((player.part(start..start + window) - share).abs() * 100.0);
        }
    }
    errors.iter().sum::<f64>() / errors.len() as f64
}

fn throughput(world: &World) -> f64 {
    let seconds = world.players[0].used.len() - 1;
    world
        .players
        .iter()
        .map(|player| player.part(WARM_UP..seconds))
        .sum()
}

#[track_caller]
fn holds(tenants: &[(u16, &[Load])], within_window: f64, within_1_s: f64) -> World {
    let world = beside(Fair, tenants, WARM_UP + WINDOW);
    let (window, one, all) = (error(&world, WINDOW), error(&world, 1), throughput(&world));
    assert!(
        window <= within_window,
        "{window:.2} points over {WINDOW} s"
    );
    assert!(one <= within_1_s, "{one:.2} points over 1 s");
    assert!(all >= 0.95, "{:.1} % of the GPU used", all * 100.0);
    world
}

/// Two tenants beside each other, whatever they run, with one share and the other.
#[track_caller]
fn two_hold(a: u16, b: u16) {
    for (one, other) in [
        (SYNC, SYNC),
        (SMALL, SMALL),
        (SYNC, SMALL),
        (LARGE, SMALL),
        (LARGE, LARGE),
    ] {
        holds(&[(a, &[one]), (b, &[other])], 1.0, 3.0);
        if a != b {
            holds(&[(b, &[one]), (a, &[other])], 1.0, 3.0);
        }
    }
}

#[test]
fn a_tenth_and_nine_tenths_get_what_they_say_whatever_they_run() {
    two_hold(100, 900);
}

#[test]
fn a_quarter_and_three_quarters_get_what_they_say_whatever_they_run() {
    two_hold(250, 750);
}

#[test]
fn two_halves_get_what_they_say_whatever_they_run() {
    two_hold(500, 500);
}

#[test]
fn eight_equal_tenants_get_an_eighth_each() {
    let loads = [SYNC, SMALL, SMALL, SYNC, SMALL, LARGE, SYNC, SMALL];
    let tenants: Vec<(u16, &[Load])> = loads
        .iter()
        .map(|load| (125, std::slice::from_ref(load)))
        .collect();
    let world = holds(&tenants, 1.0, 3.0);
    let parts: Vec<f64> = world
        .players
        .iter()
        .map(|player| player.part(WARM_UP..WARM_UP + WINDOW))
        .collect();
    let (sum, squares) = (
        parts.iter().sum::<f64>(),
        parts.iter().map(|part| part * part).sum::<f64>(),
    );
    let jain = sum * sum / (parts.len() as f64 * squares);
    assert!(jain >= 0.995, "Jain's index {jain:.4}");
}

#[test]
fn kernels_of_half_a_second_average_out() {
    for (a, b) in [(100, 900), (250, 750), (500, 500), (750, 250)] {
        let world = beside(Fair, &[(a, &[HUGE]), (b, &[SMALL])], WARM_UP + 20);
        let ten = error(&world, 10);
        assert!(ten <= 5.0, "{a}:{b}: {ten:.2} points over 10 s");
    }
}

#[test]
fn a_tenant_with_four_processes_gets_no_more_than_one_with_one() {
    holds(
        &[(500, &[SMALL, SYNC, SMALL, SYNC]), (500, &[SMALL])],
        1.0,
        3.0,
    );
    holds(
        &[(250, &[SMALL, SMALL, SMALL, SMALL]), (750, &[SYNC])],
        1.0,
        3.0,
    );
}

#[test]
fn a_tenant_alone_is_never_held_up() {
    for load in [SYNC, SMALL, LARGE] {
        let world = beside(Fair, &[(250, &[load])], 5);
        assert!(
            throughput(&world) >= 0.995,
            "{:.2} %",
            throughput(&world) * 100.0
        );
        assert!(
            world.turns <= 4,
            "the keeper was asked {} times",
            world.turns
        );
    }
}

#[test]
fn what_one_does_not_want_the_other_gets() {
    let rests = Load::Burst {
        kernel: ms(1),
        work: ms(20),
        rest: ms(180),
    };
    let world = beside(Fair, &[(500, &[rests]), (500, &[SMALL])], WARM_UP + WINDOW);
    let [burst, flood] = [0, 1].map(|player| world.players[player].part(WARM_UP..WARM_UP + WINDOW));
    assert!(
        burst >= 0.085,
        "the one that rests gets {:.1} %",
        burst * 100.0
    );
    assert!(
        burst + flood >= 0.95,
        "{:.1} % of the GPU used",
        (burst + flood) * 100.0
    );
}

#[test]
fn a_pause_is_not_saved_up() {
    let mut world = World::new(1);
    world.join(500, Fair, &[(0, SMALL)]);
    let late = world.join(500, Fair, &[(0, SMALL)]);
    world.players[late].processes[0].stopped = true;
    world.run(Duration::from_secs(10));
    world.players[late].processes[0].stopped = false;
    world.run(Duration::from_secs(2));
    let part = world.players[late].part(10..11);
    assert!(
        (0.45..=0.55).contains(&part),
        "{:.1} % in the first second after it",
        part * 100.0
    );
}

#[test]
fn a_strict_tenant_gets_its_share_and_no_more_alone_or_not() {
    for thousandths in [100, 250, 500, 900] {
        let asked = f64::from(thousandths) / 1000.0;
        for load in [SYNC, SMALL] {
            let world = beside(Strict, &[(thousandths, &[load])], WARM_UP + WINDOW);
            let got = world.players[0].part(WARM_UP..WARM_UP + WINDOW);
            assert!((got - asked).abs() <= 0.01, "alone at {asked}: {got:.3}");
            for second in WARM_UP..WARM_UP + WINDOW {
                let part = world.players[0].part(second..second + 1);
                assert!(
                    part <= asked + 0.03,
                    "alone at {asked}: {part:.3} in one second"
                );
            }
        }
        if thousandths <= 500 {
            let mut world = World::new(1);
            let capped = world.join(thousandths, Strict, &[(0, SMALL)]);
            let free = world.join(1000 - thousandths, Fair, &[(0, SMALL)]);
            world.run(Duration::from_secs((WARM_UP + WINDOW) as u64));
            let [got, rest] =
                [capped, free].map(|player| world.players[player].part(WARM_UP..WARM_UP + WINDOW));
            assert!(
                (got - asked).abs() <= 0.02,
                "beside another at {asked}: {got:.3}"
            );
            assert!(got + rest >= 0.95, "{:.3} of the GPU used", got + rest);
        }
    }
}

#[test]
fn what_a_strict_tenant_may_not_use_a_fair_one_gets() {
    let mut world = World::new(1);
    world.join(250, Strict, &[(0, SMALL)]);
    let fair = world.join(250, Fair, &[(0, SMALL)]);
    world.run(Duration::from_secs((WARM_UP + WINDOW) as u64));
    let part = world.players[fair].part(WARM_UP..WARM_UP + WINDOW);
    assert!(part >= 0.70, "{:.1} %", part * 100.0);
}

/// Asks for a quarter of the GPU in all.
const REQUESTS: Load = Load::Sync {
    kernel: ms(1),
    think: ms(3),
};

#[test]
fn one_that_answers_requests_neither_waits_for_a_flood_nor_leaves_the_gpu_idle() {
    let world = beside(
        Fair,
        &[(250, &[REQUESTS]), (750, &[SMALL])],
        WARM_UP + WINDOW,
    );
    let p99 = p99(&world.players[0].processes[0].latencies);
    // Its own work, and the driver's time slice of the other.
    assert!(p99 <= ms(4), "{p99:?}");
    let part = world.players[0].part(WARM_UP..WARM_UP + WINDOW);
    assert!(part >= 0.14, "{part:.3} of the GPU");
    assert!(throughput(&world) >= 0.98, "{:.3}", throughput(&world));
}

#[test]
fn one_that_answers_more_requests_than_its_share_allows_gets_its_share() {
    for share in [50, 100] {
        let world = beside(
            Fair,
            &[(share, &[REQUESTS]), (1000 - share, &[SMALL])],
            WARM_UP + WINDOW,
        );
        let part = world.players[0].part(WARM_UP..WARM_UP + WINDOW);
        let asked = f64::from(share) / 1000.0;
        assert!((part - asked).abs() <= 0.02, "{part:.3} at {asked}");
        assert!(throughput(&world) >= 0.95, "{:.3}", throughput(&world));
    }
}

#[test]
fn many_that_answer_requests_do_not_wait_for_each_other() {
    let few: &[Load] = &[Load::Sync {
        kernel: ms(1),
        think: ms(15),
    }];
    let world = beside(Fair, &[(125, few); 8], WARM_UP + WINDOW);
    for player in &world.players {
        let p99 = p99(&player.processes[0].latencies);
        assert!(p99 <= ms(10), "{p99:?}");
    }
}

#[test]
fn a_quarter_beside_a_flood_is_about_as_quick_as_a_quarter_alone() {
    let alone = beside(Strict, &[(250, &[REQUESTS])], WARM_UP + WINDOW);
    let beside = beside(
        Fair,
        &[(250, &[REQUESTS]), (750, &[SMALL])],
        WARM_UP + WINDOW,
    );
    let [alone, beside] =
        [alone, beside].map(|world| p99(&world.players[0].processes[0].latencies));
    assert!(
        beside.as_secs_f64() <= 1.3 * alone.as_secs_f64(),
        "{beside:?} against {alone:?}"
    );
}

/// Uses a quarter of a GPU.
const LIGHT: Load = Load::Sync {
    kernel: us(200),
    think: us(600),
};

#[test]
fn tenants_that_leave_the_gpu_idle_at_times_have_it_together() {
    let light: (u16, &[Load]) = (250, &[LIGHT]);
    let mut world = beside(Fair, &[light; 3], WARM_UP);
    world.run(Duration::from_secs(1));
    let before = world.turns;
    world.run(Duration::from_secs(WINDOW as u64));
    let turns = world.turns - before;
    assert!(turns <= 60 * WINDOW as u64, "{turns} turns in {WINDOW} s");

    let mut ungated = World::new(1);
    ungated.ungated = true;
    for _ in 0..3 {
        ungated.join(250, Fair, &[(0, LIGHT)]);
    }
    ungated.run(world.now);
    let [with, without] = [&world, &ungated].map(throughput);
    assert!(with >= 0.98 * without, "{with:.3} against {without:.3}");
}

#[test]
fn a_flood_beside_tenants_that_share_gets_its_share_and_so_do_they() {
    let world = beside(
        Fair,
        &[(250, &[LIGHT]), (250, &[LIGHT]), (500, &[SMALL])],
        WARM_UP + WINDOW,
    );
    let part = |player: usize| world.players[player].part(WARM_UP..WARM_UP + WINDOW);
    let [one, other, flood] = [0, 1, 2].map(part);
    assert!((one - other).abs() <= 0.02, "{one:.3} and {other:.3}");
    // Half of the time is theirs, and a quarter of it is all that each can use.
    assert!(one >= 0.11, "{one:.3}");
    assert!(flood >= 0.45, "{flood:.3}");
}

#[test]
fn a_tenant_that_shared_a_gpu_and_begins_to_flood_takes_turns_again() {
    let mut world = beside(Fair, &[(250, &[LIGHT]), (750, &[LIGHT])], WARM_UP);
    for player in &mut world.players {
        player.processes[0].load = SMALL;
    }
    world.run(Duration::from_secs(1 + WINDOW as u64));
    let part = world.players[0].part(WARM_UP + 1..WARM_UP + 1 + WINDOW);
    assert!((part - 0.25).abs() <= 0.02, "{part:.3}");
}

#[test]
fn a_strict_tenant_that_shares_gets_no_more_than_its_share() {
    let mut world = World::new(1);
    world.join(100, Strict, &[(0, LIGHT)]);
    world.join(250, Fair, &[(0, LIGHT)]);
    world.run(Duration::from_secs((WARM_UP + WINDOW) as u64));
    let part = |player: usize| world.players[player].part(WARM_UP..WARM_UP + WINDOW);
    assert!((0.05..=0.11).contains(&part(0)), "{:.3}", part(0));
    assert!(part(1) >= 0.22, "{:.3}", part(1));
}

#[test]
fn late_work_lets_no_tenant_past_its_share_right_after_its_own_work() {
    let mut world = World::new(1);
    world.join(150, ComputeMode::None, &[(0, LIGHT)]);
    let long = Load::Sync {
        kernel: ms(50),
        think: ms(0),
    };
    let short = Load::Sync {
        kernel: us(200),
        think: ms(0),
    };
    world.join(185, Strict, &[(0, long), (0, short)]);
    world.run(Duration::from_secs(3));
    let part = world.players[1].part(0..3);
    assert!(part <= 0.2, "{part:.3}");
}

#[test]
fn a_strict_tenant_pays_in_company_for_what_it_uses_beyond_its_part_of_the_time() {
    let sync = |kernel, think| [(0, Load::Sync { kernel, think })];
    let mut world = World::new(1);
    world.join(150, Strict, &sync(ms(50), ms(0)));
    world.join(274, Fair, &sync(us(200), ms(1)));
    world.join(150, ComputeMode::None, &sync(ms(3), ms(0)));
    world.run(Duration::from_secs(10));
    let part = world.players[0].part(0..10);
    assert!((0.12..=0.157).contains(&part), "{part:.3}");
}

/// Whoever looks needs a processor, and may need the one that a program launches from.
#[test]
fn a_tenant_that_uses_all_of_its_leases_is_polled_every_other_millisecond() {
    for load in [SMALL, SYNC] {
        let world = beside(Fair, &[(500, &[load]), (500, &[load])], WARM_UP + WINDOW);
        // Half of them as whoever waits asks, which a step of 100 us makes ten times of one.
        let looks = world.turns / (WARM_UP + WINDOW) as u64;
        assert!(looks <= 1200, "{load:?}: {looks} in a second");
    }
}

/// Sum and errors of the shares, in points, over ten seconds on a host whose processors are busy.
fn on_a_busy_host(tenants: &[(u16, Load)], wake_delay: Duration) -> (f64, f64) {
    let mut world = World::new(1);
    world.wake_delay = wake_delay;
    for (share, load) in tenants {
        world.join(*share, Fair, &[(0, *load)]);
    }
    world.run(Duration::from_secs(WARM_UP as u64 + 10));
    let parts: Vec<f64> = world
        .players
        .iter()
        .map(|player| player.part(WARM_UP..WARM_UP + 10))
        .collect();
    let sum: f64 = parts.iter().sum();
    let errors = tenants.iter().zip(&parts);
    let errors = errors.map(|((share, _), part)| (part / sum - f64::from(*share) / 1000.0).abs());
    (sum, errors.fold(0.0, f64::max) * 100.0)
}

#[test]
fn a_busy_host_costs_little_at_the_end_of_a_lease() {
    const FLOOD: Load = Load::Flood { kernel: ms(1) };
    const SHORT: Load = Load::Flood { kernel: us(500) };
    const MIDDLE: Load = Load::Flood { kernel: ms(5) };
    const LONG: Load = Load::Flood { kernel: ms(20) };
    let scenes: [&[(u16, Load)]; 4] = [
        &[(750, FLOOD), (250, Load::Mix)],
        &[(500, SYNC), (500, SYNC)],
        &[(500, Load::Mix), (300, FLOOD), (200, MIDDLE)],
        &[
            (400, SYNC),
            (300, Load::Mix),
            (100, SHORT),
            (100, MIDDLE),
            (100, LONG),
        ],
    ];
    // On average the keeper and each program wake so late.
    for (delay, least) in [(us(500), 0.97), (ms(1), 0.95)] {
        for tenants in scenes {
            let (sum, error) = on_a_busy_host(tenants, delay);
            let row = format!(
                "{} tenants, {delay:?} late: {sum:.3}, {error:.2} points",
                tenants.len()
            );
            assert!(sum >= least && error <= 1.0, "{row}");
        }
    }
}
