//! The exec session in a container: the engine starts a second program in a job's container, under the limiter.

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
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::engine;
use super::run::code;
use crate::exec::proxy::{ClientStreams, QUEUE, reserve_input, write_input};
use crate::host::process::Process;

/// Between two polls of whether a program has ended; the engine does not announce it. So an end is seen as soon as a
/// user notices; each poll is a call of the engine, so not oftener.
const AGAIN: Duration = Duration::from_millis(20);

/// How often it is asked, once the program's output has come to its end. So ten seconds: a busy engine takes longer
/// than one, and after ten the client would think it hangs.
const TIMES: u32 = 500;

/// A program that the engine has started in a container.
pub struct ContainerExec {
    program: Program,
    words: Pin<Box<dyn Stream<Item = Result<LogOutput, EngineError>> + Send>>,
    keys: Pin<Box<dyn AsyncWrite + Send>>,
}

/// As the engine knows it.
struct Program {
    docker: Docker,
    id: String,
}

/// The start of a program in a container.
pub enum ContainerStart {
    Started(ContainerExec),
    /// The engine could not start the program.
    Failed(ExecEnd),
}

/// Has the engine start a program as `user`, or as the container's own user.
///
/// # Errors
/// When the engine does not answer.
pub async fn start(
    socket: &Path,
    container: &str,
    user: Option<&str>,
    exec: &Exec,
) -> Result<ContainerStart, Error> {
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
        user: user.map(str::to_owned),
        privileged: Some(false),
        ..CreateExecOptions::default()
    };
    let failed = |error: EngineError| {
        let message = engine::describe_error(&error);
        ContainerStart::Failed(ExecEnd {
            exit_code: code(&message),
            message: Some(message),
        })
    };
    let id = match docker.create_exec(container, options).await {
        Ok(made) => made.id,
        Err(error) => return Ok(failed(error)),
    };
    let how = StartExecOptions {
        tty,
        ..StartExecOptions::default()
    };
    let (words, keys) = match docker.start_exec(&id, Some(how)).await {
        Ok(StartExecResults::Attached { output, input }) => (output, input),
        Ok(StartExecResults::Detached) => {
            let why = "the container engine started the program, but did not connect its input and output";
            return Err(Error::new(ErrorCode::Internal, why));
        }
        Err(error) => return Ok(failed(error)),
    };
    let program = Program { docker, id };
    if let Some(terminal) = &exec.terminal {
        program.resize(terminal.rows, terminal.columns).await;
    }
    Ok(ContainerStart::Started(ContainerExec {
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
        let why = format!(
            "the container engine cannot send the signal: {}",
            engine::describe_error(&error)
        );
        Error::new(ErrorCode::Conflict, why)
    })
}

fn away(error: &EngineError) -> Error {
    let why = format!(
        "the container engine does not respond: {}",
        engine::describe_error(error)
    );
    Error::new(ErrorCode::Internal, why)
}

impl ContainerExec {
    /// Sees to it until it has ended, or its client is gone.
    pub async fn run(self, ways: ClientStreams) {
        let ClientStreams {
            from_client: mut told,
            to_client: said,
        } = ways;
        let Self {
            program,
            mut words,
            keys,
        } = self;
        // A program that says something before it reads on is heard meanwhile. It ends with this function, whichever way that ends.
        let (typed, input) = mpsc::channel(QUEUE);
        let mut typing = JoinSet::new();
        typing.spawn(write_input(keys, input));
        let mut typed = Some(typed);
        // What it has not taken yet. Until it has, nothing else is heard of its client but that he is gone.
        let mut waiting = None;
        loop {
            let keys = typed.clone();
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
                room = reserve_input(keys.as_ref()), if waiting.is_some() => match (room, waiting.take()) {
                    (Some(room), Some(bytes)) => room.send(bytes),
                    // Once the client stops reading, its output is dropped.
                    _ => typed = None,
                },
                frame = told.recv(), if waiting.is_none() => match frame {
                    None => return program.hang_up().await,
                    Some(Frame::Input(bytes)) => waiting = Some(bytes),
                    Some(Frame::InputEnd) => typed = None,
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
            message: Some(
                "the container engine does not report the program's exit code".to_owned(),
            ),
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::exec::proxy::client_streams;

    #[tokio::test]
    async fn a_program_that_answers_before_it_reads_on_is_given_all_and_heard_to_its_end() {
        // An engine that is not there is asked for nothing before the end.
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("sock");
        drop(UnixListener::bind(&socket).unwrap());
        let path = socket.to_str().unwrap();
        let docker = Docker::connect_with_unix(path, 1, bollard::API_DEFAULT_VERSION).unwrap();
        // As `cat` does: it takes a little, and no more before that was taken from it.
        let (keys, mut reads) = tokio::io::duplex(4);
        let (says, words) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut piece = [0; 4];
            while let Ok(length @ 1..) = reads.read(&mut piece).await {
                let message = piece[..length].to_vec().into();
                if says.send(Ok(LogOutput::StdOut { message })).await.is_err() {
                    return;
                }
            }
        });
        let words = futures_util::stream::unfold(words, |mut words| async move {
            Some((words.recv().await?, words))
        });
        let id = "exec".to_owned();
        let guest = ContainerExec {
            program: Program { docker, id },
            words: Box::pin(words),
            keys: Box::pin(keys),
        };
        let (told, mut said, ways) = client_streams();
        let attended = tokio::spawn(guest.run(ways));
        let given: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
        let input = given.clone();
        tokio::spawn(async move {
            for piece in input.chunks(1 << 10) {
                told.send(Frame::Input(piece.to_vec())).await.unwrap();
            }
            // An interactive client stays to the end.
            std::future::pending::<()>().await;
        });
        let mut heard = Vec::new();
        while heard.len() < given.len() {
            match said.recv().await {
                Some(Frame::Output(bytes)) => heard.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
        assert!(heard == given);
        drop(said);
        attended.await.unwrap();
    }
}
