//! `cargo xtask test`: the checks of the project, in the order in which a mistake is cheapest to see.
//!
//! ```text
//! first tier    format, dependencies, lints, build, every promise once, one real crash of each kind
//! --all         also the tests in modules named `exhaustive`, the scenes under Podman and in Chromium, the limiter's other form, links of
//!               comments, advisories, the release
//! ```
//! docs/testing.md has a table of the second tier, and of the tests of the first tier that cover the same promises.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::cargo::{self, cargo, root, target};
use crate::nextest::{self, Run, Tally};
use crate::scratch::Scratch;
use crate::steps::{answer, run, step};
use crate::tier_time::{TierTime, processor_seconds_of_children};
use crate::{advisories, allocators, axe, deny, dist, helm, page, prose, smi, tools, venv};

#[derive(clap::Args)]
pub struct Args {
    /// Run both tiers: also every crash point with real daemons, Podman, the limiter's other form, and the release
    #[arg(long)]
    all: bool,
    /// Record the time of the first tier's tests in xtask/first-tier.toml; the machine should be idle
    #[arg(long, conflicts_with = "all")]
    record: bool,
}

/// End-to-end tests of what the limiter holds, which the second tier runs in the limiter's other form too.
const OF_THE_LIMITER: &str = "package(divvy-e2e) & test(/^(limit|run|race|bypass)::/)";

/// Runs one tier or both.
pub fn run_tiers(args: &Args) -> Result<()> {
    step("tools", "the programs that this command needs", tools::all)?;
    let nextest = step(
        "nextest",
        "runs each test in its own process",
        nextest::program,
    )?;
    step(
        "crates",
        "the Rust crates in Cargo.lock, downloaded if missing",
        cargo::fetch,
    )?;
    let venv = step(
        "clients",
        "a private Python environment with pinned third-party GPU clients",
        venv::make,
    )?;
    let include = venv.cuda_include()?;
    let smi = step(
        "nvidia-smi",
        "NVIDIA's monitor, whose view of a slice is tested",
        || Ok(smi::make()),
    )?;
    step(
        "allocators",
        "memory allocators that tests preload next to the limiter, if available",
        allocators::fetch,
    )?;
    let helm = step(
        "helm",
        "renders the chart, which the tests compare with the API's types",
        || Ok(helm::make()),
    )?;
    step("language", "spelling, words and lengths of texts", || {
        run(Command::new(venv.program("typos")).current_dir(root()))?;
        prose::check()
    })?;
    step("format", "the layout of the code, by rustfmt", || {
        run(&mut cargo(&["fmt", "--all", "--check"]))
    })?;
    step(
        "dependencies",
        "licences and sources of the dependencies, by cargo-deny",
        deny::check,
    )?;
    step(
        "build",
        "programs, libraries and tests, compiled once with clippy's lints; every warning is an error",
        cargo::build_all,
    )?;
    step(
        "python",
        "tests of the packages for the stock ClearML agent, for Ray and for pytest",
        || {
            let test = |package, tests: &[&str]| {
                run(Command::new(venv.python())
                    .args(["-W", "error", "-m", "unittest", "--quiet"])
                    .args(tests)
                    .env("PYTHONDONTWRITEBYTECODE", "1")
                    .env("PYTHONPATH", "src")
                    .current_dir(root().join(package)))
            };
            test(dist::CLEARML, &["tests.test_check", "tests.test_command"])?;
            test(dist::RAY, &[])?;
            test(dist::PYTEST, &[])
        },
    )?;

    step(
        "page",
        "tests of the page's modules that need no browser",
        page::test,
    )?;

    let programs = target().join("debug");
    let mut variables = vec![
        ("DIVVY_TEST_PROGRAMS", programs.clone()),
        ("DIVVY_TEST_PYTHON", venv.python()),
        ("DIVVY_CUDA_INCLUDE", include),
    ];
    variables.extend(smi.map(|program| ("DIVVY_TEST_NVIDIA_SMI", program)));
    variables.extend(helm.map(|found| ("DIVVY_TEST_HELM", found.helm)));
    if args.all {
        let axe = step(
            "axe-core",
            "finds barriers on the pages of divvy web, in Chromium",
            || Ok(axe::make()),
        )?;
        variables.extend(axe.map(|file| ("DIVVY_TEST_AXE", file)));
    }
    let scratch = step(
        "temporary folder",
        "in memory for the journals of the tests' daemons; needs root",
        Scratch::mount,
    )?;
    let temporary = scratch.as_ref().map(Scratch::folder);
    variables.extend(temporary.map(|folder| ("TMPDIR", folder.to_owned())));
    let engine = step(
        "container engine",
        "one Docker daemon with images for all tests; needs root",
        || Engine::start("docker", temporary),
    )?;
    variables.extend(
        engine
            .iter()
            .map(|engine| ("DIVVY_TEST_DOCKER", engine.folder.clone())),
    );

    let profile = if args.all { "all" } else { "default" };
    let test = |profile, words: &[&str], more: Option<(&'static str, &str)>| {
        let mut variables = variables.clone();
        variables.extend(more.map(|(name, value)| (name, PathBuf::from(value))));
        let program = &nextest;
        Run {
            program,
            profile,
            words,
            variables,
        }
        .run()
    };
    let processor = processor_seconds_of_children();
    let began = Instant::now();
    let mut tally = step(
        "tests",
        "unit, property, scenario, crash and end-to-end tests; the last use real clients with the simulated driver",
        || test(profile, &["--workspace"], None),
    )?;
    let time = TierTime {
        tests: tally.passed,
        seconds: began.elapsed().as_secs_f64(),
        processor_seconds: processor_seconds_of_children() - processor,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
    };
    if args.all {
        tally += second_tier(test)?;
    }
    drop(engine);
    drop(scratch);
    let recorded = TierTime::recorded()?;
    if args.record {
        time.record()?;
    }
    let time = (!args.all).then(|| time.beside(&recorded));
    report(&tally, time.as_deref());
    Ok(())
}

