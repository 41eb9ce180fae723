//! What came of a queue simulation: waits by queue and shape, GPU in use, and the difference that a change makes.

use divvy_core::request::Amount;
use divvy_core::units::QueueName;

/// The figures of one scene, over all its runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    pub all: JobFigures,
    /// In the order of the scene's queues.
    pub queues: Vec<(QueueName, JobFigures)>,
    /// In the order of the queues, then by amount.
    pub shapes: Vec<(QueueName, Amount, JobFigures)>,
    /// Of all GPUs, the part that jobs hold, over the time from the first arrival to the last one.
    pub in_use: f64,
}

/// The figures of some jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobFigures {
    pub submitted: u64,
    /// They fit on no empty node, or exceed a limit or quota even alone.
    pub refused: u64,
    /// Not refused, and never started.
    pub stuck: u64,
    /// Jobs that were preempted at least once.
    pub preempted: u64,
    pub wait: Wait,
}

/// Waits of jobs that started, from their submission to their first start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wait {
    pub jobs: u64,
    pub mean_ms: f64,
    pub p50_ms: u64,
    pub p90_ms: u64,
    pub longest_ms: u64,
}

/// What a change makes of the same submissions.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub before: Figures,
    pub after: Figures,
    pub all: Difference,
    /// As in [`Figures::queues`].
    pub queues: Vec<(QueueName, Difference)>,
}

/// The difference of the waits of jobs that start both with the change and without it, job by job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    pub jobs: u64,
    /// Jobs that wait less with the change.
    pub shorter: u64,
    /// Jobs that wait longer with it.
    pub longer: u64,
    /// The mean of the difference; negative: less waiting.
    pub mean_ms: f64,
    /// Half of the 95 % confidence interval of the mean over the runs; `None` for one run.
    pub ci95_ms: Option<f64>,
}

/// When a job would start that is submitted now.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    pub runs: u32,
    /// The planner starts it at once.
    pub starts_now: bool,
    /// It fits on no empty node, or exceeds a limit or quota even alone.
    pub refused: bool,
    /// Runs in which it never started.
    pub stuck: u32,
    /// Over the runs in which it started.
    pub wait: Wait,
}
