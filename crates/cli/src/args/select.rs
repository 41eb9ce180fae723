//! Arguments that name jobs, or select them by filters, for actions on several jobs.

use clap::Args;

use super::{Format, JobFilter, job};

#[derive(Debug, Default, Args)]
pub struct Cancel {
    /// Ids, unique names, or `last`
    #[arg(
        required_unless_present_any = ["me", "user", "queue", "project", "state", "name"],
        value_name = "JOB",
        value_parser = job
    )]
    pub jobs: Vec<String>,
    #[command(flatten)]
    pub select: Select,
    /// Print the jobs in this format: table, wide, json, ndjson or name
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
}

/// Jobs by filters. Without a user they are the caller's own, also for operators.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
pub struct Select {
    /// All your own jobs
    #[arg(long, conflicts_with_all = ["user", "jobs"])]
    pub me: bool,
    /// Jobs of this user, a name or a uid, instead of your own
    #[arg(short, long, value_name = "USER", conflicts_with = "jobs")]
    pub user: Option<String>,
    /// Your jobs of this queue
    #[arg(short, long, value_name = "NAME", conflicts_with = "jobs")]
    pub queue: Option<String>,
    /// Your jobs of this project; '': those without one
    #[arg(short, long, value_name = "NAME", conflicts_with = "jobs")]
    pub project: Option<String>,
    /// Your jobs in these states: queued,running
    #[arg(short, long, value_name = "LIST", conflicts_with = "jobs")]
    pub state: Option<String>,
    /// Your jobs with this name; * stands for any text
    #[arg(long, value_name = "GLOB", conflicts_with = "jobs")]
    pub name: Option<String>,
    /// Do not ask before acting on jobs selected by filters
    #[arg(short, long, conflicts_with = "jobs")]
    pub yes: bool,
    /// List the selected jobs, and change nothing
    #[arg(long, conflicts_with_all = ["yes", "jobs"])]
    pub dry_run: bool,
}

impl Select {
    /// The same filters, as those of a list.
    pub fn filter(&self) -> JobFilter {
        JobFilter {
            me: self.user.is_none(),
            user: self.user.clone(),
            queue: self.queue.clone(),
            project: self.project.clone(),
            state: self.state.clone(),
            name: self.name.clone(),
            ..JobFilter::default()
        }
    }
}
