//! Why a project's rules keep a job waiting, with the arithmetic.

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
    pub resource: QuotaSum,
}

/// The resource that is short.
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

/// A project could never serve a request, whoever of it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfQuota(pub QuotaExceeded);

/// A job of the same project waits for the project to use less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaAhead {
    pub job: JobId,
    pub exceeded: Arc<QuotaExceeded>,
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
