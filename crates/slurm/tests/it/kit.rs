//! What the tests share: the plugin in its stand-in, and commands of Slurm that answer what a real Slurm printed.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_testkit::{Bounded as _, CommandOutput, Programs, compiled};
use tempfile::TempDir;

pub const JOB: &str = include_str!("data/job-two-nodes.txt");
pub const WHOLE: &str = include_str!("data/job-whole.txt");
pub const GRES: &str = include_str!("data/slurmd-gres.txt");
pub const PROLOG: &str = include_str!("data/prolog-shard.env");
pub const EPILOG: &str = include_str!("data/epilog-shard.env");

/// The stand-in for a release of Slurm, by the number of its libslurm.
pub fn stand_in(api: u32) -> PathBuf {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/stand_in.c"));
    compiled(source, "stand_in", &["-rdynamic", &format!("-DAPI={api}")])
}

pub fn plugin() -> PathBuf {
    Programs::of_this_test().path("libspank_divvy.so")
}

/// A node of Slurm without Slurm.
pub struct Node {
    folder: TempDir,
}

impl Node {
    pub fn new() -> Self {
        let node = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(node.path("bin")).unwrap();
        node.answers("scontrol", JOB);
        node.answers("slurmd", GRES);
        node.answers("squeue", "");
        node.configure("");
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn records(&self) -> PathBuf {
        self.path("records")
    }

    pub fn record(&self, job: u32) -> PathBuf {
        self.records().join(format!("{job}.json"))
    }

    /// Has a command of Slurm print a text: `scontrol -d show job N` with the number of the job.
    pub fn answers(&self, name: &str, text: &str) {
        let answer = self.path(&format!("{name}.txt"));
        fs::write(&answer, text).unwrap();
        let log = self.path("calls");
        let script = format!(
            "#!/bin/sh\necho \"{name} $*\" >> {}\nsed \"s/^JobId=[0-9]*/JobId=$4/\" {}\n",
            log.display(),
            answer.display()
        );
        self.script(name, &script);
    }

    /// Has a command of Slurm fail.
    pub fn fails(&self, name: &str, why: &str) {
        self.script(name, &format!("#!/bin/sh\necho '{why}' >&2\nexit 1\n"));
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The calls of Slurm's commands since the last look.
    pub fn calls(&self) -> String {
        let log = self.path("calls");
        let calls = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        calls
    }

    /// Writes slurm.toml with these lines.
    pub fn configure(&self, lines: &str) {
        let bin = self.path("bin");
        let text = format!(
            "slurm_bin = {:?}\n{lines}\n{}",
            bin.display().to_string(),
            if lines.contains("wait_seconds") {
                ""
            } else {
                "wait_seconds = 1\n"
            }
        );
        fs::write(self.path("slurm.toml"), text).unwrap();
    }

    /// Runs a command as slurmd does: with its environment and no other.
    pub fn run(&self, verb: &str, environment: &str, more: &[(&str, &str)]) -> CommandOutput {
        let mut command = Command::new(Programs::of_this_test().path("divvy-slurm"));
        command.arg(verb).env_clear();
        command.envs(environment.lines().filter_map(|line| line.split_once('=')));
        command.envs(more.iter().copied());
        command.env("DIVVY_SLURM_RECORDS", self.records());
        command.env("DIVVY_SLURM_CONFIG", self.path("slurm.toml"));
        let output = command.output_bounded().expect("divvy-slurm starts");
        CommandOutput::new(verb.to_owned(), &output)
    }

    /// The same, and it succeeds.
    #[track_caller]
    pub fn does(&self, verb: &str, environment: &str, more: &[(&str, &str)]) {
        let said = self.run(verb, environment, more).ok();
        eprint!("{}", said.stderr);
    }

    /// Runs a task of a job in the stand-in.
    pub fn task(&self, words: &[&str], command: &[&str]) -> CommandOutput {
        let records = format!("argument=records={}", self.records().display());
        let mut stand_in = Command::new(stand_in(38));
        stand_in.arg(plugin()).arg("remote").arg(records);
        stand_in.args(words).arg("--").args(command);
        let output = stand_in.output_bounded().expect("the stand-in starts");
        CommandOutput::new(command.join(" "), &output)
    }
}
