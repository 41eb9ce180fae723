//! A HOCON reader that follows pyhocon, the parser that the stock agent carries (`clearml_agent.external.pyhocon`).
//!
//! ```text
//! text ── grammar ──► Table of Nodes (substitutions open) ── resolve ──► JSON value
//!            └── include "FILE": the same again
//! ```
//! pyhocon differs from Lightbend's specification, and ClearML's own files need the differences: `a: http://host` is
//! a text, `"\d"` keeps its backslash, an empty text in a list is dropped, tabs become blanks. A reader of the
//! specification disagrees with it on such files, and each value goes on to tasks, whose agent reads it with pyhocon
//! again.

mod assign;
mod grammar;
mod resolve;
mod scan;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

/// Bytes of one file at most. The file that `clearml-agent init` writes has 45 KiB.
const LARGEST: u64 = 1 << 20;

/// Sections and lists within each other at most. pyhocon reaches Python's limit of recursion between 40 and 60. So no
/// file that the stock agent reads is refused, and this program's stack holds twice as many.
const DEEPEST: usize = 64;

/// Files that include each other at most, each counted as often as it is included. Files in use include one or two; a
/// cycle of includes would have no end otherwise.
const MOST_FILES: usize = 64;

/// Variables of the environment, by name.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Why a file cannot be read.
#[derive(Debug)]
pub(super) enum Failure {
    Read(std::io::Error),
    Text(Fault),
}

/// The syntax error, and its position; lines and columns begin with 1. It shows names and signs, no values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {why}")]
pub(super) struct Fault {
    pub line: usize,
    pub column: usize,
    pub why: String,
}

/// A value whose substitutions are open.
#[derive(Clone, Debug)]
enum Node {
    /// A text, number or truth value, or null.
    Scalar(Value),
    List(Vec<Node>),
    Table(Table),
    Open(Box<Open>),
}

/// A section. pyhocon keeps the order of keys, which nothing that reads the configuration depends on.
type Table = BTreeMap<String, Node>;

/// A value with substitutions in it: `${A}/b`, `${list} [c]`.
#[derive(Clone, Debug)]
struct Open {
    parts: Vec<Part>,
    /// The key's earlier value, which a substitution of the key itself refers to.
    under: Option<Node>,
}

/// One piece of a value; pieces that stand side by side are joined.
#[derive(Clone, Debug)]
enum Part {
    /// In quotes, with the blanks behind it.
    Quoted(String, String),
    /// Without quotes, with the blanks behind it.
    Bare(String),
    Node(Node),
    Reference(Reference),
}

/// `${PATH}` or `${?PATH}`, with the blanks behind it.
#[derive(Clone, Debug)]
struct Reference {
    path: String,
    optional: bool,
    blanks: String,
    line: usize,
    column: usize,
}

/// Reads a file, with the files that it includes.
///
/// # Errors
/// A file that cannot be read, and one that pyhocon refuses.
pub(super) fn read_file(path: &Path, environment: Environment<'_>) -> Result<Value, Failure> {
    let text = read_text(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let table = grammar::Files::new(folder)
        .parse(&text)
        .map_err(Failure::Text)?;
    resolve::resolve(&table, environment).map_err(Failure::Text)
}

/// Reads a text that includes no file.
///
/// # Errors
/// A text that pyhocon refuses.
pub(super) fn read(text: &str, environment: Environment<'_>) -> Result<Value, Fault> {
    let table = grammar::Files::new(Path::new("")).parse(text)?;
    resolve::resolve(&table, environment)
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let whole = |why: String| {
        Failure::Text(Fault {
            line: 1,
            column: 1,
            why,
        })
    };
    std::fs::File::open(path)
        .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
        .map_err(Failure::Read)?;
    if bytes.len() as u64 > LARGEST {
        return Err(whole("the file is larger than 1 MiB".to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let read = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + read.iter().filter(|byte| **byte == b'\n').count();
        let column = 1 + read.iter().rev().take_while(|byte| **byte != b'\n').count();
        Failure::Text(Fault {
            line,
            column,
            why: "this byte is not UTF-8".to_owned(),
        })
    })
}

/// The keys of a path: `a.b` has two, `"a.b"` one that keeps its quotes, as pyhocon takes paths apart.
fn keys(path: &str) -> Vec<String> {
    let special = |letter: char| "$}[]:=+#`^?!@*&.".contains(letter);
    let mut keys = Vec::new();
    let mut rest = path;
    while let Some(first) = rest.chars().next() {
        let quoted = rest
            .strip_prefix('"')
            .and_then(|inner| inner.find('"').filter(|length| *length > 0))
            .map(|length| length + 2);
        let length = quoted.unwrap_or_else(|| rest.find(special).unwrap_or(rest.len()));
        let (key, behind) = rest.split_at(length);
        if length == 0 {
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let key = if key.contains(special) {
            key
        } else {
            key.trim_matches('"')
        };
        keys.push(key.to_owned());
        rest = behind;
    }
    keys
}

/// A scalar as a part of a longer text, as Python's `str` writes it.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number
            .as_f64()
            .filter(|_| number.is_f64())
            .map_or_else(|| number.to_string(), float),
        _ => String::new(),
    }
}

/// Python writes an exponent with its sign and two digits: `1e+16`.
fn float(number: f64) -> String {
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |exponent| ('-', exponent));
            format!("{digits}e{sign}{exponent:0>2}")
        }
    }
}

#[cfg(test)]
mod tests;
