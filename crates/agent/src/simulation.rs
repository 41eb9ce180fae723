//! The whole agent in one seeded run, in virtual time: the real cycle, journal, job folders and ledger; processes, supervisors and the
//! driver are simulated, so that anything can happen to them at any moment.
//!
//! ```text
//! seed ──► steps ──► clients, programs, faults ──► machine (processes, memory, time) ──► laws, after every step
//!                         │                              ▲
//!                         └──► messages ──► cycle ───────┘  dies at any point, and starts again
//! ```
//! A step is a word and a number and depends on no step before it, so that a list of them that breaks a law is made shorter by leaving
//! steps out. A failure prints its seed and the shortest list found; `DIVVY_AGENT_SEED=N` and `DIVVY_AGENT_STEPS='submit:1f …'` run them
//! again, `DIVVY_AGENT_RUNS=N` goes on with fresh seeds. MIG has no part in it: `tests/mig/crash.rs` in this crate has its own.

pub mod clock;
pub mod daemon;
mod dice;
pub mod gpus;
pub mod kernel;
mod laws;
mod program;
mod run;
mod steps;
mod supervisor;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use divvy_api::home::Home;

use gpus::Health;
use kernel::Proc;
use program::Program;
use run::Run;
use steps::Step;

/// The machine.
pub struct World {
    home: Home,
    /// In the form of proc(5).
    proc: PathBuf,
    /// The limiter's file.
    preload: PathBuf,
    processes: BTreeMap<u32, Proc>,
    /// Children of the agent that have ended and that it has not waited for, with their statuses.
    zombies: BTreeMap<u32, i32>,
    spawned: u32,
    daemon: Option<u32>,
    gpus: Vec<Health>,
    /// Not even the number of GPUs is told.
    driver_is_ill: bool,
    /// fork(2) says EAGAIN.
    no_processes: bool,
    /// Runs whose program was started.
    started: BTreeSet<PathBuf>,
    /// What did not hold, as soon as it was seen.
    broken: Option<String>,
    /// What happened, for whoever reads of a failure.
    told: Vec<String>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Does something to this thread's simulated machine, where there is one.
fn with<T>(act: impl FnOnce(&mut World) -> T) -> Option<T> {
    WORLD.with_borrow_mut(|world| world.as_mut().map(act))
}

impl World {
    fn broken(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        self.told.push(what());
    }

    /// A job's program is started: never twice in one run, and never beside another run of it.
    fn ran(&mut self, program: &Program) {
        let job = program.job;
        if !self.started.insert(program.run.clone()) {
            self.broken(format!(
                "the program of {} ran twice",
                program.run.display()
            ));
        }
        let other = self.processes.values().find(|other| match &other.kind {
            kernel::Kind::Program(program) => program.job == job && !self.has_escaped(other),
            _ => false,
        });
        if let Some(other) = other {
            let pid = other.process.pid;
            self.broken(format!(
                "job {job} is started again while pid {pid} of it lives"
            ));
        }
    }
}

/// How many steps a run has.
const STEPS: usize = 160;

/// Runs that the tests try: enough that each kind of fault meets each kind of step many times.
const RUNS: u64 = 150;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// What a list of steps does; an error is what did not hold, and what happened until then.
fn outcome(seed: u64, steps: &[Step]) -> Result<(), (String, Vec<String>)> {
    let mut run = Run::new(seed);
    let result = run.all(steps);
    let told = with(|world| std::mem::take(&mut world.told)).unwrap_or_default();
    drop(run);
    result.map_err(|broken| (broken, told))
}

/// Leaves out what is not needed for the failure: halves first, then single steps.
fn shorter(seed: u64, mut steps: Vec<Step>) -> Vec<Step> {
    let mut size = steps.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            match outcome(seed, &fewer) {
                Err(_) => steps = fewer,
                Ok(()) => at += size,
            }
        }
        size /= 2;
    }
    steps
}

fn check(seed: u64, steps: Vec<Step>) {
    if outcome(seed, &steps).is_ok() {
        return;
    }
    let steps = shorter(seed, steps);
    let (broken, told) = outcome(seed, &steps).expect_err("it failed before");
    let words: Vec<String> = steps.iter().map(ToString::to_string).collect();
    panic!(
        "{broken}\n\nwhat happened:\n{}\n\nagain: DIVVY_AGENT_SEED={seed} DIVVY_AGENT_STEPS='{}' cargo test -p divvy-agent --lib simulation",
        told.join("\n"),
        words.join(" ")
    );
}

#[test]
fn whatever_fails_and_dies_no_job_is_lost_runs_twice_or_keeps_what_it_held() {
    let seed = number("DIVVY_AGENT_SEED");
    if let Ok(steps) = std::env::var("DIVVY_AGENT_STEPS") {
        let steps = steps
            .split_whitespace()
            .map(|step| step.parse().expect("a step"));
        return check(seed.unwrap_or(0), steps.collect());
    }
    let first = seed.unwrap_or(1);
    let runs = number("DIVVY_AGENT_RUNS").unwrap_or(if seed.is_some() { 1 } else { RUNS });
    // Each machine is its thread's.
    let (next, broken) = (AtomicU64::new(first), Mutex::new(BTreeSet::new()));
    let broken_now = || broken.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + runs {
                return;
            }
            if let Err((what, _)) = outcome(seed, &steps::of(seed, STEPS)) {
                eprintln!("seed {seed}: {}", what.lines().next().unwrap_or_default());
                broken_now().insert(seed);
            }
            let done = seed + 1 - first;
            if runs > RUNS && done.is_multiple_of(500) {
                eprintln!("{done} of {runs} runs, {} broken", broken_now().len());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    // The first is told in full.
    let first = broken_now().first().copied();
    if let Some(seed) = first {
        check(seed, steps::of(seed, STEPS));
    }
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let story = |seed| {
        let mut run = Run::new(seed);
        run.all(&steps::of(seed, STEPS)).expect("nothing is broken");
        with(|world| std::mem::take(&mut world.told)).expect("a world")
    };
    for seed in [3, 4] {
        assert_eq!(story(seed), story(seed));
    }
}

#[test]
fn claims_of_a_run_are_held_and_given_back() {
    let steps = "claim:0 round:0 round:0 claim:1 round:0 round:0 crash:7 claim:2 round:0 round:0";
    let steps = steps
        .split_whitespace()
        .map(|step| step.parse().expect("a step"));
    let mut run = Run::new(1);
    run.all(&steps.collect::<Vec<_>>())
        .expect("nothing is broken");
    let events = crate::store::events_after(&run.home.database(), 0, 1000).expect("a journal");
    let told = |kind: &str, word: &str| {
        let mut events = events.iter();
        events.any(|event| event.kind == kind && event.text.contains(word))
    };
    assert!(told("claimed", "team/train") && told("running", "divvy.dev/slice="));
    assert!(told("ended", "given back"));
}
