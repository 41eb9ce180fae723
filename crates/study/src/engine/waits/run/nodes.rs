//! The nodes of a run, and the waiting jobs as the planner of each sees them.

use divvy_core::request::Request;
use divvy_core::{Bytes, JobId, NodeUsage, Snapshot, can_ever_place};

use crate::engine::waits::ground::Ground;
use crate::engine::waits::scene::{Scene, SceneNode};
use crate::engine::waits::work::Submission;

/// A node, and what is free of it.
pub(super) struct NodeRun<'n> {
    pub usage: NodeUsage<'n>,
    /// Thousandths of a core; `None`: not counted.
    pub cpu_milli: Option<u64>,
    /// Main memory; `None`: not counted.
    pub memory: Option<Bytes>,
    /// The index of its view.
    pub view: usize,
    /// The head of its last decision.
    pub head: Option<JobId>,
}

/// The waiting jobs that a node could ever run. Equal nodes have one view.
pub(super) struct View {
    /// Queues and rules for the planner.
    pub snapshot: Snapshot,
    /// Of each kind of jobs, the request on such a node.
    pub requests: Vec<Option<Request>>,
}

impl NodeRun<'_> {
    /// Whether the node lacks CPU or main memory for all of these jobs together.
    pub fn lacks<'j>(&self, jobs: impl Iterator<Item = &'j Submission>) -> bool {
        let (cpu, memory) = jobs.fold((0, Bytes::ZERO), |(cpu, memory), job| {
            let cpu = u64::saturating_add(cpu, job.cpu_milli);
            (cpu, memory.saturating_add(job.memory))
        });
        self.cpu_milli.is_some_and(|free| cpu > free)
            || self.memory.is_some_and(|free| memory > free)
    }

    pub fn take(&mut self, job: &Submission) {
        let free = self.cpu_milli;
        self.cpu_milli = free.map(|free| free.saturating_sub(job.cpu_milli));
        let free = self.memory;
        self.memory = free.map(|free| free.saturating_sub(job.memory));
    }

    pub fn give_back(&mut self, job: &Submission) {
        let free = self.cpu_milli;
        self.cpu_milli = free.map(|free| free.saturating_add(job.cpu_milli));
        let free = self.memory;
        self.memory = free.map(|free| free.saturating_add(job.memory));
    }
}

/// The empty nodes with their views. `firsts`: the first job of each kind.
pub(super) fn nodes<'n>(
    scene: &Scene,
    ground: &'n Ground,
    firsts: &[&Submission],
    rules: &Snapshot,
) -> (Vec<NodeRun<'n>>, Vec<View>) {
    // GPUs that jobs choose by index or by model inside a node make the node unlike all others.
    let by_index = firsts.iter().any(|job| !job.request.on.is_empty());
    let mut known: Vec<(SceneNode, usize)> = Vec::new();
    let mut views: Vec<View> = Vec::new();
    let mut nodes = Vec::new();
    for (at, node) in scene.nodes.iter().enumerate() {
        let alike = SceneNode {
            name: String::new(),
            ..node.clone()
        };
        let is_mixed = node.gpus.iter().any(|gpu| {
            let first = &node.gpus[0];
            gpu.model != first.model || (gpu.memory > Bytes::ZERO) != (first.memory > Bytes::ZERO)
        });
        let same = known.iter().find(|(known, _)| *known == alike);
        let view = match same.filter(|_| !is_mixed && !by_index) {
            Some((_, view)) => *view,
            None => {
                known.push((alike, views.len()));
                views.push(view(ground, at, firsts, rules));
                views.len() - 1
            }
        };
        let of = &ground.nodes[at];
        nodes.push(NodeRun {
            usage: NodeUsage::empty(ground.gpus_of(at)),
            cpu_milli: of.cpu_milli,
            memory: of.memory,
            view,
            head: None,
        });
    }
    (nodes, views)
}

fn view(ground: &Ground, node: usize, firsts: &[&Submission], rules: &Snapshot) -> View {
    let empty = NodeUsage::empty(ground.gpus_of(node));
    let seen = |job: &&Submission| {
        let request = ground.request_on(node, job)?;
        can_ever_place(&empty, &request).then_some(request)
    };
    View {
        snapshot: rules.clone(),
        requests: firsts.iter().map(seen).collect(),
    }
}
