//! `docker run`: a container in a slice, on this terminal. `docker args`: the flags that add a slice to a container.
//! `docker slice`: the user's own `docker run` in a slice.

mod guest;

use std::ffi::OsString;
use std::process::ExitCode;

use divvy_api::v1::Runner;
use divvy_core::docker::{self, words};

use super::{run, submit};
use crate::args::{self, Verb};
use crate::call::{Outcome, block_on, client, reference};
use crate::container::{self, SLICE_FLAGS};
use crate::error_output::{Result, usage};
use crate::output::print;
use crate::rejection::from_clap;
use crate::start::DaemonWanted;
use crate::{Backend, ask};

pub fn docker(verb: args::Docker, backend: Backend) -> Outcome {
    match verb {
        args::Docker::Run(args) => run_container(&args.words, backend),
        args::Docker::Args(args) => block_on(show_args(args)),
        args::Docker::Slice(args) => guest::run(&args.words, backend),
    }
}

fn run_container(words: &[String], backend: Backend) -> Outcome {
    if matches!(words.first().map(String::as_str), None | Some("--help")) {
        print(help("run"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let line = docker::parse_command_line(words, SLICE_FLAGS)
        .map_err(|refused| container::refusal(&refused))?;
    let args::Run {
        job,
        outlive_client,
        ..
    } = slice_flags(&line.own)?;
    let asked = container::parse_container(&line.image, &line.arguments)?;
    container::report_ignored(&asked);
    let runner = if asked.detach {
        Runner::Supervisor
    } else {
        Runner::Client
    };
    let wanted = DaemonWanted::from(&job);
    let mut submission = ask::contained(&job, asked, line.command, runner)?;
    if runner == Runner::Client {
        submission.with_client = !outlive_client;
        return run::on_terminal(submission, wanted, backend);
    }
    let job = block_on(async { Ok(submit::once(&wanted.client()?, submission, wanted).await?) })?;
    print(format!("{}\n", job.id))?;
    Ok(ExitCode::SUCCESS)
}

/// The slice's flags, read as those of `run` are.
fn slice_flags(own: &[String]) -> Result<args::Run> {
    let before = ["divvy", "run"].map(OsString::from);
    let line: Vec<OsString> = before
        .into_iter()
        .chain(own.iter().map(OsString::from))
        .collect();
    match args::parse(&line)
        .map_err(|error| from_clap(&error, &line))?
        .verb
    {
        Verb::Run(run) => Ok(*run),
        _ => Err(usage(
            "the flags do not describe a slice",
            "set the amount of GPU with -g or --gpu-memory",
        )),
    }
}

fn help(verb: &str) -> String {
    let mut command = args::command();
    let docker = command.find_subcommand_mut("docker");
    let run = docker.and_then(|docker| docker.find_subcommand_mut(verb));
    run.map(|run| run.render_help().to_string())
        .unwrap_or_default()
}

async fn show_args(args: args::DockerArgs) -> Outcome {
    let added = client()?.docker_args(reference(&args.job)).await?;
    if args.cdi {
        let file = serde_json::to_string_pretty(&added.cdi).unwrap_or_default();
        print(format!("{file}\n"))?;
    } else {
        let quoted: Vec<String> = added.flags.iter().map(|flag| words::quoted(flag)).collect();
        print(format!("{}\n", quoted.join(" ")))?;
    }
    Ok(ExitCode::SUCCESS)
}
