//! cargo-nextest: finds or installs it, runs the tests with it, and reads its report.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use roxmltree::{Document, Node};

use crate::cargo::{forget_this_package, lint_while_compiling, root, target};
use crate::steps::{answer, shown};
use crate::tools;

/// The version to install if the machine has none that `.config/nextest.toml` accepts.
const VERSION: &str = "0.9.151";

/// How many of the slowest tests are printed. One screen with the summary; the rest of 4,000 tests would hide it.
const SLOWEST: usize = 10;

/// Tests of one run, by outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// Seconds and name of each test that ran.
    times: Vec<(f64, String)>,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.times.extend(other.times);
    }
}

impl Tally {
    /// Reads a report in JUnit's form: a `testsuite` for each test program, a `testcase` for each test that ran.
    fn read(report: &str) -> Result<Self> {
        let document = Document::parse(report).context("the report of the tests is not XML")?;
        let mut tally = Self::default();
        let cases = document
            .descendants()
            .filter(|node| node.has_tag_name("testcase"));
        for case in cases {
            let has = |name: &str| case.children().any(|child| child.has_tag_name(name));
            match (has("failure") || has("error"), has("skipped")) {
                (true, _) => tally.failed += 1,
                (false, true) => tally.skipped += 1,
                (false, false) => tally.passed += 1,
            }
            let text =
                |node: Node<'_, '_>, name: &str| node.attribute(name).unwrap_or("?").to_owned();
            let seconds = text(case, "time").parse().unwrap_or(0.0);
            tally.times.push((
                seconds,
                format!("{} {}", text(case, "classname"), text(case, "name")),
            ));
        }
        Ok(tally)
    }

    /// The slowest tests, slowest first, a line each.
    pub fn slowest(&self) -> Vec<String> {
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by(|one, other| other.0.total_cmp(&one.0));
        let lines = times.into_iter().take(SLOWEST);
        lines
            .map(|(seconds, name)| format!("{seconds:7.1} s  {name}"))
            .collect()
    }
}

/// Path of cargo-nextest.
pub fn program() -> Result<PathBuf> {
    let ours = target().join("tools/bin/cargo-nextest");
    let found = [PathBuf::from("cargo-nextest"), ours]
        .into_iter()
        .find(|path| {
            let said = answer(
                Command::new(path)
                    .args(["nextest", "--version"])
                    .current_dir(root()),
            );
            // `cargo-nextest 0.9.143 (60fa45f63 2026-08-04)`
            let version = said
                .as_deref()
                .and_then(|said| said.split_whitespace().nth(1));
            version.is_some_and(|version| numbers(version) >= numbers(required()))
        });
    if let Some(found) = found {
        eprintln!("   {}: found", found.display());
        return Ok(found);
    }
    // Its own updates, over the network, are left out.
    tools::install_crate("cargo-nextest", VERSION, &["--no-default-features"])
}

/// The oldest version that the configuration works with.
fn required() -> &'static str {
    let config = include_str!("../../.config/nextest.toml");
    let mut lines = config.lines();
    let line = lines.find_map(|line| line.strip_prefix("nextest-version = "));
    line.expect("nextest.toml contains nextest-version")
        .trim_matches('"')
}

fn numbers(version: &str) -> Vec<u64> {
    let parts = version.split(['.', '-', '+']);
    parts.map_while(|part| part.parse().ok()).collect()
}

/// How many tests run at a time: three times the processors, since most tests wait for a daemon half of their time.
fn threads() -> usize {
    3 * std::thread::available_parallelism().map_or(2, usize::from)
}

/// One run of the tests.
pub struct Run<'a> {
    pub program: &'a Path,
    /// Profile of `.config/nextest.toml`.
    pub profile: &'a str,
    pub words: &'a [&'a str],
    pub variables: Vec<(&'a str, PathBuf)>,
}

impl Run<'_> {
    /// Runs the tests, their output shown as it comes, and adds up the report.
    ///
    /// # Errors
    /// When a test failed, or none ran.
    pub fn run(self) -> Result<Tally> {
        let report = target()
            .join("nextest")
            .join(self.profile)
            .join("junit.xml");
        let _ = fs::remove_file(&report);
        let mut command = detached(self.program);
        forget_this_package(&mut command);
        lint_while_compiling(&mut command);
        command
            .args([
                "nextest",
                "run",
                "--locked",
                "--offline",
                "--profile",
                self.profile,
            ])
            .args(["--test-threads", &threads().to_string()])
            .args(self.words)
            .env("CARGO_NET_OFFLINE", "true")
            // Images of Python set it. Then each Python of the tests would compile what it imports.
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .envs(self.variables)
            .current_dir(root())
            .stdin(Stdio::null());
        eprintln!("   $ {}", shown(&command));
        let status = command
            .status()
            .with_context(|| format!("start {}", shown(&command)))?;
        let tally = fs::read_to_string(&report)
            .map_or_else(|_| Ok(Tally::default()), |report| Tally::read(&report))?;
        ensure!(
            status.success(),
            "{} tests passed, {} failed; `{}` ended with {status}",
            tally.passed,
            tally.failed,
            shown(&command)
        );
        ensure!(tally.passed > 0, "no test ran");
        Ok(tally)
    }
}

/// The program with the signal dispositions of an interactive shell, independent of its own: a script's `&` ignores
/// SIGINT and SIGQUIT, and ignored signals are inherited. After `nohup` it gets a session of its own, which no terminal
/// hangs up.
fn detached(program: &Path) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal");
    if ignores_hangup() {
        command.args(["setsid", "--wait"]);
    }
    command.arg(program);
    command
}

fn ignores_hangup() -> bool {
    const SIGHUP: u32 = 1;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or_default() >> (SIGHUP - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="nextest-run" tests="3" failures="1" errors="0">
          <testsuite name="divvy-core" tests="2">
            <testcase name="a::passes" classname="divvy-core" time="0.25"></testcase>
            <testcase name="b::fails" classname="divvy-core" time="1.5">
              <failure type="test failure">thread &lt;main&gt; panicked</failure>
            </testcase>
          </testsuite>
          <testsuite name="divvy-e2e::it" tests="1">
            <testcase name="c" classname="divvy-e2e::it" time="12.0"/>
          </testsuite>
        </testsuites>"#;

    #[test]
    fn the_report_gives_outcomes_and_the_slowest_tests_first() {
        let tally = Tally::read(REPORT).unwrap();
        assert_eq!((tally.passed, tally.failed, tally.skipped), (2, 1, 0));
        let slowest = tally.slowest();
        assert_eq!(slowest[0], "   12.0 s  divvy-e2e::it c");
        assert_eq!(slowest[1], "    1.5 s  divvy-core b::fails");
    }

    #[test]
    fn what_is_no_report_is_an_error() {
        assert!(Tally::read("<testsuites>").is_err());
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(numbers("0.9.143") >= numbers("0.9.98"));
        assert!(numbers(VERSION) >= numbers(required()));
    }
}
