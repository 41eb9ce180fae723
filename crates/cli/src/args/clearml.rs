//! Arguments of `daemon --clearml`: the flags of the stock agent's `daemon` for the ClearML server.

use std::path::PathBuf;

use clap::Args;

/// Flags for the server. All but the first require `--clearml`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Tasks of a ClearML Server")]
pub struct ClearMl {
    /// Run tasks of the server's queues
    ///
    /// Run the tasks of the server's queues that --queue names: in containers with --docker, else as processes
    #[arg(long)]
    pub clearml: bool,
    /// Server and keys [default: ~/clearml.conf]
    ///
    /// A file with the server's address and keys, and further settings for clearml-agent [default: ~/clearml.conf,
    /// CLEARML_CONFIG_FILE]
    #[arg(long, value_name = "FILE", requires = "clearml")]
    pub config_file: Option<PathBuf>,
    /// Create queues that the server does not have
    #[arg(long, requires = "clearml")]
    pub create_queue: bool,
    /// Hours to take tasks in: `17-20 TUE`
    ///
    /// Take tasks only in these hours: `17-20 TUE`, `0-24 SAT,SUN`
    #[arg(long, value_name = "HOURS", num_args = 1.., requires = "clearml")]
    pub uptime: Vec<String>,
    /// Hours to take no tasks in
    ///
    /// Take no tasks in these hours
    #[arg(long, value_name = "HOURS", num_args = 1.., requires = "clearml")]
    pub downtime: Vec<String>,
    /// Between polls of queues, at least 5
    ///
    /// Seconds between polls of the server's queues; fewer than 5 count as 5 [default: 5]
    #[arg(long, value_name = "SECONDS", requires = "clearml")]
    pub polling_interval: Option<u64>,
    /// Tags of the workers that run tasks
    #[arg(long, value_name = "TAG", num_args = 1.., requires = "clearml", hide_short_help = true)]
    pub child_report_tags: Vec<String>,
    #[command(flatten)]
    pub stock: Stock,
}

/// Rare flags of the stock agent's `daemon`, which pasted command lines may contain. `docs/clearml.md` lists them;
/// `--help` omits them, for brevity.
#[derive(Clone, Debug, Default, Args)]
pub struct Stock {
    /// As `agent.git_user`
    #[arg(long, value_name = "USER", hide = true, requires = "clearml")]
    pub git_user: Option<String>,
    /// As `agent.git_pass`
    #[arg(long, value_name = "TOKEN", hide = true, requires = "clearml")]
    pub git_pass: Option<String>,
    /// Log level of the SDK in tasks
    #[arg(long, value_name = "LEVEL", hide = true, requires = "clearml", ignore_case = true,
        value_parser = ["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"])]
    pub log_level: Option<String>,
    /// Tasks install no packages and use no network
    #[arg(long, hide = true, requires = "clearml")]
    pub standalone_mode: bool,
    /// Containers install this machine's version of clearml-agent
    #[arg(long, hide = true, requires = "clearml")]
    pub force_current_version: bool,
    /// As --docker, with Podman
    #[arg(long, value_name = "IMAGE", num_args = 0.., hide = true, requires = "clearml", conflicts_with = "docker")]
    pub podman: Option<Vec<String>>,
    /// Accepted, without effect on a daemon
    #[arg(short = 'O', hide = true, action = clap::ArgAction::Count, requires = "clearml")]
    pub optimize: u8,
    /// Accepted, without effect: there is no bootstrap package
    #[arg(long, hide = true, requires = "clearml")]
    pub check_bootstrap: bool,
    /// Accepted: with --docker each task runs in a container
    #[arg(long, hide = true, requires = "clearml")]
    pub force_docker: bool,
    /// Refused
    #[arg(long, hide = true)]
    pub cpu_only: bool,
    /// Refused
    #[arg(long, hide = true)]
    pub use_owner_token: bool,
}
