//! Assignment: nodes for the groups of a pool, then the gaps for the other requests.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::pool::{Group, pool};
use super::{Started, Waiting};
use divvy_packing::BestFit;
use divvy_packing::NodePolicy;
use divvy_packing::{Choice, Cluster, Node, Shape};

/// Requests that have been given a place.
pub(super) struct Assignment {
    cluster: Cluster,
    best_fit: BestFit,
    pub(super) started: Vec<Started>,
}

impl Assignment {
    pub(super) fn new(cluster: &Cluster) -> Self {
        Self {
            cluster: cluster.clone(),
            best_fit: BestFit::default(),
            started: Vec::new(),
        }
    }

    /// Places groups for this much of the idle GPUs, in percent. Requests in `apart` are in no group.
    pub(super) fn place_pool(
        &mut self,
        apart: &BTreeSet<usize>,
        percent: u64,
        waiting: &[Waiting],
    ) {
        let nodes = self.cluster.nodes().iter();
        let idle: u64 = nodes.map(|node| u64::from(node.idle_gpus())).sum();
        let groups = pool(waiting, apart, idle * percent / 100);
        self.place_groups(groups, waiting);
    }

    /// Places what has not started, the biggest first.
    pub(super) fn place_rest(&mut self, waiting: &[Waiting]) {
        let started: BTreeSet<usize> = self.started.iter().map(|one| one.waiting).collect();
        let rest = (0..waiting.len()).filter(|at| !started.contains(at));
        self.place_biggest_first(rest, waiting);
    }

    /// Places these requests in order of arrival, until one does not fit.
    pub(super) fn place_in_order(&mut self, requests: &BTreeSet<usize>, waiting: &[Waiting]) {
        for at in requests {
            if !self.place(*at, &waiting[*at].shape) {
                break;
            }
        }
    }

    /// Thousandths of GPUs that the started requests have.
    pub(super) fn milli(&self, cluster: &Cluster, waiting: &[Waiting]) -> u64 {
        let started = self.started.iter();
        started
            .map(|one| cluster.asked_milli(&waiting[one.waiting].shape))
            .sum()
    }

    /// Which of these requests have no place.
    pub(super) fn not_started(&self, of: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut left = of.clone();
        for one in &self.started {
            left.remove(&one.waiting);
        }
        left
    }

    pub(super) fn has_started(&self, all: &BTreeSet<usize>) -> bool {
        self.not_started(all).is_empty()
    }

    /// Starts the request by best fit. Returns whether it fits.
    fn place(&mut self, at: usize, shape: &Shape) -> bool {
        let Some(choice) = self.best_fit.choose(&self.cluster, shape) else {
            return false;
        };
        self.start(at, shape, choice)
    }

    fn start(&mut self, at: usize, shape: &Shape, choice: Choice) -> bool {
        let taken = self.cluster.take(shape, &choice);
        if taken {
            let waiting = at;
            self.started.push(Started { waiting, choice });
        }
        taken
    }

    /// Requests for GPUs before requests for CPU alone, due ones before others, bigger ones before smaller ones.
    pub(super) fn place_biggest_first(
        &mut self,
        requests: impl Iterator<Item = usize>,
        waiting: &[Waiting],
    ) {
        let mut requests: Vec<usize> = requests.collect();
        requests.sort_by_key(|at| {
            let Waiting { shape, is_due } = &waiting[*at];
            let milli = Reverse(self.cluster.asked_milli(shape));
            (
                shape.gpus == 0,
                !is_due,
                milli,
                Reverse(shape.cpu_milli),
                *at,
            )
        });
        // Shapes that did not fit do not fit later either, since nothing is given back.
        let mut refused: BTreeSet<Shape> = BTreeSet::new();
        for at in requests {
            let shape = &waiting[at].shape;
            if !refused.contains(shape) && !self.place(at, shape) {
                refused.insert(*shape);
            }
        }
    }

