//! The nodes, queues and rules of a queue simulation.

use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_core::Mode;
use divvy_core::Project;
use divvy_core::mig::ProfileTable;
use divvy_core::queue::{Order, QueueSpec};
use divvy_core::units::{Bytes, Gpus, ProjectName, QueueName, UserName};
use divvy_core::{Preemption, Snapshot};

/// A set of nodes under common queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scene {
    /// A job runs on one node: of those that would start it, the one with the least GPU left, then the first here.
    pub nodes: Vec<SceneNode>,
    /// In priority order, first served first.
    pub queues: Vec<QueueSpec>,
    pub order: Order,
    pub backfill: bool,
    /// With backfill: a job that has waited for less lets younger jobs of equal rank pass that fill GPUs exactly.
    /// `None`: no job lets others pass.
    pub yields_for_ms: Option<u64>,
    /// Empty where there are no projects.
    pub projects: Vec<Project>,
    pub preemption: Preemption,
    /// The most GPUs that the jobs of each of these users hold together.
    pub user_limits: BTreeMap<UserName, Gpus>,
}

/// Bounds of a simulation: more than any site has, so that a typing error does not fill the memory.
pub const MOST_NODES: usize = 4096;
pub const MOST_GPUS: usize = 16_384;
/// Submissions of one run: more than a site has in months. Twice as many would take more than twice as long.
pub const MOST_JOBS: usize = 200_000;
/// Submissions of all runs together. So ten runs of the most submissions.
pub const MOST_DRAWN: usize = 2_000_000;

impl Scene {
    /// So many GPUs over all nodes.
    pub fn gpus(&self) -> usize {
        self.nodes.iter().map(|node| node.gpus.len()).sum()
    }

    /// The planner's input with the rules of the scene, without GPUs and jobs.
    pub(super) fn rules(&self) -> Snapshot {
        Snapshot {
            order: self.order,
            backfill: self.backfill,
            projects: self.projects.clone(),
            preemption: self.preemption,
            user_limits: self.user_limits.clone(),
            ..Snapshot::default()
        }
    }
}

/// The scene or its work cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SceneError {
    #[error("{count} {what}: at most {most} can be simulated")]
    TooMany {
        what: &'static str,
        count: usize,
        most: usize,
    },
    #[error("the scene has no {0}")]
    Nothing(&'static str),
    #[error("GPU {0} has no MIG profiles, and is in MIG mode")]
    NoProfiles(u32),
    #[error("there is no GPU {gpu}: the scene has {count}")]
    NoGpu { gpu: u32, count: usize },
    #[error("there is no queue {0}")]
    NoQueue(QueueName),
    #[error("there is no project {0}")]
    NoProject(ProjectName),
    #[error("{what} is {value}, and must be above zero")]
    NotPositive { what: &'static str, value: f64 },
    #[error("the running job {job} cannot hold what it asks for beside the others")]
    Running { job: usize },
}

/// A node as it is when empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SceneNode {
    pub name: String,
    pub gpus: Vec<SceneGpu>,
    /// Thousandths of a core; `None`: not counted.
    pub cpu_milli: Option<u64>,
    /// Main memory; `None`: not counted.
    pub memory: Option<Bytes>,
}

/// A GPU as it is when empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SceneGpu {
    /// The model, as jobs name it.
    pub model: String,
    pub mode: Mode,
    /// Memory for jobs; zero where it is unknown, and then only shares count.
    pub memory: Bytes,
    /// Its MIG profiles; needed in MIG mode.
    pub table: Option<Arc<ProfileTable>>,
}
