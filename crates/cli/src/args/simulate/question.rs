//! Questions of `simulate`.

use clap::{Args, ValueEnum};
use divvy_core::units::{Gpus, QueueName};

/// A question: the changes after which the same jobs run again.
#[derive(Debug, Args)]
pub struct Question {
    /// What if this queue were served first?
    #[arg(help_heading = "Questions", long, value_name = "QUEUE")]
    pub queue_first: Option<QueueName>,
    /// The same jobs with eighths of a GPU allowed
    ///
    /// Jobs that used little memory of a whole GPU get the smallest eighth with that memory. =parts: parts of GPUs are
    /// rounded up to eighths
    #[arg(help_heading = "Questions", long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = "whole", hide_possible_values = true)]
    pub eighths: Option<Eighths>,
    /// What if this GPU were in another mode? 0=mig
    #[arg(help_heading = "Questions", long, value_name = "GPU=MODE", value_parser = assigned::<String>)]
    pub gpu_mode: Vec<(String, String)>,
    /// What if the project had this quota of GPUs? vision=4
    #[arg(help_heading = "Questions", long, value_name = "PROJECT=GPUS", value_parser = assigned::<Gpus>)]
    pub quota: Vec<(String, Gpus)>,
    /// What if backfill were on, or off?
    #[arg(
        help_heading = "Questions",
        long,
        value_name = "ON|OFF",
        hide_possible_values = true
    )]
    pub backfill: Option<Switch>,
    /// How long would this job wait? With -g, --gpu-memory or -q
    #[arg(help_heading = "Questions", long)]
    pub job: bool,
    /// GPU amount of the job: 0.25, 2
    #[arg(
        help_heading = "Questions",
        short = 'g',
        long = "gpu",
        value_name = "AMOUNT",
        requires = "job"
    )]
    pub amount: Option<String>,
    /// Memory of the job on one GPU: 4G
    #[arg(
        help_heading = "Questions",
        long,
        value_name = "SIZE",
        requires = "job",
        conflicts_with = "amount",
        hide_short_help = true
    )]
    pub gpu_memory: Option<String>,
    /// Queue of the job
    #[arg(help_heading = "Questions", short, long, requires = "job")]
    pub queue: Option<QueueName>,
    /// Project of the job
    #[arg(
        help_heading = "Questions",
        short,
        long,
        requires = "job",
        hide_short_help = true
    )]
    pub project: Option<String>,
}

impl Question {
    /// Whether anything is asked.
    pub fn is_asked(&self) -> bool {
        self.job
            || self.queue_first.is_some()
            || self.eighths.is_some()
            || self.backfill.is_some()
            || !self.gpu_mode.is_empty()
            || !self.quota.is_empty()
    }
}

/// Which jobs get eighths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Eighths {
    /// Jobs that asked for a whole GPU and used little of its memory.
    Whole,
    /// Jobs that asked for a part.
    Parts,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// `NAME=VALUE`
pub fn assigned<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
) -> Result<(String, T), String> {
    let (name, value) = text
        .rsplit_once('=')
        .ok_or_else(|| "write NAME=VALUE".to_owned())?;
    let value = value.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), value))
}
