//! Writers for stdout and stderr: data goes to stdout, messages go to stderr. A closed stdout ends the verb.

use std::io::{IsTerminal as _, Write as _};

use divvy_api::v1::{Error, ErrorCode};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::render::View;

/// Least width a table is fitted to, however narrow the terminal.
const NARROWEST: usize = 40;

/// Why a verb ends early.
#[derive(Debug)]
pub enum Stop {
    Failed(Error),
    /// stdout is closed.
    Hangup,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::Hangup;
        }
        Self::Failed(Error::new(
            ErrorCode::Internal,
            format!("cannot write to stdout: {error}"),
        ))
    }
}

impl From<serde_json::Error> for Stop {
    fn from(error: serde_json::Error) -> Self {
        Self::Failed(Error::new(
            ErrorCode::Internal,
            format!("cannot write the output as JSON: {error}"),
        ))
    }
}

/// Writes data to stdout and flushes it.
pub fn print(data: impl AsRef<[u8]>) -> Result<(), Stop> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(data.as_ref())?;
    Ok(stdout.flush()?)
}

/// Writes a message to stderr, on a terminal or not.
pub fn say(line: &str) {
    // A closed stderr does not stop the verb.
    let _ = writeln!(std::io::stderr(), "divvy: {}", crate::text::clean(line));
}

/// Prints one line of progress, on a terminal only.
pub fn progress(line: &str) {
    if is_watched() {
        say(line);
    }
}

/// Rings the terminal's bell, if a person watches.
pub fn ring() {
    if is_watched() {
        let _ = std::io::stderr().write_all(b"\x07");
    }
}

/// Whether stderr is a terminal.
pub fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// Whether the locale's character encoding is UTF-8.
pub fn is_utf8() -> bool {
    let given = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter();
    let mut given = given.filter_map(|name| std::env::var(name).ok());
    given.find(|value| !value.is_empty()).is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// A view that fits `COLUMNS`, else the terminal, else cuts nothing.
pub fn view() -> View {
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
        .filter(|columns| *columns > 0);
    let width = columns
        .or_else(terminal_width)
        .map(|width: usize| width.max(NARROWEST));
    View {
        wide: false,
        width,
        now: Timestamp::now(),
        zone: TimeZone::system,
    }
}

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}
