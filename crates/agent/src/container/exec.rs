//! Another program inside of a job's container: the engine starts it there, where the limiter is in front of everything.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as EngineError;
use bollard::exec::{CreateExecOptions, ResizeExecOptions, StartExecOptions, StartExecResults};
use bollard::query_parameters::KillContainerOptions;
use divvy_api::frame::{Frame, LARGEST};
use divvy_api::v1::{Error, ErrorCode, Exec, ExecEnd, Signal};
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::engine;
use super::run::code;
use crate::guest::relay::Ways;
use crate::process::Process;

/// Between two questions whether a program has ended; the engine tells nobody by itself.
const AGAIN: Duration = Duration::from_millis(20);

/// How often it is asked, once the program's output has come to its end.
const TIMES: u32 = 500;

/// A program that the engine has started in a container.
pub struct Guest {
    program: Program,
    words: Pin<Box<dyn Stream<Item = Result<LogOutput, EngineError>> + Send>>,
    keys: Pin<Box<dyn AsyncWrite + Send>>,
}

/// As the engine knows it.
struct Program {
    docker: Docker,
    id: String,
}

/// Has the engine start a program; the inner failure is the program's.
///
/// # Errors
/// When the engine does not answer.
pub async fn start(
    socket: &Path,
    container: &str,
    exec: &Exec,
) -> Result<Result<Guest, ExecEnd>, Error> {
    let docker = engine::connect(socket)
        .await
        .map_err(|error| away(&error))?;
    let tty = exec.terminal.is_some();
    let kind = exec.terminal.as_ref().and_then(|one| one.kind.as_deref());
    let options = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(tty),
        env: kind.map(|kind| vec![format!("TERM={kind}")]),
        cmd: Some(exec.command.clone()),
        ..CreateExecOptions::default()
    };
    let failed = |error: EngineError| {
        let message = engine::words(&error);
        ExecEnd {
            exit_code: code(&message),
            message: Some(message),
        }
    };
    let id = match docker.create_exec(container, options).await {
        Ok(made) => made.id,
        Err(error) => return Ok(Err(failed(error))),
    };
    let how = StartExecOptions {
        tty,
        ..StartExecOptions::default()
    };
    let (words, keys) = match docker.start_exec(&id, Some(how)).await {
        Ok(StartExecResults::Attached { output, input }) => (output, input),
        Ok(StartExecResults::Detached) => {
            let why = "the engine started the program and does not let it be spoken with";
            return Err(Error::new(ErrorCode::Internal, why));
        }
        Err(error) => return Ok(Err(failed(error))),
    };
    let program = Program { docker, id };
    if let Some(terminal) = &exec.terminal {
        program.resize(terminal.rows, terminal.columns).await;
    }
    Ok(Ok(Guest {
        program,
        words,
        keys,
    }))
}

/// Sends a signal to a container's program.
///
/// # Errors
/// When the engine does not do it.
pub async fn signal(socket: &Path, container: &str, signal: Signal) -> Result<(), Error> {
    let docker = engine::connect(socket)
        .await
        .map_err(|error| away(&error))?;
    let options = KillContainerOptions {
        signal: signal.name().to_owned(),
    };
    let sent = docker.kill_container(container, Some(options)).await;
    sent.map_err(|error| {
        let why = format!("the engine does not send it: {}", engine::words(&error));
        Error::new(ErrorCode::Conflict, why)
    })
}

fn away(error: &EngineError) -> Error {
    let why = format!(
        "the container engine does not answer: {}",
        engine::words(error)
    );
    Error::new(ErrorCode::Internal, why)
}

impl Guest {
    /// Sees to it until it has ended, or its client is gone.
    pub async fn attend(self, ways: Ways) {
        let Ways { mut told, said } = ways;
        let Self {
            program,
            mut words,
            mut keys,
        } = self;
        loop {
            tokio::select! {
                word = words.next() => match word {
                    Some(Ok(word)) => {
                        let kind = match word {
                            LogOutput::StdErr { .. } => Frame::Errors,
                            _ => Frame::Output,
                        };
                        for piece in word.into_bytes().chunks(LARGEST) {
                            if said.send(kind(piece.to_vec())).await.is_err() {
                                return program.hang_up().await;
                            }
                        }
                    }
                    Some(Err(_)) | None => break,
                },
                () = said.closed() => return program.hang_up().await,
                frame = told.recv() => match frame {
                    None => return program.hang_up().await,
                    Some(Frame::Input(bytes)) => {
                        // Who reads nothing any more gets nothing any more.
                        let _ = keys.write_all(&bytes).await;
                        let _ = keys.flush().await;
                    }
                    Some(Frame::InputEnd) => drop(keys.shutdown().await),
                    Some(Frame::Size { rows, columns }) => program.resize(rows, columns).await,
                    Some(Frame::Signal(number)) => program.signal(number).await,
                    Some(Frame::Output(_) | Frame::Errors(_) | Frame::End(_)) => {}
                },
            }
        }
        let _ = said.send(Frame::End(program.end().await)).await;
    }
}

impl Program {
    async fn resize(&self, height: u16, width: u16) {
        if height > 0 && width > 0 {
            let size = ResizeExecOptions { height, width };
            // It has another size then, and works.
            let _ = self.docker.resize_exec(&self.id, size).await;
        }
    }

    /// How it ended. The output's end comes a little before.
    async fn end(&self) -> ExecEnd {
        for _ in 0..TIMES {
            if let Ok(found) = self.docker.inspect_exec(&self.id).await
                && found.running == Some(false)
                && let Some(code) = found.exit_code
            {
                let exit_code = i32::try_from(code).unwrap_or(125);
                return ExecEnd {
                    exit_code,
                    message: None,
                };
            }
            tokio::time::sleep(AGAIN).await;
        }
        ExecEnd {
            exit_code: 125,
            message: Some("the engine does not say how the program ended".to_owned()),
        }
    }

    /// Its client is gone: as when a terminal is closed.
    async fn hang_up(&self) {
        self.signal(Signal::Hup.number()).await;
    }

    /// The engine has no call for this; it says which process it is.
    async fn signal(&self, number: u8) {
        let Ok(found) = self.docker.inspect_exec(&self.id).await else {
            return;
        };
        let pid = found.pid.and_then(|pid| u32::try_from(pid).ok());
        let process = pid.filter(|pid| *pid > 0).and_then(Process::with_pid);
        let signal = Signal::with_number(number)
            .and_then(|signal| rustix::process::Signal::from_named_raw(i32::from(signal.number())));
        if let (Some(true), Some(process), Some(signal)) = (found.running, process, signal) {
            // Gone by itself is just as well.
            let _ = process.signal(signal);
        }
    }
}