/// The steps of the second tier that are not tests of the workspace.
fn second_tier(
    test: impl Fn(&'static str, &[&str], Option<(&'static str, &str)>) -> Result<Tally>,
) -> Result<Tally> {
    let mut tally = Tally::default();
    if answer(Command::new("id").arg("-u")).as_deref() == Some("0") {
        tally += step(
            "tests of the other form",
            "the wrapper for jobs of root, the preload for jobs of other users",
            || {
                // Of the whole workspace, as before: a package alone has other features, and is built anew.
                let words = ["--workspace", "--filterset", OF_THE_LIMITER];
                test("form", &words, Some(("DIVVY_TEST_FORM", "preload")))
            },
        )?;
    }
    step(
        "documentation",
        "links between items in the comments of all libraries, by rustdoc",
        || {
            let words = [
                "doc",
                "--workspace",
                "--lib",
                "--no-deps",
                "--document-private-items",
            ];
            run(cargo(&words).arg("--quiet"))
        },
    )?;
    step(
        "advisories",
        "known faults of the crates in Cargo.lock, by the repository's copy of RustSec's list",
        advisories::check,
    )?;
    step(
        "arm64",
        "tests of limiter, ledger and forks, and a job, as programs of arm64 under QEMU",
        dist::emulated::test,
    )?;
    step(
        "release",
        "builds a release from this build, installs it and uses it",
        || dist::release(true, dist::Architecture::HERE),
    )?;
    Ok(tally)
}

/// A container engine that one process serves for all test processes: `tests/e2e/src/bin/engine.rs`. Gone when dropped.
pub struct Engine {
    pub folder: PathBuf,
    process: Child,
    /// The process ends with it.
    input: Option<ChildStdin>,
}

impl Engine {
    /// `None` if this machine has no engine; the program prints the reason.
    pub fn start(kind: &str, temporary: Option<&Path>) -> Result<Option<Self>> {
        let mut process = Command::new(target().join("debug/engine"))
            .arg(kind)
            .env("DIVVY_TEST_PROGRAMS", target().join("debug"))
            .envs(temporary.map(|folder| ("TMPDIR", folder)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the program `engine`")?;
        let output = process.stdout.take().context("stdout is piped")?;
        let mut folder = String::new();
        BufReader::new(output).read_line(&mut folder)?;
        let folder = folder.trim_end();
        if folder.is_empty() {
            process.wait()?;
            return Ok(None);
        }
        eprintln!("   {folder}");
        Ok(Some(Self {
            folder: folder.into(),
            input: process.stdin.take(),
            process,
        }))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.process.wait();
    }
}

#[expect(clippy::print_stdout, reason = "the run's result is its data")]
fn report(tally: &Tally, time: Option<&str>) {
    println!("\nthe slowest tests:");
    for line in tally.slowest() {
        println!("{line}");
    }
    let (passed, failed, skipped) = (tally.passed, tally.failed, tally.skipped);
    let tiers = if time.is_none() {
        "both tiers"
    } else {
        "first tier"
    };
    if let Some(time) = time {
        println!("\n{time}");
    }
    println!("\n{tiers}: {passed} passed, {failed} failed, {skipped} skipped");
}
