//! Everything a plan depends on, at one moment, as plain data.

use serde::{Deserialize, Serialize};

use crate::model::gpu::Gpu;
use crate::model::order_key::OrderKey;
use crate::model::queue::{Order, QueueSpec};
use crate::model::request::Request;
use crate::model::slice::Grant;
use crate::project::{Project, SchedulingClass};
use crate::units::{JobId, QueueName};

/// The node at one moment: what there is, who holds it, who waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// In any order; the planner goes by index.
    pub gpus: Vec<Gpu>,
    /// Every job from the moment it was placed until its program is gone, but for those whose memory is aside; those of them that are
    /// to go on are there again.
    pub held: Vec<AllocatedJob>,
    /// In priority order, first served first.
    pub queues: Vec<Queue>,
    pub order: Order,
    /// Whether a job that fits may pass jobs ahead that do not, where that cannot delay the first of them.
    pub backfill: bool,
    /// With [`Order::Fairness`], the queue whose turn it is: the last plan's cursor. Not used otherwise.
    pub cursor: usize,
    /// The last plan's head. With projects it keeps its turn among its like, so that what is kept free for it, and who is
    /// stopped for it, is for it.
    #[serde(default)]
    pub head: Option<JobId>,
    /// What each project may have; nobody is asked for one where there is none.
    #[serde(default)]
    pub projects: Vec<Project>,
    #[serde(default)]
    pub preemption: Preemption,
}

/// Whether jobs that are over quota are stopped for jobs that are within theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemption {
    /// Those that may be are; whoever may not be stays within quota.
    #[default]
    On,
    /// Nobody is stopped, and everybody may go over quota.
    Off,
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
    /// It holds nothing of this now: its memory is in the host's, and it is to have its GPUs again before anybody else. Who has waited
    /// longer for that has the smaller number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<i64>,
}

impl AllocatedJob {
    /// Of a job outside all projects that has only just started.
    pub fn new(job: JobId, queue: QueueName, grants: Vec<Grant>) -> Self {
        Self {
            job,
            queue,
            grants,
            owner: SchedulingClass::default(),
            ran_s: 0,
            leaving: false,
            due: None,
        }
    }
}

/// A queue and who waits in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub spec: QueueSpec,
    /// In the order in which they are served ([`sort_queue`](crate::model::order_key::in_turn)).
    pub waiting: Vec<PendingJob>,
}

/// A job in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingJob {
    pub job: JobId,
    pub request: Request,
    #[serde(default)]
    pub owner: SchedulingClass,
    /// Where it stands among others of its queue.
    #[serde(default)]
    pub turn: OrderKey,
}

impl PendingJob {
    /// A job outside all projects.
    pub fn new(job: JobId, request: Request) -> Self {
        Self {
            job,
            request,
            owner: SchedulingClass::default(),
            turn: OrderKey::default(),
        }
    }
}

impl Snapshot {
    /// Where a job waits: its queue's place in the priority order and its own place in the queue, both from 0.
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
