//! Slurm's own commands.

use std::ffi::OsString;
use std::fs;
use std::iter::successors;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy_api::proc;
use rustix::process::geteuid;

use super::config::Config;
use super::environment::search_path;

/// How many processes lie between this one and slurmd at most: shells of a site's own Prolog. A site's Prolog calls
/// ours through a shell or two; twice that is enough, and it bounds a walk to init.
const ANCESTORS: usize = 8;

pub struct Programs {
    /// Folders that come before the usual ones.
    first: Vec<PathBuf>,
}

impl Programs {
    /// `slurm_bin`, and otherwise the commands of the release that runs this program.
    pub fn new(config: &Config) -> Self {
        let first = match &config.slurm_bin {
            Some(folder) => vec![folder.clone()],
            None => of_the_caller(),
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
fn of_the_caller() -> Vec<PathBuf> {
    let ancestors = successors(Some(parent_id()), |pid| proc::parent(*pid));
    let folders = ancestors
        .take(ANCESTORS)
        .map(|pid| PathBuf::from(format!("/proc/{pid}")));
    // Below sudo, an ancestor may be a program of an ordinary user.
    let ours = folders
        .filter(|folder| fs::metadata(folder).is_ok_and(|found| found.uid() == geteuid().as_raw()));
    of_programs(ours.filter_map(|folder| fs::read_link(folder.join("exe")).ok()))
}

/// The folders beside the first of these programs that is Slurm's.
fn of_programs(mut programs: impl Iterator<Item = PathBuf>) -> Vec<PathBuf> {
    let is_slurms = |program: &PathBuf| {
        let name = program.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("slurm")
    };
    let found = programs.find(is_slurms);
    found.map_or_else(Vec::new, |program| beside(&program))
}

/// `/opt/slurm/bin` and `/opt/slurm/sbin` for `/opt/slurm/sbin/slurmd`; empty without scontrol in the first.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(prefix) = program.parent().and_then(Path::parent) else {
        return Vec::new();
    };
    let folders = [prefix.join("bin"), prefix.join("sbin")];
    if folders[0].join("scontrol").is_file() {
        folders.into()
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_those_of_the_slurmd_that_calls() {
        let folder = tempfile::tempdir().unwrap();
        let slurm = folder.path().join("slurm");
        fs::create_dir_all(slurm.join("bin")).unwrap();
        let [shell, init] = ["/bin/sh", "/sbin/init"].map(PathBuf::from);
        // Its file was replaced meanwhile.
        let slurmd = slurm.join("sbin/slurmd (deleted)");
        let of_hook = || of_programs([&shell, &slurmd, &init].into_iter().cloned());
        assert_eq!(of_hook(), Vec::<PathBuf>::new());
        fs::write(slurm.join("bin/scontrol"), "").unwrap();
        assert_eq!(of_hook(), [slurm.join("bin"), slurm.join("sbin")]);
        // A shell of the administrator.
        let of_shell = of_programs([shell, init].into_iter());
        assert_eq!(of_shell, Vec::<PathBuf>::new());
        assert_eq!(of_programs(std::iter::empty()), Vec::<PathBuf>::new());
    }
}
