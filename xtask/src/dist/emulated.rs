//! Tests of the limiter, the ledger and forks as programs of arm64, and a job, under QEMU.
//!
//! QEMU shows what the instructions do and what the C library of arm64 answers. On x86-64 it gives them nearly x86-64's order of
//! stores: the models of the ledger are for that.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};

use super::attempt;
use super::platform::{Architecture, Platform, cargo_home};
use super::roots;
use crate::cargo::{root, target};
use crate::steps::run;

/// Crates with the tests.
const TESTED: [&str; 3] = ["divvy-ledger", "divvy-fork", "divvy-shim"];

/// Crates with the programs and libraries that those tests and the job need.
const NEEDED: [&str; 7] = [
    "divvy",
    "divvy-driver",
    "divvy-preload",
    "divvy-wrapper-cuda",
    "divvy-wrapper-nvml",
    "divvy-sim",
    "divvy-clients",
];

/// Tests that fail for a reason of QEMU's or of the root, which each row names.
const LEFT_OUT: [(&str, &str); 13] = [
    (
        "a_program_with_the_filter_gets_no_user_namespace_and_everything_else",
        "QEMU has no seccomp(2)",
    ),
    (
        "a_panic_in_a_copy_ends_it_with_the_code_of_panics",
        "QEMU has a thread of its own, and a process with two is not copied",
    ),
    ("the_code_of_a_copy_is_what_its_closure_returns", "the same"),
    (
        "a_file_that_others_may_write_is_not_trusted",
        "the user namespace has one user",
    ),
    (
        "a_child_forked_after_the_first_call_leaves_its_parents_account_alone",
        "it starts `true`, which is of x86-64 in that root",
    ),
    (
        "compute_processes_that_the_driver_does_not_list_are_listed",
        "the kernel names QEMU in the process's place",
    ),
    (
        "a_new_library_in_the_place_of_the_old_one_is_for_new_programs",
        "QEMU's own loader, of x86-64, complains of the library in LD_PRELOAD",
    ),
    ("a_program_that_allocates_nothing_hears_nothing", "the same"),
    (
        "the_switch_opens_no_slice_that_is_mounted_or_that_its_user_may_not_write",
        "the same",
    ),
    (
        "in_a_program_built_with_the_address_sanitizer",
        "QEMU has the addresses that the sanitizer takes",
    ),
    (
        "in_no_moment_of_a_short_storm_does_a_slice_hold_more_than_its_limit",
        "QEMU starts programs more slowly than the storm kills them",
    ),
    (
        "an_allocation_that_waits_in_a_locked_process_is_counted_and_delays_no_other",
        "the kernel shows the numbers of QEMU's system calls, which are of x86-64",
    ),
    (
        "exhaustive::",
        "the long forms take hours; the short ones run",
    ),
];

/// Builds and runs them, or reports why not.
///
/// # Errors
/// A failed build or test.
pub fn test() -> Result<()> {
    let platform = match Platform::prepare(Architecture::Aarch64) {
        Ok(platform) => platform,
        Err(error) => {
            eprintln!("   SKIPPED: tests as programs of arm64: {error:#}");
            return Ok(());
        }
    };
    let Some(cross) = &platform.cross else {
        eprintln!("   SKIPPED: this machine is of arm64, so all tests have run there");
        return Ok(());
    };
    let place = target().join("arm64");
    let compilers = place.join("bin");
    fs::create_dir_all(&compilers)?;
    for name in ["cc", "gcc"] {
        let link = compilers.join(name);
        if link.symlink_metadata().is_err() {
            symlink("/usr/bin/aarch64-linux-gnu-gcc", link)?;
        }
    }
    let built = place.join("build");
    let programs = built.join(platform.architecture.triple()).join("debug");
    let folders = [root(), target(), cargo_home()?];
    let cargo = |word: &str, packages: &[&str]| -> Result<_> {
        let mut command = roots::emulated(cross, &place, &folders)?;
        command.args([
            "cargo",
            word,
            "--quiet",
            "--locked",
            "--offline",
            "--target",
        ]);
        command.arg(platform.architecture.triple());
        command.args(packages.iter().flat_map(|package| ["--package", package]));
        // What is compiled on this machine runs on it; what the tests compile is of arm64, so they find another `cc`.
        let tests = format!("/usr/bin/env PATH={}:{}", compilers.display(), roots::PATH);
        for (name, value) in [
            (
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
                "aarch64-linux-gnu-gcc",
            ),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &tests),
            ("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc"),
        ] {
            command.env(name, value);
        }
        command.env("CARGO_HOME", cargo_home()?);
        command.env("CARGO_TARGET_DIR", &built);
        command.env("DIVVY_TEST_PROGRAMS", &programs);
        command.envs(std::env::var_os("DIVVY_CUDA_INCLUDE").map(|at| ("DIVVY_CUDA_INCLUDE", at)));
        Ok(command)
    };
    run(&mut cargo("build", &NEEDED)?)?;
    let mut tests = cargo("test", &TESTED)?;
    tests.args(["--no-fail-fast", "--"]);
    for (test, why) in LEFT_OUT {
        eprintln!("   left out: {test}: {why}");
        tests.args(["--skip", test]);
    }
    run(&mut tests)?;
    job(&platform, &programs, &place)
}

/// A Python program that takes more than its job has.
fn job(platform: &Platform, programs: &Path, place: &Path) -> Result<()> {
    let divvy = programs.join("divvy");
    let mut divvy = platform.job(&divvy, place)?;
    attempt::refuses(&mut divvy, Path::new("python3"), place).context("a job of arm64 under QEMU")
}
