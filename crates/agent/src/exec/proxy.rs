//! The exec proxy: copies input, output, window sizes, signals and the exit between a client's connection and an exec
//! session.
//!
//! ```text
//! connection ──► told ──► input ──► pipe or terminal ──► guest
//!            ◄── said ◄── output, errors ◄───────────────┘
//!                  └──── the supervisor's line: how it ended
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Line;
use std::time::Duration;

use divvy_api::frame::{Frame, Frames, LARGEST};
use divvy_api::v1::ExecEnd;
use rustix::fs::OFlags;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::ExecReply;
use super::terminal::resize;

/// Frames that may be on their way to a guest, or from it. So a megabyte at most; a longer queue would go on printing
/// after Ctrl-C.
pub const QUEUE: usize = 16;

/// How long silence means that an ended guest has no more output: a background process may hold its output open. The
/// guest's own output lies in the pipe or terminal by then. So it only needs to be read; longer would delay each
/// prompt.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// Most that is read at a time. More would delay keys behind it, and less would take more calls.
const PIECE: usize = if LARGEST < 16 << 10 {
    LARGEST
} else {
    16 << 10
};

/// What a client says, on its way to the guest, and what the guest says.
pub struct ClientStreams {
    pub from_client: mpsc::Receiver<Frame>,
    pub to_client: mpsc::Sender<Frame>,
}

