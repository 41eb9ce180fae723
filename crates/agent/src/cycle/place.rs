//! Asking the core who starts, and writing its answer down.

use std::collections::HashSet;

use divvy_core::{Held, Job as Life, Queue, QueueSpec, Snapshot, Waiting, plan};

use super::Cycle;
use crate::job::Job;
use crate::store::StoreError;

impl Cycle {
    /// Decides, and journals every start; acting on them is the round's end.
    pub(super) fn plan(&mut self) -> Result<(), StoreError> {
        let plan = plan(&self.snapshot());
        if plan.cursor != self.cursor {
            self.cursor = plan.cursor;
            self.store.set_setting("cursor", &plan.cursor.to_string())?;
        }
        self.waits = plan
            .waits
            .into_iter()
            .map(|wait| (wait.job, wait))
            .collect();
        for start in plan.starts {
            let Some(living) = self.jobs.get_mut(&start.job) else {
                continue;
            };
            living.job.place(start.grants);
            living.since = std::time::Instant::now();
            living.supervisor = None;
            let job = living.job.clone();
            self.store.hold(&job)?;
            self.store.save(&job)?;
            self.tell(Some(job.id), "starting", &labels(&job))?;
            self.round.starts.push(job.id);
            self.round.reached.push(job.id);
        }
        Ok(())
    }

    /// Everything a plan depends on, now.
    pub(super) fn snapshot(&self) -> Snapshot {
        let jobs = || self.jobs.values().map(|living| &living.job);
        let waiting = |spec: &QueueSpec| {
            jobs()
                .filter(|job| job.life == Life::Queued && job.ask.queue == spec.name)
                .map(|job| Waiting {
                    job: job.id,
                    request: job.ask.request.clone(),
                })
                .collect()
        };
        Snapshot {
            gpus: self
                .devices
                .iter()
                .map(|device| device.gpu.clone())
                .collect(),
            held: jobs()
                .filter(|job| !job.life.grants().is_empty())
                .map(|job| Held {
                    job: job.id,
                    queue: job.ask.queue.clone(),
                    grants: job.life.grants().to_vec(),
                })
                .collect(),
            queues: self
                .queues()
                .map(|spec| Queue {
                    waiting: waiting(&spec),
                    spec,
                })
                .collect(),
            order: self.config.order,
            backfill: self.config.backfill,
            cursor: self.cursor,
        }
    }

    /// The configured queues, then those that jobs of an earlier daemon still wait in.
    pub(super) fn queues(&self) -> impl Iterator<Item = QueueSpec> {
        let mut known: HashSet<_> = self
            .config
            .queues
            .iter()
            .map(|spec| spec.name.clone())
            .collect();
        let mut specs = self.config.queues.clone();
        for living in self
            .jobs
            .values()
            .filter(|living| living.job.life == Life::Queued)
        {
            if known.insert(living.job.ask.queue.clone()) {
                specs.push(QueueSpec::open(living.job.ask.queue.clone()));
            }
        }
        specs.into_iter()
    }
}

/// `gpu0, gpu1`: what the job holds, by label.
pub(super) fn labels(job: &Job) -> String {
    job.holdings
        .iter()
        .map(|holding| holding.grant.label.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}
