//! `shell`: an interactive shell in a slice. With a private daemon the shell is the job's program, on this terminal.
//! With the system's daemon the job only holds the slice, and `exec` opens the shell in it.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use divvy_api::client::{Client, WaitFor};
use divvy_api::proc;
use divvy_api::v1::{Error, ErrorCode, JobState, Runner, Submit};

use super::reconnect::Reconnect;
use super::{exec, run, stop_reasons, submit, wait};
use crate::call::{Outcome, block_on, client, one_job};
use crate::error_output::usage;
use crate::output::{Stop, progress};
use crate::start::{self, DaemonWanted};
use crate::{Backend, args, ask};

/// The default shell.
const USUAL: &str = "/bin/sh";

/// How long a job holds its slice without a shell in it. Logins take a second or two; on a busy host with a network
/// home some more. Longer would hold a GPU without a user.
const PATIENCE: Duration = Duration::from_secs(30);

/// Interval of the checks for a shell. So a GPU is free half a second after the shell's end; each look is one read.
const LOOK: Duration = Duration::from_millis(500);

/// Timeout of one long poll for the slice. Below the 30 s for which a client of a pending job may be silent. It must be
/// below the 30 s for which a client of a pending job may be silent.
const POLL: Duration = Duration::from_secs(20);

pub fn shell(mut args: args::Shell, backend: Backend) -> Outcome {
    if !args.job.command.is_empty() {
        let hint = "to run a program: divvy run -g 0.25 -- CMD, or divvy exec JOB -- CMD";
        return Err(usage("`divvy shell` takes no command", hint).into());
    }
    let shell = std::env::var("SHELL")
        .ok()
        .filter(|shell| !shell.is_empty());
    let shell = command(shell.as_deref().unwrap_or(USUAL));
    if let Some(job) = &args.in_job {
        let code = block_on(async {
            let client = client()?;
            let job = one_job(&client, job).await?;
            // In a container the host's shell may not be there.
            let shell = match job.container {
                Some(_) => command(USUAL),
                None => shell,
            };
            exec::inside(&client, &job.reference(), shell).await
        });
        return Ok(ExitCode::from(code?));
    }
    args.job.command = shell.iter().map(Into::into).collect();
    args.job.name.get_or_insert_with(|| "shell".to_owned());
    let submission = ask::submit(&args.job, Runner::Client)?;
    let wanted = DaemonWanted::from(&args.job);
    let node = block_on(async { Ok(start::agent(&wanted.client()?, wanted).await?) })?;
    if node.system {
        block_on(held(submission, wanted, shell))
    } else {
        run::on_terminal(submission, wanted, backend)
    }
}

/// Has a job hold the slice, and opens the shell in it.
async fn held(submission: Submit, wanted: DaemonWanted<'_>, shell: Vec<String>) -> Outcome {
    let me = std::env::current_exe().ok();
    let me = me.as_deref().and_then(Path::to_str).ok_or_else(|| {
        Error::new(
            ErrorCode::Internal,
            "the path of the divvy program is unknown or not UTF-8",
        )
    })?;
    let submission = Submit {
        runner: Runner::Supervisor,
        command: vec![me.to_owned(), "hold-slice".to_owned()],
        ..submission
    };
    let client = wanted.client()?;
    let job = submit::once(&client, submission, wanted).await?.id;
    let ended = opened(&client, &job, shell).await;
    // Gone by itself is just as well.
    let _ = client.cancel(&job).await;
    ended
}

