//! Arguments of `usage`: GPU hours and energy by day, month, user, project, queue, GPU or job.

use clap::Args;

use super::{Format, Look, help};

const FORMATS: &str = "Format: table, wide, json, ndjson, name, csv";

#[derive(Debug, Args)]
#[command(after_help = help::USAGE)]
#[command(mut_arg("output", |arg| arg.value_parser(Format::with_csv()).help(FORMATS).long_help(FORMATS)))]
pub struct Usage {
    /// One row per day or month, user, project, queue, gpu, job or namespace, or a list of them; none: one row in total
    #[arg(long, value_name = "LIST", default_value = "user,project")]
    pub by: String,
    /// Begin: a time before the end (30d, 12h), a day (2026-11-01) or a time in RFC 3339
    #[arg(long, value_name = "WHEN", default_value = "30d")]
    pub since: String,
    /// End: a day, a time in RFC 3339, or a time before now (12h) [default: now]
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// Draw days with ASCII characters [default: if the locale is not UTF-8]
    #[arg(long)]
    pub ascii: bool,
    #[command(flatten)]
    pub look: Look,
}
