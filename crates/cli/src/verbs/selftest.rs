//! `selftest`: runs a program in its own slice that tries to exceed the slice's limits, and reports the results.
//!
//! The daemon creates the slice as for any job; without a daemon, the verb creates it as `run --no-daemon` does.

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode, Output, Stdio};

use divvy_api::client::Client;
use divvy_api::v1::{Error, ErrorCode, ParkTest, Selftest};
use divvy_core::Amount;
use serde::de::DeserializeOwned;

use crate::args;
use crate::call::{Outcome, block_on, client};
use crate::error_output::{Result, usage};
use crate::output::{self, print, view};
use crate::{Backend, render};

/// The run of the verb: what was asked, and what serves.
struct Asked<'a> {
    args: &'a args::Selftest,
    /// In bytes.
    limit: u64,
    daemon: bool,
}

pub fn selftest(args: &args::Selftest, backend: Backend) -> Outcome {
    let limit = limit(&args.gpu_memory)?;
    let client = client()?;
    let daemon = block_on(async { Ok(serves(&client).await?) })?;
    let asked = Asked {
        args,
        limit,
        daemon,
    };
    if args.park {
        return park(&asked, backend, &gpus(args, backend, &client, daemon)?);
    }
    let mut tests = Vec::new();
    for gpu in gpus(args, backend, &client, daemon)? {
        output::progress(&match gpu {
            Some(gpu) => format!("testing a memory limit on GPU {gpu}"),
            None => "testing a memory limit".to_owned(),
        });
        tests.push(test(&asked, gpu)?);
    }
    print(render::list(
        &tests,
        args.read.output,
        view(),
        render::selftests,
    )?)?;
    match failed(&tests) {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => Err(error.into()),
    }
}

/// The limit in bytes, as `--gpu-memory` gives it.
fn limit(text: &str) -> Result<u64> {
    match Amount::from_memory_flag(text) {
        Ok(Amount::Memory(bytes)) => Ok(bytes.get()),
        Ok(_) => Err(usage(
            format!("--gpu-memory {text}: not an amount of memory"),
            "use --gpu-memory 4G",
        )),
        Err(error) => Err(usage(
            format!("--gpu-memory {text}: {}", error.kind),
            error.hint(),
        )),
    }
}

async fn serves(client: &Client) -> Result<bool> {
    match client.node().await {
        Ok(_) => Ok(true),
        Err(error) if error.code == ErrorCode::NoDaemon => Ok(false),
        Err(error) => Err(error),
    }
}

/// The GPUs to test, by index; `None` is the one that a job would get.
fn gpus(
    args: &args::Selftest,
    backend: Backend,
    client: &Client,
    daemon: bool,
) -> Result<Vec<Option<u32>>, output::Stop> {
    let all = match (args.gpu, args.all, daemon) {
        (Some(gpu), ..) => return Ok(vec![Some(gpu)]),
        (None, false, _) => return Ok(vec![None]),
        (None, true, true) => block_on(async { Ok(client.gpus().await?) })?
            .iter()
            .map(|gpu| gpu.index)
            .collect(),
        (None, true, false) => (backend.gpu_indices)(args.sim.as_deref())?,
    };
    Ok(all.into_iter().map(Some).collect())
}

/// Parks and wakes a process on each GPU, and records that the driver has passed. A simulated driver needs no record.
fn park(asked: &Asked<'_>, backend: Backend, gpus: &[Option<u32>]) -> Outcome {
    let mut tests: Vec<ParkTest> = Vec::new();
    for gpu in gpus {
        output::progress("testing how the driver parks a process");
        tests.push(attempt(asked, *gpu)?);
    }
    if tests.iter().all(|test| test.simulated.is_none()) {
        (backend.record_park)(asked.args.system, &tests)?;
    }
    print(render::list(
        &tests,
        asked.args.read.output,
        view(),
        render::park_tests,
    )?)?;
    Ok(ExitCode::SUCCESS)
}

fn test(asked: &Asked<'_>, gpu: Option<u32>) -> Result<Selftest> {
    Ok(Selftest {
        daemon: asked.daemon,
        ..attempt(asked, gpu)?
    })
}

/// Runs the prober, and reads what it prints.
fn attempt<T: DeserializeOwned>(asked: &Asked<'_>, gpu: Option<u32>) -> Result<T> {
    let broken = |error: &dyn std::fmt::Display| {
        Error::new(
            ErrorCode::Internal,
            format!("cannot run the self-test: {error}"),
        )
    };
    let command = asked.command(gpu);
    let output = command.and_then(|mut command| command.output());
    let output = output.map_err(|error| broken(&error))?;
    serde_json::from_slice(&output.stdout).map_err(|_| refusal(&output))
}

impl Asked<'_> {
    /// `divvy run` of the prober, in a slice of its own on this GPU or on the one that a job would get.
    fn command(&self, gpu: Option<u32>) -> io::Result<Command> {
        let this = std::env::current_exe()?;
        let mut words: Vec<OsString> = vec!["run".into(), "--no-wait".into()];
        if !self.daemon {
            words.push("--no-daemon".into());
        }
        words.extend(
            self.args
                .sim
                .iter()
                .map(|sim| format!("--sim={sim}").into()),
        );
        words.extend(gpu.map(|gpu| format!("--gpus-on={gpu}").into()));
        words.push(format!("--gpu-memory={}", self.args.gpu_memory).into());
        words.extend(["--name=selftest".into(), "--".into(), this.clone().into()]);
        words.extend([
            "probe-limits".into(),
            "--limit".into(),
            self.limit.to_string().into(),
        ]);
        words.extend(self.args.park.then(|| "park".into()));
        let mut command = Command::new(this);
        command
            .args(words)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        Ok(command)
    }
}

/// The error of a prober that printed no result: its own message, with the code that its exit code stands for.
fn refusal(output: &Output) -> Error {
    let told = String::from_utf8_lossy(&output.stderr);
    let line = |prefix| {
        told.lines()
            .filter_map(move |line: &str| line.strip_prefix(prefix))
            .next_back()
    };
    let code = ErrorCode::ALL
        .into_iter()
        .find(|code| output.status.code() == Some(i32::from(code.exit_code())));
    let why = line("error: ").map_or_else(
        || {
            format!(
                "the self-test ended with {}: {}",
                output.status,
                told.trim()
            )
        },
        str::to_owned,
    );
    let error = Error::new(code.unwrap_or(ErrorCode::Internal), why);
    match line("hint: ") {
        Some(hint) => error.hint(hint),
        None => error.hint("divvy doctor"),
    }
}

/// Failed attempts on all GPUs.
fn failed(tests: &[Selftest]) -> Option<Error> {
    let names: Vec<String> = tests
        .iter()
        .filter(|test| !test.passed)
        .map(|test| {
            let failures = test.checks.iter().filter(|check| check.result.is_failure());
            let names: Vec<&str> = failures.map(|check| check.name.as_str()).collect();
            format!(
                "{} of {} checks failed on GPU {} ({})",
                names.len(),
                test.checks.len(),
                test.gpu_index,
                names.join(", ")
            )
        })
        .collect();
    let hint = if std::env::var("DIVVY_SHIM").is_ok_and(|value| value == "off") {
        "unset DIVVY_SHIM: `off` disables the limiter"
    } else {
        "run `divvy doctor`; LIMITS.md lists known gaps"
    };
    (!names.is_empty()).then(|| Error::new(ErrorCode::Internal, names.join("; ")).hint(hint))
}
