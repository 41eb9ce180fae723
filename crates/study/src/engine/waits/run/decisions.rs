//! The planners' decisions of a run, and what they do.
//!
//! One node is planned as its daemon plans it: a decision starts every job that it can. Over several nodes the planner
//! of each says which job it would start first. The first of those in the order of the queues starts, on the node with
//! the least GPU left; then all decide again. Without backfill no job starts before one that waits for room.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use divvy_core::project::Resources;
use divvy_core::{
    AllocatedJob, Decision, Grant, JobId, NodeUsage, Preempt, Simulated, Snapshot, Start,
    decide_on, scheduling_order,
};

use super::{Run, id, nth};

/// Decisions at one moment that start no job, while each changes the head or preempts. The product decides again too.
/// More than a queue of preemptions needs; a cycle would never end.
const MOST_ROUNDS: u32 = 64;

/// The start that one node's planner decides on.
struct Candidate<'n> {
    /// The job's place in the order of all jobs.
    rank: usize,
    /// Thousandths of GPUs that the node has left.
    left: u64,
    node: usize,
    usage: NodeUsage<'n>,
    decision: Decision,
}

impl Run<'_, '_> {
    pub(super) fn decide(&mut self) {
        let mut rounds = 0;
        while rounds < MOST_ROUNDS {
            let mut queues = self.all.queues.iter();
            if queues.all(|queue| queue.waiting.is_empty()) {
                return;
            }
            self.tell_times();
            let bounded =
                |node: &super::NodeRun<'_>| node.cpu_milli.is_some() || node.memory.is_some();
            let (has_started, is_final) = if self.nodes.len() == 1 && !bounded(&self.nodes[0]) {
                self.decide_for_one_node()
            } else {
                self.decide_for_several_nodes()
            };
            rounds += u32::from(!has_started);
            if is_final {
                return;
            }
        }
    }

    /// Answers whether a job has started, and whether nothing more changes.
    fn decide_for_one_node(&mut self) -> (bool, bool) {
        let node = &mut self.nodes[0];
        let snapshot = &mut self.views[0].snapshot;
        let simulated = Simulated {
            empty: self.empty,
            kinds: self.kinds,
            most: usize::MAX,
        };
        let usage = std::mem::replace(&mut node.usage, NodeUsage::empty(&[]));
        let (decision, usage) = decide_on(snapshot, usage, simulated);
        node.usage = usage;
        let is_final = decision.preempts.is_empty() && decision.head == snapshot.head;
        (snapshot.cursor, snapshot.head) = (decision.cursor, decision.head);
        let has_started = !decision.starts.is_empty();
        self.decide_again_in(decision.replan_in_s);
        self.carry_out(0, decision.starts, decision.preempts);
        (has_started, is_final)
    }

