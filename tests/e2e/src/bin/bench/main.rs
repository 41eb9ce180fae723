//! What Divvy costs, each figure beside its floor and both in one run: a table on stdout, and JSON with every round.
//!
//! ```text
//! calls.rs      a driver call with the limiter and without; four processes at once; how much of a limit can be had
//! counts.rs     the instructions that the limiter adds to a call, compared with what they were
//! processes.rs  the start of 300 processes in one slice; the ledger's own cost
//! queue.rs      submit to start on an idle system; jobs a second, beside a bare spawn loop
//! peers.rs      other queues beside it, where they are installed
//! crowd.rs      ten thousand jobs that wait; a daemon that has nothing to do
//! views.rs      what viewers ask for: pages of a list and the board, with ten thousand waiting jobs beside a hundred
//! top.rs        the live view beside nvitop
//! shares.rs     what tenants of one GPU get of its time, and what taking turns costs
//! report.rs     rows, medians, the table, the JSON
//! ```
#![forbid(unsafe_code)]

mod calls;
mod counts;
mod crowd;
mod peers;
mod processes;
mod queue;
mod report;
mod shares;
mod top;
mod views;

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
    /// Instead, count instructions with callgrind and compare them with this file
    #[arg(long, value_name = "FILE")]
    counts: Option<PathBuf>,
    /// Rewrite that file
    #[arg(long, requires = "counts")]
    record: bool,
    /// Write the table of compute shares into this page
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Write the table of the queue into this page
    #[arg(long, value_name = "FILE")]
    queue_page: Option<PathBuf>,
    /// nvitop, which the live view is measured beside
    #[arg(long, value_name = "FILE")]
    nvitop: Option<PathBuf>,
    /// Only these parts
    #[arg(long, value_enum, num_args = 1..)]
    only: Vec<Part>,
    /// Of the shares, only scenes whose names begin so: to see that it works
    #[arg(long, value_name = "NAME", hide = true, conflicts_with = "page")]
    scene: Option<String>,
    #[command(subcommand)]
    inside: Option<Inside>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Calls,
    Usable,
    Latency,
    Throughput,
    Crowd,
    Views,
    Shares,
    Processes,
    Ledger,
    Top,
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
    if let Some(expected) = &cli.counts {
        return counts::measure(&programs, expected, cli.record);
    }
    let wanted = |part| cli.only.is_empty() || cli.only.contains(&part);
    let mut report = Report::new();
    if wanted(Part::Calls) {
        calls::measure(&programs, cli.quick, &mut report)?;
    }
    if wanted(Part::Usable) {
        calls::usable(&programs, &mut report)?;
    }
    if wanted(Part::Ledger) {
        processes::ledger(&programs, &mut report)?;
    }
    if wanted(Part::Processes) {
        processes::measure(&programs, cli.quick, &mut report)?;
    }
    let queue = report.count();
    if wanted(Part::Latency) {
        queue::latency(&programs, cli.quick, &mut report)?;
    }
    if wanted(Part::Throughput) {
        queue::throughput(&programs, cli.quick, &mut report)?;
    }
    if wanted(Part::Crowd) {
        crowd::measure(&programs, cli.quick, &mut report)?;
    }
    let all = [Part::Latency, Part::Throughput, Part::Crowd];
    if let Some(page) = cli
        .queue_page
        .as_deref()
        .filter(|_| all.into_iter().all(wanted))
    {
        report.rewrite(queue, page)?;
    }
    if wanted(Part::Views) {
        views::measure(&programs, cli.quick, &mut report)?;
    }
    if wanted(Part::Top) {
        top::measure(&programs, cli.quick, cli.nvitop.as_deref(), &mut report)?;
    }
    if wanted(Part::Shares) {
        let wish = shares::Wish {
            quick: cli.quick,
            scene: cli.scene.as_deref(),
            page: cli.page.as_deref(),
        };
        shares::measure(&programs, &wish, &mut report)?;
    }
    report.print()?;
    report.write(&cli.json)
}
