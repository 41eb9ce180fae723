//! `usage`: who had how much of the GPUs.

use clap::Args;

use super::{Read, help};

#[derive(Debug, Args)]
#[command(after_help = help::USAGE)]
pub struct Usage {
    /// One row for each of these: user, project, queue, gpu, job; or none for one row in all
    #[arg(long, value_name = "LIST", default_value = "user,project")]
    pub by: String,
    /// From when on: a length of time before the end (30d, 12h), a day (2026-11-01), or a time as RFC 3339 has it
    #[arg(long, value_name = "WHEN", default_value = "30d")]
    pub since: String,
    /// Until when, as for --since; lengths of time are before now [default: now]
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    #[command(flatten)]
    pub read: Read,
}
