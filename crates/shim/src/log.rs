//! The one way this library speaks: a line on standard error. Written by one `write`, past the program's own buffers.

/// Says one line. An error has nobody left to be told.
pub fn write_line(text: &str) {
    let line = format!("divvy: {text}\n");
    // SAFETY: the line's own bytes and length.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
