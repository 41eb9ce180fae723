//! Inputs of simulations: jobs of other schedulers' lists and of this program's own, in one form.
//!
//! ```text
//!  bytes ──► format (named, or by the content) ──► its parser ──► Jobs
//!            openb · history · sacct · clearml                    nodes come from openb's node list
//! ```
//! Each parser is strict: a value that it cannot read ends it, with line, column and value. Times become milliseconds
//! since 1970; a format without dates has them from its own start.

mod clearml;
mod history;
mod openb;
mod sacct;
mod table;

use std::fmt;
use std::str::FromStr;

use divvy_core::{Amount, Bytes};

pub use openb::nodes;

/// Bytes that an input may have. Room for a million lines of 500 bytes; a larger file would fill the memory.
pub const MOST_BYTES: u64 = 512 << 20;
/// Jobs that an input may have: five times those of one run, so that a list can be cut by its times.
pub const MOST_JOBS: usize = 1_000_000;
/// Nodes that a simulation may have; a learned policy takes no more either.
pub const MOST_NODES: usize = divvy_packing::learned::MOST_NODES;

/// A job, as its scheduler recorded it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    pub name: String,
    /// Its line in the list; 0 where the list has no lines.
    pub line: u64,
    /// `None` where it asks for no GPU.
    pub amount: Option<Amount>,
    /// Its record names no amount, and the parser took one whole GPU.
    pub is_assumed: bool,
    /// Memory means bytes where a MIG instance gives it.
    pub exact: bool,
    pub cpu_milli: u64,
    pub memory_mib: u64,
    /// Accepted GPU models; empty: every model.
    pub models: Vec<String>,
    pub queue: Option<String>,
    pub project: Option<String>,
    pub user: Option<String>,
    pub priority: i32,
    pub preemptible: bool,
    /// Milliseconds. `None` where the list has no times.
    pub submitted: Option<i64>,
    /// `None` where it never started.
    pub started: Option<i64>,
    /// `None` where it has not ended.
    pub ended: Option<i64>,
    pub limit_ms: Option<u64>,
    /// The most memory that it used of one GPU.
    pub used: Option<Bytes>,
    /// Indices of the GPUs that it holds now, of one node.
    pub holds: Vec<u32>,
}

impl Job {
    /// How long it ran; `None` where it never did, or still does.
    pub fn ran_ms(&self) -> Option<u64> {
        u64::try_from(self.ended? - self.started?).ok()
    }
}

/// The jobs of an input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    pub jobs: Vec<Job>,
    /// Jobs that hold several nodes at once, which Divvy does not simulate.
    pub several_nodes: usize,
    /// Jobs with several MIG instances, which no job of Divvy has.
    pub several_instances: usize,
    /// Jobs that ended before they started, as times without a zone have it where the clock was set back.
    pub over_clock_change: usize,
    /// Jobs whose record names no amount, and for which the parser took one whole GPU.
    pub assumed_whole: usize,
}

/// A format of job lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// CSV of the openb trace.
    Openb,
    /// `divvy ps -a -o ndjson`, or `-o json`.
    History,
    /// `sacct -a -X -P`.
    Sacct,
    /// The answer of ClearML's `tasks.get_all`.
    Clearml,
}

impl Format {
    pub const ALL: [Self; 4] = [Self::Openb, Self::History, Self::Sacct, Self::Clearml];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Openb => "openb",
            Self::History => "history",
            Self::Sacct => "sacct",
            Self::Clearml => "clearml",
        }
    }

    /// The format of this content; `None` where it is none of them.
    pub fn of(text: &[u8]) -> Option<Self> {
        let text = without_mark(text);
        let start = text.iter().position(|byte| !byte.is_ascii_whitespace())?;
        let text = &text[start..];
        // A document of one line may be large, and its members come in any order.
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
        let has = |part: &[u8], word: &[u8]| part.windows(word.len()).any(|at| at == word);
        match text.first()? {
            b'{' if has(line, b"\"submitted_at\"") => Some(Self::History),
            b'{' if has(text, b"\"JobList\"") => Some(Self::History),
            b'{' | b'[' => Some(Self::Clearml),
            _ if has(line, b"|") => Some(Self::Sacct),
            _ if has(line, b"num_gpu") => Some(Self::Openb),
            _ => None,
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|format| format.name() == text);
        named.ok_or_else(|| "use openb, history, sacct or clearml".to_owned())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What parsers need to know besides the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Slurm's shards of one GPU.
    pub shards: Option<u16>,
}

/// Reads jobs.
///
/// # Errors
/// [`InputError`]: the first value that cannot be read, or more jobs than [`MOST_JOBS`].
pub fn jobs(text: &[u8], format: Format, reading: Reading) -> Result<Jobs, InputError> {
    let text = without_mark(text);
    match format {
        Format::Openb => openb::pods(text),
        Format::History => history::read(text),
        Format::Sacct => sacct::read(text, reading.shards),
        Format::Clearml => clearml::read(text),
    }
}

/// The text without UTF-8's byte order mark.
fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Refuses one job too many.
fn bound(jobs: usize, place: &str) -> Result<(), InputError> {
    if jobs < MOST_JOBS {
        return Ok(());
    }
    Err(InputError {
        place: place.to_owned(),
        what: format!("more than {MOST_JOBS} jobs"),
        hint: "select a shorter time, or fewer jobs".to_owned(),
    })
}

/// A document that is no JSON, or lacks what the parser needs.
fn invalid_json(error: &serde_json::Error, hint: &str) -> InputError {
    InputError {
        place: format!("line {}, column {}", error.line(), error.column()),
        what: format!("invalid JSON: {}", without_place(error)),
        hint: hint.to_owned(),
    }
}

/// The error's text without the place, which each caller names in its own way.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Why an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct InputError {
    /// `line 7, column cpu_milli`
    pub place: String,
    /// The value, and why it is wrong.
    pub what: String,
    pub hint: String,
}

#[cfg(test)]
mod tests;
