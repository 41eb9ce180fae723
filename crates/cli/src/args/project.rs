//! `admin project`: who is guaranteed how much.

use clap::{Args, Subcommand};

use super::{Format, help};

#[derive(Debug, Subcommand)]
pub enum AdminProject {
    /// Make a project
    #[command(override_usage = "divvy admin project add NAME --quota GPUS [OPTIONS]")]
    Add(ProjectArgs),
    /// Change a project: what is said of it, and nothing else
    #[command(override_usage = "divvy admin project set NAME [OPTIONS]")]
    Set(ProjectArgs),
    /// Remove a project that no job belongs to
    Rm(RemoveProject),
}

#[derive(Debug, Args)]
#[command(after_help = help::PROJECT)]
pub struct ProjectArgs {
    pub name: String,
    /// GPUs it is guaranteed, fractions included: 2.5
    #[arg(long, value_name = "GPUS")]
    pub quota: Option<String>,
    /// GPU memory it is guaranteed, or none to leave memory undivided
    #[arg(long, value_name = "SIZE")]
    pub quota_memory: Option<String>,
    /// Its part of what is over, 0 for only what nobody else wants, or quota for as much as its quota
    #[arg(long, value_name = "N")]
    pub weight: Option<String>,
    /// GPUs it never goes beyond, or none
    #[arg(long, value_name = "GPUS")]
    pub limit: Option<String>,
    /// GPU memory it never goes beyond, or none
    #[arg(long, value_name = "SIZE")]
    pub limit_memory: Option<String>,
    /// Higher ones are asked first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Its jobs are not stopped for others before they have run this long: 10m
    #[arg(long, value_name = "TIME")]
    pub min_runtime: Option<String>,
    /// Users and @groups that may use it: ana,lee,@vision; all for everybody
    #[arg(long, value_name = "LIST")]
    pub members: Option<String>,
    /// Print the project in this form: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
pub struct RemoveProject {
    pub name: String,
}
