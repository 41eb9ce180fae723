//! The output of a command: exit code, stdout and stderr.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use serde_json::Value;

/// Exit code, stdout and stderr of a command that has ended.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// The words it was called with, for messages.
    pub words: String,
    /// 128+N when signal N ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// What these words came to.
    #[must_use]
    pub fn new(words: String, output: &Output) -> Self {
        let code = output
            .status
            .code()
            .unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            words,
            code,
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// Itself, when the command said all went well.
    ///
    /// # Panics
    /// Otherwise, with everything it said.
    #[must_use]
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// Itself, when the exit code is `code`.
    ///
    /// # Panics
    /// Otherwise, with everything it said.
    #[must_use]
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "`{}` ended with {} instead of {code}\n── stdout\n{}── stderr\n{}",
            self.words, self.code, self.stdout, self.stderr
        );
        self
    }

    /// The JSON document on stdout.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!(
                "`{}` printed no JSON ({error}): {}",
                self.words, self.stdout
            )
        })
    }

    /// The `items` of the JSON document on stdout.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    #[track_caller]
    pub fn items(&self) -> Vec<Value> {
        let json = self.json();
        assert_eq!(
            json["schema"], "divvy/v1",
            "`{}` printed {json}",
            self.words
        );
        json["items"]
            .as_array()
            .unwrap_or_else(|| panic!("`{}` printed no items: {json}", self.words))
            .clone()
    }

    /// The `error` of the JSON document that a failed command with `-o json` leaves on stderr.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[track_caller]
    pub fn error(&self) -> Value {
        let json: Value = serde_json::from_str(&self.stderr).unwrap_or_else(|error| {
            panic!(
                "`{}` left no JSON error ({error}): {}",
                self.words, self.stderr
            )
        });
        json["error"].clone()
    }
}
