//! Quota refusals as data: which quota or limit keeps a job waiting, with the figures.

use std::sync::Arc;

use super::{Limit, Resources};
use crate::model::request::Request;
use crate::units::{Bytes, Gpus, JobId, ProjectName, UserName};

/// The rule that a job would break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaRule {
    /// No project exceeds its limit.
    Limit(ProjectName),
    /// Only preemptible jobs exceed the quota of their project.
    Quota(ProjectName),
    /// No user exceeds the limit of users.
    UserLimit(UserName),
}

/// A job's project or user has too little left: `vision's limit is 4 GPUs; 3.5 in use, 1 more needed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
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

impl QuotaSum {
    /// The first resource of which `used` and `needs` together exceed `most`.
    pub(super) fn exceeding(most: Limit, used: Resources, needs: Resources) -> Option<Self> {
        let gpus = most
            .gpus
            .filter(|most| used.gpus.saturating_add(needs.gpus) > *most)
            .map(|most| Self::Gpus {
                most,
                used: used.gpus,
                needs: needs.gpus,
            });
        let memory = most
            .memory
            .filter(|most| used.memory.saturating_add(needs.memory) > *most)
            .map(|most| Self::Memory {
                most,
                used: used.memory,
                needs: needs.memory,
            });
        gpus.or(memory)
    }
}

/// A project can never serve a request, or a user never run it, even once all other jobs have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfQuota {
    pub exceeded: QuotaExceeded,
    /// The nearest request within the limit or quota.
    pub nearest: Option<Request>,
}

/// A job ahead of the same project or user waits until that uses less.
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
