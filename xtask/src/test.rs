//! `cargo xtask test`: everything the project checks, in the order in which a mistake is cheapest to see.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::{self, cargo};
use crate::steps::{answer, run, step};
use crate::{allocators, deny, dist, helm, smi, tools, venv};

/// End-to-end tests of what the limiter holds.
const OF_THE_LIMITER: [&str; 9] = [
    "--package",
    "divvy-e2e",
    "--test",
    "it",
    "--",
    "limit::",
    "run::",
    "race::",
    "bypass::",
];

/// The whole run; nothing is checked anywhere else.
pub fn everything() -> Result<()> {
    step("tools", "what the machine has to bring", tools::all)?;
    step(
        "crates",
        "the Rust libraries that Cargo.lock names",
        cargo::fetch,
    )?;
    let venv = step(
        "clients",
        "a private Python environment with third-party GPU clients, pinned",
        venv::make,
    )?;
    let include = venv.cuda_include()?;
    let smi = step(
        "nvidia-smi",
        "NVIDIA's own monitor, which is to show a slice; not ours to ship",
        || Ok(smi::make()),
    )?;
    step(
        "allocators",
        "memory allocators that are preloaded beside the limiter, where they can be had",
        allocators::fetch,
    )?;
    let helm = step(
        "helm",
        "renders the chart, which the tests hold against the API's types",
        || Ok(helm::make()),
    )?;
    step("format", "one way to lay out code", || {
        quietly(&["fmt", "--all", "--check"])
    })?;
    step(
        "dependencies",
        "licences and sources of what comes from outside, by cargo-deny",
        deny::check,
    )?;
    step("lints", "clippy, every warning an error", || {
        quietly(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--offline",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])
    })?;
    step(
        "build",
        "the programs and libraries that the end-to-end tests run",
        || quietly(&["build", "--workspace", "--locked", "--offline", "--quiet"]),
    )?;
    let test = |words: &[&str], form: Option<&str>| {
        let mut command = cargo(&["test", "--locked", "--offline", "--no-fail-fast"]);
        command.args(words);
        command
            .env("CARGO_NET_OFFLINE", "true")
            .env("DIVVY_TEST_PYTHON", venv.python())
            .env("DIVVY_CUDA_INCLUDE", &include)
            .envs(smi.iter().map(|program| ("DIVVY_TEST_NVIDIA_SMI", program)))
            .envs(helm.iter().map(|found| ("DIVVY_TEST_HELM", &found.helm)))
            .envs(form.map(|form| ("DIVVY_TEST_FORM", form)));
        cargo::test(&mut command)
    };
    step(
        "examples in the documentation",
        "what the comments show compiles and holds",
        || test(&["--workspace", "--doc", "--quiet"], None),
    )?;
    let mut tally = step(
        "tests",
        "unit, property, scenario, crash and end-to-end tests, the last with real clients over the simulated driver",
        || {
            let all = ["--workspace", "--lib", "--bins", "--tests", "--examples"];
            test(&all, None)
        },
    )?;
    if answer(Command::new("id").arg("-u")).as_deref() == Some("0") {
        tally += step(
            "tests of the other form",
            "root's jobs get the limiter as a wrapper, everybody else's as a preload",
            || test(&OF_THE_LIMITER, Some("preload")),
        )?;
    }
    step(
        "release",
        "what a release ships is made from this build, installed and used",
        || dist::release(true),
    )?;
    ensure!(tally.passed > 0, "no test ran");
    eprintln!();
    say_tally(tally);
    Ok(())
}

fn quietly(words: &[&str]) -> Result<()> {
    run(&mut cargo(words))
}

#[expect(clippy::print_stdout, reason = "the run's result is its data")]
fn say_tally(tally: cargo::Tally) {
    println!(
        "{} passed, {} failed, {} skipped",
        tally.passed, tally.failed, tally.ignored
    );
}
