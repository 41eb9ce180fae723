//! `simulate`: three studies without a GPU: placement of MIG instances, packing of nodes, and waits in queues.

mod chart;
mod input;
mod packing;
mod placement;
mod pool;
mod progress;
mod report;
mod shape;
mod site;
mod source;
mod trace;
mod waits;

use std::path::Path;

use super::Outcome;
use crate::args::{self, Mode};
use crate::error_output::{Result, usage};

pub fn simulate(args: &args::Simulate) -> Outcome {
    let adds_gpus = args.gpus.as_deref().is_some_and(|gpus| gpus.contains('+'));
    let mode = args
        .mode
        .unwrap_or(if args.question.is_asked() || adds_gpus {
            Mode::Waits
        } else if args.nodes.is_some() {
            Mode::Fill
        } else {
            Mode::Mig
        });
    if let Some(file) = &args.svg {
        chart::refuse_unwritable(file)?;
    }
    match mode {
        Mode::Mig => placement::place_instances(args),
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

fn text(path: &Path) -> Result<String> {
    String::from_utf8(source::bytes(path)?).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        usage(
            format!("cannot read {}: line {line} is not UTF-8", name(path)),
            "use CSV or NDJSON in UTF-8; - reads stdin",
        )
    })
}
