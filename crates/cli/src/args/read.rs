//! Arguments of views: format and job.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub struct Read {
    /// Format: table, wide, json, ndjson, name
    ///
    /// Output format: table, wide, json, ndjson or name
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "table",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub output: Format,
}

#[derive(Debug, Args)]
pub struct ReadJob {
    /// Id, unique name, or `last`
    #[arg(default_value = "last", value_parser = job)]
    pub job: String,
    #[command(flatten)]
    pub read: Read,
}

/// The number or name of a job.
pub(super) fn job(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        Err("use a job's number, its name or `last`")
    } else {
        Ok(text.to_owned())
    }
}

/// Format of the output on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people, fitted to the terminal
    Table,
    /// For people, every column, never cut
    Wide,
    /// One document: {"schema":"divvy/v1","kind":…,"items":[…]}
    Json,
    /// One JSON object per line
    Ndjson,
    /// The name or number that other commands accept, one per line
    Name,
    /// A table for a spreadsheet (RFC 4180); of `usage` alone
    #[value(skip)]
    Csv,
}

impl Format {
    /// Accepts CSV besides the formats of all verbs.
    pub(super) fn with_csv() -> impl TypedValueParser<Value = Self> {
        let csv = PossibleValue::new("csv");
        let all = Self::value_variants().iter();
        let all = all.filter_map(Self::to_possible_value).chain([csv]);
        PossibleValuesParser::new(all).map(|name| Self::from_str(&name, false).unwrap_or(Self::Csv))
    }

    /// Whether errors are printed as JSON too.
    pub fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::Ndjson)
    }
}
