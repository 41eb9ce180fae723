//! Exec client: the two halves of the connection to a program inside a job.

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};

use super::liveness::{Liveness, Patience};
use super::{Error, internal};
use crate::frame::{Frame, Frames, LARGEST};
use crate::v1::ErrorCode;

/// The receiving half: the output of the program, until its end.
#[derive(Debug)]
pub struct ExecOutput {
    connection: ReadHalf<TokioIo<Upgraded>>,
    frames: Frames,
    liveness: Liveness,
}

/// The sending half: input, signals and sizes of the terminal.
#[derive(Debug)]
pub struct ExecInput {
    connection: WriteHalf<TokioIo<Upgraded>>,
    liveness: Liveness,
}

pub(super) fn split(connection: Upgraded, liveness: &Liveness) -> (ExecOutput, ExecInput) {
    let (output, input) = tokio::io::split(TokioIo::new(connection));
    (
        ExecOutput {
            connection: output,
            frames: Frames::default(),
            liveness: liveness.clone(),
        },
        ExecInput {
            connection: input,
            liveness: liveness.clone(),
        },
    )
}

impl ExecOutput {
    /// The next frame; the last one is [`Frame::End`].
    ///
    /// # Errors
    /// [`ErrorCode::NoDaemon`] when the agent goes away before.
    pub async fn next(&mut self) -> Result<Frame, Error> {
        let mut piece = vec![0; LARGEST];
        loop {
            let frame = self.frames.next_frame();
            if let Some(frame) = frame.map_err(|error| internal(error.to_string()))? {
                return Ok(frame);
            }
            let read = self.connection.read(&mut piece);
            match self.liveness.attend(Patience::Endless, read).await? {
                Ok(length @ 1..) => self.frames.push(&piece[..length]),
                Ok(0) | Err(_) => {
                    let why = "the connection to the daemon and the program broke";
                    return Err(Error::new(ErrorCode::NoDaemon, why).hint(
                        "the job keeps running; the program got SIGHUP, as when a terminal closes",
                    ));
                }
            }
        }
    }
}

impl ExecInput {
    /// # Errors
    /// When the connection is gone; [`ExecOutput::next`] says why.
    pub async fn send(&mut self, frame: &Frame) -> std::io::Result<()> {
        let bytes = frame.encode();
        let sent = async {
            self.connection.write_all(&bytes).await?;
            self.connection.flush().await
        };
        let sent = self.liveness.attend(Patience::Endless, sent).await;
        sent.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }
}
