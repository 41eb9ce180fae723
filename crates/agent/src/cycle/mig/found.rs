//! Comparing what lies on a GPU with the journal: once after a start, and at every look that nothing was changed during.

use std::collections::BTreeMap;
use std::time::Duration;

use divvy_core::mig::Placement;
use divvy_core::mig::recover::{self, Action, Holder, Inside, Record, Recovered, Stage};
use divvy_core::{Bytes, GpuUuid, Job as Life, JobId};

use super::{Why, slot};
use crate::clock::Instant;
use crate::cycle::{Cycle, Living};
use crate::gpu::look::Seen;
use crate::mig::sight::Found;
use crate::mig::{Made, Sight, Slot};
use crate::store::StoreError;

/// How often an instance in quarantine is tried to be destroyed. Whoever leaked a handle of it does not let go of it until he is
/// restarted.
const AGAIN: Duration = Duration::from_secs(30);

/// Whether nobody is in an instance, and nobody has divided it: it is left as it is otherwise.
pub(super) fn is_deserted(found: &Found) -> bool {
    let mut devices = found.devices.iter();
    found.seen().inside != Inside::Divided && devices.all(|device| device.processes.is_empty())
}

impl Living {
    /// Its program was started, or is about to be.
    pub(in crate::cycle) fn is_launched(&self) -> bool {
        self.awaits.is_empty() && !self.job.awaits_confirmation()
    }
}

impl Cycle {
    /// Takes over what a look shows of a GPU in MIG mode.
    pub(in crate::cycle) fn divided(&mut self, seen: &Seen) -> Result<(), StoreError> {
        let uuid = seen.observed.uuid.clone();
        let Some(device) = self.devices.iter_mut().find(|one| one.gpu.uuid == uuid) else {
            return Ok(());
        };
        self.round.replan |= device.update(seen, Bytes::ZERO);
        let Some(sight) = seen.observed.divided() else {
            return Ok(());
        };
        self.trouble(&uuid, sight)?;
        let of_gpu = self.migs.gpu(&uuid);
        if !of_gpu.can_be_compared(sight) {
            return Ok(());
        }
        of_gpu.found.clone_from(&sight.instances);
        self.remember_peaks(&uuid);
        self.match_instances(&uuid, &sight.instances)?;
        self.tenants(seen)
    }

    /// Takes over that a GPU is not in MIG mode: nothing lies on it, whatever is known of it.
    pub(in crate::cycle) fn undivided(&mut self, seen: &Seen) -> Result<(), StoreError> {
        let uuid = &seen.observed.uuid;
        let Some(sight) = &seen.observed.mig else {
            return Ok(());
        };
        let has_records = self.migs.instances.keys().any(|slot| slot.gpu == *uuid);
        let of_gpu = self.migs.gpu(uuid);
        let is_known = has_records || !of_gpu.foreign.is_empty();
        if !is_known || !of_gpu.can_be_compared(sight) {
            return Ok(());
        }
        of_gpu.found.clear();
        self.match_instances(uuid, &[])
    }

    /// Says once why instances cannot be read.
    fn trouble(&mut self, uuid: &GpuUuid, sight: &Sight) -> Result<(), StoreError> {
        let of_gpu = self.migs.gpu(uuid);
        if of_gpu.trouble == sight.trouble {
            return Ok(());
        }
        of_gpu.trouble.clone_from(&sight.trouble);
        self.round.replan = true;
        let Some(why) = &sight.trouble else {
            return Ok(());
        };
        let text = format!(
            "cannot read the MIG instances of GPU {}: {why}",
            self.index(uuid)
        );
        tracing::error!("{text}");
        self.tell(None, "mig_error", &text)
    }

    fn match_instances(&mut self, uuid: &GpuUuid, there: &[Found]) -> Result<(), StoreError> {
        let here = |slot: &Slot| slot.gpu == *uuid;
        let instances = self.migs.instances.values();
        let records: Vec<Record> = instances
            .filter(|instance| here(&instance.slot))
            .map(|instance| instance.record())
            .collect();
        let seen: Vec<recover::Seen> = there.iter().map(Found::seen).collect();
        let Recovered { actions, foreign } =
            recover::recover(&records, &seen, &self.migs.boot, &self.holders(uuid));
        for (placement, action) in actions {
            let slot = Slot {
                gpu: uuid.clone(),
                placement,
            };
            let found = there.iter().find(|found| found.placement == placement);
            self.act_on(&slot, action, found)?;
        }
        self.foreign(uuid, &foreign, there)
    }