    /// The same over several nodes, one start at a time.
    fn decide_for_several_nodes(&mut self) -> (bool, bool) {
        let order = scheduling_order(&self.all, self.empty);
        let order: BTreeMap<JobId, usize> = (0..).zip(order).map(|(at, job)| (job, at)).collect();
        let rank = |job: JobId| order.get(&job).copied().unwrap_or(usize::MAX);
        let mut best: Option<Candidate<'_>> = None;
        let mut preempts: Option<(usize, Vec<Preempt>)> = None;
        let (mut ahead, mut again, mut is_final) = (usize::MAX, None, true);
        let simulated = Simulated {
            empty: self.empty,
            kinds: self.kinds,
            most: 1,
        };
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let snapshot = &mut self.views[node.view].snapshot;
            (snapshot.cursor, snapshot.head) = (self.all.cursor, node.head);
            let (decision, usage) = decide_on(snapshot, node.usage.clone(), simulated);
            is_final &= decision.head == node.head;
            node.head = decision.head;
            again = [again, decision.replan_in_s].into_iter().flatten().min();
            if let Some(first) = decision.first_ahead(snapshot) {
                ahead = ahead.min(rank(first));
            }
            if let Some(first) = decision.preempts.first() {
                let rank = rank(first.preemptor);
                if preempts.as_ref().is_none_or(|(least, _)| rank < *least) {
                    preempts = Some((rank, decision.preempts.clone()));
                }
            }
            let Some(first) = decision.starts.first().map(|start| rank(start.job)) else {
                continue;
            };
            let jobs = decision.starts.iter();
            if node.lacks(jobs.map(|start| &self.plan.submissions[nth(start.job)])) {
                // The job keeps this node for itself until the node has the CPU and the memory for it.
                ahead = ahead.min(first);
                continue;
            }
            let left = usage.free_thousandths();
            if best
                .as_ref()
                .is_none_or(|best| (first, left) < (best.rank, best.left))
            {
                best = Some(Candidate {
                    rank: first,
                    left,
                    node: at,
                    usage,
                    decision,
                });
            }
        }
        self.decide_again_in(again);
        let backfill = self.all.backfill;
        if let Some(best) = best.filter(|best| backfill || best.rank <= ahead) {
            self.all.cursor = best.decision.cursor;
            self.nodes[best.node].usage = best.usage;
            self.carry_out(best.node, best.decision.starts, Vec::new());
            return (true, false);
        }
        let Some((_, preempts)) = preempts else {
            return (false, is_final);
        };
        self.carry_out(0, Vec::new(), preempts);
        (false, false)
    }

    fn decide_again_in(&mut self, seconds: Option<u64>) {
        let again = seconds.map(|seconds| seconds.saturating_mul(1000).max(1));
        self.again_at = again.map(|after| self.now.saturating_add(after));
    }

    /// The snapshots with waiting jobs: that of all jobs, and those of the views.
    fn snapshots(&mut self) -> impl Iterator<Item = &mut Snapshot> {
        let views = self.views.iter_mut().map(|view| &mut view.snapshot);
        std::iter::once(&mut self.all).chain(views)
    }

    /// How long jobs have run and waited, where a rule depends on it.
    fn tell_times(&mut self) {
        let (now, plan) = (self.now, self.plan);
        let jobs = std::mem::take(&mut self.jobs);
        let bound = plan.scene.yields_for_ms.filter(|_| self.all.backfill);
        for snapshot in self.snapshots() {
            for held in &mut snapshot.held {
                held.ran_s = (now - jobs[nth(held.job)].started) / 1000;
            }
            let Some(bound) = bound else {
                continue;
            };
            for waiting in snapshot
                .queues
                .iter_mut()
                .flat_map(|queue| &mut queue.waiting)
            {
                let since = plan.submissions[nth(waiting.job)].at_ms;
                waiting.yields = !waiting.turn.requeued && now.saturating_sub(since) < bound;
            }
        }
        self.jobs = jobs;
    }

    fn carry_out(&mut self, node: usize, starts: Vec<Start>, preempts: Vec<Preempt>) {
        for start in starts {
            let job = nth(start.job);
            let queue = self.queue_of[&start.queue];
            for snapshot in self.snapshots() {
                let waiting = &mut snapshot.queues[queue].waiting;
                waiting.retain(|waiting| waiting.job != start.job);
            }
            let waiting = &mut self.waiting[self.kind_of[job]];
            *waiting -= 1;
            self.kinds -= usize::from(*waiting == 0);
            self.hold(job, node, start.grants);
        }
        for preempt in preempts {
            let job = nth(preempt.job);
            self.release(job);
            // Its end does not come. Left there, it would be a moment at which the planner decides.
            self.ends.retain(|Reverse((_, job))| *job != preempt.job.0);
            self.outcomes[job].preemptions += 1;
            self.enqueue(job, true);
        }
    }

    /// The job starts with these grants, which the occupancy has already.
    pub(super) fn hold(&mut self, nth: usize, node: usize, grants: Vec<Grant>) {
        let job = &self.plan.submissions[nth];
        self.used += Resources::of(&grants).gpus.thousandths();
        self.nodes[node].take(job);
        if self.needs_held {
            for snapshot in self.snapshots() {
                snapshot.held.push(AllocatedJob {
                    owner: job.owner.clone(),
                    ..AllocatedJob::new(id(nth), job.queue.clone(), grants.clone())
                });
            }
        }
        let runs = job
            .limit_ms
            .map_or(job.runs_ms, |limit| limit.min(job.runs_ms));
        self.jobs[nth] = super::JobRun {
            started: self.now,
            node,
            grants,
        };
        let end = self.now.saturating_add(runs);
        self.ends.push(Reverse((end, nth as u64)));
        let wait = self.now.saturating_sub(job.at_ms);
        self.outcomes[nth].wait_ms.get_or_insert(wait);
    }

    /// The job leaves its GPUs: it has ended, or is preempted.
    pub(super) fn release(&mut self, nth: usize) {
        let grants = std::mem::take(&mut self.jobs[nth].grants);
        self.used -= Resources::of(&grants).gpus.thousandths();
        let node = &mut self.nodes[self.jobs[nth].node];
        node.usage.release(id(nth), &grants);
        node.give_back(&self.plan.submissions[nth]);
        if self.needs_held {
            for snapshot in self.snapshots() {
                snapshot.held.retain(|held| held.job != id(nth));
            }
        }
    }
}
