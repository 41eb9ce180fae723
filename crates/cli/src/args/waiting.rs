//! Arguments of the verbs for pending jobs: `move`, `hold`, `release`, `change`.

use clap::{ArgGroup, Args};

use super::{Format, help};

#[derive(Debug, Args)]
#[command(
    override_usage = "divvy move JOB… {-q QUEUE | --top} [-g AMOUNT | --gpu-memory SIZE]\n                  [OPTIONS]",
    after_help = help::MOVE,
    group = ArgGroup::new("where").required(true).multiple(true).args(["queue", "top"])
)]
pub struct Move {
    /// Ids, unique names, or `last`
    #[arg(required = true, value_name = "JOB", value_parser = super::job)]
    pub jobs: Vec<String>,
    /// The queue to wait in
    #[arg(short, long)]
    pub queue: Option<String>,
    /// To the top of the queue; for users, of their own jobs
    #[arg(long)]
    pub top: bool,
    #[command(flatten)]
    pub amount: AmountArgs,
    /// Print the jobs in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "divvy change JOB… [-g AMOUNT | --gpu-memory SIZE | --mig-profile PROFILE]\n                    [--priority N] [--time TIME] [--name NAME] [OPTIONS]",
    after_help = help::CHANGE
)]
pub struct Change {
    /// Ids, unique names, or `last`
    #[arg(required = true, value_name = "JOB", value_parser = super::job)]
    pub jobs: Vec<String>,
    /// Higher first, -1000 to 1000; above 0 only by operators
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<String>,
    /// Stop it when it has run this long: 30m, 2h, none
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    #[command(flatten)]
    pub amount: AmountArgs,
    /// New name
    #[arg(long)]
    pub name: Option<String>,
    /// Print the jobs in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

/// The new amount of a job.
#[derive(Clone, Debug, Default, Args)]
pub struct AmountArgs {
    /// Part of a GPU (0.25), or GPUs: 2, 1-4
    ///
    /// Part of a GPU (0.25), whole GPUs (2 or 1-4), or parts of several (8x0.5)
    #[arg(short, long, value_name = "AMOUNT", allow_negative_numbers = true)]
    pub gpu: Option<String>,
    /// Memory on one GPU: 4G, 512M
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "gpu",
        allow_negative_numbers = true
    )]
    pub gpu_memory: Option<String>,
    /// A MIG instance of this profile: 2g.10gb
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["gpu", "gpu_memory"])]
    pub mig_profile: Option<String>,
}
