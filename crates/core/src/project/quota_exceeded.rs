//! Quota refusals as data: which quota or limit keeps a job waiting, with the figures.

use std::sync::Arc;

use super::{Limit, Project, Resources};
use crate::units::{Bytes, Gpus, JobId, ProjectName};

/// The rule that a job would break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaRule {
    /// No project exceeds its limit.
    Limit,
    /// Only preemptible jobs exceed the quota.
    Quota,
}

/// A job's project has too little left: `vision's limit is 4 GPUs; 3.5 in use, 1 more needed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    pub project: ProjectName,
    pub rule: QuotaRule,
    pub resource: QuotaSum,
}

/// The exceeded resource, with the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaSum {
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
    /// The first resource of which `used` and `needs` together exceed `most`.
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
            .map(|most| QuotaSum::Gpus {
                most,
                used: used.gpus,
                needs: needs.gpus,
            });
        let memory = most
            .memory
            .filter(|most| used.memory.saturating_add(needs.memory) > *most)
            .map(|most| QuotaSum::Memory {
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

/// A project can never serve a request, even once its other jobs have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfQuota(pub QuotaExceeded);

/// A job ahead in the same project waits until the project uses less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaAhead {
    pub job: JobId,
    pub exceeded: Arc<QuotaExceeded>,
}

/// A job within its project's quota preempts jobs that are over quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingPreemption {
    pub project: ProjectName,
    pub quota: Gpus,
    /// The used part of the quota with this job.
    pub used: Gpus,
    /// The preempted jobs.
    pub victims: Vec<JobId>,
    /// Seconds until the last of them has run for its minimum, if one has not.
    pub in_s: Option<u64>,
}
