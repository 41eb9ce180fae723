//! Steps: named, explained, timed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::cargo::root;

/// Runs one step: prints its name and purpose, then its duration.
///
/// # Errors
/// The step's, under the step's name.
pub fn step<T>(name: &str, why: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("\n── {name}: {why}");
    let started = Instant::now();
    let done = act().with_context(|| format!("step `{name}` failed"))?;
    eprintln!(
        "   {name}: done in {:.1} s",
        started.elapsed().as_secs_f64()
    );
    Ok(done)
}

/// Runs a command with its output shown; an error unless it exits with 0.
///
/// # Errors
/// When it does not start or fails; names the command.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("   $ {}", shown(command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start {}", shown(command)))?;
    ensure!(status.success(), "`{}` ended with {status}", shown(command));
    Ok(())
}

/// The output of a command; `None` if it does not start or fails.
pub fn answer(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The command as a user would type it: the program by its name, paths in the workspace relative to its root.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program
        .file_name()
        .unwrap_or(program.as_os_str())
        .to_string_lossy();
    let root = format!("{}/", root().display());
    let words = command
        .get_args()
        .map(|word| word.to_string_lossy().replace(&root, ""));
    std::iter::once(program.into_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}
