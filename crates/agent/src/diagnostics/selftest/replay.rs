//! `divvy selftest --like NAME`, inside a slice: makes the documented calls of a known program, and compares the answers with
//! what that program expects.
//!
//! ```text
//! step       one step: calls, expectation, source, and the act that makes the calls       programs   the steps of each program
//! acts       one function for each act       stage   GPU, limit and surroundings of the acts
//! child      further processes of the slice       beside   the programs in other slices: a neighbour, a pair of GPUs
//! ```
//! Each program has a process of its own, as in the self-test. It prints a line for each step, so that a driver that crashes
//! costs the steps that are left.

mod acts;
mod beside;
mod child;
mod programs;
mod stage;
mod step;

use std::process::Command;
use std::time::Duration;

use divvy_api::v1::{KnownProgram, Replay, ReplayResult, ReplayStep, Surroundings};

use super::{Failure, GpuEnvironment, form, gpu_environment, print_json, simulated};
use crate::host::child_timeout::{failure_message, run_with_timeout};
use crate::host::clock::now;
use stage::Stage;
use step::{Step, Trouble};

pub use beside::{neighbour, pair};
pub use child::role;

/// How long the steps of one program may take.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(150);

/// All programs of a list, each in a process of its own.
pub fn replay_all(limit: u64, names: &str, around: &str) -> Result<Vec<Replay>, Failure> {
    let place = gpu_environment()?;
    let limit = place.instance.unwrap_or(limit);
    let this = std::env::current_exe()?;
    let mut replays = Vec::new();
    for name in names.split(',') {
        let program: KnownProgram = name.parse()?;
        let mut command = Command::new(&this);
        command
            .args(["probe-limits", "--limit", &limit.to_string()])
            .args(["replay-one", name, around]);
        let steps = programs::steps(program);
        let seen = match run_with_timeout(&mut command, PROGRAM_TIMEOUT) {
            Ok(output) => {
                let lines = String::from_utf8_lossy(&output.stdout).into_owned();
                let said = lines
                    .lines()
                    .filter_map(|line| serde_json::from_str(line).ok());
                complete(said.collect(), steps, &failure_message(&output))
            }
            Err(error) => complete(Vec::new(), steps, &error.to_string()),
        };
        replays.push(report(program, &place, limit, seen));
    }
    Ok(replays)
}

/// The steps that were reported, and a failure for each that was not.
fn complete(mut seen: Vec<ReplayStep>, steps: &[Step], why: &str) -> Vec<ReplayStep> {
    let reported = seen.len().min(steps.len());
    let texts = std::iter::once(format!("the process ended here: {why}"))
        .chain(std::iter::repeat("not reached".to_owned()));
    let missing = steps[reported..].iter().zip(texts);
    seen.extend(missing.map(|(step, text)| step.report(Err(Trouble::Failed(text)))));
    seen
}

fn report(
    program: KnownProgram,
    place: &GpuEnvironment,
    limit: u64,
    steps: Vec<ReplayStep>,
) -> Replay {
    Replay {
        program,
        gpu_uuid: place.identity.uuid.clone(),
        gpu_index: place.identity.index,
        model: place.identity.name.clone(),
        driver_version: place.driver_version.clone(),
        cuda_version: place.cuda_version.clone(),
        simulated: simulated(),
        version: divvy_api::version::program(),
        at: now(),
        daemon: true,
        memory_limit_bytes: limit,
        enforcement: place.enforcement().to_owned(),
        form: form(),
        passed: steps.iter().all(|step| step.result != ReplayResult::Failed),
        steps,
    }
}

/// One program, in this process: prints a line for each step.
pub fn replay_one(limit: u64, name: &str, around: &str) -> Result<(), Failure> {
    let program: KnownProgram = name.parse()?;
    let around: Surroundings = serde_json::from_str(around)?;
    let stage = Stage::set(limit, around)?;
    for step in programs::steps(program) {
        print_json(&step.report(acts::run(&stage, step.act)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_a_crash_has_cost_are_failures_and_the_first_says_why() {
        let steps = programs::steps(KnownProgram::Ollama);
        let first = steps[0].report(Ok("seen".to_owned()));
        let seen = complete(vec![first.clone()], steps, "signal: 11");
        assert_eq!(seen.len(), steps.len());
        assert_eq!(seen[0], first);
        assert!(
            seen[1..]
                .iter()
                .all(|step| step.result == ReplayResult::Failed)
        );
        assert_eq!(seen[1].seen, "the process ended here: signal: 11");
        assert_eq!(seen[2].seen, "not reached");
    }
}