/// Copies between a connection and the holders of the other ends, until the guest's exit is reported or the client is
/// gone.
pub async fn relay(
    connection: impl AsyncRead + AsyncWrite + Send,
    told: mpsc::Sender<Frame>,
    mut said: mpsc::Receiver<Frame>,
) {
    let (mut from, mut to) = tokio::io::split(connection);
    let down = async {
        while let Some(frame) = said.recv().await {
            to.write_all(&frame.encode()).await?;
            to.flush().await?;
            if matches!(frame, Frame::End(_)) {
                break;
            }
        }
        to.shutdown().await
    };
    let up = async {
        let (mut frames, mut piece) = (Frames::default(), vec![0; PIECE]);
        // A client that sends an invalid frame counts as gone.
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            frames.push(&piece[..length]);
            loop {
                match frames.next_frame() {
                    // Dropped once the guest has ended; its last output is on the way.
                    Ok(Some(frame)) => drop(told.send(frame).await),
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
    };
    tokio::select! {
        _ = down => {}
        () = up => {}
    }
}

/// The ways of a connection: the client's halves, and the guest's.
pub fn client_streams() -> (mpsc::Sender<Frame>, mpsc::Receiver<Frame>, ClientStreams) {
    let (to_guest, told) = mpsc::channel(QUEUE);
    let (said, from_guest) = mpsc::channel(QUEUE);
    (
        to_guest,
        from_guest,
        ClientStreams {
            from_client: told,
            to_client: said,
        },
    )
}

/// The daemon's ends of what a guest runs on.
pub enum AgentStdio {
    Terminal(OwnedFd),
    Pipes {
        input: OwnedFd,
        output: OwnedFd,
        errors: OwnedFd,
    },
}

/// A terminal or a pipe with an end that may block on the other side.
fn unblocked(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(&descriptor)?;
    rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
    Ok(descriptor)
}

/// To write into. A terminal is waited on as a pipe is.
fn sender(descriptor: OwnedFd) -> io::Result<pipe::Sender> {
    pipe::Sender::from_owned_fd_unchecked(unblocked(descriptor)?)
}

fn receiver(descriptor: OwnedFd) -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd_unchecked(unblocked(descriptor)?)
}

/// Sees to a guest that its supervisor has started, until it has ended or its client is gone: then the line is cut, and
/// the guest is hung up.
///
/// # Errors
/// When the descriptors cannot be waited on; the guest is hung up then.
pub async fn proxy_session(line: Line, ours: AgentStdio, ways: ClientStreams) -> io::Result<()> {
    let ClientStreams {
        from_client: mut told,
        to_client: said,
    } = ways;
    line.set_nonblocking(true)?;
    let (words, mut signals) = UnixStream::from_std(line)?.into_split();
    let mut words = tokio::io::BufReader::new(words).lines();
    let (ended, over) = watch::channel(false);
    let said_as = |kind: fn(Vec<u8>) -> Frame, from| Ok::<_, io::Error>((receiver(from)?, kind));
    let (input, outputs, terminal) = match ours {
        AgentStdio::Terminal(terminal) => (
            sender(terminal.try_clone()?)?,
            vec![said_as(Frame::Output, terminal.try_clone()?)?],
            Some(terminal),
        ),
        AgentStdio::Pipes {
            input,
            output,
            errors,
        } => (
            sender(input)?,
            vec![
                said_as(Frame::Output, output)?,
                said_as(Frame::Errors, errors)?,
            ],
            None,
        ),
    };
    // They end with this function, whichever way it ends.
    let mut pumps = JoinSet::new();
    for (output, kind) in outputs {
        pumps.spawn(forward_output(output, kind, said.clone(), over.clone()));
    }
    let (typed, keys) = mpsc::channel(QUEUE);
    let mut typing = JoinSet::new();
    typing.spawn(write_input(input, keys));
    let mut typed = Some(typed);
    // What the guest has not taken yet. Until it has, nothing else is heard of its client but that he is gone.
    let mut waiting = None;
    let exit_code = loop {
        let keys = typed.clone();
        tokio::select! {
            word = words.next_line() => match word {
                Ok(Some(word)) => {
                    if let Ok(ExecReply::Ended { exit_code }) = serde_json::from_str(&word) {
                        break Some(exit_code);
                    }
                }
                // The supervisor is gone, and with it all that it started.
                Ok(None) | Err(_) => break None,
            },
            () = said.closed() => return Ok(()),
            room = reserve_input(keys.as_ref()), if waiting.is_some() => match (room, waiting.take()) {
                (Some(room), Some(bytes)) => room.send(bytes),
                // Once the client stops reading, its output is dropped.
                _ => typed = None,
            },
            frame = told.recv(), if waiting.is_none() => match frame {
                None => return Ok(()),
                Some(Frame::Input(bytes)) => waiting = Some(bytes),
                // A terminal has no end of input but the key for it (termios(3), VEOF).
                Some(Frame::InputEnd) if terminal.is_some() => waiting = Some(vec![4]),
                Some(Frame::InputEnd) => typed = None,
                Some(Frame::Size { rows, columns }) => if let Some(terminal) = &terminal {
                    let _ = resize(terminal, rows, columns);
                },
                Some(Frame::Signal(number)) => drop(signals.write_all(&[number]).await),
                Some(Frame::Output(_) | Frame::Errors(_) | Frame::End(_)) => {}
            },
        }
    };
    let _ = ended.send(true);
    while pumps.join_next().await.is_some() {}
    let end = match exit_code {
        Some(exit_code) => ExecEnd {
            exit_code,
            message: None,
        },
        None => ExecEnd {
            exit_code: 125,
            message: Some(
                "the exit code of the program is unknown: the job's supervisor has ended"
                    .to_owned(),
            ),
        },
    };
    // The client has hung up.
    let _ = said.send(Frame::End(end)).await;
    Ok(())
}

/// Room for more input; `None` if the guest reads none.
pub async fn reserve_input(
    typed: Option<&mpsc::Sender<Vec<u8>>>,
) -> Option<mpsc::Permit<'_, Vec<u8>>> {
    typed?.reserve().await.ok()
}

/// Forwards a guest's output until all its writers are gone, or it has ended and nothing comes.
async fn forward_output(
    mut output: pipe::Receiver,
    kind: fn(Vec<u8>) -> Frame,
    said: mpsc::Sender<Frame>,
    mut over: watch::Receiver<bool>,
) {
    let mut piece = vec![0; PIECE];
    loop {
        let is_over = *over.borrow();
        let length = tokio::select! {
            biased;
            length = output.read(&mut piece) => length,
            _ = over.changed(), if !is_over => continue,
            () = tokio::time::sleep(DRAIN_TIMEOUT), if is_over => return,
        };
        // Reading a terminal without a process at the other side fails with EIO.
        let Ok(length @ 1..) = length else {
            return;
        };
        if said.send(kind(piece[..length].to_vec())).await.is_err() {
            return;
        }
    }
}

/// Writes the client's input until its end, or until the guest stops reading. Dropping a pipe ends the input; for a
/// connection an end frame is sent.
pub async fn write_input(
    mut input: impl AsyncWrite + Unpin + Send,
    mut keys: mpsc::Receiver<Vec<u8>>,
) {
    while let Some(bytes) = keys.recv().await {
        if input.write_all(&bytes).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
    let _ = input.shutdown().await;
}
