//! `cargo xtask bench`: a release build, the C probes, then the program `bench` of `tests/e2e`, which measures.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{LOADED, Optimised, root, target};
use crate::steps::{answer, run, step};
use crate::{cargo as crates, tools};

/// The parts to measure; without options all of them.
#[derive(clap::Args)]
pub struct Args {
    /// Fewer rounds: tests the command; the figures are not reliable
    #[arg(long)]
    quick: bool,
    /// Count the instructions that the limiter adds to a call, and fail if a count grew by more than 5 %
    #[arg(long)]
    counts: bool,
    /// With --counts: record the counts as the expected ones
    #[arg(long, requires = "counts")]
    record: bool,
    /// Measure only these parts: calls, usable, latency, throughput, crowd, views, shares, processes, ledger, top, page
    #[arg(long, value_name = "PART", num_args = 1..)]
    only: Vec<String>,
}

/// The part that a program of `tests/browser` measures.
const PAGE: &str = "page";

/// The C programs that are timed or started.
const PROBES: [&str; 4] = ["call_cost", "job_start", "spawn_floor", "tenant"];

/// Builds and measures.
pub fn measure(args: &Args) -> Result<()> {
    crates::prepare(tools::compiler)?;
    let folder = step(
        "build",
        "an optimised build, as for an installation",
        || {
            let all = ["--workspace", "--examples", "--bins", "--lib"];
            let without = LOADED.map(|(package, _)| ["--exclude", package]);
            Optimised::here().build(&[&[&all, without.as_flattened()].concat()])
        },
    )?;
    let (page, only): (Vec<_>, Vec<_>) = args.only.iter().partition(|part| *part == PAGE);
    if !page.is_empty() || (args.only.is_empty() && !args.counts) {
        measure_page(&folder, args.quick, !page.is_empty())?;
    }
    if only.is_empty() && !page.is_empty() {
        return Ok(());
    }
    step(
        "probes",
        "C programs that call the driver or act as jobs",
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
        "measurements; both sides of a ratio alternate in one run",
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
            let nvitop = target().join("clients-venv/bin/nvitop");
            if nvitop.is_file() {
                bench.arg("--nvitop").arg(nvitop);
            }
            if !only.is_empty() {
                bench.arg("--only").args(&only);
            }
            run(&mut bench)
        },
    )
}

/// First paint, bytes, and bytes a second of the page, in Chromium. Without Chromium this part is left out, unless it was named.
fn measure_page(folder: &Path, quick: bool, is_named: bool) -> Result<()> {
    if !is_named && answer(Command::new("chromedriver").arg("--version")).is_none() {
        eprintln!("   MISSING: chromedriver; the page is not measured");
        return Ok(());
    }
    step("page", "the page of divvy web, in Chromium", || {
        let mut measure = Command::new(folder.join("page_cost"));
        if quick {
            measure.arg("--quick");
        }
        run(measure.arg(root().join("docs/performance.md")))
    })
}
