//! Why a project's rules keep a job waiting, with the arithmetic.

use std::fmt;
use std::sync::Arc;

use super::{Limit, Project, Resources};
use crate::units::{Bytes, Gpus, JobId, ProjectName};

/// Which rule a job would break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaRule {
    /// No project goes beyond its limit.
    Limit,
    /// Only jobs that may be preempted go beyond the quota.
    Quota,
}

/// A job's project has not so much left for it: `vision's limit is 4 GPUs; 3.5 in use, 1 more needed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    pub project: ProjectName,
    pub rule: QuotaRule,
    pub resource: Sum,
}

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    Gpus {
        most: Gpus,
        used: Gpus,
        needs: Gpus,
    },
    Memory {
        most: Bytes,
        used: Bytes,
        needs: Bytes,
    },
}

impl QuotaExceeded {
    /// The first resource of which `used` and `needs` together are beyond `most`.
    pub(crate) fn of(
        project: &Project,
        rule: QuotaRule,
        most: Limit,
        used: Resources,
        needs: Resources,
    ) -> Option<Self> {
        let gpus = most
            .gpus
            .filter(|most| used.gpus.saturating_add(needs.gpus) > *most)
            .map(|most| Sum::Gpus {
                most,
                used: used.gpus,
                needs: needs.gpus,
            });
        let memory = most
            .memory
            .filter(|most| used.memory.saturating_add(needs.memory) > *most)
            .map(|most| Sum::Memory {
                most,
                used: used.memory,
                needs: needs.memory,
            });
        gpus.or(memory).map(|sum| Self {
            project: project.name.clone(),
            rule,
            resource: sum,
        })
    }
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = match self.rule {
            QuotaRule::Limit => "limit",
            QuotaRule::Quota => "quota",
        };
        let by = match self.rule {
            QuotaRule::Limit => "",
            QuotaRule::Quota => ", and only preemptible jobs may exceed it",
        };
        write!(out, "{}'s {rule} is ", self.project)?;
        match self.resource {
            Sum::Gpus { most, used, needs } => {
                let s = if most == Gpus::whole(1) { "" } else { "s" };
                write!(out, "{most} GPU{s}; {used} in use, {needs} more needed{by}")
            }
            Sum::Memory { most, used, needs } => {
                write!(
                    out,
                    "{most} of GPU memory; {used} in use, {needs} more needed{by}"
                )
            }
        }
    }
}

/// A project could never serve a request, whoever of it ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OutOfQuota(pub QuotaExceeded);

impl OutOfQuota {
    /// What to do instead.
    pub fn hint(&self) -> String {
        match self.0.rule {
            QuotaRule::Limit => {
                "request less, or ask an administrator for more quota: divvy projects".to_owned()
            }
            QuotaRule::Quota => {
                "--preemptible lets the job use quota that other projects leave".to_owned()
            }
        }
    }
}

/// A job of the same project waits for the project to use less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaAhead {
    pub job: JobId,
    pub overdraft: Arc<QuotaExceeded>,
}

impl fmt::Display for QuotaAhead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "#{} of the same project: {}", self.job, self.overdraft)
    }
}

/// A job is within its project's quota, and others that are over quota give way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPreemption {
    pub project: ProjectName,
    pub quota: Gpus,
    /// What of the quota is used with it.
    pub used: Gpus,
    /// Who gives way.
    pub victims: Vec<JobId>,
    /// Seconds until the last of them may be stopped, where one has not run for its minimum yet.
    pub in_s: Option<u64>,
}

impl fmt::Display for PendingPreemption {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            project,
            quota,
            used,
            victims: stopped,
            in_s,
        } = self;
        let stopped_words = listed(stopped);
        let are = if stopped.len() == 1 { "is" } else { "are" };
        write!(
            out,
            "within {project}'s quota ({used} of {quota} GPUs with it): "
        )?;
        match in_s {
            None => write!(
                out,
                "starts when {stopped_words}, over quota, {are} preempted for it"
            ),
            Some(seconds) => write!(
                out,
                "{stopped_words}, over quota, {are} preempted for it in {seconds} s, after the minimum runtime"
            ),
        }
    }
}

/// `#1, #2 and #3`.
fn listed(jobs: &[JobId]) -> String {
    let words: Vec<String> = jobs.iter().map(|job| format!("#{job}")).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}
