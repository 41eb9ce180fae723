//! `divvy simulate`: two studies without a GPU: packing of nodes, and waits in queues.

mod chart;
mod input;
mod packing;
mod progress;
mod report;
mod shape;
mod site;
mod source;
mod threads;
mod waits;

use std::path::Path;

use divvy_cli::Outcome;
use divvy_cli::args::{self, Mode};

/// Runs the study that the words name, and prints its result.
///
/// # Errors
/// Words that fit no study, and inputs that cannot be read.
pub fn simulate(args: &args::Simulate) -> Outcome {
    let adds_gpus = args.gpus.as_deref().is_some_and(|gpus| gpus.contains('+'));
    let mode = args
        .mode
        .unwrap_or(if args.question.is_asked() || adds_gpus {
            Mode::Waits
        } else {
            Mode::Fill
        });
    if let Some(file) = &args.svg {
        chart::refuse_unwritable(file)?;
    }
    match mode {
        Mode::Fill | Mode::Departures => packing::packing(args, mode),
        Mode::Waits => waits::waits(args),
    }
}

/// `1 job`, `2 jobs`.
fn count_of(count: usize, thing: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{s}")
}

/// The trace, as messages call it.
fn name(path: &Path) -> String {
    if path == Path::new("-") {
        return "standard input".to_owned();
    }
    path.display().to_string()
}
