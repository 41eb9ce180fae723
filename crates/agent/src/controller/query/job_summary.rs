//! The compact form of a job in a list.

use std::borrow::Cow;
use std::sync::Arc;

use divvy_api::v1::{Brief, EndReason, JobState};
use divvy_core::{Amount, Compute, JobId, Reason, Wait};
use jiff::Timestamp;

use super::view::{JobView, state};
use crate::model::bypass::Bypass;
use crate::model::idle::Rule;
use crate::model::job::{Job, JobSpec};

/// A job of a list, in a compact form.
pub enum JobSummary {
    /// The job waits for its turn, and has no history.
    Pending {
        id: JobId,
        ask: Arc<JobSpec>,
        resized: Option<Amount>,
        redivided: Option<Compute>,
        since: Timestamp,
        place: usize,
        reason: Reason,
        idle: Option<Rule>,
    },
    Other(Box<JobView>),
}

/// The last formatted texts: most jobs of a long list have the same request and the same reason.
#[derive(Default)]
pub struct TextCache {
    pub amount: Option<(Amount, String)>,
    pub reason: Option<(Reason, String)>,
}

impl From<JobView> for JobSummary {
    fn from(seen: JobView) -> Self {
        Self::Other(Box::new(seen))
    }
}

impl JobSummary {
    pub fn id(&self) -> JobId {
        match self {
            Self::Pending { id, .. } => *id,
            Self::Other(seen) => seen.id(),
        }
    }

    /// The uid of the job's owner.
    pub fn owner(&self) -> u32 {
        match self {
            Self::Pending { ask, .. } => ask.credentials.uid,
            Self::Other(seen) => seen.job.spec.credentials.uid,
        }
    }

    /// The full view.
    pub fn into_view(self) -> JobView {
        match self {
            Self::Pending {
                id,
                ask,
                resized,
                redivided,
                since,
                place,
                reason,
                idle,
            } => JobView {
                wait: Some(Wait {
                    job: id,
                    queue: ask.queue.clone(),
                    place,
                    reason,
                }),
                job: Job {
                    resized,
                    redivided,
                    ..Job::waiting(id, ask, since)
                },
                slices: Vec::new(),
                compute_time: None,
                alarm_count: None,
                block_reason: None,
                idle,
                idle_s: None,
                claim: None,
                records: None,
            },
            Self::Other(seen) => *seen,
        }
    }

    /// The row of a table. `sees`: whether the caller may see what the job runs.
    pub fn to_brief<'a>(&'a self, sees: bool, cache: &'a mut TextCache) -> Brief<'a> {
        match self {
            Self::Pending {
                id,
                ask,
                resized,
                since,
                reason,
                ..
            } => Brief {
                request: cached_text(&mut cache.amount, &resized.unwrap_or(ask.request.amount))
                    .into(),
                reason: Some(cached_text(&mut cache.reason, reason).into()),
                ..bare_row(*id, ask, JobState::Queued, *since)
            },
            Self::Other(seen) => brief_of(seen, sees),
        }
    }
}

/// The text of a value, from the cache if it is the last one.
pub fn cached_text<'a, T: Clone + PartialEq + ToString>(
    last: &'a mut Option<(T, String)>,
    what: &T,
) -> &'a str {
    if last.as_ref().is_none_or(|(before, _)| before != what) {
        *last = None;
    }
    &last
        .get_or_insert_with(|| (what.clone(), what.to_string()))
        .1
}

/// A row without details.
pub fn bare_row(id: JobId, ask: &JobSpec, state: JobState, since: Timestamp) -> Brief<'_> {
    Brief {
        id: id.to_string().into(),
        task: ask.policy.array.map(|task| task.handle(id).into()),
        max_running: ask.policy.array.and_then(|task| task.most),
        name: ask.name.as_str().into(),
        user: ask.user.as_str().into(),
        project: ask.project.as_deref().map(Cow::from),
        queue: ask.queue.as_str().into(),
        request: Cow::Borrowed(""),
        state,
        end_reason: None,
        exit_code: None,
        suspended: false,
        parked: false,
        since,
        started_at: None,
        ended_at: None,
        slices: Cow::Borrowed(&[]),
        reason: None,
        bypasses: Cow::Borrowed(&[]),
        folded: None,
    }
}

pub fn brief_of(seen: &JobView, sees: bool) -> Brief<'_> {
    let job = &seen.job;
    let state = state(&job.state);
    let wait = seen.wait.as_ref().filter(|_| state == JobState::Queued);
    let held_up = seen
        .block_reason
        .as_ref()
        .map(|held_up| held_up.message.as_str());
    let otherwise = held_up.or(job.reason.as_deref());
    let reason = wait.map(|wait| Cow::from(wait.reason.to_string()));
    // Every user may see why a job waits; only its owner may see why a program failed.
    let is_told = sees || state != JobState::Ended;
    let since = state.since(job.submitted_at, job.started_at, job.ended_at);
    Brief {
        request: job.amount().to_string().into(),
        end_reason: job.state.outcome().map(EndReason::from),
        exit_code: job.exit_code,
        suspended: job.run_state.suspended,
        parked: state == JobState::Running && job.run_state.aside.is_parked(),
        started_at: job.started_at,
        ended_at: job.ended_at,
        slices: (&seen.slices).into(),
        reason: reason
            .or_else(|| otherwise.map(Cow::from))
            .filter(|_| is_told),
        bypasses: job.bypasses.iter().map(Bypass::to_api).collect(),
        ..bare_row(job.id, &job.spec, state, since)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fmt;

    use super::*;

    #[test]
    fn of_a_job_that_waits_little_is_taken_along() {
        let (summary, seen) = (size_of::<JobSummary>(), size_of::<JobView>());
        assert!(summary <= 128 && seen >= 4 * summary, "{summary} {seen}");
    }

    #[derive(Clone)]
    struct Counted<'a>(u8, &'a Cell<u32>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    impl fmt::Display for Counted<'_> {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.1.set(self.1.get() + 1);
            self.0.fmt(out)
        }
    }

    #[test]
    fn what_was_said_last_is_not_put_into_words_again() {
        let (times, mut last) = (Cell::new(0), None);
        for (what, so_far) in [(1, 1), (1, 1), (2, 2), (2, 2), (1, 3)] {
            let text = cached_text(&mut last, &Counted(what, &times)).to_owned();
            assert_eq!((text, times.get()), (what.to_string(), so_far));
        }
    }
}
