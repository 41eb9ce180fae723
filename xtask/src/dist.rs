//! `cargo xtask dist`: builds a release in target/dist, then installs and tests it there.
//!
//! ```text
//! target/dist
//!   divvy-VERSION-x86_64-linux/      bin/, lib/divvy/*.so, share/: units, images, chart, completions, pages; as it is installed
//!   divvy-VERSION-x86_64-linux.tar.gz
//!   clearml_agent_fractional_gpu-VERSION-py3-none-any.whl
//!   SHA256SUMS
//! ```
//! The build is reproducible with the same commit, toolchain, C library and linker. Programs contain no paths of the machine, files
//! are sorted and have the commit's time, and compressed files contain no date.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{LOADED, Optimised, build_programs, root, target};
use crate::steps::{answer, run, step};
use crate::{cargo as crates, tools, venv};

#[derive(clap::Args)]
pub struct Args {
    /// Use the unoptimised build of the tests, to test this command; not for release
    #[arg(long)]
    quick: bool,
}

/// Packages, and the files that each builds.
const BUILT: [(&str, &str, &str); 6] = [
    ("divvy", "divvy", "bin"),
    ("divvy-k8s", "divvy-k8s", "bin"),
    ("divvy-preload", "libdivvy_preload.so", "lib/divvy"),
    ("divvy-wrapper-cuda", "libdivvy_cuda.so", "lib/divvy"),
    ("divvy-wrapper-nvml", "libdivvy_nvml.so", "lib/divvy"),
    // For `--sim`: a first try needs no GPU.
    ("divvy-sim", "libdivvy_sim.so", "lib/divvy"),
];

/// Folders and files of the repository, and where they lie when installed.
const SHARED: [(&str, &str); 8] = [
    ("deploy/helm", "share/divvy/helm"),
    ("deploy/systemd", "lib/systemd"),
    ("deploy/images", "share/divvy/images"),
    ("docs", "share/doc/divvy/docs"),
    ("examples", "share/doc/divvy/examples"),
    ("README.md", "share/doc/divvy/README.md"),
    ("LIMITS.md", "share/doc/divvy/LIMITS.md"),
    ("LICENSE", "share/doc/divvy/LICENSE"),
];

/// Shells, and where each looks for what it may complete.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/divvy"),
    ("zsh", "share/zsh/site-functions/_divvy"),
    ("fish", "share/fish/vendor_completions.d/divvy.fish"),
];

pub const WHEEL: &str = "python/clearml-agent-fractional-gpu";

pub fn make(args: &Args) -> Result<()> {
    step("tools", "the programs that this command needs", tools::all)?;
    step(
        "crates",
        "the Rust crates in Cargo.lock, downloaded if missing",
        crates::fetch,
    )?;
    step(
        "clients",
        "a Python environment that can build the wheel",
        venv::make,
    )?;
    release(args.quick)
}

