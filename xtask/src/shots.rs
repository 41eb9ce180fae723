//! `cargo xtask shots`: builds, then runs the program `shots` of `tests/browser`, which makes the pictures of the page for the
//! documents.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{cargo, root, target};
use crate::steps::{run, step};
use crate::{cargo as crates, tools};

/// Builds, and makes the pictures.
pub fn make() -> Result<()> {
    crates::prepare(tools::compiler)?;
    step(
        "build",
        "Divvy, its limiter, the simulated driver, and the program that drives the browser",
        || {
            run(&mut cargo(&[
                "build",
                "--workspace",
                "--locked",
                "--offline",
            ]))
        },
    )?;
    step(
        "shots",
        "pictures of the page in Chromium, of a simulated machine",
        || run(Command::new(target().join("debug/shots")).arg(root().join("docs/images"))),
    )
}
