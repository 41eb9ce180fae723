//! The repository's commands. Each says on stderr what it does and why, step by step, and fails with the name of the step
//! that failed; what it found out goes to stdout.
#![forbid(unsafe_code)]

mod advisories;
mod allocators;
mod arrows;
mod bench;
mod cargo;
mod decisions;
mod demo;
mod deny;
mod dist;
mod gpu;
mod helm;
mod kinds;
mod kube;
mod nextest;
mod prose;
mod smi;
mod soak;
mod steps;
mod symbols;
mod test;
mod tiers;
mod tools;
mod variables;
mod venv;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "The repository's commands",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Three GPUs shared by four queues, live, in under a minute after the build
    Demo,
    /// Checks and tests, at most a few minutes; --all adds the second tier. Installs what it needs
    Test(test::Args),
    /// What an interposed call and a queued job cost: a table, and target/bench.json
    Bench(bench::Args),
    /// What is promised, tried on a real GPU, and what is believed of the driver, measured: target/gpu-report.json
    Gpu(gpu::Args),
    /// The chart and what it installs, tried in the cluster that KUBECONFIG names; a control plane without nodes is enough
    Kube(kube::Args),
    /// Random programs against the limiter, for as long as you like
    Soak(soak::Args),
    /// What a release ships, built, tried and summed: target/dist
    Dist(dist::Args),
    /// Judge Cargo.lock by RustSec's advisories, of which data/advisories.json is a dated copy; --renew writes it anew
    Advisories(advisories::Args),
    /// Check the English of strings and documents: a table of listed words, over-long sentences and lines
    Prose(prose::Args),
    /// Generate the tables of NVIDIA's exported symbols from NVIDIA's headers
    Symbols(symbols::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Verb::Demo => demo::show(),
        Verb::Test(args) => test::run_tiers(&args),
        Verb::Bench(args) => bench::measure(&args),
        Verb::Gpu(args) => gpu::accept(&args),
        Verb::Kube(args) => kube::accept(&args),
        Verb::Soak(args) => soak::go_on(&args),
        Verb::Dist(args) => dist::make(&args),
        Verb::Advisories(args) => advisories::run(&args),
        Verb::Prose(args) => prose::show(&args),
        Verb::Symbols(args) => symbols::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}
