//! The snapshot: everything that a plan depends on, at one moment, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::gpu::Gpu;
use crate::model::order_key::OrderKey;
use crate::model::project::{Project, SchedulingClass};
use crate::model::queue::{Order, QueueSpec};
use crate::model::request::Request;
use crate::model::slice::Grant;
use crate::units::{Gpus, JobId, QueueName, Share, UserName};

/// The node at one moment: GPUs, holders, pending jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// In any order; the planner goes by index.
    pub gpus: Vec<Gpu>,
    /// Every job from its placement until its program has exited. Offloaded jobs are not in it, unless they are to
    /// resume.
    pub held: Vec<AllocatedJob>,
    /// In priority order, first served first.
    pub queues: Vec<Queue>,
    pub order: Order,
    /// Whether a job that fits may pass jobs ahead that do not, where that cannot delay the first of them.
    pub backfill: bool,
    /// With [`Order::Fairness`], the queue that has the turn: the last plan's cursor. Not used otherwise.
    pub cursor: usize,
    /// The last plan's head. With projects it keeps its turn, so that reserved room and preempted jobs serve it.
    #[serde(default)]
    pub head: Option<JobId>,
    /// The projects; empty on a node without projects.
    #[serde(default)]
    pub projects: Vec<Project>,
    #[serde(default)]
    pub preemption: Preemption,
    /// The most GPUs that the jobs of each of these users hold together; other users have no limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub user_limits: BTreeMap<UserName, Gpus>,
    #[serde(default)]
    pub latency: LatencyRule,
    #[serde(default, skip_serializing_if = "ParkRule::is_empty")]
    pub parking: ParkRule,
}

/// The room of parked jobs that return within a bound: new jobs get it only if they give it back in time. So for each
/// such job there is room beside the holders that do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkRule {
    /// The parked jobs, with what they get back.
    pub promised: BTreeMap<JobId, Vec<Grant>>,
    /// Jobs, pending ones too, that give their room back in time: they can be parked, or their time limit ends then.
    pub gives_way: BTreeSet<JobId>,
}

impl ParkRule {
    fn is_empty(&self) -> bool {
        self.promised.is_empty() && self.gives_way.is_empty()
    }
}

/// How much of each GPU jobs with a latency goal take together. They are served before the others, so that the rest of
/// the GPU is what training gets at least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyRule {
    pub most: Share,
    /// The jobs with a goal, and their shares of compute time where these are not those of their memory.
    pub jobs: BTreeMap<JobId, Option<Share>>,
}

impl Default for LatencyRule {
    /// Half of a GPU: with less, two services of a quarter would not fit; with more, training would get the smaller
    /// part of a GPU that it shares (L5 of decision 061).
    fn default() -> Self {
        Self {
            most: Share::from_thousandths(500).expect("half of a GPU is a share"),
            jobs: BTreeMap::new(),
        }
    }
}

/// Whether jobs that are over quota are stopped for jobs that are within theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemption {
    /// Preemptible jobs can be preempted; other jobs stay within quota.
    #[default]
    On,
    /// No job is preempted, and every job may go over quota.
    Off,
}

impl Preemption {
    /// The word in the API and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A job that holds a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedJob {
    pub job: JobId,
    pub queue: QueueName,
    pub grants: Vec<Grant>,
    #[serde(default)]
    pub owner: SchedulingClass,
    /// How long it has run, in seconds.
    #[serde(default)]
    pub ran_s: u64,
    /// It is being stopped.
    #[serde(default)]
    pub leaving: bool,
    /// The job is offloaded and resumes: it holds nothing now, and its former GPUs are reserved for it. The job that
    /// has waited longer has the smaller number.
    #[serde(default, rename = "due", skip_serializing_if = "Option::is_none")]
    pub resuming_since: Option<i64>,
}

impl AllocatedJob {
    /// A job outside projects that has just started.
    pub fn new(job: JobId, queue: QueueName, grants: Vec<Grant>) -> Self {
        Self {
            job,
            queue,
            grants,
            owner: SchedulingClass::default(),
            ran_s: 0,
            leaving: false,
            resuming_since: None,
        }
    }
}

/// A queue and its pending jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub spec: QueueSpec,
    /// In scheduling order ([`sort_queue`](crate::model::order_key::sort_queue)).
    pub waiting: Vec<PendingJob>,
}

/// A job in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingJob {
    pub job: JobId,
    pub request: Request,
    #[serde(default)]
    pub owner: SchedulingClass,
    /// Its order key among the jobs of its queue.
    #[serde(default)]
    pub turn: OrderKey,
    /// With backfill, behind the first job that does not fit: jobs of its queue and priority that fill a GPU exactly
    /// may start before it. A job yields while it has waited for a short time only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
}

impl PendingJob {
    /// With backfill, a pending job yields for so long, and not any longer.
    pub const YIELDS_FOR: Duration = Duration::from_hours(6);

    /// A job outside projects.
    pub fn new(job: JobId, request: Request) -> Self {
        Self {
            job,
            request,
            owner: SchedulingClass::default(),
            turn: OrderKey::default(),
            yields: false,
        }
    }
}

impl Snapshot {
    /// The position of a pending job: the index of its queue, and its place in the queue, both from 0.
    pub fn place_of(&self, job: JobId) -> Option<(usize, usize)> {
        self.queues
            .iter()
            .enumerate()
            .find_map(|(queue, Queue { waiting, .. })| {
                waiting
                    .iter()
                    .position(|waiting| waiting.job == job)
                    .map(|place| (queue, place))
            })
    }
}
