//! A `clearml.conf` of anything at all: it is read or refused, and a refusal names the file.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_clearml::Settings;

use super::input::Input;
use super::text::text;

const PIECES: &[&str] = &[
    "api",
    "agent",
    "sdk",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ":",
    "=",
    "+=",
    ",",
    ".",
    "\"",
    "\"\"\"",
    "\\",
    "\n",
    " ",
    "\t",
    "#",
    "//",
    "${",
    "${?",
    "}",
    "HOME",
    "null",
    "true",
    "false",
    "1",
    "-1",
    "1e400",
    "0x",
    "nan",
    "include ",
    "\"none\"",
    "api_server",
    "credentials",
    "access_key",
    "secret_key",
    "worker_name",
    "default_docker",
    "image",
    "arguments",
    "extra_docker_arguments",
    "http://127.0.0.1:8008",
    "\"a b\"",
    "-v /a:/b",
    "ü",
    "\u{0}",
];

/// Reads one text as the file at `path`.
pub fn run(data: &[u8], path: &Path) {
    let mut input = Input::new(data);
    let mut config = String::new();
    while !input.is_empty() {
        config += &text(&mut input, PIECES);
        config.push('\n');
    }
    std::fs::write(path, &config).expect("a file of ours can be written");
    let nothing = BTreeMap::new();
    if let Err(error) = Settings::read_with(Some(path), nothing) {
        assert!(!error.to_string().is_empty() && !error.hint().is_empty());
    }
}
