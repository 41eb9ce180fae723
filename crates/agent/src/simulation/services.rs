//! GPUs go out of service and return, at any step: no job starts on one that is out.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::Drain;
use divvy_core::{GpuUuid, JobId};
use divvy_testkit::Rng;
use jiff::SignedDuration;
use tokio::sync::oneshot;

use super::accounts::{self, ME};
use super::gpus::uuid;
use super::run::Run;
use crate::controller::mailbox::Message;
use crate::gpu::probe::GpuProbed;
use crate::host::clock::now;
use crate::model::job::Job;
use crate::model::out_of_service::OutOfService;

/// GPUs that were out of service at the last look, by which drain, and the runs that held a part of them then.
#[derive(Default)]
pub struct Services {
    /// Drains so far. Each has a reason of its own: time may stand still between two.
    drains: u64,
    seen: BTreeMap<GpuUuid, (OutOfService, BTreeSet<(JobId, u32)>)>,
}

impl Run {
    pub fn drains(&mut self, gpu: usize, dice: &mut Rng) {
        self.services.drains += 1;
        let all = dice.once_in(4);
        let until = dice
            .once_in(2)
            .then(|| now() + SignedDuration::from_secs(5));
        let drain = Drain {
            gpus: (!all).then(|| uuid(gpu).to_string()).into_iter().collect(),
            reason: format!("update {}", self.services.drains),
            until,
        };
        let by = Box::new(accounts::caller(ME));
        self.inbox.push(Message::Drain {
            drain: Box::new(drain),
            by,
            reply: oneshot::channel().0,
        });
    }

    /// `None`: all of them.
    pub fn undrains(&mut self, gpu: Option<usize>) {
        let by = Box::new(accounts::caller(ME));
        self.inbox.push(Message::Undrain {
            gpus: gpu.map(|gpu| uuid(gpu).to_string()).into_iter().collect(),
            by,
            reply: oneshot::channel().0,
        });
    }

    /// A probe that an earlier daemon, or an earlier fault, had started ends now.
    pub fn probe_ends(&mut self, gpu: usize, dice: &mut Rng) {
        let outcome = match dice.once_in(2) {
            true => Ok(()),
            false => Err("simulated".to_owned()),
        };
        self.inbox.push(Message::GpuProbed(GpuProbed {
            gpu: uuid(gpu),
            outcome,
        }));
    }

    /// # Errors
    /// A job has got a part of a GPU that was out of service all the time.
    pub fn no_job_starts_out_of_service(
        &mut self,
        living: &BTreeMap<JobId, Job>,
    ) -> Result<(), String> {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.services.drains > 0) else {
            return Ok(());
        };
        let known = daemon.cycle.journal().known_gpus();
        let mut seen = BTreeMap::new();
        for gpu in known.map_err(|error| error.to_string())? {
            let Some(out) = gpu.out else { continue };
            let holders = living.values().filter(|job| {
                let mut grants = job.state.grants().iter();
                grants.any(|grant| grant.gpu == gpu.uuid)
            });
            let holders: BTreeSet<_> = holders.map(|job| (job.id, job.attempt)).collect();
            if let Some((then, before)) = self.services.seen.get(&gpu.uuid)
                && *then == out
                && let Some((job, _)) = holders.difference(before).next()
            {
                return Err(format!(
                    "job {job} got a part of GPU {}, which is {}",
                    gpu.number,
                    out.describe()
                ));
            }
            seen.insert(gpu.uuid, (out, holders));
        }
        self.services.seen = seen;
        Ok(())
    }
}
