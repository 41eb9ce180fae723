//! The daemon's log on stderr: one line an event, with text that users typed (paths, names of programs) escaped.

use std::io::{self, Write};

use divvy_core::escape;

/// Escapes what is written to it. Each write is a whole event.
pub struct Escaped<W>(pub W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        writeln!(self.0, "{}", escape::escaped(line))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_a_user_called_a_path() {
        let mut log = Vec::new();
        let event = "WARN cannot enter /home/u/\u{202e}x\n2026-01-01 INFO forged\n";
        Escaped(&mut log).write_all(event.as_bytes()).unwrap();
        let line = "WARN cannot enter /home/u/\\u{202e}x\\n2026-01-01 INFO forged\n";
        assert_eq!(String::from_utf8(log).unwrap(), line);
    }
}
