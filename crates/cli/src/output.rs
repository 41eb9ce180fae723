//! Writers for stdout and stderr: data goes to stdout, messages go to stderr. A closed stdout ends the verb.

use std::io::{IsTerminal as _, Write as _};

use divvy_api::v1::{Error, ErrorCode};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::colour::Palette;
use crate::error_output::{for_stderr, stderr_width};
use crate::render::View;
use crate::table::NARROWEST;

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
    let line = format!("divvy: {}", crate::text::clean(line));
    let _ = writeln!(std::io::stderr(), "{}", for_stderr(&line));
}

/// Prints one line of progress, on a terminal only.
pub fn progress(line: &str) {
    if is_watched() {
        say(line);
    }
}

/// A line of stderr that is drawn again in its place, on a terminal that can. Dropped, it is erased.
pub struct LiveLine {
    can_redraw: bool,
    is_shown: bool,
    /// The last text, where the terminal cannot redraw.
    said: String,
}

impl LiveLine {
    pub fn on_stderr() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            can_redraw: is_watched() && !is_dumb,
            is_shown: false,
            said: String::new(),
        }
    }

    /// Whether the line can follow the time.
    pub fn is_live(&self) -> bool {
        self.can_redraw
    }

    /// Shows the text. `plain`: what a terminal without control sequences shows, once until it changes.
    pub fn show(&mut self, text: &str, plain: &str) {
        if !self.can_redraw {
            if self.said != plain {
                progress(plain);
                plain.clone_into(&mut self.said);
            }
            return;
        }
        let width = stderr_width().unwrap_or(80).saturating_sub(1);
        let line =
            crate::table::cut(&format!("divvy: {}", crate::text::clean(text)), width).into_owned();
        self.is_shown = true;
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
    }

    /// Clears a line of stderr that another thread may have drawn.
    pub fn clear() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }

    /// Clears the line, before other output comes.
    pub fn erase(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            Self::clear();
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.erase();
    }
}

/// Rings the terminal's bell, if a person watches.
pub fn ring() {
    if is_watched() {
        let _ = std::io::stderr().write_all(b"\x07");
    }
}

/// Whether stdout is a terminal that can redraw.
pub fn is_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stdout().is_terminal() && !is_dumb
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
        palette: Palette::of_stdout(),
    }
}

fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Rows of the terminal of stdout.
pub fn terminal_rows() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0).then_some(usize::from(size.ws_row))
}
