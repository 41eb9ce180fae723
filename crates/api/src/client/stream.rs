//! Streaming responses: a job's output, and events as they happen.

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde::de::DeserializeOwned;

use super::liveness::{Liveness, Patience};
use super::{internal, lost};
use crate::v1::{Board, Error, Event};

/// Bytes as they arrive.
#[derive(Debug)]
pub struct LogStream {
    body: Incoming,
    patience: Patience,
    liveness: Liveness,
    from: u64,
}

impl LogStream {
    pub(super) fn new(
        (body, patience): (Incoming, Patience),
        liveness: Liveness,
        from: u64,
    ) -> Self {
        Self {
            body,
            patience,
            liveness,
            from,
        }
    }

    /// The place of the first byte in all that the job has said; beyond what was asked for where that is not kept any more.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// The next piece, or `None` at the end.
    ///
    /// # Errors
    /// [`crate::v1::ErrorCode::NoDaemon`] when the agent goes away before the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = (self.liveness)
            .attend(self.patience, self.body.frame())
            .await?
        {
            let frame = frame.map_err(|error| lost(self.liveness.socket(), &error))?;
            match frame.into_data() {
                Ok(data) if !data.is_empty() => return Ok(Some(data)),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Server-sent events, one at a time.
#[derive(Debug)]
struct Blocks {
    bytes: LogStream,
    buffer: Vec<u8>,
}

impl Blocks {
    fn new(bytes: LogStream) -> Self {
        Self {
            bytes,
            buffer: Vec::new(),
        }
    }

    async fn next<T>(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(found) = parse(&block)? {
                    return Ok(Some(found));
                }
            }
            match self.bytes.next().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// Events as they happen, from server-sent events.
#[derive(Debug)]
pub struct EventStream(Blocks);

impl EventStream {
    pub(super) fn new(bytes: LogStream) -> Self {
        Self(Blocks::new(bytes))
    }

    /// The next event, or `None` when the agent ends the stream.
    ///
    /// # Errors
    /// As [`LogStream::next`], and when the agent sends something that is no event.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        self.0.next(parse).await
    }
}

/// Boards as they change.
#[derive(Debug)]
pub struct BoardStream {
    blocks: Blocks,
    board: Option<Board>,
}

impl BoardStream {
    pub(super) fn new(bytes: LogStream) -> Self {
        Self {
            blocks: Blocks::new(bytes),
            board: None,
        }
    }

    /// The next board, whole, or `None` when the agent ends the stream. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// As [`LogStream::next`], and when the agent sends something that is no board.
    pub async fn next(&mut self) -> Result<Option<Board>, Error> {
        match &mut self.board {
            None => self.board = self.blocks.next(parse).await?,
            Some(board) => match self.blocks.next(parse).await? {
                None => return Ok(None),
                Some(change) => board.apply(change),
            },
        }
        Ok(self.board.clone())
    }
}

/// One block of the stream; `None` for a comment, which is how the agent keeps the connection alive.
fn parse<T: DeserializeOwned>(block: &[u8]) -> Result<Option<T>, Error> {
    let data: Vec<&[u8]> = block
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.strip_prefix(b"data:"))
        .map(|data| data.strip_prefix(b" ").unwrap_or(data))
        .collect();
    if data.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&data.join(&b'\n'))
        .map(Some)
        .map_err(|error| {
            internal(format!(
                "the daemon sent an event that cannot be read: {error}"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_with_data_is_an_event_and_a_comment_is_none() {
        let text = b"id: 4\nevent: ended\ndata: {\"seq\":4,\"at\":\"2026-01-02T03:04:05Z\",\"job\":\"1\",\"kind\":\"ended\",\"text\":\"x\"}\n\n";
        assert_eq!(parse::<Event>(text).unwrap().unwrap().seq, 4);
        assert!(parse::<Event>(b": keep-alive\n\n").unwrap().is_none());
        assert!(parse::<Event>(b"data: nonsense\n\n").is_err());
    }
}
