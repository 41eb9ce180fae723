//! Error output: an error as text or JSON on stderr, and its exit code.
//!
//! Every verb fails with the API's [`Error`]: what failed, why with figures, and a hint. Its code decides the exit code, in
//! one exhaustive match ([`ErrorCode::exit_code`]).

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use divvy_api::v1::{Error, ErrorCode};

use crate::colour::{Palette, Tone};
use crate::table::{self, NARROWEST};
use crate::text::clean;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of usage: exit code 2.
pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorCode::Usage, message).hint(hint)
}

/// Formats the text for [`report`]: two lines for people, or one document for programs.
pub fn render(error: &Error, json: bool) -> String {
    error.render(json, clean)
}

/// Tells the failure on stderr and gives its exit code.
pub fn report(error: &Error, json: bool) -> ExitCode {
    let text = render(error, json);
    let text = if json {
        text
    } else {
        in_colour(&for_stderr(&text), Palette::of_stderr())
    };
    // A closed stderr must not hide the exit code.
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::from(error.code.exit_code())
}

/// Letters of a message that repeats the value that it refuses, which may be as long as a command line.
const LONGEST: usize = 600;

/// Without the middle of what is too long: the beginning names the flag, the end says why.
pub fn shortened(message: &str) -> String {
    let letters = message.chars().count();
    if letters <= LONGEST {
        return message.to_owned();
    }
    let half = LONGEST / 2;
    let beginning: String = message.chars().take(half).collect();
    let end: String = message.chars().skip(letters - half).collect();
    format!("{beginning} … {end}")
}

/// The text with lines as wide as the terminal of stderr; as it is if stderr is no terminal.
pub fn for_stderr(text: &str) -> String {
    let width = stderr_width().map(|width| width.max(NARROWEST));
    table::wrapped(text, width, "divvy: ".len())
}

/// Columns of the terminal of stderr, if it is one.
pub fn stderr_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// The text with `error:` and `hint:` in colour.
fn in_colour(text: &str, palette: Palette) -> String {
    let painted = text.lines().map(|line| {
        let words = [("error:", Tone::Bad), ("hint:", Tone::Title)];
        let word = words.iter().find(|(word, _)| line.starts_with(word));
        match word {
            Some((word, tone)) => palette.paint(*tone, word) + &line[word.len()..],
            None => line.to_owned(),
        }
    });
    painted.collect::<Vec<_>>().join("\n")
}

/// Whether the words ask for JSON; needed when they do not parse. Looks no further than `--`.
pub fn asks_for_json(words: &[OsString]) -> bool {
    let words: Vec<_> = words
        .iter()
        .map(|word| word.to_string_lossy())
        .take_while(|word| word != "--")
        .collect();
    let is_json = |value: &str| matches!(value, "json" | "ndjson");
    words
        .windows(2)
        .any(|pair| matches!(&*pair[0], "-o" | "--output") && is_json(&pair[1]))
        || words.iter().any(|word| {
            let value = word
                .strip_prefix("--output=")
                .or_else(|| word.strip_prefix("-o="));
            value
                .or_else(|| word.strip_prefix("-o"))
                .is_some_and(is_json)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(line: &str) -> bool {
        asks_for_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn json_is_asked_for_in_every_spelling_before_the_program() {
        for line in [
            "ps -o json",
            "ps -ojson",
            "ps -o=json",
            "ps --output json",
            "ps --output=ndjson",
            "--bad -o json",
        ] {
            assert!(asks(line), "{line}");
        }
        for line in [
            "ps",
            "ps -o wide",
            "ps -o",
            "run -g 1 -- tool -o json",
            "logs json",
        ] {
            assert!(!asks(line), "{line}");
        }
    }
}
