//! Another site: a server on another port of this machine, as another user's program could be. It serves one document,
//! and records what browsers send to it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use divvy_testkit::PATIENCE;

/// The server. Its thread ends with the test program.
#[derive(Debug)]
pub struct Foreign {
    pub port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Foreign {
    /// Serves this document at every path.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn serve(document: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (kept, document) = (Arc::clone(&heads), document.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Some(head) = answer(&stream, &document) {
                    kept.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(head);
                }
            }
        });
        Self { port, heads }
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The heads of the requests so far.
    #[must_use]
    pub fn heads(&self) -> Vec<String> {
        self.heads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Answers one request; its head.
fn answer(mut stream: &TcpStream, document: &str) -> Option<String> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut head = String::new();
    let mut lines = BufReader::new(stream);
    while lines.read_line(&mut head).ok()? > 2 {}
    let length = document.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{document}"
    );
    stream.write_all(answer.as_bytes()).ok()?;
    Some(head)
}
