//! When a waiting job starts, if everybody runs for as long as is known and nobody else comes.
//!
//! The planner itself is asked, again and again, each time with the next one gone whose end is known. Where ends are time
//! limits the answer is the latest; whoever has none ends never, and then nothing can be said of those who wait for it.

use std::collections::BTreeMap;

use crate::model::snapshot::{AllocatedJob, Snapshot};
use crate::plan::decide;
use crate::units::JobId;

/// So many ends are looked ahead at most, and so many waiting jobs asked over all of them: it bounds the time that an
/// answer takes.
const MOST_ENDS: usize = 256;
const MOST_ASKED: usize = 50_000;

/// In how many seconds a job starts; 0 for one that starts now, `None` where that cannot be said.
///
/// `left`: how many seconds each job has still to run, or runs once it has started, for those of which it is known.
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
