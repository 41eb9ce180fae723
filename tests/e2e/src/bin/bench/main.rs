//! What Divvy costs, each figure beside its floor and both in one run: a table on stdout, and JSON with every round.
//!
//! ```text
//! calls.rs      a driver call with the limiter and without; four processes at once
//! processes.rs  the start of 300 processes in one slice; the ledger's own cost
//! queue.rs      submit to start on an idle system; jobs a second, beside a bare spawn loop
//! report.rs     rows, medians, the table, the JSON
//! ```
#![forbid(unsafe_code)]

mod calls;
mod processes;
mod queue;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use divvy_e2e::Programs;

use report::Report;

#[derive(Parser)]
#[command(about = "Measures what Divvy costs; started by `cargo xtask bench`")]
struct Cli {
    /// Where the JSON goes
    #[arg(long, default_value = "bench.json")]
    json: PathBuf,
    /// Fewer rounds: to see that it works, not to quote
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(long, value_enum, num_args = 1..)]
    only: Vec<Part>,
    #[command(subcommand)]
    inside: Option<Inside>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Calls,
    Latency,
    Throughput,
    Processes,
    Ledger,
}

/// What the bench runs of itself inside a slice.
#[derive(Subcommand)]
enum Inside {
    /// Copies of a program that answers line by line: passes each line on to all, and all answers back in one line
    #[command(hide = true)]
    Crowd { copies: usize, program: String },
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(Inside::Crowd { copies, program }) = cli.inside {
        return processes::crowd(copies, &program);
    }
    let own = std::env::current_exe()?;
    let programs = Programs::at(
        own.parent()
            .context("a program lies in a folder")?
            .to_owned(),
    );
    let wanted = |part| cli.only.is_empty() || cli.only.contains(&part);
    let mut report = Report::new();
    if wanted(Part::Calls) {
        calls::measure(&programs, cli.quick, &mut report)?;
    }
    if wanted(Part::Ledger) {
        processes::ledger(&programs, &mut report)?;
    }
    if wanted(Part::Processes) {
        processes::measure(&programs, cli.quick, &mut report)?;
    }
    if wanted(Part::Latency) {
        queue::latency(&programs, cli.quick, &mut report)?;
    }
    if wanted(Part::Throughput) {
        queue::throughput(&programs, cli.quick, &mut report)?;
    }
    report.print()?;
    report.write(&cli.json)
}
