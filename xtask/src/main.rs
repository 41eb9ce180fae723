//! The commands of the repository. Each command prints its steps with their purpose on stderr, and its results on stdout. An error
//! names the step that failed.
#![forbid(unsafe_code)]

mod advisories;
mod allocators;
mod arrows;
mod axe;
mod bench;
mod bless;
mod cargo;
mod consts;
mod decisions;
mod demo;
mod deny;
mod dist;
mod double_results;
mod gpu;
mod guards;
mod helm;
mod kinds;
mod kube;
mod nextest;
mod page;
mod prose;
mod rooms;
mod scratch;
mod shots;
mod size;
mod smi;
mod soak;
mod sources;
mod steps;
mod symbols;
mod test;
mod tests_only;
mod tier_time;
mod tiers;
mod tools;
mod variables;
mod venv;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "Builds, tests and measures Divvy",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show three simulated GPUs shared by four queues, in under a minute after the build
    Demo,
    /// Run checks and tests in a few minutes; --all adds the second tier. Installs missing tools
    Test(test::Args),
    /// Measure the cost of the limiter and of jobs: prints a table, writes target/bench.json
    Bench(bench::Args),
    /// Test Divvy on a real GPU and measure its driver: writes target/gpu-report.json
    Gpu(gpu::Args),
    /// Test the chart in the cluster of KUBECONFIG; a control plane without nodes is enough
    Kube(kube::Args),
    /// Run seeded tests for longer: the simulation, the journal and the limiter
    Soak(soak::Args),
    /// Make the pictures of the page for the documents, in Chromium: docs/images
    Shots,
    /// Build a release, install it, test it and write checksums: target/dist
    Dist(dist::Args),
    /// Check Cargo.lock against data/advisories.json, a dated copy of RustSec's advisories
    Advisories(advisories::Args),
    /// Check the English of strings and documents: a table of listed words, over-long sentences and lines
    Prose(prose::Args),
    /// Check the imports between rooms: prints rooms, levels, arrows, arrows back, and the largest cycle of files
    Arrows,
    /// Count the Rust lines of each crate that are neither blank, comment nor test, beside the last release
    Size(size::Args),
    /// List constants of a time, size or count without a reason for the figure, by crate
    Consts,
    /// Write every generated file anew: API document, snapshots, tables in documents
    Bless,
    /// Generate the tables of NVIDIA's exported symbols from NVIDIA's headers
    Symbols(symbols::Args),
}

/// Runs the test of the imports between rooms, which prints its figures.
fn check_rooms() -> anyhow::Result<()> {
    let test = "no_room_uses_another_that_it_may_not";
    steps::run(
        cargo::cargo(&["test", "--quiet", "--package", "xtask", test]).args(["--", "--nocapture"]),
    )
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Verb::Demo => demo::show(),
        Verb::Test(args) => test::run_tiers(&args),
        Verb::Bench(args) => bench::measure(&args),
        Verb::Gpu(args) => gpu::accept(&args),
        Verb::Kube(args) => kube::accept(&args),
        Verb::Soak(args) => soak::go_on(&args),
        Verb::Shots => shots::make(),
        Verb::Dist(args) => dist::make(&args),
        Verb::Advisories(args) => advisories::run(&args),
        Verb::Prose(args) => prose::show(&args),
        Verb::Arrows => check_rooms(),
        Verb::Size(args) => size::show(&args),
        Verb::Consts => consts::show(),
        Verb::Bless => bless::write(),
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// A newcomer reads the top of the page: both commands stand there, with their times.
    #[test]
    fn the_readme_begins_with_the_two_commands_for_a_fresh_machine() {
        let page = std::fs::read_to_string(cargo::root().join("README.md")).expect("a page");
        let top = page.split("\n## ").next().expect("the page has a top");
        let commands = Cli::command();
        for verb in ["demo", "test"] {
            assert!(
                commands.find_subcommand(verb).is_some(),
                "no command {verb}"
            );
            let row = format!("| `cargo xtask {verb}` | ");
            let row = top.lines().find_map(|line| line.strip_prefix(&row));
            let row = row.unwrap_or_else(|| {
                panic!("`cargo xtask {verb}` has no row at the top of README.md")
            });
            let minutes = row
                .split_once(" min | ")
                .map(|(minutes, _)| minutes.parse::<u32>());
            assert!(matches!(minutes, Some(Ok(1..))), "{row}");
        }
    }
}
