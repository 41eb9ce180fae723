//! Random programs in several processes of one slice, some of them killed, over the simulated driver. After every step what
//! is charged is exactly what the driver gave, process by process, and never more than the limit; in the end nothing is left.
//!
//! A failure prints its seed and the calls that led to it. `DIVVY_MODEL_SEED=N` runs that seed alone; `DIVVY_MODEL_STEPS=N`
//! sets the length of a run; `DIVVY_MODEL_SECONDS=N` goes on with fresh seeds for that long.

mod actor;
mod steps;
mod world;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use world::World;

/// Seeds that every run of the tests tries: enough that each kind of step is taken many times.
const SEEDS: std::ops::Range<u64> = 0..8;
const STEPS: u64 = 150;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// Runs one seed to its end.
fn run(seed: u64, steps: u64) {
    eprintln!("DIVVY_MODEL_SEED={seed}");
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step();
    }
    world.end();
}

#[test]
fn what_is_charged_is_what_the_driver_gave() {
    let steps = number("DIVVY_MODEL_STEPS").unwrap_or(STEPS);
    if let Some(seed) = number("DIVVY_MODEL_SEED") {
        return run(seed, steps);
    }
    SEEDS.for_each(|seed| run(seed, steps));
    let Some(seconds) = number("DIVVY_MODEL_SECONDS") else {
        return;
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let fresh = now.expect("a clock after 1970").as_secs() << 20;
    let start = Instant::now();
    for seed in (fresh..).take_while(|_| start.elapsed() < Duration::from_secs(seconds)) {
        run(seed, steps);
    }
}
