//! On whose account a job runs.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, ProjectName};

/// On whose account a job runs, and how it stands among others of that account.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SchedulingClass {
    /// `None`: outside all projects.
    #[serde(default)]
    pub project: Option<ProjectName>,
    /// Higher first among the jobs of its queue, and of its project.
    #[serde(default)]
    pub priority: i32,
    /// It may be stopped for a job that is within its project's quota, and is put back into its queue then; in return it
    /// may use what other projects leave.
    #[serde(default)]
    pub preemptible: bool,
}

impl SchedulingClass {
    /// The place of one who holds something in its project's rank: those who cannot be preempted, then by priority, then by
    /// age.
    pub(crate) fn rank(&self, job: JobId) -> impl Ord + Copy + use<> {
        (self.preemptible, Reverse(self.priority), job)
    }

    /// Whether one of these who waits comes before one who holds something in the same project: by priority, and among
    /// equals one who cannot be preempted before one who can. Nobody is displaced for having come later.
    pub(crate) fn displaces(&self, holder: &Self) -> bool {
        holder.preemptible
            && (self.priority > holder.priority
                || (self.priority == holder.priority && !self.preemptible))
    }

    /// Its place among those of its project who wait: whoever displaces another is asked before it.
    pub(crate) fn precedence(&self) -> impl Ord + Copy + use<> {
        (Reverse(self.priority), self.preemptible)
    }
}
