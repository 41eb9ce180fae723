//! `cargo xtask soak`: random programs against the limiter for as long as one likes (`crates/shim/tests/model`).

use anyhow::Result;
use clap::Args as Arguments;

use crate::cargo::cargo;
use crate::steps::{run, step};

#[derive(Arguments)]
pub struct Args {
    /// How long, in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// How many steps each run has
    #[arg(long, default_value_t = 400)]
    steps: u64,
    /// Run this seed alone, as a failure names it
    #[arg(long)]
    seed: Option<u64>,
}

pub fn go_on(args: &Args) -> Result<()> {
    let mut command = cargo(&["test", "--package", "divvy-shim", "--test", "model"]);
    command
        .args(["--", "--nocapture"])
        .env("DIVVY_MODEL_STEPS", args.steps.to_string())
        .env("DIVVY_MODEL_SECONDS", args.seconds.to_string());
    if let Some(seed) = args.seed {
        command.env("DIVVY_MODEL_SEED", seed.to_string());
    }
    step(
        "model",
        "random programs in several processes, compared with the simulated driver's books after every step",
        || run(&mut command),
    )
}
