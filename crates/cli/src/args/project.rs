//! Arguments of `admin project`: quotas, limits and members of projects.

use clap::{Args, Subcommand};

use super::{Format, help};

#[derive(Debug, Subcommand)]
pub enum AdminProject {
    /// Add a project
    #[command(override_usage = "divvy admin project add NAME --quota GPUS [OPTIONS]")]
    Add(ProjectArgs),
    /// Change the given settings of a project
    #[command(override_usage = "divvy admin project set NAME [OPTIONS]")]
    Set(ProjectArgs),
    /// Remove a project that no job belongs to
    Rm(RemoveProject),
}

#[derive(Debug, Args)]
#[command(after_help = help::PROJECT)]
pub struct ProjectArgs {
    pub name: String,
    /// Guaranteed GPUs, also fractions: 2.5
    #[arg(long, value_name = "GPUS")]
    pub quota: Option<String>,
    /// Guaranteed GPU memory, or none for no quota of memory
    #[arg(long, value_name = "SIZE")]
    pub quota_memory: Option<String>,
    /// Weight for the GPUs beyond all quotas; 0: only GPUs that no other project wants; quota: as its quota
    #[arg(long, value_name = "N")]
    pub weight: Option<String>,
    /// Most GPUs at once, or none for no limit
    #[arg(long, value_name = "GPUS")]
    pub limit: Option<String>,
    /// Most GPU memory at once, or none for no limit
    #[arg(long, value_name = "SIZE")]
    pub limit_memory: Option<String>,
    /// Projects of higher priority are served first [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Its jobs cannot be preempted before they have run this long: 10m
    #[arg(long, value_name = "TIME")]
    pub min_runtime: Option<String>,
    /// Users and @groups that may use it: ana,lee,@vision; all: every user
    #[arg(long, value_name = "LIST")]
    pub members: Option<String>,
    /// Print the project in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
pub struct RemoveProject {
    pub name: String,
}
