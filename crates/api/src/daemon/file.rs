//! The parser of a configuration file. It finds all problems of a file, each with its line and column.
//!
//! Each key is converted on its own, so that a wrong value hides no other problem. After an error of syntax only the
//! lines before it are judged: the parser's recovery may have taken the rest apart in another way than its author.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::check::{self, Violation};
use super::keys::{self, KEYS};
use super::text::HINT;
use super::{DaemonOptions, RoleOptions};
use crate::v1::{Error, ErrorCode};

/// Largest file, in bytes. A file of a thousand projects has a tenth of it.
pub const LARGEST: u64 = 1 << 20;

/// Problems of one file that are reported. More than one screen; a file with more is of another format, and its other
/// problems would hide the first.
const MOST_PROBLEMS: usize = 50;

/// Letters of a message: it may repeat a value of the file. Five lines of a terminal hold the key, the value and the
/// reason; a value alone can have megabytes. So five lines of a terminal; a value alone can have megabytes.
const LONGEST_MESSAGE: usize = 400;

/// A place in a text: line and column count from 1, and columns are letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// A problem of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `None` for a problem of the whole file or of a flag.
    pub place: Option<Place>,
    /// The key as the file writes it.
    pub key: Option<String>,
    pub message: String,
    pub hint: Option<String>,
}

/// The problems of a configuration, at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} has {} problems", path.display(), problems.len())]
pub struct ConfigError {
    pub path: PathBuf,
    pub code: ErrorCode,
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// A problem of a whole file.
    pub(super) fn of_whole(path: &Path, message: String, hint: Option<String>) -> Self {
        Self {
            path: path.to_owned(),
            code: ErrorCode::Usage,
            problems: vec![Problem {
                place: None,
                key: None,
                message,
                hint,
            }],
        }
    }

    /// The problem as one error, with its place in the message and in the details.
    pub fn error_of(&self, problem: &Problem) -> Error {
        let key = match &problem.key {
            Some(key) => format!("{key}: "),
            None => String::new(),
        };
        let path = self.path.display();
        let message = match problem.place {
            Some(Place { line, column }) => {
                format!("{path}:{line}:{column}: {key}{}", problem.message)
            }
            None => format!("{path}: {key}{}", problem.message),
        };
        let error = Error::new(self.code, message).details(self.details(problem));
        match &problem.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }

    /// The problems in the details of an error that a daemon has made of them.
    pub fn of(error: &Error) -> Option<Self> {
        let path = error.details["file"].as_str()?.into();
        let problems = error.details["problems"].as_array()?;
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let problem = |of: &Value| {
            let place = number(&of["line"]).zip(number(&of["column"]));
            Some(Problem {
                place: place.map(|(line, column)| Place { line, column }),
                key: text(&of["key"]),
                message: text(&of["message"])?,
                hint: text(&of["hint"]),
            })
        };
        Some(Self {
            path,
            code: error.code,
            problems: problems.iter().map(problem).collect::<Option<_>>()?,
        })
    }

    fn details(&self, problem: &Problem) -> Value {
        json!({
            "file": self.path.display().to_string(),
            "line": problem.place.map(|place| place.line),
            "column": problem.place.map(|place| place.column),
            "key": problem.key,
        })
    }
}

/// The first problem, the number of further ones, and all of them in the details.
/// The place of a problem in the words of a command line, where there is no file.
pub const COMMAND: &str = "divvy daemon";

