//! `daemon --clearml`: the words of the stock agent's `daemon` that are about its server.

use std::path::PathBuf;

use clap::Args;

/// What is said about the server. All but the first take `--clearml`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Tasks of a ClearML Server")]
pub struct ClearMl {
    /// Run tasks of the server's queues
    ///
    /// Run the tasks that wait in the server's queues of these names, in containers with --docker, else as processes
    #[arg(long)]
    pub clearml: bool,
    /// Server, keys [default: ~/clearml.conf]
    ///
    /// The server's address and keys, and what clearml-agent is told besides [default: ~/clearml.conf,
    /// CLEARML_CONFIG_FILE]
    #[arg(long, value_name = "FILE", requires = "clearml")]
    pub config_file: Option<PathBuf>,
    /// Make queues that the server does not have
    #[arg(long, requires = "clearml")]
    pub create_queue: bool,
    /// Hours for tasks: `17-20 TUE`
    ///
    /// Take tasks only in these hours: `17-20 TUE`, `0-24 SAT,SUN`
    #[arg(long, value_name = "HOURS", num_args = 1.., requires = "clearml")]
    pub uptime: Vec<String>,
    /// Hours without
    ///
    /// Take none in these
    #[arg(long, value_name = "HOURS", num_args = 1.., requires = "clearml")]
    pub downtime: Vec<String>,
    /// Between looks at queues, 5 or more
    ///
    /// Seconds between looks at the queues, 5 or more [default: 5]
    #[arg(long, value_name = "SECONDS", requires = "clearml", value_parser = clap::value_parser!(u64).range(5..))]
    pub polling_interval: Option<u64>,
    /// Tags of the workers that run tasks
    #[arg(long, value_name = "TAG", num_args = 1.., requires = "clearml", hide_short_help = true)]
    pub child_report_tags: Vec<String>,
    /// Leave tasks running when it is stopped
    ///
    /// Leave tasks running when the daemon is stopped; the next one finds them
    #[arg(long, requires = "clearml")]
    pub keep_children: bool,
    /// Instead of clearml-agent
    ///
    /// What runs tasks without --docker [default: clearml-agent]
    #[arg(long, value_name = "COMMAND", requires = "clearml")]
    pub clearml_agent: Option<String>,
    /// Project of a task: `user`, `project`, FILE
    ///
    /// The project (`divvy projects`) that a task runs in: called as its user, as its ClearML project or one above it, or by the lines of a
    /// file, which is read again when it changes [default: none]
    #[arg(long, value_name = "RULE", requires = "clearml")]
    pub clearml_project_by: Option<String>,
    #[command(flatten)]
    pub stock: Stock,
}

/// Flags of the stock agent's `daemon` that few lines have; `docs/clearml.md` lists them. `--help` does not, so that
/// a line that is pasted works, and Divvy's own flags stay in sight.
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
    /// Tasks install nothing and use no network
    #[arg(long, hide = true, requires = "clearml")]
    pub standalone_mode: bool,
    /// Containers install the version of clearml-agent that this machine has
    #[arg(long, hide = true, requires = "clearml")]
    pub force_current_version: bool,
    /// As --docker, with Podman
    #[arg(long, value_name = "IMAGE", num_args = 0.., hide = true, requires = "clearml", conflicts_with = "docker")]
    pub podman: Option<Vec<String>>,
    /// Taken, and without an effect on a daemon
    #[arg(short = 'O', hide = true, action = clap::ArgAction::Count, requires = "clearml")]
    pub optimize: u8,
    /// Taken, and without an effect: there is no bootstrap package
    #[arg(long, hide = true, requires = "clearml")]
    pub check_bootstrap: bool,
    /// Taken: with --docker each task runs in a container
    #[arg(long, hide = true, requires = "clearml")]
    pub force_docker: bool,
    /// Refused
    #[arg(long, hide = true)]
    pub cpu_only: bool,
    /// Refused
    #[arg(long, hide = true)]
    pub use_owner_token: bool,
}
