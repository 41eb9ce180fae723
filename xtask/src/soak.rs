//! `cargo xtask soak`: more seeded runs than the tests have time for.
//!
//! ```text
//! agent      the whole agent on a simulated machine (crates/agent/src/simulation.rs)
//! journal    any number of jobs through planner and journal (crates/agent/src/journal/soak.rs)
//! model      random programs against the limiter (crates/shim/tests/it/model)
//! ```

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args as Arguments;

use crate::cargo::cargo;
use crate::steps::{run, step};

#[derive(Arguments)]
pub struct Args {
    /// Number of simulated runs of the agent
    #[arg(long, default_value_t = 10_000)]
    runs: u64,
    /// Number of jobs that pass through planner and journal
    #[arg(long, default_value_t = 100_000)]
    jobs: u64,
    /// Seconds of random programs against the limiter
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Steps of each run against the limiter
    #[arg(long, default_value_t = 400)]
    steps: u64,
    /// Run only this seed against the limiter, for example that of a failure
    #[arg(long)]
    seed: Option<u64>,
    /// Run only this seed of the agent, for example that of a failure
    #[arg(long, conflicts_with = "seed")]
    agent_seed: Option<u64>,
}

pub fn go_on(args: &Args) -> Result<()> {
    if args.seed.is_none() {
        agent(args)?;
    }
    if args.seed.is_none() && args.agent_seed.is_none() {
        journal(args)?;
    }
    match args.agent_seed {
        Some(_) => Ok(()),
        None => limiter(args),
    }
}

fn agent(args: &Args) -> Result<()> {
    // Fresh ones: those of the tests have been tried.
    let fresh = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |now| now.as_secs() << 20)
    };
    let (seed, runs) = match args.agent_seed {
        Some(seed) => (seed, 1),
        None => (fresh(), args.runs),
    };
    let mut command = agents_tests("simulation::whatever");
    command
        .env("DIVVY_AGENT_SEED", seed.to_string())
        .env("DIVVY_AGENT_RUNS", runs.to_string());
    step(
        "agent",
        "jobs, crashes and faults on a simulated machine; every step is followed by a check of the invariants",
        || run(&mut command),
    )
}

/// Tests of the agent, compiled to be fast and with every assertion: `profile.soak` in Cargo.toml.
fn agents_tests(which: &str) -> Command {
    let mut command = cargo(&[
        "test",
        "--profile",
        "soak",
        "--package",
        "divvy-agent",
        "--lib",
    ]);
    command.args([which, "--", "--nocapture"]);
    command
}

fn journal(args: &Args) -> Result<()> {
    let mut command = agents_tests("journal::soak");
    command.env("DIVVY_SOAK_JOBS", args.jobs.to_string());
    step(
        "journal",
        "jobs that are submitted, run and deleted in virtual time: neither the journal nor the memory may grow",
        || run(&mut command),
    )
}

fn limiter(args: &Args) -> Result<()> {
    let mut command = cargo(&["test", "--package", "divvy-shim", "--test", "it"]);
    command
        .args(["model::", "--", "--nocapture"])
        .env("DIVVY_MODEL_STEPS", args.steps.to_string())
        .env("DIVVY_MODEL_SECONDS", args.seconds.to_string());
    if let Some(seed) = args.seed {
        command.env("DIVVY_MODEL_SEED", seed.to_string());
    }
    step(
        "model",
        "random programs in several processes; every step compares the ledger with the simulated driver",
        || run(&mut command),
    )
}
