//! Arguments of `config`: the daemon's configuration file.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Format, help};

#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Write a file with every key as a comment
    Init(ConfigInit),
    /// Find all problems of a configuration file
    Check(ConfigCheck),
    /// Show the values in force, and the origin of each
    Show(ConfigShow),
    /// Have the running daemon read its file again
    Reload(ConfigReload),
}

#[derive(Debug, Args)]
#[command(after_help = help::CONFIG_INIT)]
pub struct ConfigInit {
    /// [default: the file that the daemon would read]
    pub file: Option<PathBuf>,
    /// Replace the file, and keep a copy of it
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
#[command(override_usage = "divvy config check [FILE] [OPTIONS]", after_help = help::CONFIG_CHECK)]
pub struct ConfigCheck {
    /// [default: the file that the daemon would read]
    pub file: Option<PathBuf>,
    /// Check it as the file of the system's daemon
    #[arg(long)]
    pub system: bool,
    /// Print the values in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

#[derive(Debug, Args)]
#[command(after_help = help::CONFIG_SHOW)]
pub struct ConfigShow {
    /// Show this file, not the values of the running daemon
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Show the file of the system's daemon
    #[arg(long)]
    pub system: bool,
    /// Show the keys that have their default values too
    #[arg(long)]
    pub defaults: bool,
    /// Format: table, wide, json, ndjson, name
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
#[command(after_help = help::CONFIG_RELOAD)]
pub struct ConfigReload {
    /// Print the result in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}
