//! Everything a plan depends on, at one moment, as plain data.

use serde::{Deserialize, Serialize};

use crate::gpu::Gpu;
use crate::ids::{JobId, QueueName};
use crate::queue::{Order, QueueSpec};
use crate::request::Request;
use crate::slice::Grant;

/// The node at one moment: what there is, who holds it, who waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// In any order; the planner goes by index.
    pub gpus: Vec<Gpu>,
    /// Every job from the moment it was placed until its program is gone.
    pub held: Vec<Held>,
    /// In priority order, first served first.
    pub queues: Vec<Queue>,
    pub order: Order,
    /// Whether a job that fits may pass jobs ahead that do not, where that cannot delay the first of them.
    pub backfill: bool,
    /// With [`Order::Fairness`], the queue whose turn it is: the last plan's cursor. Not used otherwise.
    pub cursor: usize,
}

/// A job that holds a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub job: JobId,
    pub queue: QueueName,
    pub grants: Vec<Grant>,
}

/// A queue and who waits in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    pub spec: QueueSpec,
    /// First in, first out.
    pub waiting: Vec<Waiting>,
}

/// A job in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub job: JobId,
    pub request: Request,
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
