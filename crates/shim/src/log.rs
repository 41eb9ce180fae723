//! The limiter's log: lines on standard error. Each is written by one `write`, past the program's own buffers.

/// Writes one line. A write error is ignored: there is no other place to report it.
pub fn write_line(text: &str) {
    let line = format!("divvy: {text}\n");
    // SAFETY: the line's own bytes and length.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
