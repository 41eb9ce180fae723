//! A running `divvy web`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use divvy_testkit::{Bounded as _, PATIENCE, bounded};

/// `divvy web`, killed when dropped.
#[derive(Debug)]
pub struct Web {
    child: Child,
    /// It may print more; a closed pipe would end it.
    _lines: BufReader<ChildStdout>,
    /// What it printed up to its address.
    pub said: String,
    pub port: u16,
    pub token: String,
}

impl Web {
    /// Starts `divvy web`, which this command calls, and waits for its address.
    ///
    /// # Panics
    /// When it prints none.
    #[must_use]
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("divvy web starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut said = String::new();
        let (port, token) = bounded("divvy web prints its address", || {
            loop {
                let mut line = String::new();
                let read = lines.read_line(&mut line).expect("it prints text");
                said.push_str(&line);
                assert!(read > 0, "divvy web ended: {said}");
                if let Some(found) = address(&line) {
                    return found;
                }
            }
        });
        Self {
            child,
            _lines: lines,
            said,
            port,
            token,
        }
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The address that `divvy web` prints, with the token.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}/#{}", self.origin(), self.token)
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Status and whole answer of a request with these lines of a head; the first is the request's.
    ///
    /// # Panics
    /// When no whole answer comes.
    #[must_use]
    #[track_caller]
    pub fn request(&self, head: &[&str]) -> (u16, String) {
        request(self.port, head)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
    }
}

/// Status and whole answer of a request to a port of this machine.
///
/// # Panics
/// When no whole answer comes.
#[must_use]
#[track_caller]
pub fn request(port: u16, head: &[&str]) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port takes connections");
    stream
        .set_read_timeout(Some(PATIENCE))
        .expect("it is not zero");
    let whole = format!("{}\r\nConnection: close\r\n\r\n", head.join("\r\n"));
    stream.write_all(whole.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("a whole answer");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {text}")), text)
}

/// Port and token of `http://127.0.0.1:PORT/#TOKEN` in a line.
fn address(line: &str) -> Option<(u16, String)> {
    let (_, rest) = line.split_once("http://127.0.0.1:")?;
    let (port, token) = rest.split_once("/#")?;
    let end = token
        .find(|c: char| c.is_whitespace())
        .unwrap_or(token.len());
    Some((port.parse().ok()?, token[..end].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_is_found_in_a_line_of_text() {
        let found = Some((7070, "abc_-1".to_owned()));
        assert_eq!(address("http://127.0.0.1:7070/#abc_-1\n"), found);
        assert_eq!(
            address("open  http://127.0.0.1:7070/#abc_-1 in a browser\n"),
            found
        );
        assert_eq!(address("http://127.0.0.1:7070/\n"), None);
    }
}
