//! Scheduling: the daemon runs the planner on a snapshot, and journals its decisions.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use divvy_core::job::StopReason;
use divvy_core::order_key::sort_queue;
use divvy_core::{
    AllocatedJob, Bytes, HeldElsewhere, JobId, JobState, OrderKey, PendingJob, Plan, Preempt,
    Queue, QueueName, QueueSpec, Snapshot, Top, show_labels,
};
use jiff::Timestamp;

use crate::controller::admission::{array, user_rules};
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{cancel, confirm, job_sync, offload, start};
use crate::controller::mig::{capacity, claim};
use crate::controller::runtime::ActiveJob;
use crate::controller::sharing;
use crate::controller::state;
use crate::controller::state::{Jobs, State};
use crate::host::clock::{Instant, now};
use crate::host::error::error_chain;
use crate::journal::StoreError;
use crate::model::job::Job;
use crate::registry::Contended;

/// How often one round plans anew because another daemon was faster.
const ROUNDS_WITH_OTHERS: u32 = 4;

/// Runs the planner, and journals every start; the round applies them at its end.
pub(in crate::controller) fn replan(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    if state.disk.full.is_some() {
        state.jobs.waits.clear();
        return Ok(());
    }
    sharing::refresh(&mut state.gpus, io);
    offload::resume_offloaded(state, fx, io)?;
    let plan = plan_beside_others(state, io);
    if plan.cursor != state.queues.cursor {
        state.queues.cursor = plan.cursor;
        io.store.set_setting("cursor", &plan.cursor.to_string())?;
    }
    if plan.head != state.queues.head {
        state.queues.head = plan.head;
        let head = plan.head.map_or(String::new(), |job| job.to_string());
        io.store.set_setting("head", &head)?;
        // A job that yielded to the former head may start beside the new one.
        fx.replan = true;
    }
    state.jobs.waits = plan
        .waits
        .into_iter()
        .map(|wait| (wait.job, wait))
        .collect();
    let again = plan.replan_in_s.map(Duration::from_secs);
    state.queues.replan_at = again.map(|after| Instant::now() + after);
    for start in plan.starts {
        let Some(active) = state.jobs.active.get_mut(&start.job) else {
            continue;
        };
        active.place(start.grants);
        let waited = Duration::try_from(now().duration_since(active.job.waits_since()));
        let queue = active.job.spec.queue.to_string();
        let waits = fx.counters.waits.entry(queue).or_default();
        waits.add(waited.unwrap_or_default());
        let job = active.job.clone();
        if let Err(error) = io.store.save_allocations(&job) {
            if !error.is_constraint() {
                return Err(error);
            }
            // A bug of Divvy's: it costs this job, and not the daemon.
            start::fail_start(&mut state.jobs, fx, io, job.id, &error_chain(&error));
            job_sync::sync_job(state, fx, io, job.id)?;
            continue;
        }
        io.store.save(&job)?;
        fx.record_event(io, Some(job.id), "starting", &labels(&job))?;
        if claim::claim_instances(state, fx, io, job.id, &start.reclaim)? {
            confirm::ready(&mut state.jobs, fx, io, job.id)?;
        }
    }
    for Preempt { job, preemptor: by } in plan.preempts {
        fx.counters.preempted += 1;
        let words =
            format!("preempted: it is over quota, and #{by} is within the quota of its project");
        cancel::stop_job(&mut state.jobs, fx, io, job, StopReason::Preempt, words)?;
    }
    Ok(())
}

/// Plans until the starts fit beside what other daemons of the machine hold and intend.
fn plan_beside_others(state: &mut State, io: &Io) -> Plan {
    for _ in 0..ROUNDS_WITH_OTHERS {
        let plan = divvy_core::plan(&snapshot(state, io));
        let grants = plan.starts.iter().flat_map(|start| &start.grants);
        match sharing::acquire(state, io, grants, &[]) {
            Ok(()) => return plan,
            Err(Contended) => tracing::debug!("another daemon was faster to take a GPU"),
        }
    }
    // Nothing starts this time.
    state.queues.is_contended = true;
    let mut full = snapshot(state, io);
    for gpu in &mut full.gpus {
        gpu.elsewhere.push(HeldElsewhere {
            holder: "another daemon, which is taking it now".to_owned(),
            share: 1000,
            memory: gpu.usable(),
            used: Bytes::ZERO,
        });
    }
    divvy_core::plan(&full)
}

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

/// The planner's input with all pending jobs. Those that it does not plan yet wait for a dependency, for their array or
/// for a retry, and stand at their future places.
#[derive(Clone)]
pub(in crate::controller) struct FullSnapshot {
    pub(in crate::controller) snapshot: Snapshot,
    blocked: HashSet<JobId>,
    /// Queues of the configuration; others are there for their jobs.
    configured: usize,
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

    /// The input of the planner: [`snapshot`].
    pub(in crate::controller) fn planned(&self) -> Snapshot {
        let mut planned = self.snapshot.clone();
        for queue in &mut planned.queues {
            let waiting = &mut queue.waiting;
            waiting.retain(|waiting| !self.blocked.contains(&waiting.job));
        }
        let mut queues = 0..;
        planned.queues.retain(|queue| {
            let is_configured = queues.next().is_some_and(|at| at < self.configured);
            is_configured || !queue.waiting.is_empty()
        });
        planned
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

/// `gpu0,1`: what the job holds, by label.
pub(in crate::controller) fn labels(job: &Job) -> String {
    show_labels((job.allocations.iter()).map(|holding| holding.grant.label.as_str()))
}
