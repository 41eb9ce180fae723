//! The configuration tree: one tree of values, each with its source.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::ConfigError;
use super::environment::{KEYS, Variables};
use super::hocon;

/// Files that are read unless one is named, the later over the earlier.
const FILES: [&str; 2] = ["trains.conf", "clearml.conf"];

/// Parts of a key that make its value a secret. The stock agent hides the same when it prints its configuration.
const SECRET: [&str; 5] = ["secret", "pass", "token", "account_key", "contents"];

/// Seconds of a century: as good as for ever, and no sum of times overflows. So a larger figure is cut to it.
pub(super) const LONGEST: f64 = 3.2e9;

/// The configuration; keys are paths, `api.http.max_req_size`.
#[derive(Clone)]
pub struct Tree {
    /// The last file that was read.
    file: Option<PathBuf>,
    root: Value,
    /// Keys that a variable set, with its name.
    set_by: Vec<(String, String)>,
}

/// Shows no values: some are secret.
impl std::fmt::Debug for Tree {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tree")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Tree {
    /// Reads the files and lays the environment over them.
    ///
    /// # Errors
    /// A file that was named and cannot be read, and one that is no HOCON.
    pub fn read(file: Option<&Path>, vars: &Variables) -> Result<Self, ConfigError> {
        let mut tree = Self {
            file: None,
            root: Value::Object(Map::new()),
            set_by: Vec::new(),
        };
        let home = vars.first(&["HOME"]).map(|(_, home)| PathBuf::from(home));
        let named = match file {
            Some(file) => Some(file.to_owned()),
            None => vars
                .first(&["CLEARML_CONFIG_FILE", "TRAINS_CONFIG_FILE"])
                .map(|(_, path)| from_home(path, home.as_deref())),
        };
        match named {
            Some(named) => tree.add(&named, vars)?,
            None => {
                let there = FILES
                    .iter()
                    .filter_map(|name| Some(home.as_ref()?.join(name)));
                for path in there.filter(|path| path.exists()) {
                    tree.add(&path, vars)?;
                }
            }
        }
        for (var, key, text) in vars.any_key() {
            let value = hocon::read(&format!("value: {text}"), &|name| vars.get(name))
                .ok()
                .and_then(|parsed| parsed.get("value").cloned())
                .unwrap_or_else(|| Value::String(text.to_owned()));
            tree.set(&key, value, var);
        }
        for (key, names) in KEYS {
            if let Some((var, text)) = vars.first(names) {
                tree.set(key, Value::String(text.trim().to_owned()), var);
            }
        }
        Ok(tree)
    }

    fn add(&mut self, path: &Path, vars: &Variables) -> Result<(), ConfigError> {
        let read = hocon::read_file(path, &|name| vars.get(name)).map_err(|failure| {
            let path = path.to_owned();
            match failure {
                hocon::Failure::Read(source) => ConfigError::Read { path, source },
                hocon::Failure::Text(fault) => ConfigError::Syntax {
                    path,
                    why: fault.to_string(),
                },
            }
        })?;
        merge(&mut self.root, read);
        self.file = Some(path.to_owned());
        Ok(())
    }

    fn set(&mut self, key: &str, value: Value, var: &str) {
        let nested = key.rsplit('.').fold(value, |inner, part| {
            Value::Object(Map::from_iter([(part.to_owned(), inner)]))
        });
        merge(&mut self.root, nested);
        self.set_by.push((key.to_owned(), var.to_owned()));
    }

    /// The file that was read last.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The same in a sentence.
    pub fn place(&self) -> String {
        self.file.as_ref().map_or_else(
            || "~/clearml.conf".to_owned(),
            |file| file.display().to_string(),
        )
    }

    /// All of it, as plain values. Secrets are in there.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// The value of a key; null is none.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let value = key
            .split('.')
            .try_fold(&self.root, |value, part| value.get(part))?;
        (!value.is_null()).then_some(value)
    }

    /// A text; numbers and truth values are texts too.
    ///
    /// # Errors
    /// A list or a section.
    pub fn text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        self.get(key)
            .map(|value| scalar(value).ok_or_else(|| self.refuse(key, "expected a string")))
            .transpose()
    }

    /// A truth value, as the stock agent reads it: `true`, `yes`, `on`, `1` and their opposites.
    ///
    /// # Errors
    /// Anything else.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" | "y" | "t" => Ok(Some(true)),
            "false" | "no" | "off" | "0" | "n" | "f" => Ok(Some(false)),
            _ => Err(self.refuse(key, "expected true or false")),
        }
    }

    /// A number, not below zero.
    ///
    /// # Errors
    /// Anything else.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(text) = self.text(key)? else {
            return Ok(None);
        };
        let number = text.trim().parse::<f64>().ok();
        number
            .filter(|number| number.is_finite() && *number >= 0.0)
            .map(Some)
            .ok_or_else(|| self.refuse(key, "expected a number of at least 0"))
    }

    /// A number of seconds.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn seconds(&self, key: &str, default: f64) -> Result<Duration, ConfigError> {
        let seconds = self.number(key)?.unwrap_or(default).min(LONGEST);
        Ok(Duration::from_secs_f64(seconds))
    }

    /// A list of texts; a text alone is its words.
    ///
    /// # Errors
    /// A section, and what is no text in a list.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let refuse = || self.refuse(key, "expected a list of strings");
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => {
                let words: Option<Vec<String>> = items.iter().map(scalar).collect();
                words.map(Some).ok_or_else(refuse)
            }
            Some(value) => {
                let text = scalar(value).ok_or_else(refuse)?;
                Ok(Some(text.split_whitespace().map(str::to_owned).collect()))
            }
        }
    }

    /// The error for a value that is not as `wanted`, with the file or variable that it is from.
    pub fn refuse(&self, key: &str, wanted: &str) -> ConfigError {
        let by = self.set_by.iter().rev().find(|(set, _)| set == key);
        let from = by.map_or_else(
            || self.place(),
            |(_, var)| format!("the environment ({var})"),
        );
        let is_secret = SECRET.iter().any(|part| key.contains(part));
        let value = match self.get(key) {
            _ if is_secret => "****".to_owned(),
            None => "null".to_owned(),
            Some(value) => value.to_string(),
        };
        ConfigError::Value {
            from,
            key: key.to_owned(),
            value,
            wanted: wanted.to_owned(),
        }
    }
}

fn from_home(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// Lays `over` on `under`: sections are merged, everything else is replaced.
pub(super) fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                match under.get_mut(&key) {
                    Some(there) => merge(there, value),
                    None => {
                        under.insert(key, value);
                    }
                }
            }
        }
        (under, over) => *under = over,
    }
}
