//! The WebDriver protocol (W3C), as far as the tests need it: one HTTP call with JSON for each command.
//!
//! No crate: thirtyfour switches `serde_json` to `preserve_order` for every program of the workspace, and fantoccini brings
//! code under MPL-2.0.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use divvy_testkit::PATIENCE;
use serde_json::{Value, json};

/// A key without a letter, by its code in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Tab,
    Enter,
    Escape,
}

impl Key {
    pub(crate) fn code(self) -> char {
        match self {
            Self::Tab => '\u{e004}',
            Self::Enter => '\u{e007}',
            Self::Escape => '\u{e00c}',
        }
    }
}

/// The name of an element in the protocol.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A session: one browser.
#[derive(Debug)]
pub struct Session {
    port: u16,
    id: String,
}

impl Session {
    /// Starts a browser with these capabilities.
    ///
    /// # Errors
    /// The driver's words.
    pub fn start(port: u16, capabilities: &Value) -> Result<Self, String> {
        let wanted = json!({"capabilities": {"alwaysMatch": capabilities}});
        let value = send(port, "POST", "/session", Some(&wanted))?;
        let id = value["sessionId"].as_str().ok_or("no session id")?;
        let id = id.to_owned();
        Ok(Self { port, id })
    }

    /// The value that a command answers with.
    ///
    /// # Errors
    /// The driver's words, or those of the connection.
    pub fn post(&self, command: &str, body: &Value) -> Result<Value, String> {
        let path = format!("/session/{}/{command}", self.id);
        send(self.port, "POST", &path, Some(body))
    }

    /// The id of the element that a selector finds.
    ///
    /// # Errors
    /// As [`Self::post`], and where there is none.
    pub fn element(&self, selector: &str) -> Result<String, String> {
        let by = json!({"using": "css selector", "value": selector});
        let found = self.post("element", &by)?;
        let id = found[ELEMENT].as_str().ok_or("no element")?;
        Ok(id.to_owned())
    }

    /// Closes the browser.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub fn quit(&self) -> Result<Value, String> {
        send(self.port, "DELETE", &format!("/session/{}", self.id), None)
    }
}

fn send(port: u16, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let io = |error: std::io::Error| format!("{method} {path}: {error}");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).map_err(io)?;
    // The driver keeps the connection, whatever the request says.
    let mut answer = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        let read = answer.read_line(&mut line).map_err(io)?;
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
        if read <= 2 {
            break;
        }
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body).map_err(io)?;
    let document: Value =
        serde_json::from_slice(&body).map_err(|error| format!("{method} {path}: {error}"))?;
    let value = &document["value"];
    match value["error"]
        .as_str()
        .filter(|_| value["stacktrace"].is_string())
    {
        Some(error) => {
            let message = value["message"].as_str().unwrap_or_default();
            Err(format!("{error}: {message}"))
        }
        None => Ok(value.clone()),
    }
}
