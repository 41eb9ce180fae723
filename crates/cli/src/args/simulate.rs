//! Arguments of `simulate`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use divvy_core::simulate::{Policy, PolicyError};

use super::{Read, help};

#[derive(Debug, Args)]
#[command(override_usage = "divvy simulate [TRACE | --mix MIX] [--gpus MODEL:N] [OPTIONS]", after_help = help::SIMULATE)]
pub struct Simulate {
    /// Requests to replay: CSV or NDJSON, - for stdin
    pub trace: Option<PathBuf>,
    /// Random requests: the name of a mix, or profiles with weights, such as 1g=50,2g=25,3g.20gb=5
    #[arg(long, default_value = "uniform", conflicts_with = "trace")]
    pub mix: String,
    /// Simulated GPUs, all of one model
    #[arg(long, value_name = "MODEL:N", default_value = "a100-40gb:8")]
    pub gpus: String,
    /// Offered load, as a part of all compute slices [default: 0.7, or the trace's own]
    #[arg(long, value_name = "PART", value_parser = load)]
    pub load: Option<f64>,
    /// Policies to compare; the first is the baseline
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = policies(),
        hide_possible_values = true
    )]
    pub policy: Vec<Policy>,
    /// Requests per run; the first tenth is a warm-up and does not count
    #[arg(long, value_name = "COUNT", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(10..), conflicts_with_all = ["trace", "exact"])]
    pub arrivals: u64,
    /// Runs with different requests, for the confidence interval
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with_all = ["trace", "exact"])]
    pub runs: u32,
    /// Seed of the first run; the same seed gives every policy the same requests
    #[arg(long, default_value_t = 1, conflicts_with_all = ["trace", "exact"])]
    pub seed: u64,
    /// Compute the result for one GPU exactly, without random requests
    #[arg(long, conflicts_with = "trace")]
    pub exact: bool,
    #[command(flatten)]
    pub read: Read,
}

fn policies() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name))
        .try_map(|name| -> Result<Policy, PolicyError> { name.parse() })
}

/// A part of all slices, above 0; a load above 1 exceeds the capacity.
fn load(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(load) if load > 0.0 && load <= 100.0 => Ok(load),
        _ => Err("use a number above 0, for example 0.7; 1 is a load of all slices"),
    }
}
