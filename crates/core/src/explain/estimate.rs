//! Start estimate: when a pending job starts, if jobs run for as long as expected and no other job is submitted.
//!
//! The planner is asked again and again, each time without the next job with a known end. With time limits as ends the
//! answer is the latest. A job without a known end never ends, and then jobs behind it have no estimate.

use std::collections::BTreeMap;

use crate::model::snapshot::{AllocatedJob, Snapshot};
use crate::plan::decide;
use crate::units::JobId;

/// Bounds of the search: ends looked ahead, and pending jobs considered over all of them. 256 ends are 32 rounds of
/// whole-GPU jobs on eight GPUs. Double would double the time of a `why`, which takes the controller's thread.
const MOST_ENDS: usize = 256;
const MOST_ASKED: usize = 50_000;

/// In how many seconds a job starts; 0 for a job that starts now, `None` where no estimate is possible.
///
/// `left`: for jobs with a known end, how many seconds each has still to run, or runs once it has started.
pub fn estimate_start(snapshot: &Snapshot, job: JobId, left: &BTreeMap<JobId, u64>) -> Option<u64> {
    let mut state = snapshot.clone();
    let mut now = 0;
    let mut ends: BTreeMap<JobId, u64> = state
        .held
        .iter()
        .filter_map(|held| Some((held.job, *left.get(&held.job)?)))
        .collect();
    let waiting: usize = state.queues.iter().map(|queue| queue.waiting.len()).sum();
    for _ in 0..MOST_ENDS.min(MOST_ASKED / waiting.max(1)) {
        let plan = decide(&state);
        if plan.starts.iter().any(|start| start.job == job) {
            return Some(now);
        }
        (state.cursor, state.head) = (plan.cursor, plan.head);
        for start in plan.starts {
            let queues = state.queues.iter_mut();
            let waiting = queues.flat_map(|queue| {
                queue
                    .waiting
                    .extract_if(.., |waiting| waiting.job == start.job)
            });
            let owner = waiting.last()?.owner;
            if let Some(left) = left.get(&start.job) {
                ends.insert(start.job, now.saturating_add(*left));
            }
            state.held.push(AllocatedJob {
                owner,
                ..AllocatedJob::new(start.job, start.queue, start.grants)
            });
        }
        let stopped =
            |held: &AllocatedJob| plan.preempts.iter().any(|preempt| preempt.job == held.job);
        let before = state.held.len();
        state.held.retain(|held| !stopped(held) && !held.leaving);
        if state.held.len() < before {
            continue;
        }
        let holds = |job: &JobId| state.held.iter().any(|held| held.job == *job);
        ends.retain(|job, _| holds(job));
        now = now.max(*ends.values().min()?);
        state
            .held
            .retain(|held| ends.get(&held.job).is_none_or(|end| *end > now));
    }
    None
}
