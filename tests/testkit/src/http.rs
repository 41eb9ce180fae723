//! HTTP by hand: one call over a connection of its own, for what the API's client does not send.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::PATIENCE;

/// Status and body of one call.
///
/// # Panics
/// When no whole answer comes within [`PATIENCE`].
#[must_use]
#[track_caller]
pub fn call(socket: &Path, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).expect("the daemon takes connections");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\ncontent-type: application/json\r\n"
    );
    stream
        .write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes())
        .expect("the daemon reads");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("it is not zero");
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .unwrap_or_else(|error| panic!("no whole answer to {method} {path}: {error}"));
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}
