//! The connection to a program that runs inside of a job.

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};

use super::{Error, internal};
use crate::frame::{Frame, Frames, LARGEST};
use crate::v1::ErrorCode;

/// What the program says, until it has ended.
#[derive(Debug)]
pub struct ExecOutput {
    connection: ReadHalf<TokioIo<Upgraded>>,
    frames: Frames,
}

/// What it is told.
#[derive(Debug)]
pub struct ExecInput(WriteHalf<TokioIo<Upgraded>>);

pub(super) fn split(connection: Upgraded) -> (ExecOutput, ExecInput) {
    let (connection, input) = tokio::io::split(TokioIo::new(connection));
    let frames = Frames::default();
    (ExecOutput { connection, frames }, ExecInput(input))
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
            match self.connection.read(&mut piece).await {
                Ok(length @ 1..) => self.frames.push(&piece[..length]),
                Ok(0) | Err(_) => {
                    let why = "the connection to the daemon broke, and with it that to the program";
                    return Err(Error::new(ErrorCode::NoDaemon, why).hint(
                        "the job itself goes on; the program was sent SIGHUP, as when a terminal is closed",
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
        self.0.write_all(&frame.encode()).await?;
        self.0.flush().await
    }
}
