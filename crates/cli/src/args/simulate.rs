//! Arguments of `simulate`: two studies (packing of nodes, waits in queues), and their inputs.

mod question;

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};
use divvy_core::units::Gpus;

use super::{Format, help};
use question::assigned;
pub use question::{Eighths, Question, Switch};

#[derive(Debug, Args)]
#[command(
    override_usage = "divvy simulate JOBS --nodes FILE [--mode fill|departures] [OPTIONS]\n       \
                      divvy simulate [JOBS] --mode waits [--gpus LIST] [QUESTION] [OPTIONS]",
    after_help = help::SIMULATE,
    after_long_help = help::SIMULATE_STUDIES
)]
pub struct Simulate {
    /// Jobs to simulate: a file, - for stdin
    pub trace: Option<PathBuf>,
    /// Study: fill, departures, waits
    ///
    /// Study: fill (jobs arrive and stay), departures (jobs come and go), waits (jobs in queues) [default: fill; waits with
    /// a question]
    #[arg(
        long,
        value_name = "MODE",
        hide_possible_values = true,
        help_heading = "Study"
    )]
    pub mode: Option<Mode>,
    /// Format of the jobs: openb, history, sacct, clearml
    ///
    /// Format of the jobs: openb, history (divvy ps -a -o ndjson), sacct, clearml [default: by the content]
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(["openb", "history", "sacct", "clearml"]), hide_possible_values = true, help_heading = "Study", hide_short_help = true)]
    pub input: Option<String>,
    /// Nodes as CSV: sn,cpu_milli,memory_mib,gpu,model
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "gpus",
        help_heading = "Study"
    )]
    pub nodes: Option<PathBuf>,
    /// Simulated GPUs: a100-80gb:8, several nodes 4xa100-80gb:8
    ///
    /// Simulated nodes, separated by commas: a100-80gb:8 is a node of eight GPUs, 4xa100-80gb:8 is four of them,
    /// +2xa100-80gb asks what two more GPUs would change
    #[arg(long, value_name = "LIST", help_heading = "Study")]
    pub gpus: Option<String>,
    /// CPU cores of each node of --gpus [default: not counted]
    #[arg(long, value_name = "CORES", requires = "gpus", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Study", hide_short_help = true)]
    pub node_cpu: Option<u32>,
    /// Main memory of each node of --gpus: 512G [default: not counted]
    #[arg(
        long,
        value_name = "SIZE",
        requires = "gpus",
        help_heading = "Study",
        hide_short_help = true
    )]
    pub node_memory: Option<String>,
    /// Keep every Nth node of --nodes
    ///
    /// Keep every Nth node of --nodes, sorted by model, GPUs and CPU
    #[arg(long, value_name = "N", requires = "nodes", value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Study", hide_short_help = true)]
    pub part: Option<u32>,
    /// Slurm's shards of one GPU, as in gres.conf
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Study", hide_short_help = true)]
    pub shards: Option<u16>,
    /// Offered load [default: departures: 0.9]
    ///
    /// Offered load, as a part of the capacity [default: departures: 0.9; a list with times: its own]
    #[arg(long, value_name = "PART", value_parser = load)]
    pub load: Option<f64>,
    /// Policies to compare; the first is the baseline
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(["best-fit", "fgd", "learned", "queue"]),
        hide_possible_values = true
    )]
    pub policy: Vec<String>,
    /// Requests per run; a part of them is a warm-up and does not count
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(10..=100_000_000), hide_short_help = true)]
    pub arrivals: Option<u64>,
    /// Runs with different requests [default: 10; waits: 8]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: Option<u32>,
    /// Seed of the first run [default: 42; waits: 1]
    ///
    /// Seed of the first run; the same seed gives every policy the same requests, and the same output [default: 42; waits: 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Order of arrivals: seeded, given
    ///
    /// Order of arrivals: seeded (drawn), given (as in the file) [default: seeded]
    #[arg(
        long,
        value_name = "ORDER",
        help_heading = "Packing",
        hide_short_help = true
    )]
    pub order: Option<Arrivals>,
    /// Report a fill at these percentages of arrived GPUs [default: 90,95,100,110,130]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=130), help_heading = "Packing", hide_short_help = true)]
    pub at: Vec<u32>,
    /// Jobs that the learned policy is trained on [default: the jobs themselves]
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Packing",
        hide_short_help = true
    )]
    pub train: Option<PathBuf>,
    /// Policy queue: the oldest jobs, up to this part of the GPUs, must start [default: 0]
    #[arg(long, value_name = "PART", value_parser = oldest, help_heading = "Packing", hide_short_help = true)]
    pub oldest: Option<f64>,
    /// Report decision times as well; they differ from run to run
    #[arg(long, help_heading = "Packing", hide_short_help = true)]
    pub timing: bool,
    #[command(flatten)]
    pub question: Question,
    /// Queues in priority order: a,b or a=0.5,b=1
    ///
    /// Queues in priority order. NAME=AMOUNT gives each job of the queue that amount [default: the queues of the jobs, by
    /// name; the daemon's order for its own jobs]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = "Waits"
    )]
    pub queues: Vec<String>,
    /// Rules before the question: backfill, fairness
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Waits"
    )]
    pub rules: Vec<Rule>,
    /// Quotas of projects before the question: vision=2.5,speech=1
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = assigned::<Gpus>, help_heading = "Waits")]
    pub projects: Vec<(String, Gpus)>,
    /// Also write the result as a chart into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Show no progress
    #[arg(long, hide_short_help = true)]
    pub quiet: bool,
    /// Format: table, wide, json, ndjson, name, svg
    ///
    /// Output format: table, wide, json, ndjson, name or svg (a chart)
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "table",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub output: StudyFormat,
}

/// How a study prints its result on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyFormat {
    Items(Format),
    /// A chart.
    Svg,
}

impl ValueEnum for StudyFormat {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Items(Format::Table),
            Self::Items(Format::Wide),
            Self::Items(Format::Json),
            Self::Items(Format::Ndjson),
            Self::Items(Format::Name),
            Self::Svg,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Items(format) => format.to_possible_value(),
            Self::Svg => Some(PossibleValue::new("svg").help("A chart")),
        }
    }
}

/// A study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Fill,
    Departures,
    Waits,
}

impl Mode {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Departures => "departures",
            Self::Waits => "waits",
        }
    }
}

/// The order in which the jobs of a list arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Arrivals {
    Seeded,
    Given,
}

/// A rule of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rule {
    Backfill,
    Fairness,
}

/// A part of the capacity, above 0; a load above 1 exceeds it.
fn load(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(load) if load > 0.0 && load <= 100.0 => Ok(load),
        _ => Err("use a number above 0, for example 0.7; 1 is a load of the whole capacity"),
    }
}

/// A part of the capacity from 0 to 1.
fn oldest(text: &str) -> Result<f64, &'static str> {
    match text.parse() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("use a part from 0 to 1, for example 0.5"),
    }
}