/// The release alone; tools, crates and Python must be present.
pub fn release(quick: bool) -> Result<()> {
    let built = step("build", "programs and libraries", || match quick {
        true => quickly(),
        false => optimised(),
    })?;
    let dist = target().join("dist");
    if dist.exists() {
        fs::remove_dir_all(&dist).with_context(|| format!("remove {}", dist.display()))?;
    }
    let name = format!("divvy-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let tree = dist.join(&name);
    let time = commit_time();
    step("tree", "all files in the layout of an installation", || {
        gather(&built, &tree, quick)
    })?;
    step("wheel", "the package for the ClearML agent", || {
        wheel(&dist, &time)
    })?;
    step("archive", "all files in one archive", || {
        archive(&dist, &name, &time, quick)
    })?;
    step("sums", "the SHA-256 checksum of each file", || sums(&dist))?;
    step(
        "try",
        "runs the archive's program, installs the wheel, checks the checksums",
        || attempt(&dist, &name),
    )?;
    eprintln!("\n   {}", dist.display());
    Ok(())
}

/// The build of the tests.
fn quickly() -> Result<PathBuf> {
    build_programs()?;
    Ok(target().join("debug"))
}

/// In a target folder of its own: other flags would have everything else built anew.
fn optimised() -> Result<PathBuf> {
    let folder = target().join("dist-build");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let places = [(Some(root()), "/divvy"), (home, "/cargo")];
    let flags: Vec<String> = places
        .iter()
        .filter_map(|(from, to)| {
            Some(format!(
                "--remap-path-prefix={}={to}",
                from.as_ref()?.display()
            ))
        })
        .collect();
    let is_loaded = |package: &str| LOADED.iter().any(|(loaded, _)| *loaded == package);
    let others = BUILT.iter().filter(|(package, ..)| !is_loaded(package));
    let others: Vec<&str> = others
        .flat_map(|(package, ..)| ["--package", package])
        .collect();
    let build = Optimised {
        target: folder,
        variables: vec![("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))],
    };
    build.build(&[&others])
}

/// Seconds since 1970 of the commit, which every file has; of a tree without one, a day long ago.
fn commit_time() -> String {
    let time = answer(
        Command::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(root()),
    );
    time.unwrap_or_else(|| "315532800".to_owned())
}

fn gather(built: &Path, tree: &Path, quick: bool) -> Result<()> {
    for (_, file, place) in BUILT {
        let to = tree.join(place);
        fs::create_dir_all(&to)?;
        let (from, to) = (built.join(file), to.join(file));
        if quick {
            copy(&from, &to)?;
        } else {
            run(Command::new("strip")
                .arg("--strip-debug")
                .arg("-o")
                .args([&to, &from]))?;
        }
    }
    for (from, to) in SHARED {
        copy(&root().join(from), &tree.join(to))?;
    }
    let divvy = tree.join("bin/divvy");
    for (shell, place) in COMPLETIONS {
        let script = answer(Command::new(&divvy).args(["completion", shell]));
        let script = script.with_context(|| format!("`divvy completion {shell}` failed"))?;
        let to = tree.join(place);
        fs::create_dir_all(to.parent().context("every place has a folder")?)?;
        fs::write(&to, script + "\n")?;
    }
    run(Command::new(&divvy)
        .arg("manual")
        .arg(tree.join(PAGES))
        .stdout(Stdio::null()))
}

/// Manual pages, without names of people or dates in them.
const PAGES: &str = "share/man/man1";

/// A file, or a folder with everything in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().context("every place has a folder")?)?;
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn wheel(dist: &Path, time: &str) -> Result<()> {
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
        .arg(root().join(WHEEL))
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
    let mut names = Vec::new();
    for entry in fs::read_dir(dist)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && name != "SHA256SUMS" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
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

/// Installs the release as a user would after a download, and uses it.
fn attempt(dist: &Path, name: &str) -> Result<()> {
    run(Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(dist))?;
    let place = target().join("dist-try");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    run(Command::new("tar")
        .args(["--extract", "--file"])
        .arg(dist.join(format!("{name}.tar.gz")))
        .arg("--directory")
        .arg(&place))?;
    let divvy = place.join(name).join("bin/divvy");
    let mut first = Command::new(&divvy);
    first.args([
        "run",
        "--no-daemon",
        "--sim",
        "a100-80gb:1",
        "-g",
        "0.25",
        "--",
        "true",
    ]);
    run(first
        .env("DIVVY_HOME", place.join("home"))
        .env_remove("DIVVY_LIB_DIR"))?;
    let cluster = answer(Command::new(place.join(name).join("bin/divvy-k8s")).arg("--version"));
    ensure!(
        cluster.is_some_and(|said| said.contains(env!("CARGO_PKG_VERSION"))),
        "divvy-k8s of the archive does not run"
    );
    let shipped = shipped(dist)?;
    let wheel = shipped.iter().find(|file| file.ends_with(".whl"));
    let wheel = dist.join(wheel.context("no wheel was made")?);
    let python = place.join("venv/bin/python");
    run(Command::new("python3")
        .args(["-m", "venv"])
        .arg(place.join("venv")))?;
    run(Command::new(&python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ])
        .arg(wheel))?;
    run(Command::new(&python)
        .args([
            "-W", "error", "-m", "unittest", "discover", "--quiet", "-t", ".", "-s", "tests",
        ])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root().join(WHEEL)))?;
    let said =
        answer(Command::new(place.join("venv/bin/clearml-agent-fractional-gpu")).arg("--help"));
    ensure!(
        said.is_some_and(|said| said.contains("ExecStartPre")),
        "the wheel's program printed no help"
    );
    fs::remove_dir_all(&place)?;
    Ok(())
}
