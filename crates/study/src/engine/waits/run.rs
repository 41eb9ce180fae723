//! The event simulation: at each arrival and each end the planner of each node decides, and the decision is carried out.
//!
//! A preempted job leaves at once and goes back to its queue, before its equals. It starts anew, for its whole
//! duration. MIG instances of ended jobs stay idle, as on a node.

mod decisions;
mod events;
mod nodes;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use divvy_core::project::SchedulingClass;
use divvy_core::queue::QueueSpec;
use divvy_core::{Grant, JobId, NodeUsage, QueueName, Snapshot};

use super::ground::Ground;
use super::scene::{MOST_JOBS, Scene, SceneError};
use super::work::{RunningJob, Submission};
use nodes::{NodeRun, View};

/// What became of each submission, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub jobs: Vec<JobOutcome>,
    /// Thousandths of GPUs times milliseconds that jobs held between the two moments that the figures count.
    pub held: u128,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobOutcome {
    /// From the submission to the first start.
    pub wait_ms: Option<u64>,
    pub refused: bool,
    pub preemptions: u32,
}

/// What a run reports now and then.
pub(super) type Tick<'a> = &'a mut dyn FnMut(usize);

/// A run from an empty set of nodes, or from one on which jobs run.
pub(super) struct Plan<'a> {
    pub scene: &'a Scene,
    /// In order of time. Running jobs come first, and run for their durations from `starts_at` on.
    pub submissions: &'a [Submission],
    pub running: &'a [RunningJob],
    /// The first moment.
    pub starts_at: u64,
    /// The moments between which GPU in use is counted.
    pub counted: (u64, u64),
    /// The job after whose start nothing more is of interest.
    pub until: Option<JobId>,
}

/// The queues of the scene, and after them those that only jobs name.
pub(super) fn queues(scene: &Scene, submissions: &[Submission]) -> Vec<QueueSpec> {
    let mut queues = scene.queues.clone();
    let mut place: BTreeMap<QueueName, ()> = queues
        .iter()
        .map(|queue| (queue.name.clone(), ()))
        .collect();
    for job in submissions {
        if place.insert(job.queue.clone(), ()).is_none() {
            queues.push(QueueSpec::open(job.queue.clone()));
        }
    }
    queues
}

impl Plan<'_> {
    /// # Errors
    /// [`SceneError`], for what cannot be simulated.
    pub fn run(&self, tick: Tick<'_>) -> Result<Outcome, SceneError> {
        let count = self.submissions.len();
        if count > MOST_JOBS {
            return Err(SceneError::TooMany {
                what: "jobs",
                count,
                most: MOST_JOBS,
            });
        }
        let ground = Ground::of(self.scene)?;
        let empty = NodeUsage::empty(&ground.gpus);
        let mut run = Run::new(self, &ground, &empty);
        for (nth, job) in self.running.iter().enumerate() {
            run.resume(nth, job)?;
        }
        run.all(tick);
        Ok(Outcome {
            jobs: run.outcomes,
            held: run.held,
        })
    }
}

struct Run<'r, 'n> {
    plan: &'r Plan<'r>,
    ground: &'n Ground,
    /// All GPUs, which quotas count.
    empty: &'r NodeUsage<'n>,
    nodes: Vec<NodeRun<'n>>,
    views: Vec<View>,
    /// Every waiting job, in its queue; holders only where projects or limits of users need them.
    all: Snapshot,
    needs_held: bool,
    queue_of: BTreeMap<QueueName, usize>,
    /// Ends of the running jobs: when, and which job.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    /// A moment at which a planner may decide otherwise.
    again_at: Option<u64>,
    jobs: Vec<JobRun>,
    outcomes: Vec<JobOutcome>,
    /// Of each job, the number of its kind, and how many jobs of each kind wait.
    kind_of: Vec<usize>,
    waiting: Vec<usize>,
    /// Kinds of which jobs wait.
    kinds: usize,
    /// Whether jobs of this kind can ever start.
    ever: BTreeMap<(SchedulingClass, usize), bool>,
    now: u64,
    used: u64,
    held: u128,
    next: usize,
    done: usize,
}

/// A job of the run.
#[derive(Clone, Default)]
struct JobRun {
    started: u64,
    /// Where it runs.
    node: usize,
    grants: Vec<Grant>,
}

fn id(nth: usize) -> JobId {
    JobId(nth as u64)
}

fn nth(job: JobId) -> usize {
    usize::try_from(job.0).unwrap_or(usize::MAX)
}
