//! The filter of jobs: `user:ana queue:half gpu:2 state:waiting text`. All words must match.

use divvy_api::v1::{BoardJob, BoardWaitingJob, JobQuery, JobState};

/// Longest text of a filter that the view accepts, in characters. As wide as a wide terminal: a longer one could not be
/// seen while it is typed.
pub const LONGEST: usize = 120;

/// Words of a filter, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub user: Option<String>,
    pub queue: Option<String>,
    pub project: Option<String>,
    pub gpu: Option<String>,
    pub state: Option<String>,
    /// Text in the number, name, user, queue or project, in lower case.
    pub text: Option<String>,
}

/// The fields of a job that a filter compares.
struct Fields<'a> {
    number: &'a str,
    name: &'a str,
    user: &'a str,
    queue: &'a str,
    project: &'a str,
    state: &'a str,
}

const DEFAULT_QUEUE: &str = "default";

impl Filter {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads a filter. A word without a known field before its colon is text.
    pub fn parse(typed: &str) -> Self {
        let mut filter = Self::default();
        let mut text = Vec::new();
        for word in typed.split_whitespace() {
            let field = match word.split_once(':') {
                Some(("user", _)) => &mut filter.user,
                Some(("queue", _)) => &mut filter.queue,
                Some(("project", _)) => &mut filter.project,
                Some(("gpu", _)) => &mut filter.gpu,
                Some(("state", _)) => &mut filter.state,
                _ => {
                    text.push(word.to_lowercase());
                    continue;
                }
            };
            let value = word.split_once(':').map_or("", |(_, value)| value);
            // Half a word filters nothing yet.
            *field = (!value.is_empty()).then(|| value.to_owned());
        }
        filter.text = (!text.is_empty()).then(|| text.join(" "));
        filter
    }

    fn matches(&self, fields: &Fields<'_>) -> bool {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        let has_text = self.text.as_deref().is_none_or(|text| {
            let all = [
                fields.number,
                fields.name,
                fields.user,
                fields.queue,
                fields.project,
            ];
            all.iter().any(|field| field.to_lowercase().contains(text))
        });
        is(&self.user, fields.user)
            && is(&self.queue, fields.queue)
            && is(&self.project, fields.project)
            && is(&self.state, fields.state)
            && has_text
    }

    /// Whether a job that holds slices matches.
    pub fn matches_job(&self, job: &BoardJob) -> bool {
        let on = |gpu: &String| {
            let slices = job.slices.iter();
            slices
                .map(|slice| slice.gpu.to_string())
                .any(|index| index == *gpu)
        };
        let fields = Fields {
            number: job.reference(),
            name: &job.name,
            user: &job.user,
            queue: job.queue.as_deref().unwrap_or(DEFAULT_QUEUE),
            project: job.project.as_deref().unwrap_or_default(),
            state: state(job),
        };
        self.gpu.as_ref().is_none_or(on) && self.matches(&fields)
    }

    /// Whether a pending job matches. Its project is unknown here.
    pub fn matches_waiting(&self, job: &BoardWaitingJob) -> bool {
        let fields = Fields {
            number: job.reference(),
            name: &job.name,
            user: &job.user,
            queue: job.queue.as_deref().unwrap_or(DEFAULT_QUEUE),
            project: "",
            state: self.waiting_state(),
        };
        self.gpu.is_none() && self.matches(&fields)
    }

    fn waiting_state(&self) -> &'static str {
        match self.state.as_deref() {
            Some("queued") => "queued",
            _ => "waiting",
        }
    }

    /// Whether the daemon has to choose the pending jobs: the board lacks their project.
    pub fn needs_daemon(&self) -> bool {
        self.project.is_some()
    }

    /// The query for pending jobs. `None` if no pending job can match.
    pub fn query(&self) -> Option<JobQuery> {
        let may_wait = matches!(self.state.as_deref(), None | Some("waiting" | "queued"));
        (may_wait && self.gpu.is_none()).then(|| JobQuery {
            state: Some("queued".to_owned()),
            user: self.user.clone(),
            queue: self.queue.clone(),
            project: self.project.clone(),
            text: self.text.clone(),
            ..JobQuery::default()
        })
    }
}

/// The state of a job that holds slices, in one word.
pub fn state(job: &BoardJob) -> &'static str {
    match job.state {
        _ if job.suspended => "suspended",
        None if job.parked => "parked",
        None | Some(JobState::Running) => "running",
        Some(JobState::Queued) => "queued",
        Some(JobState::Starting) => "starting",
        Some(JobState::Stopping) => "stopping",
        Some(JobState::Ended) => "ended",
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn found(typed: &str) -> (Vec<String>, Vec<String>) {
        let (filter, board) = (Filter::parse(typed), sample::board());
        let jobs = board.jobs.iter().filter(|job| filter.matches_job(job));
        let waiting = board.waiting.first.iter();
        let waiting = waiting.filter(|job| filter.matches_waiting(job));
        (
            jobs.map(|job| job.id.clone()).collect(),
            waiting.map(|job| job.id.clone()).collect(),
        )
    }

    #[test]
    fn a_filter_finds_jobs_by_each_field() {
        for (typed, jobs, waiting) in [
            ("user:ana", &["7", "21"][..], &["34"][..]),
            ("user:nobody", &[], &[]),
            ("queue:half", &["7", "12"], &["31"]),
            ("gpu:0", &["7", "12", "21"], &[]),
            ("state:waiting", &[], &["31", "32", "33", "34"]),
            ("state:suspended", &["21"], &[]),
            ("state:running user:ana", &["7"], &[]),
            ("TRAIN", &["7", "14"], &[]),
            ("gpu:1 train", &["14"], &[]),
            (
                "user:",
                &["7", "12", "14", "21", "22", "23"],
                &["31", "32", "33", "34"],
            ),
        ] {
            let (running, pending) = found(typed);
            assert_eq!(
                (&running[..], &pending[..]),
                (
                    &jobs.iter().map(ToString::to_string).collect::<Vec<_>>()[..],
                    &waiting.iter().map(ToString::to_string).collect::<Vec<_>>()[..]
                ),
                "{typed}"
            );
        }
    }

    #[test]
    fn the_daemon_is_asked_only_for_jobs_that_can_wait() {
        assert_eq!(Filter::parse("gpu:1").query(), None);
        assert_eq!(Filter::parse("state:running").query(), None);
        let query = Filter::parse("state:waiting user:ana a b").query().unwrap();
        assert_eq!(query.state.as_deref(), Some("queued"));
        assert_eq!(
            (query.user.as_deref(), query.text.as_deref()),
            (Some("ana"), Some("a b"))
        );
    }
}
