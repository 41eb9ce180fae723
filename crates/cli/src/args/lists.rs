//! Arguments of the lists: `ps` with its filters, and how often a list is drawn.

use std::time::Duration;

use clap::Args;

use super::{Read, help, job};

#[derive(Debug, Args)]
#[command(after_help = help::PS)]
pub struct Ps {
    /// Only these jobs, ended ones too: ids, unique names, or `last`
    #[arg(value_name = "JOB", value_parser = job)]
    pub jobs: Vec<String>,
    /// List jobs that have ended, too, with their times
    #[arg(short, long)]
    pub all: bool,
    /// One row for each pending task of an array
    ///
    /// One row for each pending task of an array. Otherwise those that follow each other are one row, such as 12_[2-39]
    #[arg(long)]
    pub tasks: bool,
    #[command(flatten)]
    pub filter: JobFilter,
    #[command(flatten)]
    pub look: Look,
}

#[derive(Clone, Debug, Default, Args)]
pub struct JobFilter {
    /// Only your own jobs
    #[arg(long, conflicts_with_all = ["user", "jobs"])]
    pub me: bool,
    /// Only jobs of this user: a name or a uid
    #[arg(short, long, value_name = "USER", conflicts_with = "jobs")]
    pub user: Option<String>,
    /// Only jobs of this queue
    #[arg(short, long, value_name = "NAME", conflicts_with = "jobs")]
    pub queue: Option<String>,
    /// Only jobs of this project; '': jobs without one
    #[arg(short, long, value_name = "NAME", conflicts_with = "jobs")]
    pub project: Option<String>,
    /// Only these states or ends: queued,running, failed
    ///
    /// Only jobs in these states, or that ended in these ways: queued, starting, running, stopping, ended, completed,
    /// failed, cancelled, launch_failed, supervisor_lost, bypass, time_limit, idle_timeout, dependency_failed, gpu_lost,
    /// released
    #[arg(short, long, value_name = "LIST", conflicts_with = "jobs")]
    pub state: Option<String>,
    /// Jobs of this time, ended ones too: 2h, 3d, a date
    ///
    /// Jobs that had not ended at this time, also those that have ended since: 2h or 3d before now, a day (2026-11-01)
    /// or a time in RFC 3339
    #[arg(long, value_name = "TIME", conflicts_with = "jobs")]
    pub since: Option<String>,
    /// Only jobs with this name; * stands for any text
    #[arg(long, value_name = "GLOB", conflicts_with = "jobs")]
    pub name: Option<String>,
    /// Order: id, user, memory, …; -memory: reversed
    ///
    /// Order: id, name, user, queue, project, state, memory, peak, share, submitted, started, ended, elapsed or place;
    /// with `-` before it the other way round [default: id]
    #[arg(
        long,
        value_name = "KEY",
        allow_hyphen_values = true,
        conflicts_with = "jobs"
    )]
    pub sort: Option<String>,
    /// At most N jobs: the newest, or the first by --sort; 0: all
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "jobs")]
    pub limit: Option<String>,
}

/// The form of a list, and how often it is drawn.
#[derive(Debug, Args)]
pub struct Look {
    #[command(flatten)]
    pub read: Read,
    /// Draw the table again every 2 seconds, or --watch=10
    ///
    /// Draw the table again every 2 seconds, or every SECONDS seconds (0.1 to 3600), until Ctrl-C. On a terminal the
    /// table stays in place; elsewhere tables follow each other, with an empty line between them.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = interval
    )]
    pub watch: Option<Duration>,
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds));
    match seconds {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err("use seconds from 0.1 to 3600, as in --watch=5"),
    }
}
