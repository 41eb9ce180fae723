//! `cargo xtask gpu`: a release build, one folder with all that is needed, then the program `gpu` of `tests/e2e` in it.
//!
//! The folder, `target/gpu-kit`, needs nothing but a GPU: it can be carried to a machine without Cargo and run there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{Optimised, root, target};
use crate::steps::{run, step};
use crate::{cargo as crates, tools, venv};

#[derive(clap::Args)]
pub struct Args {
    /// Simulated GPUs instead: proves that the program works, and says nothing about hardware
    #[arg(long, value_name = "MODEL:N")]
    sim: Option<String>,
    /// Build the folder and stop: run `gpu` in it where the GPU is
    #[arg(long)]
    kit: bool,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// Only items whose names begin with one of these
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
}

/// What is built, at the same place of the build and of the folder.
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
    step("tools", "what the machine has to bring", tools::compiler)?;
    step(
        "crates",
        "the Rust libraries that Cargo.lock names",
        crates::fetch,
    )?;
    let kit = target().join("gpu-kit");
    let built = step(
        "build",
        "an optimised build, as it would be installed",
        build,
    )?;
    step("kit", "everything that is run, in one folder", || {
        gather(&built, &kit)
    })?;
    if args.kit {
        eprintln!("   carry {} to the GPU and run `gpu` in it", kit.display());
        return Ok(());
    }
    step(
        "gpu",
        "what is promised, tried; what is believed of the driver, measured",
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

/// Copies what was built, without its debugging information: the folder is to be carried.
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
