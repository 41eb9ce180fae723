//! `cargo xtask dist`: builds a release in target/dist, then installs and tests it there.
//!
//! ```text
//! target/dist                        target/dist-aarch64 for `--target aarch64`, with aarch64 and arm64 in these names
//!   divvy-VERSION-x86_64-linux/      bin/, lib/divvy/*.so, share/: units, images, chart, completions, pages; as it is installed
//!   divvy-VERSION-x86_64-linux.tar.gz
//!   divvy_gpu-VERSION-py3-none-manylinux_2_28_x86_64.whl
//!   divvy_VERSION_amd64.deb, divvy-VERSION-1.x86_64.rpm
//!   clearml_agent_fractional_gpu-VERSION-py3-none-any.whl, divvy_ray-VERSION-py3-none-any.whl, pytest_divvy-VERSION-py3-none-any.whl
//!   divvy-VERSION.cdx.json           bill of materials
//!   SHA256SUMS
//! ```
//! The build is reproducible with the same commit, toolchain and linker, in whatever folder. Programs contain no paths of the
//! machine, files are sorted and have the commit's time, and compressed files contain no date.

mod attempt;
mod build;
mod documents;
pub mod emulated;
mod guide;
mod packages;
mod platform;
mod roots;
mod sbom;
mod tree;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::root;
use crate::steps::{answer, run, step};
use crate::{cargo as crates, tools, venv};
use build::Zig;
use packages::Staged;
pub use platform::Architecture;
use platform::Platform;

#[derive(clap::Args)]
pub struct Args {
    /// Use the unoptimised build of the tests, to test this command; not for release
    #[arg(long, conflicts_with = "target")]
    quick: bool,
    /// The architecture; another than this machine's is built in a Debian of its own, which needs root
    #[arg(long, value_enum, default_value_t = Architecture::HERE)]
    target: Architecture,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Name of the bill of materials.
const SBOM: &str = concat!("divvy-", env!("CARGO_PKG_VERSION"), ".cdx.json");

/// 1980-01-01: a zip file has no earlier time. The format counts years from there, so an earlier date does not fit.
const EPOCH_OF_ZIP: i64 = 315_532_800;

/// Packages for other engines, each a wheel of Python files alone.
pub const CLEARML: &str = "python/clearml-agent-fractional-gpu";
pub const RAY: &str = "python/divvy-ray";
pub const PYTEST: &str = "python/pytest-divvy";

pub fn make(args: &Args) -> Result<()> {
    crates::prepare(tools::all)?;
    step(
        "clients",
        "a Python environment that can build the wheel",
        venv::make,
    )?;
    release(args.quick, args.target)
}

/// The release alone; tools, crates and Python must be present.
pub fn release(quick: bool, architecture: Architecture) -> Result<()> {
    let prepare = || Platform::prepare(architecture);
    let platform = step("platform", "the compiler of another architecture", prepare)?;
    let zig = step(
        "zig",
        "the linker that knows the symbols of an old glibc",
        || Zig::install(&platform),
    )?;
    let built = step("build", "programs and libraries", || {
        if quick {
            build::quickly(&zig)
        } else {
            zig.all()
        }
    })?;
    let dist = architecture.dist();
    if dist.exists() {
        fs::remove_dir_all(&dist).with_context(|| format!("remove {}", dist.display()))?;
    }
    let name = format!("divvy-{VERSION}-{}-linux", architecture.name());
    let tree = dist.join(&name);
    let time = commit_time();
    let epoch = time.to_string();
    step("tree", "all files in the layout of an installation", || {
        tree::gather(&platform, &built, &tree, &epoch, quick)
    })?;
    let glibc = step(
        "glibc",
        "the oldest C library that each file runs with",
        || build::check_glibc(&tree, quick),
    )?;
    let bill = dist.join(SBOM);
    step("sbom", "the crates in the programs, as CycloneDX", || {
        Ok(fs::write(&bill, sbom::document(architecture, time)?)?)
    })?;
    step(
        "wheels",
        "divvy-gpu, and the packages for the ClearML agent, Ray and pytest",
        || {
            wheel::write(&dist, &tree, &bill, architecture, time, quick)?;
            plain_wheel(CLEARML, &dist, &epoch)?;
            plain_wheel(RAY, &dist, &epoch)?;
            plain_wheel(PYTEST, &dist, &epoch)
        },
    )?;
    step(
        "packages",
        "for Debian, Ubuntu, RHEL, Fedora and SUSE",
        || {
            let staged = Staged::lay(&tree, &bill, architecture, glibc, time)?;
            staged.deb(&dist, quick)?;
            staged.rpm(&dist, quick)
        },
    )?;
    step("archive", "all files in one archive", || {
        archive(&dist, &name, &epoch, quick)
    })?;
    step("sums", "the SHA-256 checksum of each file", || sums(&dist))?;
    step(
        "try",
        "installs archive, wheels and packages in folders of their own, and uses them",
        || attempt::all(&platform, &dist, &name),
    )?;
    eprintln!("\n   {}", dist.display());
    Ok(())
}

/// Seconds since 1970 of the commit, which every file has; of a tree without one, a day long ago.
fn commit_time() -> i64 {
    let time = answer(
        Command::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(root()),
    );
    let time = time.and_then(|time| time.parse().ok());
    time.unwrap_or(EPOCH_OF_ZIP)
}

/// A wheel of Python files.
fn plain_wheel(package: &str, dist: &Path, time: &str) -> Result<()> {
    let python = venv::existing().context("the Python environment is missing")?;
    run(Command::new(python)
        .args([
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args([
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
        ])
        .arg(dist)
        .arg(root().join(package))
        .env("SOURCE_DATE_EPOCH", time))
}

fn archive(dist: &Path, name: &str, time: &str, quick: bool) -> Result<()> {
    let effort = if quick { "--fast" } else { "--best" };
    let tar = format!("{name}.tar");
    run(Command::new("tar")
        .args([
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=u=rwX,go=rX",
        ])
        .arg(format!("--mtime=@{time}"))
        .args(["--format=gnu", "--create", "--file", &tar, name])
        .current_dir(dist))?;
    run(Command::new("gzip")
        .args(["--no-name", effort, &tar])
        .current_dir(dist))
}

/// Names of the files that are shipped.
fn shipped(dist: &Path) -> Result<Vec<String>> {
    let mut names = tree::names(dist)?;
    names.retain(|name| dist.join(name).is_file() && name != "SHA256SUMS");
    Ok(names)
}

/// The shipped file whose name begins and ends like this.
fn shipped_file(dist: &Path, begin: &str, end: &str) -> Result<PathBuf> {
    let names = shipped(dist)?;
    let mut found = names
        .iter()
        .filter(|name| name.starts_with(begin) && name.ends_with(end));
    let name = found.next();
    let name = name.with_context(|| format!("no {begin}…{end} was made"))?;
    Ok(dist.join(name))
}

fn sums(dist: &Path) -> Result<()> {
    let sums = answer(
        Command::new("sha256sum")
            .args(shipped(dist)?)
            .current_dir(dist),
    );
    let sums = sums.context("sha256sum failed")?;
    fs::write(dist.join("SHA256SUMS"), sums + "\n")?;
    Ok(())
}