impl From<&ConfigError> for Error {
    fn from(error: &ConfigError) -> Self {
        let Some(first) = error.problems.first() else {
            return Self::new(ErrorCode::Internal, error.to_string());
        };
        let mut whole = error.error_of(first);
        let further = error.problems.len() - 1;
        if further > 0 {
            let (is, problems) = match further {
                1 => ("is", "problem"),
                _ => ("are", "problems"),
            };
            let more = if error.path == Path::new(COMMAND) {
                format!("there {is} {further} further {problems}")
            } else {
                format!(
                    "the file has {further} further {problems}: divvy config check {}",
                    error.path.display()
                )
            };
            whole.hint = Some(match whole.hint {
                Some(hint) => format!("{hint}; {more}"),
                None => more,
            });
        }
        let all = error.problems.iter().map(|problem| {
            let mut one = error.details(problem);
            one["message"] = json!(problem.message);
            one["hint"] = json!(problem.hint);
            one
        });
        whole.details["problems"] = all.collect();
        whole
    }
}

/// A file that was understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    pub options: DaemonOptions,
    pub places: Places,
}

/// Places of keys, and of the elements of their arrays and tables, by their paths.
pub type Places = BTreeMap<Vec<String>, Place>;

/// Parses a configuration file.
///
/// # Errors
/// All problems, in the order of the file.
pub fn parse(text: &[u8]) -> Result<Parsed, Vec<Problem>> {
    Tree::parse(text, &known)?
        .read(|options: &DaemonOptions, places| {
            check::values(options, &|path| places.contains_key(path))
        })
        .map(|(options, places)| Parsed { options, places })
}

/// What a path of the configuration file is.
fn known(path: &[String]) -> Known {
    match keys::find(path) {
        Some(_) => Known::Key,
        None if KEYS.iter().any(|key| key.below(path).is_some()) => Known::Table,
        None => Known::Not(unknown(path)),
    }
}

/// Parses one line `KEY = VALUE`, without the rules for values.
///
/// # Errors
/// The first problem.
fn parse_line(line: &str) -> Result<toml::Table, Problem> {
    let first = |problems: Vec<Problem>| problems.into_iter().next();
    let read = Tree::parse(line.as_bytes(), &known)
        .and_then(|tree| tree.read(|_: &DaemonOptions, _| Vec::new()));
    match (read.err().and_then(first), line.parse()) {
        (None, Ok(table)) => Ok(table),
        (Some(problem), _) => Err(problem),
        (None, Err(error)) => Err(Problem {
            place: None,
            key: None,
            message: error.to_string(),
            hint: None,
        }),
    }
}

/// Parses a value as the file writes it. A word that is no such value is text: `10s` is `"10s"`.
///
/// # Errors
/// What is wrong with the key or the value.
pub fn parse_value(key: &str, value: &str) -> Result<toml::Table, Problem> {
    let line = format!("{key} = {value}");
    parse_line(&line).or_else(|problem| {
        let text = format!("{key} = {}", toml::Value::from(value));
        parse_line(&text).map_err(|of_text| match line.parse::<toml::Table>() {
            Ok(_) => problem,
            Err(_) => of_text,
        })
    })
}

/// Parses a file of roles, which has the keys of the table `[roles]`.
///
/// # Errors
/// All problems, in the order of the file.
pub fn parse_roles(text: &[u8]) -> Result<RoleOptions, Vec<Problem>> {
    let table = ["roles".to_owned()];
    let mut tree = Tree::parse(text, &|path| {
        let path = [&table[..], path].concat();
        match keys::find(&path) {
            Some(_) => Known::Key,
            None => Known::Not(unknown(&path)),
        }
    })?;
    tree.table = table.to_vec();
    tree.read(|roles: &RoleOptions, _| check::roles_of(roles, &[]))
        .map(|(roles, _)| roles)
}

/// What a path of the file is.
enum Known {
    Key,
    Table,
    /// With what to write instead.
    Not(Option<String>),
}

