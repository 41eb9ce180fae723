//! Verbs that get into a running job: `exec`, `shell`, `attach`.

use std::ffi::OsString;

use clap::Args;

use super::{JobArgs, help};

#[derive(Debug, Args)]
#[command(override_usage = "divvy exec [JOB] -- CMD…", after_help = help::EXEC)]
pub struct Exec {
    /// Id, unique name, or `last`
    #[arg(default_value = "last")]
    pub job: String,
    /// The program and its arguments, after `--`
    #[arg(value_name = "CMD", last = true, required = true)]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "divvy shell JOB\n       divvy shell [-g AMOUNT | --gpu-memory SIZE | --mig-profile PROFILE]\n                   [OPTIONS]",
    after_help = help::SHELL
)]
pub struct Shell {
    /// A running job to open it in; without one, a slice of its own
    ///
    /// Id, unique name, or `last`.
    #[arg(conflicts_with_all = [
        "gpu", "gpu_memory", "gpu_memory_exact", "mig_profile", "isolation", "compute", "name", "queue", "project", "gpus_on",
        "priority", "time", "after", "after_ok", "env", "env_file", "secret", "no_wait", "sim",
    ])]
    pub in_job: Option<String>,
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Debug, Args)]
#[command(after_help = help::ATTACH)]
pub struct Attach {
    /// Id, unique name, or `last`
    #[arg(default_value = "last")]
    pub job: String,
    /// Begin with what it has said so far
    #[arg(long)]
    pub from_start: bool,
    /// Keep signals from the job: Ctrl-C ends attach and nothing else
    #[arg(long)]
    pub no_signals: bool,
}
