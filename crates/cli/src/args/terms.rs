//! Words of `run` and `submit` beyond what a job gets and runs: when, for how long, after whom, with which variables.

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
    /// Stop the job once it has run this long: 30m, 2h
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// If its GPUs are idle for so long: 30m, none
    ///
    /// Once it has done nothing with its GPUs for this long, do as --idle-action says: 30m; `none` for never
    #[arg(long, value_name = "TIME")]
    pub idle_timeout: Option<String>,
    /// then notify, suspend, cancel [default: notify]
    ///
    /// What to do then: notify (an event), suspend, or cancel [default: notify]
    #[arg(
        long,
        value_name = "ACTION",
        requires = "idle_timeout",
        hide_possible_values = true
    )]
    pub idle_action: Option<IdleWord>,
    /// Start when this job has ended; repeatable
    ///
    /// Wait until this job, or every job of this array, has ended, however it ends; may be repeated
    #[arg(long, value_name = "JOB")]
    pub after: Vec<String>,
    /// Start if it has ended with code 0; repeatable
    ///
    /// Wait until this job, or every job of this array, has exited with code 0, and give up if one ends otherwise; may be repeated
    #[arg(long, value_name = "JOB")]
    pub after_ok: Vec<String>,
    /// Set a variable, or pass this shell's; repeatable
    ///
    /// Set a variable, or pass this shell's on; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Lines NAME=VALUE; repeatable
    ///
    /// Set variables from lines NAME=VALUE; may be repeated
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// As --env, and shown to nobody
    ///
    /// The same as --env for a value that nobody is to read: kept out of the journal, listings and logs
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub secret: Vec<String>,
}

/// What is done with a job that does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IdleWord {
    Notify,
    Suspend,
    Cancel,
}

impl From<IdleWord> for IdleAction {
    fn from(word: IdleWord) -> Self {
        match word {
            IdleWord::Notify => Self::Notify,
            IdleWord::Suspend => Self::Suspend,
            IdleWord::Cancel => Self::Cancel,
        }
    }
}
