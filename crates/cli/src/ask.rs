//! From the words of `run` and `submit` to what is asked of the agent. Refusals say what would be right.

use std::collections::BTreeMap;
use std::ffi::OsString;

use divvy_api::v1::{Error, ErrorCode, Runner, Submit};
use divvy_core::{Amount, ComputeMode, GpuSelection, parse_gpus};

use crate::args::JobArgs;
use crate::failure::{Result, usage};
use crate::output;

/// The queue of jobs that name none; its jobs say themselves how much they want.
const DEFAULT_QUEUE: &str = "default";

/// What `run --no-daemon` starts.
#[derive(Clone, Debug)]
pub struct Solo {
    pub submit: Submit,
    /// Simulated GPUs: `a100-80gb:3`.
    pub sim: Option<String>,
}

/// The job these words describe, in this process's folder and environment.
///
/// # Errors
/// [`ErrorCode::Usage`] with the word that is wrong and what would be right.
pub fn submit(args: &JobArgs, runner: Runner) -> Result<Submit> {
    let command = command(&args.command)?;
    let amount = amount(args)?;
    if amount.is_none()
        && args
            .queue
            .as_deref()
            .is_none_or(|queue| queue == DEFAULT_QUEUE)
    {
        return Err(usage(
            "how much GPU the job needs is not said",
            "add -g 0.25 (part of a GPU), -g 1 (a whole one) or --gpu-memory 4G; or -q QUEUE for that queue's amount",
        ));
    }
    Ok(Submit {
        command,
        name: args.name.clone(),
        queue: args.queue.clone(),
        project: args.project.clone(),
        amount: amount.map(Into::into),
        compute: Some(compute(&args.compute)?),
        gpus_on: gpus_on(args.gpus_on.as_deref())?,
        cwd: working_directory()?,
        env: environment(),
        runner,
        no_wait: args.no_wait,
        dry_run: false,
        idempotency_key: None,
    })
}

fn command(words: &[OsString]) -> Result<Vec<String>> {
    const HINT: &str = "put the program after `--`: divvy run -g 0.25 -- python train.py";
    match words.first() {
        None => return Err(usage("there is no program to run", HINT)),
        Some(program) if program.is_empty() => {
            return Err(usage("the program's name is empty", HINT));
        }
        Some(_) => {}
    }
    let text = |word: &OsString| {
        let unreadable = || {
            usage(
                format!("the argument {word:?} is not UTF-8"),
                "jobs are kept as text: rename the file",
            )
        };
        word.to_str().map(str::to_owned).ok_or_else(unreadable)
    };
    words.iter().map(text).collect()
}

fn amount(args: &JobArgs) -> Result<Option<Amount>> {
    let (flag, read) = match (&args.gpu, &args.gpu_memory) {
        (Some(text), _) => (format!("-g {text}"), Amount::from_gpu_flag(text)),
        (None, Some(text)) => (
            format!("--gpu-memory {text}"),
            Amount::from_memory_flag(text),
        ),
        (None, None) => return Ok(None),
    };
    read.map(Some)
        .map_err(|error| usage(format!("{flag}: {}", error.kind), error.hint()))
}

/// Only what this version keeps: it records weights and divides no compute.
fn compute(text: &str) -> Result<String> {
    match text.parse() {
        Ok(mode @ (ComputeMode::Fair | ComputeMode::None)) => Ok(mode.to_string()),
        Ok(ComputeMode::Strict) => Err(usage(
            "--compute strict cannot be held: this version does not divide compute, the driver's time-slicing does",
            "leave it out, or take whole GPUs (-g 1) to have the compute to yourself",
        )),
        Err(_) => Err(usage(
            format!("--compute {text} is not a mode"),
            "the modes are fair (a weight, not enforced yet) and none",
        )),
    }
}

fn gpus_on(text: Option<&str>) -> Result<Vec<u32>> {
    let Some(text) = text else {
        return Ok(Vec::new());
    };
    match parse_gpus(&[text]) {
        Ok(GpuSelection::All) => Ok(Vec::new()),
        Ok(GpuSelection::Indices(indices)) => Ok(indices),
        // The daemon's flag of the same form is the one that the error names.
        Err(error) => Err(usage(
            error.to_string().replace("--gpus", "--gpus-on"),
            error.hint(),
        )),
    }
}

fn working_directory() -> Result<String> {
    let here = std::env::current_dir().map_err(|error| {
        Error::new(
            ErrorCode::Internal,
            format!("the working directory cannot be read: {error}"),
        )
    })?;
    here.into_os_string().into_string().map_err(|path| {
        usage(
            format!("the working directory {path:?} is not UTF-8"),
            "jobs are kept as text: rename it",
        )
    })
}

/// This process's environment, less what is not text; that is said, as the program will miss it.
fn environment() -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => {
                kept.insert(name, value);
            }
            (Ok(name), Err(_)) => output::say(&format!(
                "the variable {name} is not UTF-8 and is left out of the job's environment"
            )),
            (Err(name), _) => output::say(&format!(
                "the variable {name:?} is not UTF-8 and is left out of the job's environment"
            )),
        }
    }
    kept
}
