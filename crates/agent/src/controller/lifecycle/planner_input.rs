//! The planner's input: the GPUs, what jobs hold of them, and the jobs that wait.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use divvy_core::order_key::sort_queue;
use divvy_core::{
    AllocatedJob, JobId, JobState, LatencyRule, OrderKey, PendingJob, Queue, QueueName, QueueSpec,
    Snapshot, Top,
};
use jiff::Timestamp;

use crate::controller::admission::{array, user_rules};
use crate::controller::io::Io;
use crate::controller::lifecycle::park_policy;
use crate::controller::mig::capacity;
use crate::controller::runtime::ActiveJob;
use crate::controller::state;
use crate::controller::state::estimate::FullSnapshot;
use crate::controller::state::{Jobs, State};
use crate::host::clock::now;
use crate::model::job::Job;

/// The input of the planner, as of now.
pub(in crate::controller) fn snapshot(state: &State, io: &Io) -> Snapshot {
    // A job that its user put first may take the place of the user's own job that is not planned yet, such as a task
    // past its array's limit. Without such a job the others have no influence on the order, and cost nothing.
    let mut jobs = state.jobs.active.values();
    let is_topped = jobs.any(|active| {
        let job = &active.job;
        job.state == JobState::Queued && matches!(job.run_state.top, Top::OfUser(_))
    });
    match is_topped {
        true => FullSnapshot::of(state, io).planned(),
        false => snapshot_of(state, io, None),
    }
}

impl FullSnapshot {
    pub(in crate::controller) fn of(state: &State, io: &Io) -> Self {
        let mut blocked = HashSet::new();
        Self {
            snapshot: snapshot_of(state, io, Some(&mut blocked)),
            blocked,
            configured: io.config.schedule.queues.len(),
        }
    }
}

/// The jobs that hold slices.
pub(in crate::controller) fn held(jobs: &Jobs) -> Vec<AllocatedJob> {
    let of_job = |active: &ActiveJob| {
        // A resumed job that waits for its quota or for an unavailable GPU may wait for ever, so it gets no room.
        let keeps = |held: &AllocatedJob| {
            held.resuming_since.is_none() || active.memory_op.keeps_reservation()
        };
        match active.job.state {
            JobState::Queued | JobState::Ended { .. } => None,
            _ => active.job.held().filter(keeps),
        }
    };
    let known = jobs.active.values().filter_map(|active| of_job(active));
    known
        .chain(state::unjournaled::held_by_unknown(jobs))
        .collect()
}

/// `blocked`: takes the jobs that the planner does not plan yet, which are left out otherwise.
fn snapshot_of(state: &State, io: &Io, mut blocked: Option<&mut HashSet<JobId>>) -> Snapshot {
    let backfill = io.config.schedule.backfill;
    let clock = backfill.then(now);
    let mut waiting: BTreeMap<&QueueName, Vec<PendingJob>> = BTreeMap::new();
    let mut room = array::array_limits(&state.jobs);
    for active in state.jobs.active.values() {
        let ActiveJob { job, after, .. } = &**active;
        let queue = &job.spec.queue;
        match &job.state {
            JobState::Queued
                if active.has_expired_confirmation()
                    || state.jobs.unjournaled.contains_key(&job.id) => {}
            // A hold keeps the job out of the plan: releasing it counts as a new submission.
            JobState::Queued if job.run_state.hold.is_some() => {}
            JobState::Queued => {
                let pauses = state.jobs.pauses.contains_key(&job.id);
                if pauses || !after.is_empty() || !room.admits(job) {
                    let Some(blocked) = &mut blocked else {
                        continue;
                    };
                    blocked.insert(job.id);
                }
                waiting
                    .entry(queue)
                    .or_default()
                    .push(job.waiting_in_queue(clock));
            }
            _ => {}
        }
    }
    let parking = park_policy::park_rule(state, io);
    for job in waiting.values_mut().flatten() {
        job.request.gives_way = parking.gives_way.contains(&job.job);
    }
    waiting.values_mut().for_each(|waiting| sort_queue(waiting));
    let mut queues: Vec<Queue> = io
        .config
        .schedule
        .queues
        .iter()
        .map(|spec| Queue {
            spec: spec.clone(),
            waiting: waiting.remove(&spec.name).unwrap_or_default(),
        })
        .collect();
    // Queues of an earlier daemon with pending jobs come last.
    queues.extend(waiting.into_iter().map(|(name, waiting)| Queue {
        spec: QueueSpec::open(name.clone()),
        waiting,
    }));
    Snapshot {
        gpus: capacity::gpus_now(state),
        held: held(&state.jobs),
        queues,
        order: io.config.schedule.order,
        backfill,
        cursor: state.queues.cursor,
        head: state.queues.head,
        projects: state.queues.projects.clone(),
        preemption: io.config.schedule.preemption,
        user_limits: user_rules::user_limits(state, io),
        latency: latency_rule(state, io),
        parking,
    }
}

/// The jobs with a latency goal, and what they may have of a GPU together.
fn latency_rule(state: &State, io: &Io) -> LatencyRule {
    let share = |active: &ActiveJob| {
        let compute = active.job.compute();
        compute.latency.map(|_| (active.job.id, compute.share))
    };
    LatencyRule {
        most: io.config.schedule.latency.share,
        jobs: (state.jobs.active.values())
            .filter_map(|active| share(active))
            .collect(),
    }
}

impl Job {
    /// The job as the planner sees it while it is pending. `clock`: the present time with backfill, else `None`: without
    /// backfill no job yields.
    pub(in crate::controller) fn waiting_in_queue(&self, clock: Option<Timestamp>) -> PendingJob {
        PendingJob {
            owner: self.owner(),
            turn: self.turn(),
            yields: clock.is_some_and(|now| self.yields(now)),
            ..PendingJob::new(self.id, self.request())
        }
    }

    /// Whether jobs that fill a GPU exactly may start before it. A requeued job and one that was put first keep their
    /// places.
    fn yields(&self, now: Timestamp) -> bool {
        let OrderKey { requeued, top, .. } = self.turn();
        let waited = Duration::try_from(now.duration_since(self.waits_since()));
        top.is_no() && !requeued && waited.unwrap_or_default() < PendingJob::YIELDS_FOR
    }
}
