//! What may come from outside: cargo-deny holds every dependency to `deny.toml` (licences, sources, no wildcards).
//!
//! Its list of advisories is left out: it comes over the network, and a test must give the same answer twice.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{cargo, root, target};
use crate::steps::{answer, run};

const VERSION: &str = "0.20.2";

/// Checks the workspace; installs cargo-deny into `target/tools` when the machine has none.
pub fn check() -> Result<()> {
    let program = find().map_or_else(install, Ok)?;
    run(Command::new(program)
        .args([
            "--offline",
            "--log-level",
            "error",
            "check",
            "--hide-inclusion-graph",
            "bans",
            "licenses",
            "sources",
        ])
        .current_dir(root()))
}

fn find() -> Option<PathBuf> {
    let ours = target().join("tools/bin/cargo-deny");
    [ours, PathBuf::from("cargo-deny")]
        .into_iter()
        .find(|path| {
            answer(Command::new(path).arg("--version")).is_some_and(|said| said.contains(VERSION))
        })
}

fn install() -> Result<PathBuf> {
    let tools = target().join("tools");
    let mut install = cargo(&[
        "install",
        "cargo-deny",
        "--version",
        VERSION,
        "--locked",
        "--debug",
        "--quiet",
        "--root",
    ]);
    // Without optimisation it is built in two minutes rather than six, and checks in two seconds all the same.
    install
        .arg(&tools)
        .arg("--target-dir")
        .arg(target().join("tools-build"));
    install.env("CARGO_PROFILE_DEV_DEBUG", "0");
    run(&mut install)?;
    std::fs::remove_dir_all(target().join("tools-build"))?;
    Ok(tools.join("bin/cargo-deny"))
}
