//! Further flags of `run` and `submit`: priority, time limits, dependencies and variables.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use divvy_api::v1::IdleAction;

#[derive(Clone, Debug, Default, Args)]
pub struct TermArgs {
    /// Higher first, -1000 to 1000 [default: 0]
    ///
    /// Higher first in its queue and its project, -1000 to 1000 [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<String>,
    /// Stop the job when it has run this long: 30m, 2h
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// If it uses no GPU for this long: 30m, none
    ///
    /// Apply --idle-action when the job has not used its GPUs for this long: 30m; `none`: never
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<String>,
    /// then notify (default), park, suspend, cancel
    ///
    /// Action at --idle-timeout: notify (an event), park, suspend or cancel [default: notify]
    #[arg(
        long,
        value_name = "ACTION",
        requires = "idle_timeout",
        hide_possible_values = true
    )]
    pub idle_action: Option<IdleWord>,
    /// Give its GPU memory to others if idle for: 10m
    ///
    /// Move its GPU memory to host memory when it has not used its GPUs for this long and another job needs the room:
    /// 10m. The same as --idle-timeout 10m --idle-action park
    #[arg(long, value_name = "TIME", conflicts_with = "idle_timeout")]
    pub park_after: Option<String>,
    /// Start when this job has ended; repeatable
    ///
    /// Start when this job, or every job of this array, has ended, in whatever way; repeatable
    #[arg(long, value_name = "JOB")]
    pub after: Vec<String>,
    /// Start if it has ended with code 0; repeatable
    ///
    /// Start when this job, or every job of this array, has exited with code 0; end without a start if one fails;
    /// repeatable
    #[arg(long, value_name = "JOB")]
    pub after_ok: Vec<String>,
    /// Set a variable, or pass this shell's; repeatable
    ///
    /// Set a variable, or pass this shell's value on; repeatable
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Set variables from a file; repeatable
    ///
    /// Set variables from a file with lines NAME=VALUE; repeatable
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// As --env, with a value that is never shown
    ///
    /// As --env, for a secret value: the journal, lists and logs never contain it; repeatable
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub secret: Vec<String>,
}

/// The action for an idle job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleWord {
    Notify,
    Park,
    Suspend,
    Cancel,
}

impl From<IdleWord> for IdleAction {
    fn from(word: IdleWord) -> Self {
        match word {
            IdleWord::Notify => Self::Notify,
            IdleWord::Park => Self::Park,
            IdleWord::Suspend => Self::Suspend,
            IdleWord::Cancel => Self::Cancel,
        }
    }
}
