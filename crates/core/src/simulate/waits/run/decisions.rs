//! The planner's decisions of a run, and what they do.

use std::cmp::Reverse;

use super::{Run, id};
use crate::model::project::Resources;
use crate::model::slice::Grant;
use crate::model::snapshot::AllocatedJob;
use crate::placement::occupancy::NodeUsage;
use crate::plan::{Decision, decide_on};

/// Decisions at one moment, while each changes the head or preempts. The product decides again too.
const MOST_ROUNDS: u32 = 64;

impl Run<'_, '_> {
    pub(super) fn decide(&mut self) {
        for _ in 0..MOST_ROUNDS {
            if self
                .snapshot
                .queues
                .iter()
                .all(|queue| queue.waiting.is_empty())
            {
                return;
            }
            self.tell_times();
            let node = std::mem::replace(&mut self.node, NodeUsage::empty(&[]));
            let (decision, node) = decide_on(&self.snapshot, node, self.empty, self.kinds);
            self.node = node;
            let is_final = decision.preempts.is_empty() && decision.head == self.snapshot.head;
            self.carry_out(decision);
            if is_final {
                return;
            }
        }
    }

    /// How long jobs have run and waited, where a rule depends on it.
    fn tell_times(&mut self) {
        for held in &mut self.snapshot.held {
            let nth = usize::try_from(held.job.0).unwrap_or(usize::MAX);
            held.ran_s = (self.now - self.jobs[nth].started) / 1000;
        }
        let Some(bound) = self
            .plan
            .scene
            .yields_for_ms
            .filter(|_| self.snapshot.backfill)
        else {
            return;
        };
        for waiting in self
            .snapshot
            .queues
            .iter_mut()
            .flat_map(|queue| &mut queue.waiting)
        {
            let nth = usize::try_from(waiting.job.0).unwrap_or(usize::MAX);
            let since = self.plan.submissions[nth].at_ms;
            waiting.yields = !waiting.turn.requeued && self.now.saturating_sub(since) < bound;
        }
    }

    fn carry_out(&mut self, decision: Decision) {
        (self.snapshot.cursor, self.snapshot.head) = (decision.cursor, decision.head);
        let again = decision
            .replan_in_s
            .map(|seconds| seconds.saturating_mul(1000).max(1));
        self.again_at = again.map(|after| self.now.saturating_add(after));
        for start in decision.starts {
            let nth = usize::try_from(start.job.0).unwrap_or(usize::MAX);
            let queue = self.queue_of[&start.queue];
            let waiting = &mut self.snapshot.queues[queue].waiting;
            waiting.retain(|waiting| waiting.job != start.job);
            let waiting = &mut self.waiting[self.kind_of[nth]];
            *waiting -= 1;
            self.kinds -= usize::from(*waiting == 0);
            self.hold(nth, start.grants);
        }
        for preempt in decision.preempts {
            let nth = usize::try_from(preempt.job.0).unwrap_or(usize::MAX);
            self.release(nth);
            // Its end does not come. Left there, it would be a moment at which the planner decides.
            self.ends.retain(|Reverse((_, job))| *job != preempt.job.0);
            self.outcomes[nth].preemptions += 1;
            self.enqueue(nth, true);
        }
    }

    /// The job starts with these grants, which the occupancy has already.
    pub(super) fn hold(&mut self, nth: usize, grants: Vec<Grant>) {
        let job = &self.plan.submissions[nth];
        self.used += Resources::of(&grants).gpus.thousandths();
        if self.needs_held {
            self.snapshot.held.push(AllocatedJob {
                owner: job.owner.clone(),
                ..AllocatedJob::new(id(nth), job.queue.clone(), grants.clone())
            });
        }
        let runs = job
            .limit_ms
            .map_or(job.runs_ms, |limit| limit.min(job.runs_ms));
        let run = &mut self.jobs[nth];
        (run.started, run.grants) = (self.now, grants);
        let end = self.now.saturating_add(runs);
        self.ends.push(Reverse((end, nth as u64)));
        let wait = self.now.saturating_sub(job.at_ms);
        self.outcomes[nth].wait_ms.get_or_insert(wait);
    }

    /// The job leaves its GPUs: it has ended, or is preempted.
    pub(super) fn release(&mut self, nth: usize) {
        let grants = std::mem::take(&mut self.jobs[nth].grants);
        self.used -= Resources::of(&grants).gpus.thousandths();
        self.node.release(id(nth), &grants);
        if self.needs_held {
            self.snapshot.held.retain(|held| held.job != id(nth));
        }
    }
}
