//! `cargo xtask demo`: builds, then runs the program `demo` of `tests/e2e`, which shows three GPUs shared by four queues and
//! checks every fact it shows.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{cargo, target};
use crate::steps::{run, step};
use crate::{cargo as crates, tools};

/// Builds and shows.
pub fn show() -> Result<()> {
    crates::prepare(tools::compiler)?;
    step(
        "build",
        "Divvy, its limiter, the simulated driver and the CUDA programs of the jobs",
        || {
            run(&mut cargo(&[
                "build",
                "--workspace",
                "--locked",
                "--offline",
            ]))
        },
    )?;
    step("demo", "three GPUs, four queues, one job each", || {
        run(&mut Command::new(target().join("debug/demo")))
    })
}
