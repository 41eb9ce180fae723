//! From the words of `daemon` to what the agent serves.

use divvy_core::{GpuSelection, Order, QueueSpec, parse_gpus, parse_queues};

use crate::args;
use crate::failure::{Result, usage};
use crate::output;

/// What a daemon serves, and how.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub gpus: GpuSelection,
    /// In the order they are served.
    pub queues: Vec<QueueSpec>,
    pub order: Order,
    pub backfill: bool,
    /// Return once it answers, and leave it running.
    pub detached: bool,
    /// Simulated GPUs: `a100-80gb:3`.
    pub sim: Option<String>,
}

/// What these words ask to serve.
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::Usage`] with the word that is wrong and what would be right.
pub fn daemon(args: &args::Daemon) -> Result<Daemon> {
    let gpus = match args.gpus.as_slice() {
        [] => GpuSelection::All,
        words => parse_gpus(words).map_err(|error| usage(error.to_string(), error.hint()))?,
    };
    let queues = parse_queues(&args.queue, args.dynamic_gpus, args.services_mode.is_some())
        .map_err(|error| usage(format!("--queue: {error}"), error.hint()))?;
    if args.services_mode.is_some() {
        return Err(usage(
            "--services-mode is not something Divvy has",
            "leave it out: jobs without a GPU need no queue here",
        ));
    }
    if args.dynamic_gpus && queues.is_empty() {
        return Err(usage(
            "--dynamic-gpus needs queues",
            "add them in the order to serve: --queue half_gpu=0.5 single_gpu=1",
        ));
    }
    if !args.dynamic_gpus {
        warn_of_equals(&queues);
    }
    Ok(Daemon {
        gpus,
        queues,
        order: if args.order_fairness {
            Order::Fairness
        } else {
            Order::Strict
        },
        backfill: args.backfill,
        detached: args.detached,
        sim: args.sim.clone(),
    })
}

/// `half=0.5` without `--dynamic-gpus` is a name, as the stock agent has it, and seldom what was meant.
fn warn_of_equals(queues: &[QueueSpec]) {
    for name in queues
        .iter()
        .map(|queue| queue.name.to_string())
        .filter(|name| name.parse::<QueueSpec>().is_ok())
    {
        output::say(&format!(
            "without --dynamic-gpus `{name}` is a queue's whole name, and its jobs say what they need"
        ));
    }
}
