//! Brief jobs: the columns of a table, one job a line.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Bypass, EndReason, Folded, Job, JobState, MemoryPlace, Slice};

/// One line of `GET /v1/jobs?brief=true`: the columns of a table, without fields that are null, false or empty. For
/// ten thousand pending jobs it is less than a quarter of the full answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Brief<'a> {
    #[serde(borrow)]
    pub id: Cow<'a, str>,
    /// Handle such as `12_3`, for a job of an array.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Cow<'a, str>>,
    /// Largest number of jobs of the array that hold slices at the same time. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// Absent from daemons before version 0.2.
    #[serde(borrow, default, skip_serializing_if = "is_empty")]
    pub user: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub queue: Cow<'a, str>,
    /// The request as a user types it: `0.25`, `4GiB`, `2`, `1-4`, `8x0.5`, `2g.10gb`.
    #[serde(borrow)]
    pub request: Cow<'a, str>,
    pub state: JobState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<EndReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// The job's GPU memory is in host memory, or on its way, and its processes run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
    /// Time at which the job entered its state.
    pub since: Timestamp,
    /// Time of the start. Absent if the program has not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub slices: Cow<'a, [Slice]>,
    /// For a pending job: what it waits for. For a failed job: the error, to callers who may see it.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub bypasses: Cow<'a, [Bypass]>,
    /// With `fold=true`: the tasks that this item stands for; the other fields show the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folded: Option<Folded>,
}

impl Brief<'_> {
    /// The same without what it borrows.
    pub fn into_owned(self) -> Brief<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Brief {
            id: owned(self.id),
            task: self.task.map(owned),
            max_running: self.max_running,
            name: owned(self.name),
            user: owned(self.user),
            project: self.project.map(owned),
            queue: owned(self.queue),
            request: owned(self.request),
            state: self.state,
            end_reason: self.end_reason,
            exit_code: self.exit_code,
            suspended: self.suspended,
            parked: self.parked,
            since: self.since,
            started_at: self.started_at,
            ended_at: self.ended_at,
            slices: Cow::Owned(self.slices.into_owned()),
            reason: self.reason.map(owned),
            bypasses: Cow::Owned(self.bypasses.into_owned()),
            folded: self.folded,
        }
    }
}

/// Reads such lines from pieces of any length. It returns each job as soon as its line is complete, and never holds
/// all of them.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of an incomplete line.
    begun: Vec<u8>,
}

impl Lines {
    pub const CONTENT_TYPE: &str = "application/x-ndjson";

    /// Takes the next piece, and returns every job with a line that it completes.
    ///
    /// # Errors
    /// When a line is something else.
    pub fn take(
        &mut self,
        piece: &[u8],
        mut give: impl FnMut(Brief<'_>),
    ) -> serde_json::Result<()> {
        let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') else {
            self.begun.extend(piece);
            return Ok(());
        };
        let (ended, begun) = piece.split_at(end + 1);
        if self.begun.is_empty() {
            each(ended, &mut give)?;
        } else {
            self.begun.extend(ended);
            each(&self.begun, &mut give)?;
            self.begun.clear();
        }
        self.begun.extend(begun);
        Ok(())
    }

    /// Whether no incomplete line remains.
    pub fn is_whole(&self) -> bool {
        self.begun.is_empty()
    }
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}

fn each<'a>(lines: &'a [u8], give: &mut impl FnMut(Brief<'a>)) -> serde_json::Result<()> {
    let briefs = serde_json::Deserializer::from_slice(lines).into_iter();
    for brief in briefs {
        give(brief?);
    }
    Ok(())
}

impl Brief<'_> {
    /// The handle of this job alone.
    pub fn reference(&self) -> &str {
        self.task.as_deref().unwrap_or(&self.id)
    }
}