async fn opened(client: &Client, id: &str, shell: Vec<String>) -> Outcome {
    let mut said = None;
    let mut away = Reconnect::default();
    let waiting = async {
        loop {
            match client.wait(id, WaitFor::Starting, POLL).await {
                Ok(job) => {
                    away.back();
                    match job.state {
                        JobState::Running => return Ok::<_, Stop>(None),
                        JobState::Ended => return Ok(Some(job)),
                        JobState::Queued if said != job.reason => {
                            said.clone_from(&job.reason);
                            let reason = job.reason.unwrap_or_default();
                            progress(&format!("#{id} waits in queue {}: {reason}", job.queue));
                        }
                        // It has its slice, and its supervisor is on its way.
                        JobState::Starting => tokio::time::sleep(Duration::from_millis(10)).await,
                        _ => {}
                    }
                }
                Err(error) => away.retry_or_fail(error).await?,
            }
        }
    };
    let ended = tokio::select! {
        ended = waiting => ended?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(130)),
    };
    match ended {
        Some(job) => Ok(ExitCode::from(wait::job_exit_code(&job)?)),
        None => {
            let code = exec::inside(client, id, shell).await?;
            // A shell that was stopped with its job says nothing of it.
            if code != 0
                && let Ok(job) = client.job(id).await
            {
                stop_reasons::tell_stop(&job);
            }
            Ok(ExitCode::from(code))
        }
    }
}

/// `divvy hold-slice`: is the program of a job as long as others are in it. Its siblings are what its parent, the job's
/// supervisor, has started, and what these left to it.
pub fn hold() -> Outcome {
    let mut last = Instant::now();
    while last.elapsed() < PATIENCE {
        if has_sibling() {
            last = Instant::now();
        }
        std::thread::sleep(LOOK);
    }
    Ok(ExitCode::SUCCESS)
}

fn has_sibling() -> bool {
    let (me, parent) = (std::process::id(), std::os::unix::process::parent_id());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.any(|pid| pid != me && proc::parent(pid) == Some(parent))
}

/// A shell with a prompt that names its job. The shell reads the variables itself: the job has its number only when it
/// runs.
fn command(shell: &str) -> Vec<String> {
    const BASH: &str = r#"exec "$0" --rcfile <(printf '%s\n' '
[ ! -f /etc/bash.bashrc ] || . /etc/bash.bashrc
[ ! -f ~/.bashrc ] || . ~/.bashrc
PS1="[divvy $DIVVY_JOB_ID] $PS1"') -i"#;
    const ZSH: &str = r#"RPROMPT="[divvy $DIVVY_JOB_ID]" exec "$0" -i"#;
    const FISH: &str = "functions --copy fish_prompt divvy_prompt; \
                        function fish_prompt; echo -n \"[divvy $DIVVY_JOB_ID] \"; divvy_prompt; end";
    const SH: &str = r#"PS1="[divvy $DIVVY_JOB_ID] \$ " exec "$0" -i"#;
    let words: &[&str] = match Path::new(shell).file_name().and_then(|name| name.to_str()) {
        Some("bash") => &[shell, "-c", BASH, shell],
        Some("zsh") => &[shell, "-c", ZSH, shell],
        Some("fish") => &[shell, "-i", "-C", FISH],
        Some("sh" | "dash" | "ash" | "ksh") => &[shell, "-c", SH, shell],
        _ => &[shell, "-i"],
    };
    words.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// What a shell says when it is told this, with its prompts.
    fn said(shell: &str, typed: &str) -> Option<String> {
        let words = command(shell);
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env("DIVVY_JOB_ID", "42")
            .env("HOME", home.path())
            .env_remove("ENV")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{typed}").unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        let both = [output.stdout, output.stderr].concat();
        Some(String::from_utf8_lossy(&both).into_owned())
    }

    #[test]
    fn the_prompt_says_which_job_it_is() {
        for shell in ["/bin/sh", "/bin/bash"] {
            match said(shell, "echo and it works: $((6 * 7))") {
                Some(said) => {
                    assert!(said.contains("[divvy 42]"), "{shell}: {said}");
                    assert!(said.contains("and it works: 42"), "{shell}: {said}");
                }
                None => eprintln!("SKIPPED: {shell} is not there"),
            }
        }
    }

    #[test]
    fn a_shell_that_is_not_known_is_started_as_it_is() {
        assert_eq!(command("/opt/bin/xonsh"), ["/opt/bin/xonsh", "-i"]);
    }
}
