//! Calling cargo on this workspace.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::steps::{answer, run, shown};

/// Root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_owned()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    // A running program lies at TARGET/PROFILE/NAME, wherever TARGET was put.
    let own = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.parent()?.to_owned()));
    own.unwrap_or_else(|| root().join("target"))
}

/// `cargo WORDS…` in the root.
pub fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(root());
    command
}

/// Sees to it that every crate of the lockfile is on this machine. The network is used only when one is missing.
pub fn fetch() -> Result<()> {
    if answer(&mut cargo(&["fetch", "--locked", "--offline", "--quiet"])).is_some() {
        eprintln!("   every crate of Cargo.lock is on this machine; the network is not needed");
        return Ok(());
    }
    run(&mut cargo(&["fetch", "--locked"]))
}

/// Tests that passed, failed and were left out, over all test programs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Tally {
    /// Adds the figures of `test result: ok. 12 passed; 0 failed; 1 ignored; …`; other lines count nothing.
    fn count(&mut self, line: &str) {
        let Some((_, figures)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for figure in figures.split("; ") {
            match figure.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                Some((number, "ignored")) => self.ignored += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

/// Runs `cargo test` as `command` says, passes its stdout on as it comes, and adds up its summaries.
///
/// # Errors
/// When a test failed, or when none ran.
pub fn test(command: &mut Command) -> Result<Tally> {
    eprintln!("   $ {}", shown(command));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", shown(command)))?;
    let mut tally = Tally::default();
    let mut stdout = std::io::stdout().lock();
    for line in BufReader::new(child.stdout.take().context("stdout is piped")?).split(b'\n') {
        let line = line?;
        stdout.write_all(&line)?;
        stdout.write_all(b"\n")?;
        tally.count(&String::from_utf8_lossy(&line));
    }
    stdout.flush()?;
    let status = child.wait()?;
    ensure!(
        status.success(),
        "{} tests passed, {} failed; `{}` ended with {status}",
        tally.passed,
        tally.failed,
        shown(command)
    );
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn the_summaries_of_all_test_programs_are_added_up() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ] {
            tally.count(line);
        }
        assert_eq!(
            tally,
            Tally {
                passed: 7,
                failed: 2,
                ignored: 1
            }
        );
    }
}
