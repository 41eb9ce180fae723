//! Who holds which instance: claimed when a job starts, let go when it has ended.

use std::collections::BTreeSet;

use divvy_core::mig::Placement;
use divvy_core::{GpuUuid, Job as Life, JobId};

use super::{Why, slot};
use crate::clock::now;
use crate::cycle::Cycle;
use crate::mig::{Instance, Slot, Task};
use crate::store::StoreError;

impl Cycle {
    /// Journals what the instances of a job that starts are to be, and those that make room for them. True where it waits for
    /// none and can be started at once.
    pub(in crate::cycle) fn claim(
        &mut self,
        id: JobId,
        reclaim: &[(GpuUuid, Placement)],
    ) -> Result<bool, StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(false);
        };
        let tenant = living.job.tenant();
        let grants = living.job.life.grants().to_vec();
        for (gpu, placement) in reclaim {
            let slot = Slot {
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
                    let Some(made) = instance.made.clone().filter(|_| idle) else {
                        let what = format!(
                            "the planner assigned {}, which is {}",
                            instance.label(),
                            instance.stage.name()
                        );
                        self.set_back(id, &what, false)?;
                        return Ok(false);
                    };
                    instance.job = Some(id);
                    // What the driver does with memory that another user has left is not documented.
                    let before = instance.user.as_ref();
                    match before.is_some_and(|before| *before != tenant) {
                        true => self.destroy(&slot, Why::Tenant)?,
                        false => {
                            self.store.save_mig(instance)?;
                            let task = Task::Check {
                                slot: slot.clone(),
                                generation: instance.generation,
                                made,
                            };
                            self.order(&slot.gpu, task);
                        }
                    }
                }
            }
            if let Some(living) = self.jobs.get_mut(&id) {
                living.awaits.insert(slot);
            }
        }
        Ok(self.awaits_nothing(id))
    }

    /// Whether a job that starts waits for what is to be in a slot.
    fn awaits(&self, id: JobId, slot: &Slot) -> bool {
        let starts = |job: &Life| matches!(job, Life::Starting { .. });
        self.jobs
            .get(&id)
            .is_some_and(|living| starts(&living.job.life) && living.awaits.contains(slot))
    }

    /// The job that waits for what is to be in a slot: nobody, where it was stopped or given up meanwhile.
    pub(super) fn heir(&self, slot: &Slot) -> Option<JobId> {
        let job = self.migs.instances.get(slot)?.job?;
        self.awaits(job, slot).then_some(job)
    }

    /// Whether everything that a job runs on is there.
    pub(in crate::cycle) fn awaits_nothing(&self, id: JobId) -> bool {
        let living = self.jobs.get(&id);
        living.is_none_or(|living| living.awaits.is_empty())
    }

    fn reclaim(&mut self, id: JobId, slot: &Slot) -> Result<(), StoreError> {
        let instance = self.migs.instances.get(slot);
        // Whatever else has become of it, the one that needs its place is refused, and planned anew.
        let Some(instance) = instance.filter(|one| self.migs.is_idle(one)) else {
            return Ok(());
        };
        let label = instance.label();
        self.destroy(slot, Why::Room)?;
        self.tell(
            Some(id),
            "mig_evicted",
            &format!("destroying {label} to make room"),
        )
    }

    /// The job has no processes any more: what it held is kept for the next.
    pub(in crate::cycle) fn let_go(&mut self, id: JobId) -> Result<(), StoreError> {
        let held = |instance: &&mut Instance| instance.job == Some(id);
        for instance in self.migs.instances.values_mut().filter(held) {
            instance.job = None;
            instance.since = now();
            self.store.save_mig(instance)?;
        }
        Ok(())
    }

    /// After a start: instances whose job does not hold them, by the jobs' own rows.
    pub(in crate::cycle) fn let_go_of_strays(&mut self) -> Result<(), StoreError> {
        let holds = |job: &JobId, slot: &Slot| {
            let living = self.jobs.get(job);
            let mut grants = living.into_iter().flat_map(|one| one.job.life.grants());
            grants.any(|grant| self::slot(grant).as_ref() == Some(slot))
        };
        let owners: BTreeSet<JobId> = self
            .migs
            .instances
            .values()
            .filter_map(|instance| instance.job.filter(|job| !holds(job, &instance.slot)))
            .collect();
        owners.into_iter().try_for_each(|job| self.let_go(job))
    }
}
