//! The jobs of a queue simulation: submitted ones, and those of the present state.

use divvy_core::SchedulingClass;
use divvy_core::request::Request;
use divvy_core::units::{Bytes, QueueName};

/// A job that is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    pub at_ms: u64,
    pub queue: QueueName,
    /// GPU indices of the request ([`Request::on`]) count over all nodes, in their order.
    pub request: Request,
    /// Accepted GPU models; empty: every model.
    pub models: Vec<String>,
    /// Thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory: Bytes,
    /// How long it runs, once started.
    pub runs_ms: u64,
    /// Its time limit: it runs no longer.
    pub limit_ms: Option<u64>,
    pub owner: SchedulingClass,
    /// The most memory that it used of one GPU, where that is known.
    pub used: Option<Bytes>,
}

/// A job that runs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningJob {
    /// `runs_ms` does not count, since its end is unknown.
    pub job: Submission,
    /// How long it has run.
    pub ran_ms: u64,
    /// The GPUs that it holds, counted over all nodes; empty: not known, and the planner places it.
    pub gpus: Vec<u32>,
}

/// The jobs of this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    pub now_ms: u64,
    pub running: Vec<RunningJob>,
    /// Submitted before now. `runs_ms` does not count.
    pub waiting: Vec<Submission>,
}

/// Where the submissions of a simulation come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A trace: one run, in order of time.
    Listed(Vec<Submission>),
    Drawn(Draw),
}

/// Random submissions: a Poisson process.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    pub kinds: Vec<Kind>,
    /// The mean time between two submissions.
    pub gap_ms: f64,
    /// Submissions of each run.
    pub jobs: u32,
    pub runs: u32,
    /// Of the first run; later runs use the numbers after it.
    pub seed: u64,
}

/// A kind of jobs that are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// `at_ms` and `runs_ms` are drawn.
    pub job: Submission,
    /// Against the weights of the other kinds.
    pub weight: f64,
    pub durations: Durations,
}

/// How long the jobs of a kind run.
#[derive(Clone, Debug, PartialEq)]
pub enum Durations {
    /// Exponential with this mean.
    Exponential { mean_ms: f64 },
    /// One of these, each as likely as any other.
    Of(Vec<u64>),
}
