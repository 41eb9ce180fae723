//! The wording of quota refusals and of pending preemptions, with the arithmetic.

use std::fmt;

use crate::project::{
    OutOfQuota, PendingPreemption, QuotaAhead, QuotaExceeded, QuotaRule, QuotaSum,
};
use crate::units::{Bytes, Gpus, JobId};

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match &self.rule {
            QuotaRule::Limit(project) => {
                write!(out, "{project}'s limit is ")?;
                ""
            }
            QuotaRule::Quota(project) => {
                write!(out, "{project}'s quota is ")?;
                ", and only preemptible jobs may exceed it"
            }
            QuotaRule::UserLimit(user) => {
                write!(out, "the limit of user {user} is ")?;
                ""
            }
        };
        match self.resource {
            QuotaSum::Gpus { most, used, needs } => {
                let s = if most == Gpus::whole(1) { "" } else { "s" };
                write!(out, "{most} GPU{s}")?;
                if used == Gpus::default() {
                    write!(out, ", and the job requests {needs}{by}")
                } else {
                    write!(out, "; {used} in use, {needs} more needed{by}")
                }
            }
            QuotaSum::Memory { most, used, needs } => {
                write!(out, "{most} of GPU memory")?;
                if used == Bytes::ZERO {
                    write!(out, ", and the job requests {needs}{by}")
                } else {
                    write!(out, "; {used} in use, {needs} more needed{by}")
                }
            }
        }
    }
}

impl fmt::Display for OutOfQuota {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exceeded.fmt(out)
    }
}

impl std::error::Error for OutOfQuota {}

impl OutOfQuota {
    /// What to do instead.
    pub fn hint(&self) -> String {
        let nearest = self.nearest.as_ref().map(|nearest| {
            let flag = nearest.amount.flag();
            format!("the nearest request that fits is {flag}")
        });
        match (&self.exceeded.rule, nearest) {
            (QuotaRule::Quota(_), None) => {
                "--preemptible lets the job use quota that other projects leave".to_owned()
            }
            (QuotaRule::Quota(_), Some(nearest)) => {
                format!("{nearest}; --preemptible lets the job use quota that other projects leave")
            }
            (QuotaRule::Limit(_), None) => {
                "request less, or ask an administrator for more quota: divvy projects".to_owned()
            }
            (QuotaRule::Limit(_), Some(nearest)) => {
                format!("{nearest}; administrators change limits: divvy projects")
            }
            (QuotaRule::UserLimit(_), nearest) => {
                let nearest = nearest.map(|nearest| nearest + "; ").unwrap_or_default();
                let change = "administrators change the limit with `max-gpus` in [project-rules]";
                format!("{nearest}{change}")
            }
        }
    }
}

impl fmt::Display for QuotaAhead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = match self.exceeded.rule {
            QuotaRule::Limit(_) | QuotaRule::Quota(_) => "project",
            QuotaRule::UserLimit(_) => "user",
        };
        write!(out, "#{} of the same {same}: {}", self.job, self.exceeded)
    }
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
