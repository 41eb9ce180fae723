//! Arguments of the verbs that enter a running job: `exec`, `shell`, `attach`.

use std::ffi::OsString;

use clap::Args;

use super::{JobArgs, help};

#[derive(Debug, Args)]
#[command(override_usage = "divvy exec [JOB] -- CMD…", after_help = help::EXEC)]
pub struct Exec {
    /// Id, unique name, or `last`
    #[arg(default_value = "last", value_parser = super::job)]
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
    /// A running job to open the shell in [default: a new slice]
    ///
    /// Id, unique name or `last` of a running job [default: a new slice]
    #[arg(conflicts_with_all = [
        "gpu", "gpu_memory", "gpu_memory_exact", "mig_profile", "isolation", "compute", "latency", "name", "queue", "project", "gpus_on",
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
    #[arg(default_value = "last", value_parser = super::job)]
    pub job: String,
    /// Begin with the output so far
    #[arg(long)]
    pub from_start: bool,
    /// Pass no signals: Ctrl-C ends attach, not the job
    #[arg(long)]
    pub no_signals: bool,
}
