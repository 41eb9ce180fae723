//! Required programs: a C compiler, Python with its venv module, rustfmt and clippy; optional: systemd-analyze and tmux. Missing
//! programs are installed if that needs no password (as root with apt-get, or with rustup). Otherwise the error names
//! the command.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cargo::{cargo, target};
use crate::steps::{answer, run};

/// A tool, the command that checks for it, and the packages that contain it.
struct Tool {
    name: &'static str,
    what_for: &'static str,
    check: &'static [&'static str],
    packages: &'static [&'static str],
    /// The tests go on without it, and print what they skip.
    is_optional: bool,
}

const TOOLS: [Tool; 4] = [
    Tool {
        name: "a C compiler (cc)",
        what_for: "it builds SQLite and compiles the tests' C programs",
        check: &["cc", "--version"],
        packages: &["gcc", "libc6-dev"],
        is_optional: false,
    },
    Tool {
        name: "Python 3.11 or newer with the venv module",
        what_for: "the tests use third-party Python clients",
        check: &[
            "python3",
            "-c",
            "import sys, venv, ensurepip; assert sys.version_info >= (3, 11)",
        ],
        packages: &["python3", "python3-venv"],
        is_optional: false,
    },
    Tool {
        name: "systemd-analyze",
        what_for: "it judges the systemd units",
        check: &["systemd-analyze", "--version"],
        packages: &["systemd"],
        is_optional: true,
    },
    Tool {
        name: "tmux",
        what_for: "the tests run divvy top in it",
        check: &["tmux", "-V"],
        packages: &["tmux"],
        is_optional: true,
    },
];

/// Checks what a build needs.
pub fn compiler() -> Result<()> {
    check(&TOOLS[..1])
}

/// Checks what the tests need.
pub fn all() -> Result<()> {
    check(&TOOLS)?;
    for (component, program) in [("rustfmt", "cargo-fmt"), ("clippy", "cargo-clippy")] {
        if answer(Command::new(program).arg("--version")).is_none() {
            run(Command::new("rustup").args(["component", "add", component]))?;
        }
        eprintln!("   {component}: found");
    }
    Ok(())
}

/// The program of this name and version in `target/tools`, installed if it is missing. It is a little optimised: packagers
/// compress and hash a hundred megabytes, which takes cargo-generate-rpm a minute otherwise.
pub fn crate_program(name: &str, version: &str) -> Result<PathBuf> {
    let program = target().join("tools/bin").join(name);
    let found = answer(Command::new(&program).arg("--version"));
    if found.is_some_and(|said| said.contains(version)) {
        Ok(program)
    } else {
        install_program(name, version, &[], "1")
    }
}

/// Builds a program from crates.io into `target/tools`; its path.
///
/// The build is not optimised: that takes a third of the time, and such a program mostly waits for others.
pub fn install_crate(name: &str, version: &str, features: &[&str]) -> Result<PathBuf> {
    install_program(name, version, features, "0")
}

fn install_program(name: &str, version: &str, features: &[&str], level: &str) -> Result<PathBuf> {
    let (tools, build) = (target().join("tools"), target().join("tools-build"));
    let mut install = cargo(&[
        "install",
        name,
        "--version",
        version,
        "--locked",
        "--debug",
        "--quiet",
    ]);
    install
        .args(features)
        .arg("--root")
        .arg(&tools)
        .arg("--target-dir")
        .arg(&build);
    install.env("CARGO_PROFILE_DEV_DEBUG", "0");
    install.env("CARGO_PROFILE_DEV_OPT_LEVEL", level);
    run(&mut install)?;
    fs::remove_dir_all(build)?;
    Ok(tools.join("bin").join(name))
}

fn check(tools: &[Tool]) -> Result<()> {
    let mut updated = false;
    for tool in tools {
        if !is_there(tool) {
            eprintln!("   {} is missing ({})", tool.name, tool.what_for);
            match install(tool, &mut updated) {
                Err(error) if tool.is_optional => {
                    eprintln!("   {error:#}");
                    continue;
                }
                installed => installed?,
            }
            if !is_there(tool) {
                bail!(
                    "{} is still missing after installing {}",
                    tool.name,
                    tool.packages.join(" ")
                );
            }
        }
        eprintln!("   {}: found", tool.name);
    }
    Ok(())
}

fn is_there(tool: &Tool) -> bool {
    answer(Command::new(tool.check[0]).args(&tool.check[1..])).is_some()
}

fn install(tool: &Tool, updated: &mut bool) -> Result<()> {
    let packages = tool.packages.join(" ");
    let root = answer(Command::new("id").arg("-u")).as_deref() == Some("0");
    if !root || answer(Command::new("apt-get").arg("--version")).is_none() {
        bail!(
            "{} is missing: install it and run this command again (Debian and Ubuntu: sudo apt-get install {packages})",
            tool.name
        );
    }
    if !*updated {
        run(Command::new("apt-get").args(["update", "-qq"]))?;
        *updated = true;
    }
    run(Command::new("apt-get")
        .args(["install", "-y", "-qq"])
        .args(tool.packages)
        .env("DEBIAN_FRONTEND", "noninteractive"))
}
