//! `docker slice`: a slice for the container of the user's own `docker run` line.
//!
//! The flags of the line are validated like those of `divvy docker run`, and passed on unchanged. With a daemon, this
//! process executes the line's `docker` once it has a slice. The job's supervisor finds the container by its label.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::home::Home;
use divvy_api::standalone::StandaloneOptions;
use divvy_api::v1::{Container, Error, ErrorCode, JobState, Runner, Starter, Submit};
use divvy_core::docker::{self, Mount, paths};

use super::super::run::{StartWait, wait_for_turn};
use super::super::{submit, wait};
use super::{help, slice_flags};
use crate::call::{Outcome, block_on};
use crate::container::{self, ContainerSpec};
use crate::error_output::{Result, usage};
use crate::output::{Stop, print, say};
use crate::start::DaemonWanted;
use crate::{Backend, args, ask, text};

/// Flags of the line that say nothing of what the container may do.
const OWN: &[(&str, bool)] = &[("--name", true), ("--cidfile", true)];

/// Between two questions whether a container may come: making one to look into takes the engine a few of these.
const BREATH: Duration = Duration::from_millis(50);

/// A line of `docker run`, judged.
#[derive(Debug)]
struct Line {
    /// `docker` or `podman`, and `run`.
    program: [String; 2],
    rest: Vec<String>,
    asked: ContainerSpec,
    /// The first word of the container's command.
    first: Vec<String>,
}

