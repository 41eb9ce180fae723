//! Asking the core who starts, and writing its answer down.

use std::collections::BTreeMap;

use divvy_core::{Held, Job as Life, Queue, QueueName, QueueSpec, Snapshot, Waiting, plan};

use super::{Cycle, Living};
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
        let mut waiting: BTreeMap<&QueueName, Vec<Waiting>> = BTreeMap::new();
        let mut held = Vec::new();
        for Living { job, .. } in self.jobs.values() {
            let queue = &job.ask.queue;
            match &job.life {
                Life::Queued => {
                    let request = job.request();
                    waiting.entry(queue).or_default().push(Waiting {
                        job: job.id,
                        request,
                    });
                }
                Life::Ended { .. } => {}
                life => held.push(Held {
                    job: job.id,
                    queue: queue.clone(),
                    grants: life.grants().to_vec(),
                }),
            }
        }
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
            gpus: self
                .devices
                .iter()
                .map(|device| device.gpu.clone())
                .collect(),
            held,
            queues,
            order: self.config.order,
            backfill: self.config.backfill,
            cursor: self.cursor,
        }
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
