//! Frames of an exec connection, in both directions, until the frame with the exit code.
//!
//! ```text
//! kind (1 byte) · length of the payload (4 bytes, big-endian) · payload
//! ```
//! Pure: the owner of the connection reads and writes.

use crate::v1::ExecEnd;

/// Value of the `Upgrade` header.
pub const PROTOCOL: &str = "divvy-exec";

/// Most bytes of one frame's content. A pipe of Linux holds as much (pipe(7)), so one read fills one frame. The bound
/// also limits the memory that a peer can claim by a header.
pub const LARGEST: usize = 64 << 10;

/// Bytes of the kind and the length, as in the drawing above.
const HEAD: usize = 5;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// To the program: its input.
    Input(Vec<u8>),
    /// To the program: it has all of its input.
    InputEnd,
    /// Its terminal has another size.
    Size { rows: u16, columns: u16 },
    /// To the program: a signal, by its number.
    Signal(u8),
    /// From the program: its output; on a terminal, all that it writes.
    Output(Vec<u8>),
    /// From the program: its errors.
    Errors(Vec<u8>),
    /// The last one.
    End(ExecEnd),
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("unknown kind of frame: {0}")]
    Kind(u8),
    #[error("frame of {0} bytes: too large")]
    Large(u32),
    #[error("frame of kind {0}: its content is invalid")]
    Content(u8),
}

impl Frame {
    /// As it goes over the connection. Content beyond [`LARGEST`] must be cut into several by the caller.
    pub fn encode(&self) -> Vec<u8> {
        let frame = |kind: u8, content: &[u8]| {
            debug_assert!(content.len() <= LARGEST, "{} bytes", content.len());
            let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
            let mut bytes = Vec::with_capacity(HEAD + content.len());
            bytes.push(kind);
            bytes.extend(length.to_be_bytes());
            bytes.extend(content);
            bytes
        };
        match self {
            Self::Input(bytes) => frame(0, bytes),
            Self::InputEnd => frame(1, &[]),
            Self::Size { rows, columns } => {
                let ([a, b], [c, d]) = (rows.to_be_bytes(), columns.to_be_bytes());
                frame(2, &[a, b, c, d])
            }
            Self::Signal(number) => frame(3, &[*number]),
            Self::Output(bytes) => frame(4, bytes),
            Self::Errors(bytes) => frame(5, bytes),
            Self::End(end) => {
                let mut end = end.clone();
                if let Some(message) = &mut end.message {
                    // Well below the largest, also where every byte is written as an escape.
                    let most = message.floor_char_boundary(LARGEST / 8);
                    message.truncate(most);
                }
                frame(6, &serde_json::to_vec(&end).unwrap_or_default())
            }
        }
    }

    fn decode(kind: u8, content: &[u8]) -> Result<Self, FrameError> {
        let wrong = FrameError::Content(kind);
        match (kind, content) {
            (0, _) => Ok(Self::Input(content.to_vec())),
            (1, []) => Ok(Self::InputEnd),
            (2, [a, b, c, d]) => Ok(Self::Size {
                rows: u16::from_be_bytes([*a, *b]),
                columns: u16::from_be_bytes([*c, *d]),
            }),
            (3, [number]) => Ok(Self::Signal(*number)),
            (4, _) => Ok(Self::Output(content.to_vec())),
            (5, _) => Ok(Self::Errors(content.to_vec())),
            (6, _) => serde_json::from_slice(content)
                .map(Self::End)
                .map_err(|_| wrong),
            (0..=6, _) => Err(wrong),
            _ => Err(FrameError::Kind(kind)),
        }
    }
}

/// Frames out of bytes as they come.
#[derive(Debug, Default)]
pub struct Frames(Vec<u8>);

impl Frames {
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole frame; `None` until more bytes have come.
    ///
    /// # Errors
    /// [`FrameError`]: the connection is of no use any more.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(&[kind, a, b, c, d]) = self.0.get(..HEAD) else {
            return Ok(None);
        };
        if kind > 6 {
            return Err(FrameError::Kind(kind));
        }
        let length = u32::from_be_bytes([a, b, c, d]);
        let end = HEAD + usize::try_from(length).unwrap_or(usize::MAX - HEAD);
        if end > HEAD + LARGEST {
            return Err(FrameError::Large(length));
        }
        let Some(content) = self.0.get(HEAD..end) else {
            return Ok(None);
        };
        let frame = Frame::decode(kind, content);
        self.0.drain(..end);
        frame.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        vec![
            Frame::Input(b"ls\n".to_vec()),
            Frame::Input(Vec::new()),
            Frame::InputEnd,
            Frame::Size {
                rows: 24,
                columns: 300,
            },
            Frame::Signal(2),
            Frame::Output(vec![0; LARGEST]),
            Frame::Errors(b"oops".to_vec()),
            Frame::End(ExecEnd {
                exit_code: 127,
                message: Some("no such program".to_owned()),
            }),
        ]
    }

    #[test]
    fn frames_come_back_as_they_were_however_they_are_cut() {
        let bytes: Vec<u8> = all().iter().flat_map(Frame::encode).collect();
        for piece in [1, 3, 7, 4096, bytes.len()] {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for part in bytes.chunks(piece) {
                frames.push(part);
                while let Some(frame) = frames.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, all(), "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_and_never_waited_for() {
        for (bytes, error) in [
            (&[9, 0, 0, 0, 0][..], FrameError::Kind(9)),
            (&[0, 0xff, 0xff, 0xff, 0xff], FrameError::Large(u32::MAX)),
            (&[0, 0, 1, 0, 1], FrameError::Large(65_537)),
            (&[2, 0, 0, 0, 1, 7], FrameError::Content(2)),
            (&[3, 0, 0, 0, 0], FrameError::Content(3)),
            (&[6, 0, 0, 0, 1, b'x'], FrameError::Content(6)),
        ] {
            let mut frames = Frames::default();
            frames.push(bytes);
            assert_eq!(frames.next_frame(), Err(error));
        }
    }

    #[test]
    fn a_message_of_any_length_is_one_frame() {
        let end = Frame::End(ExecEnd {
            exit_code: 125,
            message: Some("\u{1}ö".repeat(LARGEST)),
        });
        let mut frames = Frames::default();
        frames.push(&end.encode());
        assert!(matches!(frames.next_frame(), Ok(Some(Frame::End(_)))));
    }
}
