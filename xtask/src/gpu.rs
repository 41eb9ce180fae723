//! `cargo xtask gpu`: a release build, one folder with all needed files, then the program `gpu` of `tests/e2e` in it.
//!
//! The folder, `target/gpu-kit`, needs only a GPU: it can be copied to a machine without Cargo and run there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{Optimised, root, target};
use crate::steps::{run, step};
use crate::{cargo as crates, tools, venv};

#[derive(clap::Args)]
pub struct Args {
    /// Use simulated GPUs: tests the command itself, not the hardware
    #[arg(long, value_name = "MODEL:N")]
    sim: Option<String>,
    /// Only build the folder; copy it to the GPU machine and run `gpu` in it
    #[arg(long)]
    kit: bool,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Run only items with names that begin with one of these
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
}

/// Programs, at the same place in the build and in the folder.
const PROGRAMS: [&str; 9] = [
    "gpu",
    "divvy",
    "cudarc_probe",
    "nvml_probe",
    "libdivvy_preload.so",
    "libdivvy_cuda.so",
    "libdivvy_nvml.so",
    "libdivvy_sim.so",
    "examples/gpu_facts",
];

/// The C library that writes down what programs look up.
const LOGGER: &str = "liblog_lookups.so";

/// Builds, and runs.
pub fn accept(args: &Args) -> Result<()> {
    crates::prepare(tools::compiler)?;
    let kit = target().join("gpu-kit");
    let built = step("build", "an optimised build, as for an installation", build)?;
    step("kit", "all programs in one folder", || gather(&built, &kit))?;
    if args.kit {
        eprintln!(
            "   copy {} to the GPU machine and run `gpu` in it",
            kit.display()
        );
        return Ok(());
    }
    step(
        "gpu",
        "tests of Divvy's claims, and measurements of the driver",
        || {
            let mut gpu = Command::new(kit.join("gpu"));
            gpu.arg("--json").arg(target().join("gpu-report.json"));
            gpu.args(args.sim.iter().flat_map(|sim| ["--sim", sim]));
            if let Some(python) = venv::existing() {
                gpu.arg("--python").arg(python);
            }
            if args.quick {
                gpu.arg("--quick");
            }
            if !args.only.is_empty() {
                gpu.arg("--only").args(&args.only);
            }
            run(&mut gpu)
        },
    )
}

fn build() -> Result<PathBuf> {
    let packages = ["divvy", "divvy-clients"];
    let packages = packages.map(|package| ["--package", package]);
    Optimised::here().build(&[
        packages.as_flattened(),
        &["--package", "divvy-e2e", "--bin", "gpu"],
        &["--package", "divvy-driver", "--example", "gpu_facts"],
    ])
}

/// Copies the programs without debugging information, because the folder will be copied to another machine.
fn gather(built: &Path, kit: &Path) -> Result<()> {
    fs::create_dir_all(kit.join("examples")).with_context(|| format!("make {}", kit.display()))?;
    for name in PROGRAMS {
        let (from, to) = (built.join(name), kit.join(name));
        run(Command::new("strip")
            .arg("--strip-debug")
            .arg("-o")
            .args([&to, &from]))?;
    }
    let source: PathBuf = root().join("tests/clients/c/log_lookups.c");
    run(Command::new("cc")
        .args([
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
        ])
        .arg(kit.join(LOGGER))
        .arg(source)
        .arg("-ldl"))
}
