//! The one place that prints: JSON lines on stdout, flushed, because a test reads them through a pipe.

use std::io::{self, Write};

use serde_json::Value;

/// Prints one JSON object on a line of its own.
///
/// # Errors
/// When stdout is closed.
pub fn say(value: &Value) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{value}")?;
    stdout.flush()
}
