//! `cargo xtask bench`: a release build, the C probes, then the program `bench` of `tests/e2e`, which measures.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{LOADED, Optimised, root, target};
use crate::steps::{run, step};
use crate::{cargo as crates, tools};

/// What to measure; everything when nothing is said.
#[derive(clap::Args)]
pub struct Args {
    /// Fewer rounds: to see that it works, not to quote
    #[arg(long)]
    quick: bool,
    /// Count the instructions that the limiter adds to a call, and fail where they have grown by more than 5 %
    #[arg(long)]
    counts: bool,
    /// With --counts: write down what is counted as what is expected
    #[arg(long, requires = "counts")]
    record: bool,
    /// Only these parts: calls, usable, latency, throughput, crowd, shares, processes, ledger
    #[arg(long, value_name = "PART", num_args = 1..)]
    only: Vec<String>,
}

/// The C programs that are timed or started.
const PROBES: [&str; 4] = ["call_cost", "job_start", "spawn_floor", "tenant"];

/// Builds and measures.
pub fn measure(args: &Args) -> Result<()> {
    step("tools", "what the machine has to bring", tools::compiler)?;
    step(
        "crates",
        "the Rust libraries that Cargo.lock names",
        crates::fetch,
    )?;
    let folder = step(
        "build",
        "an optimised build: what is measured is what would be installed",
        || {
            let all = ["--workspace", "--examples", "--bins", "--lib"];
            let without = LOADED.map(|(package, _)| ["--exclude", package]);
            Optimised::here().build(&[&[&all, without.as_flattened()].concat()])
        },
    )?;
    step(
        "probes",
        "C programs that call the driver and that play the jobs",
        || {
            PROBES.iter().try_for_each(|probe| {
                let source = root().join(format!("tests/clients/c/{probe}.c"));
                run(Command::new("cc")
                    .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
                    .arg(folder.join(probe))
                    .arg(source)
                    .arg("-ldl"))
            })
        },
    )?;
    step(
        "bench",
        "both sides of every ratio in one run, in turns",
        || {
            let mut bench = Command::new(folder.join("bench"));
            bench.arg("--json").arg(target().join("bench.json"));
            if args.counts {
                bench
                    .arg("--counts")
                    .arg(root().join("tests/e2e/counts.json"));
            }
            if args.record {
                bench.arg("--record");
            }
            // A quick run is not to be quoted.
            if !args.quick {
                bench.arg("--page").arg(root().join("docs/compute.md"));
                bench
                    .arg("--queue-page")
                    .arg(root().join("docs/performance.md"));
            }
            if args.quick {
                bench.arg("--quick");
            }
            if !args.only.is_empty() {
                bench.arg("--only").args(&args.only);
            }
            run(&mut bench)
        },
    )
}
