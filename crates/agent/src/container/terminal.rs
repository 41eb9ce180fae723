//! The user's terminal of a foreground container: raw mode, and its window size.

use std::io;

use rustix::termios::{self, OptionalActions, Termios};

/// Standard input as it was before; put back when dropped.
pub struct Raw(Termios);

impl Raw {
    /// Puts the terminal into raw mode; `None` if standard input is no terminal.
    ///
    /// # Errors
    /// When the terminal refuses.
    pub fn enter() -> io::Result<Option<Self>> {
        let Ok(before) = termios::tcgetattr(io::stdin()) else {
            return Ok(None);
        };
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Some(Self(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Rows and columns.
pub fn size() -> Option<(i32, i32)> {
    let size = termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_row > 0).then(|| (i32::from(size.ws_row), i32::from(size.ws_col)))
}
