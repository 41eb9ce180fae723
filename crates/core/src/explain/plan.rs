//! The explained plan: the planner's decision, with a reason in words and figures for each job that waits.
//!
//! The reasons come from a second pass over the decision. It allocates the decided starts one after another on the
//! snapshot's occupancy, and counts at each job that found no room what was missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::explain::capacity::never_fits;
use crate::explain::reason::{JobAhead, Reason, Shortage};
use crate::model::request::Request;
use crate::model::snapshot::Snapshot;
use crate::placement::occupancy::NodeUsage;
use crate::plan::{Cause, Decision, Preempt, Start, decide};
use crate::units::{JobId, QueueName};

/// What to do now. Every pending job of the snapshot is in exactly one of `starts` and `waits`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they were decided.
    pub starts: Vec<Start>,
    /// In the order in which they were considered.
    pub waits: Vec<Wait>,
    /// Jobs to be stopped so that a job within quota can start. They hold their GPUs until they have ended.
    pub preempts: Vec<Preempt>,
    /// After so many seconds the plan may be another one, though nothing else has changed.
    pub replan_in_s: Option<u64>,
    /// For the next snapshot.
    pub cursor: usize,
    /// With projects, the first job that waits for room. For the next snapshot; where it is another one than before,
    /// the next plan may start more, though nothing else has changed.
    pub head: Option<JobId>,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub job: JobId,
    pub queue: QueueName,
    /// Its place in its queue once the plan is carried out, from 1.
    pub place: usize,
    pub reason: Reason,
}

/// Decides and explains. Equal snapshots give equal plans.
pub fn plan(snapshot: &Snapshot) -> Plan {
    explain(snapshot, decide(snapshot))
}

/// Gives each blocked job of a decision its reason.
fn explain(snapshot: &Snapshot, decision: Decision) -> Plan {
    let ahead = jobs_ahead(snapshot, &decision);
    let empty = NodeUsage::empty(&snapshot.gpus);
    let mut never: BTreeMap<&Request, Reason> = BTreeMap::new();
    let waits = decision.blocked.into_iter().map(|blocked| {
        let (queue, place) = blocked.at;
        let queue = &snapshot.queues[queue];
        let waiting = &queue.waiting[place];
        let reason = match blocked.cause {
            Cause::NoRoom(of) => Reason::Short(Arc::clone(&ahead[of].short)),
            Cause::Behind(job) => Reason::Behind(Arc::clone(&ahead[job])),
            Cause::WouldDelay(job) => Reason::WouldDelay(Arc::clone(&ahead[job])),
            Cause::NeverFits => never
                .entry(&waiting.request)
                .or_insert_with(|| Reason::Never(Arc::new(never_fits(&empty, &waiting.request))))
                .clone(),
            Cause::Quota(exceeded) => Reason::Quota(exceeded),
            Cause::BehindQuota(ahead) => Reason::BehindQuota(ahead),
            Cause::Preempting(preemption) => Reason::Preempting(preemption),
        };
        Wait {
            job: waiting.job,
            queue: queue.spec.name.clone(),
            place: blocked.place,
            reason,
        }
    });
    Plan {
        waits: waits.collect(),
        starts: decision.starts,
        preempts: decision.preempts,
        replan_in_s: decision.replan_in_s,
        cursor: decision.cursor,
        head: decision.head,
    }
}

/// What each job that found no room was short of, when the planner considered it.
fn jobs_ahead(snapshot: &Snapshot, decision: &Decision) -> Vec<Arc<JobAhead>> {
    if decision.ahead.is_empty() {
        return Vec::new();
    }
    let mut node = NodeUsage::of(snapshot);
    let mut allocated = 0;
    let ahead = decision.ahead.iter().map(|unplaced| {
        allocate(
            &mut node,
            &decision.starts[allocated..unplaced.starts_before],
        );
        allocated = unplaced.starts_before;
        let (queue, place) = unplaced.at;
        let queue = &snapshot.queues[queue];
        let waiting = &queue.waiting[place];
        Arc::new(JobAhead {
            job: waiting.job,
            queue: queue.spec.name.clone(),
            short: Arc::new(Shortage::of(&node, &waiting.request)),
        })
    });
    ahead.collect()
}

/// The occupancy of the snapshot's GPUs once these jobs have started.
pub(super) fn node_after<'a>(snapshot: &'a Snapshot, starts: &[Start]) -> NodeUsage<'a> {
    let mut node = NodeUsage::of(snapshot);
    allocate(&mut node, starts);
    node
}

fn allocate(node: &mut NodeUsage<'_>, starts: &[Start]) {
    for start in starts {
        node.allocate(start.job, &start.queue, &start.grants, &start.reclaim);
    }
}