    fn place_groups(&mut self, groups: Vec<Group>, waiting: &[Waiting]) {
        let (mut several, single): (Vec<Group>, Vec<Group>) =
            groups.into_iter().partition(|group| group.gpus > 1);
        several.sort_by_key(|group| {
            (
                Reverse(group.gpus),
                Reverse(group.cpu_milli),
                group.members[0],
            )
        });
        for group in several {
            let nodes = self.cluster.nodes().iter().enumerate();
            let fitting = nodes.filter(|(_, node)| holds(node, &group));
            let tightest = fitting.min_by_key(|(at, node)| (node.idle_gpus(), node.cpu_milli, *at));
            if let Some((at, _)) = tightest {
                self.put(at, &group, waiting);
            }
        }
        let (mut bound, any): (Vec<Group>, Vec<Group>) = single
            .into_iter()
            .partition(|group| group.models.is_bound());
        bound.sort_by_key(|group| (Reverse(group.weight()), group.members[0]));
        for group in bound {
            let nodes = self.cluster.nodes().iter().enumerate();
            let fitting = nodes.filter(|(_, node)| holds(node, &group));
            // The node whose CPU for each idle GPU is nearest to what the group takes.
            let nearest = fitting.min_by_key(|(at, node)| {
                (
                    room_per_gpu(node).abs_diff(group.weight()),
                    node.idle_gpus(),
                    *at,
                )
            });
            if let Some((at, _)) = nearest {
                self.put(at, &group, waiting);
            }
        }
        self.fill_nodes(any, waiting);
    }

    /// Node by node, the poorest in CPU for each idle GPU first: each idle GPU gets the group that takes most of what
    /// there is for it, or else the least of those that take more.
    fn fill_nodes(&mut self, groups: Vec<Group>, waiting: &[Waiting]) {
        let mut left: BTreeSet<(u64, usize)> = (groups.iter().enumerate())
            .map(|(at, group)| (group.weight(), at))
            .collect();
        let nodes = self.cluster.nodes().iter().enumerate();
        let mut nodes: Vec<(u64, usize)> = nodes
            .filter(|(_, node)| node.idle_gpus() > 0)
            .map(|(at, node)| (room_per_gpu(node), at))
            .collect();
        nodes.sort_unstable();
        for (_, at) in nodes {
            loop {
                let node = &self.cluster.nodes()[at];
                let room = room_per_gpu(node);
                let below = left.range(..=(room, usize::MAX)).next_back();
                let fits = |(_, group): &&(u64, usize)| holds(node, &groups[*group]);
                let next = below
                    .filter(fits)
                    .or_else(|| left.range((room, usize::MAX)..).find(fits))
                    .copied();
                let Some((weight, group)) = next.filter(|_| node.idle_gpus() > 0) else {
                    break;
                };
                left.remove(&(weight, group));
                self.put(at, &groups[group], waiting);
            }
        }
    }

    /// Starts all members of a group on one node: whole GPUs, or parts of one idle GPU.
    fn put(&mut self, node: usize, group: &Group, waiting: &[Waiting]) {
        let idle = self.cluster.nodes()[node].gpus.iter().enumerate();
        let idle: Vec<usize> = idle
            .filter(|(_, free)| free.is_idle())
            .map(|(gpu, _)| gpu)
            .take(group.gpus as usize)
            .collect();
        for member in &group.members {
            let gpus = idle.clone();
            // A member that asks for more memory than its part has may not fit: it takes its chance in the gaps.
            self.start(*member, &waiting[*member].shape, Choice { node, gpus });
        }
    }
}

/// CPU for each idle GPU, or memory where that is less; 0 without idle GPUs.
fn room_per_gpu(node: &Node) -> u64 {
    let room = node.cpu_milli.min(node.memory.whole_mib() / 4);
    room.checked_div(u64::from(node.idle_gpus())).unwrap_or(0)
}

fn holds(node: &Node, group: &Group) -> bool {
    group.models.accepts(node.spec.model)
        && group.gpus <= node.idle_gpus()
        && group.cpu_milli <= node.cpu_milli
        && group.memory <= node.memory
}
