//! The acceptance of a real GPU: what is promised, tried there; what is believed of the driver, measured there.
//!
//! ```text
//! ground.rs    a private instance on this GPU, and running programs that may hang
//! report.rs    what came of each item; written after every one, so that a crash loses nothing
//! limits.rs    doctor, self-test, third-party programs filling a slice, races, nvidia-smi
//! facts.rs     the facts of `gpu_facts`, outside and inside a slice; what the limiter adds to a call
//! park.rs      parking: rates, first calls, many cycles, two jobs with memory for one
//! clients.rs   PyTorch, JAX, CuPy, Triton and others, where they are installed; what they look up
//! programs.rs  the programs of docs/programs.md, where they are installed; the documented calls of each
//! ```
//! It needs nothing but the built programs beside it: neither Cargo nor a compiler nor a network. It takes and gives back
//! memory and runs kernels; it changes no setting of a GPU. An item that fails, hangs or crashes is recorded, and the next runs.
#![forbid(unsafe_code)]

mod clients;
mod facts;
mod ground;
mod limits;
mod park;
mod programs;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use divvy_e2e::Programs;
use serde_json::Value;

use ground::{Ground, Trouble};
use report::Report;

#[derive(Parser)]
#[command(
    about = "Tries on a real GPU what is promised, and measures what is believed; started by `cargo xtask gpu`"
)]
struct Cli {
    /// Simulated GPUs instead: proves that this program works, and says nothing about hardware
    #[arg(long, value_name = "MODEL:N")]
    sim: Option<String>,
    /// Where the report goes
    #[arg(long, default_value = "gpu-report.json")]
    json: PathBuf,
    /// No item starts that could end later than this many seconds after the start
    #[arg(long, default_value_t = 450)]
    seconds: u64,
    /// The Python that runs the clients
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Only items whose names begin with one of these
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
}

type Run = Box<dyn Fn(&Ground) -> Result<Value, Trouble>>;

/// One thing to try or to measure.
struct Item {
    name: String,
    /// What it is for, in words.
    what: String,
    /// Seconds it may take.
    patience: u64,
    run: Run,
}

impl Item {
    fn new(
        name: impl Into<String>,
        what: impl Into<String>,
        patience: u64,
        run: impl Fn(&Ground) -> Result<Value, Trouble> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            what: what.into(),
            patience,
            run: Box::new(run),
        }
    }
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let own = std::env::current_exe()?;
    let folder = own.parent().context("a program lies in a folder")?;
    let programs = Programs::at(folder.to_owned());
    let ground = Ground::new(
        programs,
        cli.sim.as_deref(),
        &cli.python,
        Duration::from_secs(cli.seconds),
        cli.quick,
    );
    let mut report = Report::begin(&ground, &cli.json)?;
    // The doctor and the first self-test see the machine as a new user does, without a daemon.
    run(&ground, &cli, limits::before_a_daemon(), &mut report)?;
    let _daemon = ground.daemon();
    let mut items = limits::items();
    items.extend(facts::items(&ground));
    items.extend(clients::items());
    items.extend(programs::items());
    items.extend(park::items());
    run(&ground, &cli, items, &mut report)?;
    report.print()?;
    Ok(if report.failed() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run(ground: &Ground, cli: &Cli, items: Vec<Item>, report: &mut Report) -> Result<()> {
    let wanted = |item: &Item| {
        cli.only.is_empty() || cli.only.iter().any(|name| item.name.starts_with(name))
    };
    for item in items.into_iter().filter(wanted) {
        report.add(ground, &item)?;
    }
    Ok(())
}
