//! Copies data between a container and this process's standard streams.

use std::io::{self, Read, Write};
use std::pin::Pin;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::query_parameters::{AttachContainerOptions, LogsOptions};
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

use super::follow::{CreatedContainer, State};
use super::{AGAIN, ContainerJob, code, launch_failed};
use crate::container::{engine, terminal};
use crate::host::log_times::LogTimes;
use crate::host::log_trim::LogTrimmer;
use crate::job_dir::RunOutcome;
use crate::supervisor::{StdioMode, write_stderr};

type Words = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// A container's streams, taken before it was started so that nothing is missed.
pub struct Attached {
    words: Words,
    keys: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// Puts the terminal back when dropped.
    _raw: Option<terminal::Raw>,
}

impl ContainerJob<'_> {
    /// How long the job's log is, which is this process's output; a terminal has no length.
    pub(super) fn log_size(self) -> u64 {
        if self.place != StdioMode::Background {
            return 0;
        }
        let log = rustix::fs::fstat(io::stdout());
        log.map_or(0, |log| u64::try_from(log.st_size).unwrap_or(0))
    }
}

impl CreatedContainer<'_> {
    /// Takes the container's streams for a person's terminal; none for a job in the background, whose log is the engine's.
    pub(super) async fn attach(&self) -> Result<Option<Attached>, RunOutcome> {
        if self.job.place == StdioMode::Background {
            return Ok(None);
        }
        let options = &self.job.plan.options;
        let streams = AttachContainerOptions {
            stream: true,
            stdin: options.interactive,
            stdout: true,
            stderr: true,
            ..AttachContainerOptions::default()
        };
        let failed = |code: i32, why: String| {
            write_stderr(&why);
            launch_failed(code, why)
        };
        // Podman prepares the program only when its streams are attached, and then reports errors that other engines
        // report at the start.
        let refused = |error| {
            let why = engine::describe_error(&error);
            failed(code(&why), why)
        };
        let attached = self
            .docker
            .attach_container(&self.id, Some(streams))
            .await
            .map_err(refused)?;
        let raw = match options.tty && options.interactive {
            true => terminal::Raw::enter()
                .map_err(|error| failed(125, format!("the terminal cannot be used: {error}")))?,
            false => None,
        };
        Ok(Some(Attached {
            words: attached.output,
            keys: options.interactive.then_some(attached.input),
            _raw: raw,
        }))
    }

    /// Copies until the container says nothing any more.
    pub(super) async fn copy(&self, attached: Option<Attached>) {
        match attached {
            Some(Attached {
                words, keys, _raw, ..
            }) => {
                if let Some(keys) = keys {
                    tokio::spawn(type_in(keys));
                }
                let _ = pour(words, 0).await;
            }
            None => {
                let times = || LogTimes::new(self.job.dir.log_times());
                let bound = self.job.spec.log_most.map(LogTrimmer::new);
                let mut bound = bound.map(|bound| bound.with_times(times()));
                tokio::select! {
                    () = self.copy_log() => {}
                    () = keep_to(&mut bound) => {}
                }
                if let Some(bound) = &mut bound {
                    bound.trim(io::stdout());
                }
            }
        }
    }

    /// The engine's log, from where the job's own ends.
    async fn copy_log(&self) {
        let from = self.job.dir.container().ok().flatten();
        let from = from.map_or(0, |placed| placed.log_from);
        // Its end was known when the log was asked for last.
        let mut is_over = false;
        loop {
            let options = LogsOptions {
                follow: true,
                stdout: true,
                stderr: true,
                tail: "all".to_owned(),
                ..LogsOptions::default()
            };
            let words = self.docker.logs(&self.id, Some(options));
            match pour(Box::pin(words), self.job.log_size().saturating_sub(from)).await {
                Ok(()) if self.has_ended().await => return,
                // An engine that stops closes its logs as if they were at their end.
                Ok(()) => {}
                // A removed container has no log either, nor has one with another log driver.
                Err(error) if matches!(engine::status(&error), Some(404 | 409 | 501)) => return,
                Err(error) if engine::is_unavailable(&error) => {}
                // What the engine does not give it gives later, perhaps; of what is over it is asked once more.
                Err(_) if is_over => return,
                Err(_) => is_over = matches!(self.state().await, State::Ended(_) | State::Gone),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Whether the container whose log is at its end is, too, or will be in a moment.
    async fn has_ended(&self) -> bool {
        let _ = tokio::time::timeout(AGAIN, self.ended()).await;
        matches!(self.state().await, State::Ended(_) | State::Gone)
    }
}

/// Holds the log, which is standard output, to its bound.
async fn keep_to(bound: &mut Option<LogTrimmer>) {
    let Some(bound) = bound else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(bound.until_next_check()).await;
        bound.trim_if_due(io::stdout());
    }
}

/// Writes what comes, less the first `skip` bytes, to where it belongs.
async fn pour(mut words: Words, mut skip: u64) -> Result<(), Error> {
    while let Some(word) = words.next().await {
        let word = word?;
        let is_error = matches!(word, LogOutput::StdErr { .. });
        let mut bytes = word.into_bytes();
        let known = usize::try_from(skip).unwrap_or(usize::MAX).min(bytes.len());
        skip -= known as u64;
        let fresh = bytes.split_off(known);
        if fresh.is_empty() {
            continue;
        }
        // A reader that is slow must not keep signals waiting.
        let written = tokio::task::spawn_blocking(move || match is_error {
            true => put(io::stderr(), &fresh),
            false => put(io::stdout(), &fresh),
        });
        // The reader is gone, or the disk is full: the container goes on.
        let _ = written.await;
    }
    Ok(())
}

fn put(mut sink: impl Write, bytes: &[u8]) -> io::Result<()> {
    sink.write_all(bytes)?;
    sink.flush()
}

/// Standard input, until it ends. A thread of its own reads: nothing else waits well for a terminal.
async fn type_in(mut keys: Pin<Box<dyn AsyncWrite + Send>>) {
    let (sender, mut typed) = mpsc::channel::<Vec<u8>>(8);
    std::thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(read @ 1..) = io::stdin().read(&mut buffer) {
            if sender.blocking_send(buffer[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    while let Some(bytes) = typed.recv().await {
        if keys.write_all(&bytes).await.is_err() || keys.flush().await.is_err() {
            return;
        }
    }
    // The container reads the end of its input.
    let _ = keys.shutdown().await;
}