/// What to write instead of an unknown key.
fn unknown(path: &[String]) -> Option<String> {
    let (name, table) = path.split_last()?;
    let is_top = table.is_empty();
    if name == "system" {
        return Some("the flag --system chooses the file, so no file contains it".to_owned());
    }
    let siblings = || KEYS.iter().filter_map(|key| key.below(table));
    let distance = |known: &str| strsim::osa_distance(&name.replace('_', "-"), known);
    let nearest = siblings()
        .filter(|known| *known != "*")
        .map(|known| (distance(known), known))
        .min()
        .filter(|(distance, known)| *distance <= 1.max(known.len() / 4));
    if let Some((_, nearest)) = nearest {
        return Some(format!("did you mean `{nearest}`?"));
    }
    let flag = KEYS
        .iter()
        .find(|key| key.flags.contains(&name.as_str()) || key.former.contains(&name.as_str()));
    let elsewhere = KEYS
        .iter()
        .find(|key| !key.name.contains('*') && key.name.rsplit('.').next() == Some(name));
    if let Some(key) = flag.or(elsewhere) {
        return Some(match key.name.rsplit_once('.') {
            Some((table, key)) => format!("write `{key}` in the table [{table}]"),
            None if is_top => format!("write `{}`", key.name),
            None => format!("write `{}` before the first table", key.name),
        });
    }
    let mut known: Vec<&str> = siblings().collect();
    known.dedup();
    if is_top {
        Some("`divvy config show --defaults` lists the keys".to_owned())
    } else {
        Some(format!("the keys are {}", known.join(", ")))
    }
}

/// The parsed text: the values that can be converted, and the problems so far.
struct Tree<'a> {
    lines: Lines<'a>,
    good: DeTable<'a>,
    /// Each with the byte of its place.
    problems: Vec<(usize, Problem)>,
    places: BTreeMap<Vec<String>, usize>,
    /// No problem from here on is reported: the parser lost its way.
    until: usize,
    /// The table of the configuration file whose keys this file has: `roles`, or none for the whole.
    table: Vec<String>,
}

impl<'a> Tree<'a> {
    fn parse(text: &'a [u8], known: &dyn Fn(&[String]) -> Known) -> Result<Self, Vec<Problem>> {
        let text = std::str::from_utf8(text).map_err(|error| {
            let valid = String::from_utf8_lossy(&text[..error.valid_up_to()]).into_owned();
            let place = Lines::of(&valid).place(valid.len());
            vec![Problem {
                place: Some(place),
                key: None,
                message: "the file is not UTF-8 text".to_owned(),
                hint: Some("save it as UTF-8".to_owned()),
            }]
        })?;
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut tree = Self {
            lines: Lines::of(text),
            good: DeTable::new(),
            problems: Vec::new(),
            places: BTreeMap::new(),
            until: usize::MAX,
            table: Vec::new(),
        };
        for error in errors {
            let at = error.span().map_or(text.len(), |span| span.start);
            tree.until = tree.until.min(at);
            let hint = if error.message().contains("duplicate key") {
                "keep one of the two"
            } else {
                "write `key = value` on one line: texts in quotes, lists as [\"a\", \"b\"], tables as [name]"
            };
            let problem = tree.problem(at, &[], error.message(), Some(hint.to_owned()));
            let line = |problem: &Problem| problem.place.map(|place| place.line);
            // One error of syntax leads to others on its line.
            if !tree
                .problems
                .iter()
                .any(|(_, other)| line(other) == line(&problem))
            {
                tree.problems.push((at, problem));
            }
        }
        let good = tree.walk(table.into_inner(), &[], known);
        tree.good = good;
        Ok(tree)
    }

    fn problem(&self, at: usize, path: &[String], message: &str, hint: Option<String>) -> Problem {
        Problem {
            place: Some(self.lines.place(at)),
            key: (!path.is_empty()).then(|| keys::written(path)),
            message: bounded(&plain(message)),
            hint,
        }
    }

    fn report(&mut self, at: usize, path: &[String], message: &str, hint: Option<String>) {
        if at < self.until {
            let (message, hint) = match message.split_once(HINT) {
                Some((message, hint)) => (message, Some(hint.to_owned())),
                None => (message, hint),
            };
            let form = "`divvy config show --defaults` shows each key with a value of its form";
            let hint = hint.or_else(|| Some(form.to_owned()));
            let problem = self.problem(at, path, message, hint);
            self.problems.push((at, problem));
        }
    }

