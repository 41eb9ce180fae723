//! `selftest --like`: a slice in which a program makes the calls of known programs, and the slices beside it.
//!
//! ```text
//! neighbour   a slice of the same GPU and limit, whose program allocates all the time     (first: it says which GPU that is)
//! pair        a job with equal parts of two GPUs, to its end                              (only for programs that compare GPUs)
//! replay      the tested slice: one process for each program
//! ```
//! Where memory for the neighbour or a second GPU is missing, the steps that need it have the reason.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ExitCode, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use divvy_api::client::Client;
use divvy_api::v1::{
    Beside, Error, ErrorCode, GpuFigures, KnownProgram, Neighbour, Replay, ReplayResult,
    Surroundings,
};

use super::{Asked, Slice, gpus, refusal};
use crate::args;
use crate::error_output::Result;
use crate::output::{self, print, view};
use crate::verbs::Outcome;
use crate::{Backend, render};

/// How long the neighbour may take to come up, and to end: a context on a cold GPU takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
/// Part of each GPU that the job on two GPUs gets, in the form of `-g`.
const PAIR: &str = "2x0.1";

pub fn replay(
    asked: &Asked<'_>,
    programs: &args::Programs,
    backend: Backend,
    client: &Client,
) -> Outcome {
    let mut replays = Vec::new();
    for gpu in gpus(asked.args, backend, client, asked.daemon)? {
        let names = programs.names();
        output::progress(&match gpu {
            Some(gpu) => format!("replaying {names} on GPU {gpu}"),
            None => format!("replaying {names}"),
        });
        replays.extend(on_gpu(asked, programs, gpu)?);
    }
    print(render::list(
        &replays,
        asked.args.read.output,
        view(),
        render::replays,
    )?)?;
    match failed(&replays) {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => Err(error.into()),
    }
}

/// The replays on one GPU, beside a neighbour where there is room for one.
fn on_gpu(asked: &Asked<'_>, programs: &args::Programs, gpu: Option<u32>) -> Result<Vec<Replay>> {
    let pair = match programs.0.contains(&KnownProgram::SgLang) {
        true => pair(asked),
        false => Beside::Absent("no program compares GPUs".to_owned()),
    };
    let without = |why: String| Surroundings {
        neighbour: Beside::Absent(why),
        pair: pair.clone(),
    };
    let neighbour = match RunningNeighbour::start(asked, gpu) {
        Ok(neighbour) => neighbour,
        Err(why) => return run(asked, programs, gpu, &without(why)),
    };
    let around = Surroundings {
        neighbour: Beside::Present(neighbour.figures.clone()),
        pair: pair.clone(),
    };
    // Both slices are on one GPU.
    let same = Some(neighbour.figures.gpu_index);
    let replays = run(asked, programs, same, &around);
    let rounds = neighbour.end();
    match replays {
        // There is room for one slice only.
        Err(error) if [ErrorCode::NeverFits, ErrorCode::WouldWait].contains(&error.code) => {
            run(asked, programs, gpu, &without(error.message))
        }
        Err(error) => Err(error),
        Ok(replays) => rounds.map(|_| replays),
    }
}

fn run(
    asked: &Asked<'_>,
    programs: &args::Programs,
    gpu: Option<u32>,
    around: &Surroundings,
) -> Result<Vec<Replay>> {
    let internal = |error: &dyn std::fmt::Display| {
        Error::new(
            ErrorCode::Internal,
            format!("cannot run the replay: {error}"),
        )
    };
    let around = serde_json::to_string(around).map_err(|error| internal(&error))?;
    let names = programs.names();
    let mut command = asked
        .command(&Slice::Memory(gpu), "replay", &["replay", &names, &around])
        .map_err(|error| internal(&error))?;
    let output = command.output().map_err(|error| internal(&error))?;
    match serde_json::from_slice::<Vec<Replay>>(&output.stdout) {
        Ok(replays) => Ok(replays
            .into_iter()
            .map(|replay| Replay {
                daemon: asked.daemon,
                ..replay
            })
            .collect()),
        Err(_) => Err(refusal("the replay", &output)),
    }
}

