//! The data of a metrics page: what the state knows; `http::metrics` writes it as text.

use std::collections::BTreeMap;

use divvy_api::v1::{
    ComputeTime, Gpu, Job, JobClaim, JobState, Node, Project, Queue, Runner, Slice,
};
use divvy_core::reconcile::BypassKind;
use jiff::Timestamp;

use crate::controller::query::job_summary::JobSummary;
use crate::controller::state::mig::MigCounts;
use crate::gpu::Power;
use crate::model::counters::Counters;
use crate::model::usage::GpuTimeTotals;

/// Everything that a page shows.
pub struct Page {
    pub node: Node,
    pub gpus: Vec<Gpu>,
    /// Jobs that have left their queue.
    pub jobs: Vec<JobRow>,
    /// Those that are still to be put into words.
    pub glances: Vec<JobSummary>,
    pub queues: Vec<Queue>,
    /// Bypasses ever told, in the order of [`BypassKind::ALL`].
    pub bypasses: [u64; BypassKind::ALL.len()],
    /// What was done to MIG instances.
    pub migs: MigCounts,
    pub gpu_facts: GpuFacts,
    pub daemon_stats: DaemonStats,
    /// GPU time of users and projects.
    pub gpu_time: GpuTimeTotals,
    /// What has no series because the page is bounded.
    pub omitted: Omitted,
    /// When this was so.
    pub now: Timestamp,
}

/// How many have no series of their own, because a page is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omitted {
    pub jobs: usize,
    pub queues: usize,
    pub projects: usize,
}

/// Facts of GPUs that the API does not have.
#[derive(Clone, Debug, Default)]
pub struct GpuFacts {
    /// Addresses on the PCI bus, by index.
    pub buses: BTreeMap<u32, String>,
    /// The driver's ids of the GPU instances that Divvy has made, by the UUIDs of their MIG devices.
    pub instances: BTreeMap<String, u32>,
    /// Power draw, by index.
    pub power: BTreeMap<u32, Power>,
    /// Indices of the GPUs that do not answer.
    pub faulty: Vec<u32>,
}

/// What a page shows of a job; all that there is to say of ten thousand would take ten times the room.
pub struct JobRow {
    pub labels: JobLabels,
    pub state: JobState,
    pub idle_s: Option<u64>,
    pub compute: String,
    pub compute_time: Option<ComputeTime>,
    pub runner: Runner,
    pub claim: Option<JobClaim>,
    pub uncounted: u64,
    pub slices: Vec<Slice>,
}

/// The labels that every metric of a job has.
pub struct JobLabels {
    pub id: String,
    pub name: String,
    pub user: String,
    pub project: String,
    pub queue: String,
}

impl From<Job> for JobRow {
    fn from(job: Job) -> Self {
        Self {
            labels: JobLabels {
                id: job.id,
                name: job.name,
                user: job.user,
                project: job.project.unwrap_or_default(),
                queue: job.queue,
            },
            state: job.state,
            idle_s: job.idle_s,
            compute: job.compute,
            compute_time: job.compute_time,
            runner: job.runner,
            claim: job.claim,
            uncounted: job.uncounted_calls.unwrap_or_default(),
            slices: job.slices,
        }
    }
}

/// Stands for the reason code of a pending job without one.
pub const NO_CODE: &str = "other";

/// What of the state a page shows besides what the API has.
#[derive(Clone, Debug, Default)]
pub struct DaemonStats {
    pub projects: Vec<Project>,
    /// Pending jobs that fit into the unused quota of their project, by project.
    pub entitled: BTreeMap<String, u64>,
    pub counted: Counters,
    /// GPU-nanoseconds that living jobs held since this daemon knows them, by id.
    pub held: BTreeMap<String, u64>,
    /// Millijoules that they got from this daemon, by id.
    pub energy: BTreeMap<String, u64>,
    /// Thousandths of each GPU that jobs used in the last seconds, by the driver's figures, by id.
    pub recent_use: BTreeMap<String, u16>,
    /// Pending jobs, by the name of their reason code; those without a code under [`NO_CODE`].
    pub pending: BTreeMap<&'static str, u64>,
    /// Since when the oldest pending job that waits for GPUs does so, by queue.
    pub oldest: BTreeMap<String, Timestamp>,
    /// Parked jobs, and what they have in host memory.
    pub parked: (u64, u64),
    /// Bytes that the journal's disk has left, where its file system tells.
    pub disk_free: Option<u64>,
    pub disk_is_full: bool,
}
