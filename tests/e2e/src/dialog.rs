//! A program that is spoken to line by line over its stdin and stdout.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use divvy_testkit::{Bounded as _, bounded};
use serde_json::Value;

/// A running program that answers each line with one line of JSON. Killed when dropped.
#[derive(Debug)]
pub struct Dialog {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Dialog {
    /// Starts `command` with its stdin and stdout piped.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self {
            child,
            stdin,
            stdout,
        }
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line, as text.
    ///
    /// # Panics
    /// When the program has closed its stdout.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let what = format!("process {} answers", self.child.id());
        let length = bounded(what, || self.stdout.read_line(&mut line)).expect("stdout is text");
        assert!(
            length > 0,
            "the program ended where an answer was due: {:?}",
            self.child.try_wait()
        );
        line
    }

    /// The next line, as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn listen(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("no JSON ({error}): {line}"))
    }

    /// Says a line.
    ///
    /// # Panics
    /// When the program has closed its stdin.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("still talking");
        writeln!(stdin, "{line}")
            .and_then(|()| stdin.flush())
            .expect("the program listens");
    }

    /// Says a line and returns the answer.
    ///
    /// # Panics
    /// As [`Dialog::say`] and [`Dialog::listen`].
    pub fn ask(&mut self, line: &str) -> Value {
        self.say(line);
        self.listen()
    }

    /// Closes the program's stdin and waits for its end; its exit code.
    ///
    /// # Panics
    /// When it was ended by a signal.
    pub fn finish(mut self) -> i32 {
        drop(self.stdin.take());
        self.child
            .wait_bounded()
            .expect("a child can be waited for")
            .code()
            .expect("the program ended by itself")
    }
}

impl Drop for Dialog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
    }
}