/// The figures of a job on two GPUs.
fn pair(asked: &Asked<'_>) -> Beside<Vec<GpuFigures>> {
    let output = asked
        .command(&Slice::Amount(PAIR), "replay-pair", &["pair"])
        .and_then(|mut command| command.output());
    match output {
        Err(error) => Beside::Absent(error.to_string()),
        Ok(output) => match serde_json::from_slice(&output.stdout) {
            Ok(figures) => Beside::Present(figures),
            Err(_) => Beside::Absent(refusal("the job on two GPUs", &output).message),
        },
    }
}

/// The neighbour, which runs until it is ended.
struct RunningNeighbour {
    child: Child,
    lines: Receiver<String>,
    figures: Neighbour,
}

impl RunningNeighbour {
    /// Starts it, and waits for its figures; the error is the reason without them.
    fn start(asked: &Asked<'_>, gpu: Option<u32>) -> Result<Self, String> {
        let command = asked.command(&Slice::Memory(gpu), "replay-neighbour", &["neighbour"]);
        let mut command = command.map_err(|error| error.to_string())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (say, lines) = mpsc::channel();
        let output = child.stdout.take();
        thread::spawn(move || {
            for line in output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines())
            {
                let _ = line.map(|line| say.send(line));
            }
        });
        let line = lines.recv_timeout(PATIENCE).ok();
        let figures = line.and_then(|line| serde_json::from_str(&line).ok());
        match figures {
            Some(figures) => Ok(Self {
                child,
                lines,
                figures,
            }),
            None => Err(match end(child) {
                Some(output) => refusal("the neighbour", &output).message,
                None => "the neighbour did not answer".to_owned(),
            }),
        }
    }

    /// Ends it; answers how often it has allocated. One that ended by itself was no neighbour.
    fn end(mut self) -> Result<u64> {
        let ended = self.child.try_wait().ok().flatten();
        drop(self.child.stdin.take());
        let rounds = self.lines.recv_timeout(PATIENCE).ok();
        let output = end(self.child);
        match (ended, rounds.and_then(|rounds| rounds.parse().ok())) {
            (None, Some(rounds)) if rounds > 0 => Ok(rounds),
            _ => {
                let why = output.map_or_else(String::new, |output| {
                    format!(": {}", refusal("it", &output).message)
                });
                Err(Error::new(
                    ErrorCode::Internal,
                    format!("the neighbour of the tested slice ended early{why}"),
                )
                .hint("divvy doctor"))
            }
        }
    }
}

/// Lets it end with its input, or kills it; answers what it said on stderr.
fn end(mut child: Child) -> Option<Output> {
    drop(child.stdin.take());
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if child.try_wait().ok()?.is_some() {
            return child.wait_with_output().ok();
        }
        thread::sleep(PAUSE);
    }
    child.kill().ok()?;
    None
}

/// Failed steps of all programs.
fn failed(replays: &[Replay]) -> Option<Error> {
    let words: Vec<String> = replays
        .iter()
        .filter(|replay| !replay.passed)
        .map(|replay| {
            let failed = replay
                .steps
                .iter()
                .filter(|step| step.result == ReplayResult::Failed);
            format!(
                "{} of {} steps of {} failed on GPU {}",
                failed.count(),
                replay.steps.len(),
                replay.program,
                replay.gpu_index
            )
        })
        .collect();
    let hint = match std::env::var("DIVVY_SHIM").is_ok_and(|value| value == "off") {
        true => "unset DIVVY_SHIM: `off` disables the limiter",
        false => "run `divvy selftest`; docs/programs.md lists what each program expects",
    };
    (!words.is_empty()).then(|| Error::new(ErrorCode::Internal, words.join("; ")).hint(hint))
}
