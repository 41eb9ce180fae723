//! Asking the core who starts, and writing its answer down.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_core::job::StopReason;
use divvy_core::order_key::sort_queue;
use divvy_core::{
    JobState as Life, PendingJob, Preempt, Queue, QueueName, QueueSpec, Snapshot, plan,
};

use crate::controller::{ActiveJob, Controller};
use crate::host::clock::{Instant, now};
use crate::journal::StoreError;
use crate::model::job::Job;

impl Controller {
    /// Decides, and journals every start; acting on them is the round's end.
    pub(in crate::controller) fn plan(&mut self) -> Result<(), StoreError> {
        if self.disk_full.is_some() {
            self.waits.clear();
            return Ok(());
        }
        self.resume_offloaded()?;
        let plan = plan(&self.snapshot());
        if plan.cursor != self.cursor {
            self.cursor = plan.cursor;
            self.store.set_setting("cursor", &plan.cursor.to_string())?;
        }
        if plan.head != self.head {
            self.head = plan.head;
            let head = plan.head.map_or(String::new(), |job| job.to_string());
            self.store.set_setting("head", &head)?;
            // Whoever yielded to the head before may start beside this one.
            self.effects.replan = true;
        }
        self.waits = plan
            .waits
            .into_iter()
            .map(|wait| (wait.job, wait))
            .collect();
        let again = plan.replan_in_s.map(Duration::from_secs);
        self.replan_at = again.map(|after| Instant::now() + after);
        for start in plan.starts {
            let Some(living) = self.jobs.get_mut(&start.job) else {
                continue;
            };
            living.job.place(start.grants);
            let waited = Duration::try_from(now().duration_since(living.job.submitted_at));
            let queue = living.job.spec.queue.to_string();
            let waits = self.counters.waits.entry(queue).or_default();
            waits.add(waited.unwrap_or_default());
            living.since = Instant::now();
            living.supervisor = None;
            let job = living.job.clone();
            self.store.save_allocations(&job)?;
            self.store.save(&job)?;
            self.record_event(Some(job.id), "starting", &labels(&job))?;
            if self.claim_instances(job.id, &start.reclaim)? {
                self.ready(job.id)?;
            }
        }
        for Preempt { job, preemptor: by } in plan.preempts {
            self.counters.preempted += 1;
            let words = format!(
                "preempted: it is over quota, and #{by} is within the quota of its project"
            );
            self.stop_job(job, StopReason::Preempt, words)?;
        }
        Ok(())
    }

    /// Everything a plan depends on, now.
    pub(in crate::controller) fn snapshot(&self) -> Snapshot {
        self.snapshot_of(false)
    }

    /// The same with those who run after others, or whose array has all that may run at once: they stand where they will.
    pub(in crate::controller) fn full_snapshot(&self) -> Snapshot {
        self.snapshot_of(true)
    }

    fn snapshot_of(&self, everybody: bool) -> Snapshot {
        let mut waiting: BTreeMap<&QueueName, Vec<PendingJob>> = BTreeMap::new();
        let mut held = Vec::new();
        let mut room = self.array_limits();
        for living in self.jobs.values() {
            let ActiveJob { job, after, .. } = &**living;
            let queue = &job.spec.queue;
            match &job.state {
                Life::Queued
                    if living.confirmation_expired || self.unknown.contains_key(&job.id) => {}
                // A release comes as a submit does: until then the job stands in nobody's way.
                Life::Queued if job.run_state.hold.is_some() => {}
                Life::Queued if !everybody && (!after.is_empty() || !room.admits(job)) => {}
                Life::Queued => {
                    waiting
                        .entry(queue)
                        .or_default()
                        .push(job.waiting_in_queue());
                }
                Life::Ended { .. } => {}
                // Nothing is kept for who is to go on and cannot, however much room there is.
                _ => held.extend(
                    (job.held())
                        .filter(|held| held.due.is_none() || living.memory_op.keeps_reservation()),
                ),
            }
        }
        held.extend(self.held_by_unknown());
        waiting.values_mut().for_each(|waiting| sort_queue(waiting));
        let mut queues: Vec<Queue> = self
            .config
            .queues
            .iter()
            .map(|spec| Queue {
                spec: spec.clone(),
                waiting: waiting.remove(&spec.name).unwrap_or_default(),
            })
            .collect();
        // Queues of an earlier daemon that jobs still wait in come last.
        queues.extend(waiting.into_iter().map(|(name, waiting)| Queue {
            spec: QueueSpec::open(name.clone()),
            waiting,
        }));
        Snapshot {
            gpus: self.gpus_now(),
            held,
            queues,
            order: self.config.order,
            backfill: self.config.backfill,
            cursor: self.cursor,
            head: self.head,
            projects: self.projects.clone(),
            preemption: self.config.preemption,
        }
    }
}

impl Job {
    /// As the planner has it while it waits.
    pub(in crate::controller) fn waiting_in_queue(&self) -> PendingJob {
        PendingJob {
            owner: self.owner(),
            turn: self.turn(),
            ..PendingJob::new(self.id, self.request())
        }
    }
}

/// `gpu0, gpu1`: what the job holds, by label.
pub(in crate::controller) fn labels(job: &Job) -> String {
    job.allocations
        .iter()
        .map(|holding| holding.grant.label.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}