    /// Returns the table without unknown keys, and records the places of the others.
    fn walk(
        &mut self,
        table: DeTable<'a>,
        path: &[String],
        known: &dyn Fn(&[String]) -> Known,
    ) -> DeTable<'a> {
        let mut good = DeTable::new();
        for (key, value) in table {
            let path = [path, &[key.get_ref().to_string()]].concat();
            let span = value.span();
            match known(&path) {
                Known::Not(hint) => {
                    let at = key.span().start;
                    self.report(
                        at,
                        &[],
                        &format!("unknown key `{}`", keys::written(&path)),
                        hint,
                    );
                }
                Known::Table => match value.into_inner() {
                    DeValue::Table(inner) => {
                        self.places.insert(path.clone(), key.span().start);
                        let inner = self.walk(inner, &path, known);
                        good.insert(key, Spanned::new(span, DeValue::Table(inner)));
                    }
                    _ => {
                        let name = keys::written(&path);
                        let hint = format!("write [{name}], and its keys below");
                        self.report(span.start, &path, "expected a table", Some(hint));
                    }
                },
                Known::Key => {
                    self.places.insert(path.clone(), span.start);
                    let mut place = |name: String, at: usize| {
                        let path = [&path[..], &[name]].concat();
                        self.places.insert(path, at);
                    };
                    match value.get_ref() {
                        DeValue::Array(items) => {
                            for (index, item) in items.iter().enumerate() {
                                place(index.to_string(), item.span().start);
                            }
                        }
                        DeValue::Table(items) => {
                            for (name, _) in items {
                                place(name.get_ref().to_string(), name.span().start);
                            }
                        }
                        _ => {}
                    }
                    good.insert(key, value);
                }
            }
        }
        good
    }

    /// Converts each key on its own, then all that can be, and applies the rules to the result.
    fn read<T: DeserializeOwned + Default>(
        mut self,
        rules: impl Fn(&T, &BTreeMap<Vec<String>, usize>) -> Vec<Violation>,
    ) -> Result<(T, Places), Vec<Problem>> {
        let table = std::mem::take(&mut self.good);
        let good = self.convert::<T>(table, &[]);
        let whole = Spanned::new(0..0, good);
        let value = match T::deserialize(toml::Deserializer::from(whole)) {
            Ok(value) => value,
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                self.report(at, &[], error.message(), None);
                T::default()
            }
        };
        for violation in rules(&value, &self.places) {
            let path = violation.full_path();
            // The deepest part that the file has: a rule may name a key that has its default.
            let at = (1..=path.len())
                .rev()
                .find_map(|length| self.places.get(&path[..length]).copied());
            let Violation {
                path,
                message,
                hint,
                ..
            } = violation;
            self.report(at.unwrap_or(0), &path, &message, Some(hint));
        }
        if self.problems.is_empty() {
            let lines = &self.lines;
            let places = self.places.into_iter();
            let places = places.map(|(path, at)| (path, lines.place(at))).collect();
            return Ok((value, places));
        }
        self.problems.sort_by_key(|(at, _)| *at);
        let mut problems: Vec<Problem> = self.problems.into_iter().map(|(_, one)| one).collect();
        problems.truncate(MOST_PROBLEMS);
        Err(problems)
    }

    /// Returns the table without values that cannot be converted.
    fn convert<T: DeserializeOwned>(&mut self, table: DeTable<'a>, path: &[String]) -> DeTable<'a> {
        let mut good = DeTable::new();
        for (key, value) in table {
            let path = [path, &[key.get_ref().to_string()]].concat();
            let span = value.span();
            let is_key = is_key(&[&self.table[..], &path].concat());
            match value.into_inner() {
                DeValue::Table(inner) if !is_key => {
                    let empty = Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
                    // The name of a project may be wrong.
                    if let Err(error) = alone::<T>(empty, &path) {
                        self.report(key.span().start, &[], error.message(), None);
                        continue;
                    }
                    let inner = self.convert::<T>(inner, &path);
                    good.insert(key, Spanned::new(span, DeValue::Table(inner)));
                }
                value => {
                    let value = Spanned::new(span, value);
                    if self.converts::<T>(&value, &path) {
                        good.insert(key, value);
                    }
                }
            }
        }
        good
    }

    /// Whether a file with this value alone would be understood; reports the problems otherwise.
    fn converts<T: DeserializeOwned>(
        &mut self,
        value: &Spanned<DeValue<'a>>,
        path: &[String],
    ) -> bool {
        let Err(error) = alone::<T>(value.clone(), path) else {
            return true;
        };
        let mut found = Vec::new();
        // An error about an element may have the place of the array.
        if let DeValue::Array(items) = value.get_ref() {
            for item in items.iter() {
                let mut one = toml::de::DeArray::new();
                one.push(item.clone());
                let one = Spanned::new(value.span(), DeValue::Array(one));
                let error = alone::<T>(one, path).err();
                found.extend(error.map(|error| (item.span().start, error)));
            }
        }
        if found.is_empty() {
            let at = error.span().unwrap_or_else(|| value.span()).start;
            found.push((at, error));
        }
        for (at, error) in found {
            self.report(at, path, error.message(), None);
        }
        false
    }
}