    /// The jobs that hold places of a GPU.
    fn holders(&self, uuid: &GpuUuid) -> BTreeMap<Placement, Holder> {
        let mut holders = BTreeMap::new();
        for living in self.jobs.values() {
            for grant in living.job.life.grants() {
                if let Some(slot) = slot(grant).filter(|slot| slot.gpu == *uuid) {
                    let holder = Holder {
                        job: living.job.id,
                        launched: living.is_launched(),
                    };
                    holders.insert(slot.placement, holder);
                }
            }
        }
        holders
    }

    fn act_on(
        &mut self,
        slot: &Slot,
        action: Action,
        found: Option<&Found>,
    ) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        let label = instance.label();
        match action {
            Action::Adopt => Ok(()),
            Action::Finish(recover::Made { id, uuid }) => {
                let device = found.and_then(|found| found.devices.first());
                let Some(device) = device else { return Ok(()) };
                instance.stage = Stage::Ready;
                instance.made = Some(Made {
                    id,
                    compute: device.id,
                    uuid,
                    // Who is in it now was not sent by us: it is not clean until it has been made anew.
                    baseline: match device.processes.is_empty() {
                        true => device.used,
                        false => Bytes::ZERO,
                    },
                });
                let job = instance.job;
                self.store.save_mig(instance)?;
                self.round.replan = true;
                let text = format!(
                    "{label} of GPU {} was created before the restart",
                    self.index(&slot.gpu)
                );
                self.tell(job, "mig_adopted", &text)
            }
            Action::Remove => {
                self.round.replan = true;
                // A job that has not begun, as it waits for others of its instances or to be confirmed, gets another.
                let holder = instance.job.and_then(|job| self.jobs.get_mut(&job));
                if let Some(living) = holder.filter(|one| !one.is_launched()) {
                    living.awaits.insert(slot.clone());
                }
                self.destroy(slot, Why::Remains)
            }
            Action::Drop => self.forget(slot, None, "no longer exists"),
            Action::Recreate(job) => {
                self.forget(
                    slot,
                    Some(job),
                    "does not exist, and the job has not started",
                )?;
                let waits = self.jobs.get(&job);
                if waits.is_some_and(|one| matches!(one.job.life, Life::Starting { .. })) {
                    self.put_back(job, &format!("{label} does not exist"))?;
                }
                Ok(())
            }
            Action::Lost(job) => self.forget(
                slot,
                Some(job),
                "was destroyed while the job's program used it",
            ),
            Action::Quarantine(recover::Oddity::Known) => self.try_again(slot, found),
            Action::Quarantine(oddity) => {
                self.round.replan = true;
                self.quarantine(slot, oddity.words())
            }
        }
    }

    pub(super) fn forget(
        &mut self,
        slot: &Slot,
        job: Option<JobId>,
        what: &str,
    ) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.remove(slot) else {
            return Ok(());
        };
        self.store.forget_mig(slot)?;
        self.round.replan = true;
        let text = format!(
            "{} of GPU {} {what}",
            instance.label(),
            self.index(&slot.gpu)
        );
        tracing::warn!(?job, "{text}");
        self.tell(job, "mig_lost", &text)
    }

    /// Tries to be rid of an instance in quarantine, where nobody would suffer from it.
    fn try_again(&mut self, slot: &Slot, found: Option<&Found>) -> Result<(), StoreError> {
        let held = self
            .migs
            .instances
            .get(slot)
            .is_some_and(|one| one.job.is_some());
        let deserted = found.is_some_and(is_deserted);
        let of_gpu = self.migs.gpu(&slot.gpu);
        let due = of_gpu
            .tried
            .get(&slot.placement)
            .is_none_or(|tried| tried.elapsed() >= AGAIN);
        if held || !deserted || !due {
            return Ok(());
        }
        of_gpu.tried.insert(slot.placement, Instant::now());
        self.destroy(slot, Why::Remains)
    }

    fn foreign(
        &mut self,
        uuid: &GpuUuid,
        foreign: &[Placement],
        there: &[Found],
    ) -> Result<(), StoreError> {
        let mut now: Vec<(Placement, u8)> = there
            .iter()
            .map(|found| (found.placement, found.size))
            .collect();
        now.retain(|(placement, _)| foreign.contains(placement));
        let of_gpu = self.migs.gpu(uuid);
        let before = std::mem::replace(&mut of_gpu.foreign, now.clone());
        if before == now {
            return Ok(());
        }
        self.round.replan = true;
        let news = [
            (
                &now,
                &before,
                "was created outside Divvy, which leaves it unchanged",
            ),
            (
                &before,
                &now,
                "was created outside Divvy, and no longer exists",
            ),
        ];
        for (these, those, what) in news {
            for (placement, _) in these.iter().filter(|one| !those.contains(one)) {
                let text = format!(
                    "{} of GPU {} {what}",
                    self.label(uuid, *placement),
                    self.index(uuid)
                );
                tracing::info!("{text}");
                self.tell(None, "mig_unmanaged", &text)?;
            }
        }
        Ok(())
    }

    /// `1g.5gb@3`
    pub(super) fn label(&self, uuid: &GpuUuid, placement: Placement) -> String {
        let device = self.devices.iter().find(|device| device.gpu.uuid == *uuid);
        match device.and_then(crate::gpu::Device::table) {
            Some(table) => table.label(placement),
            None => placement.to_string(),
        }
    }

    /// Nobody else sees how much a job's instance is used.
    fn remember_peaks(&mut self, uuid: &GpuUuid) {
        let Some(of_gpu) = self.migs.gpus.get(uuid) else {
            return;
        };
        let holdings = self
            .jobs
            .values_mut()
            .flat_map(|living| &mut living.job.holdings);
        for holding in holdings.filter(|holding| holding.grant.gpu == *uuid) {
            let Some(mig) = holding.grant.mig else {
                continue;
            };
            let mut found = of_gpu.found.iter();
            if let Some(found) = found.find(|found| found.placement == mig.placement) {
                holding.traces.peak = holding.traces.peak.max(found.used());
            }
        }
    }

    /// Tells of processes that are in an instance and do not belong there.
    fn tenants(&mut self, seen: &Seen) -> Result<(), StoreError> {
        let uuid = &seen.observed.uuid;
        let holders = self.holders(uuid);
        let here: Vec<(Slot, u32)> = seen
            .tenants
            .iter()
            .map(|tenant| {
                let slot = Slot {
                    gpu: uuid.clone(),
                    placement: tenant.placement,
                };
                (slot, tenant.pid)
            })
            .collect();
        self.migs
            .told
            .retain(|told| told.0.gpu != *uuid || here.contains(told));
        for (tenant, key) in seen.tenants.iter().zip(here) {
            let holder = holders.get(&tenant.placement).map(|holder| holder.job);
            let ours = self.migs.instances.contains_key(&key.0);
            let belongs = tenant.job == holder && holder.is_some();
            // What strangers do among themselves is their own affair.
            if belongs || (tenant.job.is_none() && !ours) || !self.migs.told.insert(key) {
                continue;
            }
            let whose = match holder {
                Some(holder) => format!("which job {holder} holds"),
                None if ours => "which no job holds".to_owned(),
                None => "which was created outside Divvy".to_owned(),
            };
            let label = self.label(uuid, tenant.placement);
            let place = format!("{label} of GPU {}, {whose}", seen.observed.index);
            let pid = tenant.pid;
            let (job, kind, text) = match tenant.job {
                Some(job) => (
                    Some(job),
                    "mig_wrong_instance",
                    format!("pid {pid} of the job uses {place}"),
                ),
                None => (
                    holder,
                    "mig_foreign_process",
                    format!("pid {pid}, which belongs to no job, uses {place}"),
                ),
            };
            tracing::warn!(?job, "{text}");
            self.tell(job, kind, &text)?;
        }
        Ok(())
    }
}
