//! Slurm's own commands.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::config::Config;
use super::search_path;

pub struct Programs {
    /// Folders that come before the usual ones.
    first: Option<PathBuf>,
}

impl Programs {
    pub fn new(config: &Config) -> Self {
        Self {
            first: config.slurm_bin.clone(),
        }
    }

    /// What a command of Slurm prints on both streams.
    ///
    /// # Errors
    /// In words, with what the command said.
    pub fn run(&self, name: &str, words: &[&str]) -> Result<String, String> {
        let mut path = search_path();
        if let Some(first) = &self.first {
            let mut with = first.clone().into_os_string();
            with.push(":");
            with.push(path);
            path = with;
        }
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