/// Whether the path is a key, not a table of keys.
fn is_key(path: &[String]) -> bool {
    keys::find(path).is_some() || KEYS.iter().all(|key| key.below(path).is_none())
}

/// Converts a file with this value alone.
fn alone<T: DeserializeOwned>(
    value: Spanned<DeValue<'_>>,
    path: &[String],
) -> Result<T, toml::de::Error> {
    let whole: Range<usize> = value.span();
    let mut value = value;
    for name in path.iter().rev() {
        let mut table = DeTable::new();
        table.insert(Spanned::new(whole.clone(), name.clone().into()), value);
        value = Spanned::new(whole.clone(), DeValue::Table(table));
    }
    match value.into_inner() {
        DeValue::Table(table) => {
            T::deserialize(toml::Deserializer::from(Spanned::new(whole, table)))
        }
        other => T::deserialize(toml::de::ValueDeserializer::from(Spanned::new(
            whole, other,
        ))),
    }
}

/// Offsets of the lines of a text.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0)
            .chain(ends.map(|(at, _)| at + 1))
            .collect();
        Self { text, starts }
    }

    fn place(&self, at: usize) -> Place {
        let at = at.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= at);
        let start = line.checked_sub(1).and_then(|line| self.starts.get(line));
        let start = start.copied().unwrap_or_default();
        let before = self.text.get(start..at).unwrap_or_default();
        Place {
            line: line.max(1),
            column: before.chars().count() + 1,
        }
    }
}

/// The message of the converter in the words of the file's author.
fn plain(message: &str) -> String {
    let mut message = message.trim_end().to_owned();
    for (types, words) in [
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected u64", "expected a whole number from 0"),
        ("expected i32", "expected a whole number"),
        ("expected a boolean", "expected true or false"),
        (
            "expected a sequence",
            "expected an array such as [\"a\", \"b\"]",
        ),
        ("expected path string", "expected the path of a file"),
        ("wanted string or table", "expected a word in quotes"),
        ("unknown variant", "unknown word"),
    ] {
        message = message.replace(types, words);
    }
    message
}

/// Without the middle of what is too long.
fn bounded(message: &str) -> String {
    let letters = message.chars().count();
    if letters <= LONGEST_MESSAGE {
        return message.to_owned();
    }
    let half = LONGEST_MESSAGE / 2;
    let beginning: String = message.chars().take(half).collect();
    let end: String = message.chars().skip(letters - half).collect();
    format!("{beginning} … {end}")
}

#[cfg(test)]
mod tests;