pub fn run(words: &[String], backend: Backend) -> Outcome {
    if matches!(words.first().map(String::as_str), None | Some("--help")) {
        print(help("slice"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (own, line) = apart(words)?;
    let args::Run { job, no_daemon, .. } = slice_flags(own)?;
    let line = judged(line)?;
    let starter = Starter {
        pid: std::process::id(),
        start_time: None,
    };
    let asked = ContainerSpec {
        container: Container {
            starter: Some(starter),
            as_submitter: false,
            ..line.asked.container
        },
        // They go into the container by the line itself.
        env: BTreeMap::new(),
        detach: false,
        ignored: Vec::new(),
    };
    let submission = ask::contained(&job, asked, line.first, Runner::Supervisor)?;
    if no_daemon {
        let solo = StandaloneOptions {
            submit: submission,
            docker: line.program.into_iter().chain(line.rest).collect(),
            sim: job.sim.clone(),
        };
        return Ok(ExitCode::from((backend.solo)(solo)?));
    }
    let [program, verb] = &line.program;
    match block_on(flags(submission, DaemonWanted::from(&job)))? {
        Ok(flags) => {
            let error = Command::new(program)
                .arg(verb)
                .args(flags)
                .args(&line.rest)
                .exec();
            let why = format!("{program} cannot be started: {error}");
            Err(Stop::from(Error::new(ErrorCode::LaunchFailed, why)))
        }
        Err(code) => Ok(code),
    }
}

/// Waits for the slice; what brings a container into it, or how it ended without.
async fn flags(
    submission: Submit,
    wanted: DaemonWanted<'_>,
) -> std::result::Result<std::result::Result<Vec<String>, ExitCode>, Stop> {
    let client = wanted.client()?;
    let job = submit::once(&client, submission, wanted).await?;
    Ok(match wait_for_turn(&client, job).await? {
        StartWait::Start(job) => ready(&client, &job.id).await?,
        StartWait::Over(code) => Err(ExitCode::from(code)),
        StartWait::Away(code) => Err(code),
    })
}

/// Once the job's supervisor has seen that what is to be started can be held.
async fn ready(
    client: &Client,
    job: &str,
) -> std::result::Result<std::result::Result<Vec<String>, ExitCode>, Stop> {
    loop {
        match client.docker_args(job).await {
            Ok(added) => return Ok(Ok(added.flags)),
            Err(error) if error.code != ErrorCode::Conflict => return Err(error.into()),
            Err(_) => {}
        }
        tokio::time::sleep(BREATH).await;
        let now = client.job(job).await?;
        if now.state == JobState::Ended {
            // The messages of its supervisor are in its log.
            if let Some(reason) = now.reason.as_deref().filter(|_| now.exit_code.is_some()) {
                say(&format!(
                    "#{} could not be started: {}",
                    now.id,
                    text::clean(reason)
                ));
            }
            return Ok(Err(ExitCode::from(wait::job_exit_code(&now)?)));
        }
    }
}

/// The slice's flags, and the line behind `--`.
fn apart(words: &[String]) -> Result<(&[String], &[String])> {
    let at = words.iter().position(|word| word == "--");
    let (own, line) = words.split_at(at.unwrap_or(words.len()));
    match line {
        [_, line @ ..] if !line.is_empty() => Ok((own, line)),
        _ => Err(no_line("the command is missing")),
    }
}

fn no_line(why: &str) -> Error {
    usage(
        why.to_owned(),
        "put the command after `--`: divvy docker slice -g 0.5 -- docker run --rm my/image",
    )
}

fn judged(words: &[String]) -> Result<Line> {
    let [program, verb, rest @ ..] = words else {
        return Err(no_line("the command starts no container"));
    };
    let name = Path::new(program)
        .file_name()
        .and_then(|name| name.to_str());
    if !matches!(name, Some("docker" | "podman")) || verb != "run" {
        return Err(no_line(&format!("`{program} {verb}` starts no container")));
    }
    let split =
        docker::parse_command_line(rest, OWN).map_err(|refused| container::refusal(&refused))?;
    let asked = container::parse_container(&split.image, &split.arguments)?;
    if let Some(flag) = asked.ignored.first() {
        let why =
            format!("{flag} is refused: the container engine would add GPUs outside the slice");
        return Err(Error::new(ErrorCode::NotAllowed, why)
            .hint("leave it out: `divvy docker slice` passes the line to the engine as it is"));
    }
    let options = docker::options(&asked.container.arguments)
        .map_err(|refused| container::refusal(&refused))?;
    check_sources(&options.mounts)?;
    Ok(Line {
        program: [program.clone(), verb.clone()],
        rest: rest.to_vec(),
        asked,
        first: split.command.into_iter().take(1).collect(),
    })
}

/// Whether what is mounted of the host may be, wherever links lead.
fn check_sources(mounts: &[Mount]) -> Result<()> {
    let home = Home::to_call().map_err(|error| Error::from(&error))?;
    let socket = home.socket();
    let runtime = socket.parent().unwrap_or(&socket).to_owned();
    let kept = [home.state().to_owned(), home.slices().to_owned(), runtime];
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    for mount in mounts {
        let Mount::Bind { source, .. } = mount else {
            continue;
        };
        let path = paths::normal(&here.join(source));
        let path = fs::canonicalize(&path).unwrap_or(path);
        paths::source(&path, &kept).map_err(|kept| {
            let why = format!("cannot mount {source}: {}", kept.why);
            Error::new(ErrorCode::NotAllowed, why).hint(kept.hint)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_line_of_the_stock_agents_is_taken_as_it_is() {
        let line = "docker run -t -l clearml-worker-id=n:gpu2.25a -e CLEARML_TASK_ID=7 -v /srv/a.cfg:/tmp/clearml.conf --name x --rm u22 bash -c script";
        let judged = judged(&split_words(line)).unwrap();
        assert_eq!(judged.program, ["docker", "run"]);
        assert_eq!(judged.asked.container.image, "u22");
        assert_eq!(judged.first, ["bash"]);
        assert_eq!(judged.rest, split_words(line)[2..]);
        let kept = judged.asked.container.arguments.join(" ");
        assert!(!kept.contains("CLEARML_TASK_ID"), "{kept}");
    }

    #[test]
    fn what_would_let_it_out_of_its_slice_is_refused() {
        for (line, code) in [
            ("docker run --gpus all u22", 4),
            ("docker run --privileged u22", 4),
            ("docker run -e LD_PRELOAD=/x u22", 4),
            ("docker run -v /run:/host u22", 4),
            ("docker run --nonsense u22", 2),
            ("docker exec x sh", 2),
            ("sh run x", 2),
        ] {
            let refused = judged(&split_words(line)).unwrap_err();
            assert_eq!(refused.code.exit_code(), code, "{line}");
        }
        assert!(apart(&split_words("-g 0.5 docker run x")).is_err());
    }
}
