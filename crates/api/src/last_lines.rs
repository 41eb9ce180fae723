//! The last lines of a file, found from its end backwards in pieces.

use std::io;

/// Bytes of one read. Enough for a screen of long lines in one read; more would read bytes that are not printed.
const PIECE: u64 = 64 << 10;

/// The offset at which the last `lines` lines begin, in a file of which the bytes from `begin` to `end` are there. An
/// unfinished line at the end is a line.
///
/// # Errors
/// Those of `read_at`, which fills a buffer from an offset as far as it can.
pub fn last_lines(
    mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    (begin, end): (u64, u64),
    lines: u64,
) -> io::Result<u64> {
    if lines == 0 {
        return Ok(end);
    }
    let mut buffer = Vec::new();
    let (mut place, mut found) = (end, 0);
    while place > begin {
        let from = place.saturating_sub(PIECE).max(begin);
        buffer.resize(usize::try_from(place - from).unwrap_or(usize::MAX), 0);
        let read = read_at(&mut buffer, from)?;
        for (at, _) in buffer[..read]
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n')
        {
            let next = from + at as u64 + 1;
            // The end of the last line begins no other.
            if next == end {
                continue;
            }
            found += 1;
            if found == lines {
                return Ok(next);
            }
        }
        place = from;
    }
    Ok(begin.min(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8], begin: u64, lines: u64) -> (u64, usize) {
        let mut most = 0;
        let read = |buffer: &mut [u8], from: u64| {
            most = most.max(buffer.len());
            let from = usize::try_from(from).unwrap();
            buffer.copy_from_slice(&text[from..from + buffer.len()]);
            Ok(buffer.len())
        };
        let found = last_lines(read, (begin, text.len() as u64), lines).unwrap();
        (found, most)
    }

    #[test]
    fn the_last_lines_are_found_with_and_without_an_end_of_line() {
        for (text, lines, begins) in [
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 1, "c"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\nc\n", 3, "a\nb\nc\n"),
            ("a\nb\nc\n", 99, "a\nb\nc\n"),
            ("a\nb\nc\n", 0, ""),
            ("a\n\n\n", 2, "\n\n"),
            ("", 5, ""),
            ("\n", 1, "\n"),
            ("no end", 1, "no end"),
        ] {
            let (offset, _) = of(text.as_bytes(), 0, lines);
            let offset = usize::try_from(offset).unwrap();
            assert_eq!(&text[offset..], begins, "{lines} of {text:?}");
        }
        assert_eq!(
            of(b"gone\nb\nc\n", 5, 9).0,
            5,
            "what is no longer there is not read"
        );
    }

    #[test]
    fn a_long_file_is_read_backwards_in_pieces_only_as_far_as_needed() {
        let text: String = (0..100_000)
            .map(|number| format!("line {number:09}\n"))
            .collect();
        let mut read_from = u64::MAX;
        let read = |buffer: &mut [u8], from: u64| {
            read_from = read_from.min(from);
            assert!(buffer.len() as u64 <= PIECE);
            let at = usize::try_from(from).unwrap();
            buffer.copy_from_slice(&text.as_bytes()[at..at + buffer.len()]);
            Ok(buffer.len())
        };
        let end = text.len() as u64;
        assert_eq!(last_lines(read, (0, end), 10_000).unwrap(), end - 150_000);
        assert!(read_from >= end - 150_000 - PIECE, "{read_from}");
    }
}
