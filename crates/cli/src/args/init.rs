//! Arguments of `admin init`: the first configuration of a machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::help;

#[derive(Clone, Debug, Default, Args)]
#[command(override_usage = "divvy admin init [OPTIONS]", after_help = help::ADMIN_INIT)]
pub struct AdminInit {
    /// Accepted, without effect: the command asks nothing
    #[arg(short, long, hide = true)]
    pub yes: bool,
    /// GPUs to serve: 0-2, or 0,1, or all
    #[arg(long, value_name = "LIST")]
    pub gpus: Option<String>,
    /// NAME or NAME=AMOUNT, in the order to serve them
    #[arg(long, value_name = "QUEUE", num_args = 1..)]
    pub queue: Vec<String>,
    /// Admins besides root: users, and @groups
    #[arg(long, value_name = "USER", num_args = 1..)]
    pub admin: Vec<String>,
    /// Projects: vision=2.5:ana,@vision
    #[arg(long, value_name = "NAME=QUOTA[:MEMBERS]", num_args = 1..)]
    pub project: Vec<String>,
    /// Project of jobs that name none: lab, ana=vision, @staff=nlp
    #[arg(long, value_name = "[USER|@GROUP=]NAME", num_args = 1..)]
    pub default_project: Vec<String>,
    /// Most GPUs that the jobs of one user hold together
    #[arg(long, value_name = "N")]
    pub max_gpus: Option<String>,
    /// Users' programs that may open the GPUs: open (all), or jobs
    #[arg(long, value_name = "FOR")]
    pub device_nodes: Option<String>,
    /// Serve metrics and the API on this address too
    ///
    /// Serve metrics and the API to clients with a token on this address too; creates the token
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Write this file [default: the daemon's]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// For a daemon of your own, although you are root
    #[arg(long)]
    pub user: bool,
    /// Write the message for users into this file
    #[arg(long, value_name = "FILE")]
    pub motd: Option<PathBuf>,
    /// Replace the file, and keep a copy of it
    #[arg(long)]
    pub force: bool,
    /// Start no daemon
    #[arg(long)]
    pub no_start: bool,
    /// Print the file, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
