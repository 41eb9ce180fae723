//! Storms: sixteen processes of one slice take and share memory of every family, and are stopped and killed meanwhile. A
//! process outside the slice reads the driver's figure without pause.

use divvy_testkit::Bounded as _;

use crate::support::{MIB, Rig, compiled, watched_by_a_daemon};

const PROCESSES: u64 = 16;
/// The largest block.
const MOST: u64 = 32 * MIB;
/// What the limit leaves beside the contexts.
const ROOM: u64 = 1024 * MIB;
const FAMILIES: [&str; 8] = [
    "linear", "pitch", "managed", "array", "vmm", "ipc", "handle", "reset",
];
/// More of them, for the second tier: memory bound to multicast objects, descriptors without a mark, and processes that
/// become programs without CUDA or live in a PID namespace of their own.
const MORE: [&str; 4] = ["multicast", "untagged", "exec", "namespace"];
/// The step in which pools grow. A pool that grows although it had room is shrunk after the driver has allowed it
/// (docs/enforcement.md, "How the limiter enforces a limit").
const POOL_STEP: u64 = 32 * MIB;

/// What a storm came to. All fields but the last two: how often.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Storm {
    seed: u64,
    kills: u64,
    stops: u64,
    granted: u64,
    refused: u64,
    other_answers: u64,
    samples: u64,
    /// The most bytes beyond the limit that a sample found.
    over: u64,
}

/// Runs one, and prints what it came to.
#[expect(
    clippy::print_stdout,
    reason = "seeds and figures, which nextest shows of a failed test"
)]
fn storm(seconds: u64, seed: u64, families: &[&str]) -> Storm {
    let rig = Rig::new(PROCESSES, ROOM);
    let mut watcher = rig.outside();
    assert_eq!(watcher.ask("watch 0"), [0]);
    let words = [seconds, seed, PROCESSES, MOST].map(|number| number.to_string());
    let mut command = rig.limited(&compiled("storm.c", "storm", &["-ldl"]));
    command.args(&words).args(families);
    let output = watched_by_a_daemon(&rig.slice_folder(), || command.output_bounded());
    let output = output.expect("the program starts");
    assert!(output.status.success(), "seed {seed}: {output:?}");
    let said = String::from_utf8(output.stdout).expect("numbers");
    let mut said = said.split_whitespace();
    let mut number = || {
        let word = said.next().expect("five numbers");
        word.parse::<u64>().expect("a number")
    };
    let seen = watcher.ask("stop");
    let storm = Storm {
        seed,
        kills: number(),
        stops: number(),
        granted: number(),
        refused: number(),
        other_answers: number(),
        samples: seen[1],
        over: seen[0].saturating_sub(rig.idle() + rig.limit),
    };
    println!("{storm:?}");
    assert!(storm.refused > 0, "no process came to the limit: {storm:?}");
    storm
}

#[test]
fn in_no_moment_of_a_short_storm_does_a_slice_hold_more_than_its_limit() {
    let storm = storm(3, 1, &FAMILIES);
    assert_eq!(storm.over, 0, "{storm:?}");
}

mod exhaustive {
    use super::{FAMILIES, MORE, POOL_STEP, PROCESSES, storm};

    /// How many storms, and seconds of each (50 at most), unless `PROBE_STORMS` and `PROBE_STORM_SECONDS` tell others.
    const STORMS: u64 = 4;
    const SECONDS: u64 = 15;

    fn number(variable: &str, otherwise: u64) -> u64 {
        std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
    }

    #[test]
    fn in_no_moment_of_long_storms_does_a_slice_hold_more_than_its_limit() {
        let seconds = number("PROBE_STORM_SECONDS", SECONDS);
        let seeds = 1..=number("PROBE_STORMS", STORMS);
        let families = [&FAMILIES[..], &MORE].concat();
        let storms =
            seeds.flat_map(|seed| [&FAMILIES[..], &families].map(|of| storm(seconds, seed, of)));
        let over: Vec<_> = storms.filter(|storm| storm.over > 0).collect();
        assert!(over.is_empty(), "{over:?}");
    }

    #[test]
    fn in_a_storm_with_pools_a_slice_holds_a_step_of_each_pool_beyond_its_limit_at_most() {
        let families = [&FAMILIES[..], &["pool"]].concat();
        let storm = storm(SECONDS, 1, &families);
        assert!(storm.over <= PROCESSES * POOL_STEP, "{storm:?}");
    }
}
