//! Slurm's own commands.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use super::config::Config;
use super::search_path;

/// How many processes lie between this one and slurmd at most: shells of a site's own Prolog.
const ANCESTORS: u32 = 8;

pub struct Programs {
    /// Folders that come before the usual ones.
    first: Vec<PathBuf>,
}

impl Programs {
    /// `slurm_bin`, and otherwise the commands of the release that runs this program.
    pub fn new(config: &Config) -> Self {
        let first = match &config.slurm_bin {
            Some(folder) => vec![folder.clone()],
            None => of_the_caller(Path::new("/proc"), std::os::unix::process::parent_id()),
        };
        Self { first }
    }

    /// What a command of Slurm prints on both streams.
    ///
    /// # Errors
    /// In words, with what the command said.
    pub fn run(&self, name: &str, words: &[&str]) -> Result<String, String> {
        let mut path = OsString::new();
        for folder in &self.first {
            path.push(folder);
            path.push(":");
        }
        path.push(search_path());
        let line = || format!("`{name} {}`", words.join(" "));
        let output = Command::new("/usr/bin/env")
            .arg(name)
            .args(words)
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{} does not start: {error}", line()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let said: String = said.trim().chars().take(300).collect();
            return Err(format!("{} failed ({}): {said}", line(), output.status));
        }
        Ok(format!("{}{said}", String::from_utf8_lossy(&output.stdout)))
    }

    /// The description of a job.
    pub fn show_job(&self, job: u32) -> Result<String, String> {
        self.run("scontrol", &["-d", "show", "job", &job.to_string()])
    }

    /// Numbers of the jobs that Slurm has on a node, those that are completing too.
    pub fn jobs_on(&self, node: &str) -> Result<Vec<u32>, String> {
        // By default squeue lists the states that hold something: pending, running, suspended and completing.
        let text = self.run("squeue", &["--noheader", "-w", node, "-o", "%A"])?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect())
    }

    pub fn set_comment(&self, job: u32, comment: &str) -> Result<(), String> {
        let job = format!("JobId={job}");
        self.run("scontrol", &["update", &job, &format!("Comment={comment}")])
            .map(|_| ())
    }
}

/// The folders of the commands beside the slurmd or slurmstepd that is an ancestor of this process: a site may have Slurm
/// in a folder of its own, or two releases. Empty without one.
fn of_the_caller(proc: &Path, parent: u32) -> Vec<PathBuf> {
    let mut process = parent;
    for _ in 0..ANCESTORS {
        let folder = proc.join(process.to_string());
        let Some(parent) = parent_of(&folder) else {
            break;
        };
        let program = fs::read_link(folder.join("exe")).unwrap_or_default();
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        // Below sudo, an ancestor may be a program of an ordinary user.
        let is_ours = fs::metadata(&folder).is_ok_and(|found| found.uid() == geteuid().as_raw());
        if is_ours && name.starts_with("slurm") {
            return beside(&program);
        }
        process = parent;
    }
    Vec::new()
}

/// The `PPid` of a process's status.
fn parent_of(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// `/opt/slurm/bin` and `/opt/slurm/sbin` for `/opt/slurm/sbin/slurmd`; empty without scontrol in the first.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(prefix) = program.parent().and_then(Path::parent) else {
        return Vec::new();
    };
    let folders = [prefix.join("bin"), prefix.join("sbin")];
    match folders[0].join("scontrol").is_file() {
        true => folders.into(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A process below a folder that stands for `/proc`.
    fn process(proc: &Path, number: u32, parent: u32, program: &Path) {
        let folder = proc.join(number.to_string());
        fs::create_dir(&folder).unwrap();
        fs::write(
            folder.join("status"),
            format!("Name:\tx\nPPid:\t{parent}\n"),
        )
        .unwrap();
        symlink(program, folder.join("exe")).unwrap();
    }

    #[test]
    fn the_commands_are_those_of_the_slurmd_that_calls() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, slurm) = (folder.path().join("proc"), folder.path().join("slurm"));
        for made in [&proc, &slurm, &slurm.join("bin")] {
            fs::create_dir(made).unwrap();
        }
        process(&proc, 1, 0, Path::new("/sbin/init"));
        process(&proc, 5, 1, &slurm.join("sbin/slurmd (deleted)"));
        process(&proc, 7, 5, Path::new("/bin/sh"));
        assert_eq!(of_the_caller(&proc, 7), Vec::<PathBuf>::new());
        fs::write(slurm.join("bin/scontrol"), "").unwrap();
        let folders = [slurm.join("bin"), slurm.join("sbin")];
        assert_eq!(of_the_caller(&proc, 7), folders);
        // A shell of the administrator.
        process(&proc, 8, 1, Path::new("/bin/sh"));
        assert_eq!(of_the_caller(&proc, 8), Vec::<PathBuf>::new());
        assert_eq!(of_the_caller(&proc, 99), Vec::<PathBuf>::new());
    }
}