impl<'a> From<&'a Job> for Brief<'a> {
    fn from(job: &'a Job) -> Self {
        // An amount that the core would not take is shown as it is: an agent newer than this program may know more.
        let ask = divvy_core::Amount::try_from(job.request.clone())
            .map_or_else(|_| format!("{:?}", job.request), |ask| ask.to_string());
        Self {
            id: job.id.as_str().into(),
            task: job.array.as_ref().map(|task| task.to_string().into()),
            max_running: job.array.as_ref().and_then(|task| task.max_running),
            name: job.name.as_str().into(),
            user: job.user.as_str().into(),
            project: job.project.as_deref().map(Cow::from),
            queue: job.queue.as_str().into(),
            request: ask.into(),
            state: job.state,
            end_reason: job.end_reason,
            exit_code: job.exit_code,
            suspended: job.suspended,
            parked: job.is_parked(),
            since: job.since(),
            started_at: job.started_at,
            ended_at: job.ended_at,
            slices: (&job.slices).into(),
            reason: job.reason.as_deref().map(Cow::from),
            bypasses: (&job.bypasses).into(),
            folded: job.folded.clone(),
        }
    }
}

impl Job {
    /// Whether its memory is in host memory, or on its way, and its processes run.
    pub fn is_parked(&self) -> bool {
        let place = self.gpu_memory.map(|memory| memory.place);
        !self.suspended && place.is_some_and(|place| place != MemoryPlace::Gpu)
    }

    /// Time at which the job entered its present state.
    pub fn since(&self) -> Timestamp {
        self.state
            .since(self.submitted_at, self.started_at, self.ended_at)
    }
}

impl JobState {
    /// Time at which a job with these times entered this state.
    pub fn since(
        self,
        submitted: Timestamp,
        started: Option<Timestamp>,
        ended: Option<Timestamp>,
    ) -> Timestamp {
        match self {
            Self::Queued | Self::Starting => submitted,
            Self::Running | Self::Stopping => started.unwrap_or(submitted),
            Self::Ended => ended.or(started).unwrap_or(submitted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(id: u32) -> Brief<'static> {
        Brief {
            id: id.to_string().into(),
            task: None,
            max_running: None,
            name: "train \"ü\" \n".into(),
            user: "ana".into(),
            project: None,
            queue: "q".into(),
            request: "0.25".into(),
            state: JobState::Queued,
            end_reason: None,
            exit_code: None,
            suspended: false,
            parked: false,
            since: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
            started_at: None,
            ended_at: None,
            slices: Cow::Borrowed(&[]),
            reason: Some("behind #1 in queue q, which needs 0.25 of a GPU".into()),
            bypasses: Cow::Borrowed(&[]),
            folded: None,
        }
    }

    #[test]
    fn of_a_job_that_waits_nothing_is_said_but_what_the_columns_show() {
        let said = serde_json::to_value(waiting(7)).unwrap();
        let said: Vec<&str> = said
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let shown = [
            "id", "name", "queue", "reason", "request", "since", "state", "user",
        ];
        assert_eq!(said, shown);
    }

    #[test]
    fn jobs_are_read_whole_wherever_the_pieces_are_cut() {
        let jobs: Vec<Brief<'_>> = (1..=5).map(waiting).collect();
        let line = |job: &Brief<'_>| serde_json::to_string(job).unwrap() + "\n";
        let text: String = jobs.iter().map(line).collect();
        for length in [1, 2, 3, 7, 64, 200, 1000, text.len()] {
            let (mut lines, mut read) = (Lines::default(), String::new());
            for piece in text.as_bytes().chunks(length) {
                lines.take(piece, |job| read.push_str(&line(&job))).unwrap();
            }
            assert!(lines.is_whole(), "{length}");
            assert_eq!(read, text, "{length}");
        }
    }

    #[test]
    fn a_line_without_an_end_and_a_line_of_something_else_are_noticed() {
        let text = serde_json::to_string(&waiting(1)).unwrap();
        let mut lines = Lines::default();
        lines
            .take(text.as_bytes(), |_| panic!("not whole"))
            .unwrap();
        assert!(!lines.is_whole());
        let mut given = 0;
        lines.take(b"\n", |_| given += 1).unwrap();
        assert_eq!((given, lines.is_whole()), (1, true));
        Lines::default().take(b"{}\n", |_| {}).unwrap_err();
        Lines::default().take(b"[]\n", |_| {}).unwrap_err();
    }
}
