//! Who holds which instance: claimed when a job starts, let go when it has ended.

use std::collections::BTreeSet;

use divvy_core::mig::Placement;
use divvy_core::{GpuUuid, JobId, JobState as Life};

use super::{DestroyReason, slot};
use crate::controller::Controller;
use crate::gpu::mig::MigTask;
use crate::host::clock::now;
use crate::journal::StoreError;
use crate::model::mig_instance::{ManagedInstance, MigSlot};

impl Controller {
    /// Journals what the instances of a job that starts are to be, and those that make room for them. True where it waits for
    /// none and can be started at once.
    pub(in crate::controller) fn claim_instances(
        &mut self,
        id: JobId,
        reclaim: &[(GpuUuid, Placement)],
    ) -> Result<bool, StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(false);
        };
        let tenant = living.job.tenant();
        let grants = living.job.state.grants().to_vec();
        for (gpu, placement) in reclaim {
            let slot = MigSlot {
                gpu: gpu.clone(),
                placement: *placement,
            };
            self.reclaim(id, &slot)?;
        }
        for grant in &grants {
            let (Some(slot), Some(mig)) = (slot(grant), grant.mig) else {
                continue;
            };
            let there = self.migs.instances.get(&slot);
            let idle = there.is_some_and(|instance| self.migs.is_idle(instance));
            match self.migs.instances.get_mut(&slot) {
                None => self.make(&slot, mig.profile, id)?,
                Some(instance) => {
                    let Some(made) = instance.info.clone().filter(|_| idle) else {
                        let what = format!(
                            "the planner assigned {}, which is {}",
                            instance.label(),
                            instance.state.name()
                        );
                        self.requeue_or_fail(id, &what, false)?;
                        return Ok(false);
                    };
                    instance.job = Some(id);
                    // What the driver does with memory that another user has left is not documented.
                    let before = instance.last_user.as_ref();
                    match before.is_some_and(|before| *before != tenant) {
                        true => self.destroy(&slot, DestroyReason::PreviousTenant)?,
                        false => {
                            self.store.save_mig(instance)?;
                            let task = MigTask::Check {
                                slot: slot.clone(),
                                generation: instance.generation,
                                made,
                            };
                            self.enqueue_command(&slot.gpu, task);
                        }
                    }
                }
            }
            if let Some(living) = self.jobs.get_mut(&id) {
                living.pending_instances.insert(slot);
            }
        }
        Ok(self.has_all_instances(id))
    }

    /// Whether a job that starts waits for what is to be in a slot.
    fn awaits_slot(&self, id: JobId, slot: &MigSlot) -> bool {
        let starts = |job: &Life| matches!(job, Life::Starting { .. });
        self.jobs.get(&id).is_some_and(|living| {
            starts(&living.job.state) && living.pending_instances.contains(slot)
        })
    }

    /// The job that waits for what is to be in a slot: nobody, where it was stopped or given up meanwhile.
    pub(super) fn waiting_job(&self, slot: &MigSlot) -> Option<JobId> {
        let job = self.migs.instances.get(slot)?.job?;
        self.awaits_slot(job, slot).then_some(job)
    }

    /// Whether everything that a job runs on is there.
    pub(in crate::controller) fn has_all_instances(&self, id: JobId) -> bool {
        let living = self.jobs.get(&id);
        living.is_none_or(|living| living.pending_instances.is_empty())
    }

    fn reclaim(&mut self, id: JobId, slot: &MigSlot) -> Result<(), StoreError> {
        let instance = self.migs.instances.get(slot);
        // Whatever else has become of it, the one that needs its place is refused, and planned anew.
        let Some(instance) = instance.filter(|one| self.migs.is_idle(one)) else {
            return Ok(());
        };
        let label = instance.label();
        self.destroy(slot, DestroyReason::MakeRoom)?;
        self.record_event(
            Some(id),
            "mig_evicted",
            &format!("destroying {label} to make room"),
        )
    }

    /// The job has no processes any more: what it held is kept for the next.
    pub(in crate::controller) fn release_instances(&mut self, id: JobId) -> Result<(), StoreError> {
        let held = |instance: &&mut ManagedInstance| instance.job == Some(id);
        for instance in self.migs.instances.values_mut().filter(held) {
            instance.job = None;
            instance.since = now();
            self.store.save_mig(instance)?;
        }
        Ok(())
    }

    /// After a start: instances whose job does not hold them, by the jobs' own rows.
    pub(in crate::controller) fn release_stray_instances(&mut self) -> Result<(), StoreError> {
        let holds = |job: &JobId, slot: &MigSlot| {
            let living = self.jobs.get(job);
            let mut grants = living.into_iter().flat_map(|one| one.job.state.grants());
            grants.any(|grant| self::slot(grant).as_ref() == Some(slot))
        };
        let owners: BTreeSet<JobId> = self
            .migs
            .instances
            .values()
            .filter_map(|instance| instance.job.filter(|job| !holds(job, &instance.slot)))
            .collect();
        owners
            .into_iter()
            .try_for_each(|job| self.release_instances(job))
    }
}
