//! What has become of an order: an instance is handed over, made anew, kept apart, forgotten; its job goes on or back.

use std::time::Duration;

use divvy_core::JobId;
use divvy_core::mig::recover::InstanceState;

use super::{DestroyReason, overlap};
use crate::controller::Controller;
use crate::gpu::mig::{MigOpError, MigOutcome, MigReport};
use crate::host::clock::{Instant, now};
use crate::host::failpoint::reach;
use crate::journal::StoreError;
use crate::model::mig_instance::{InstanceInfo, MigSlot};

/// How often a job's instances may be refused, where nobody is in the way, before the job is given up.
const MAX_REFUSALS: u32 = 3;

impl Controller {
    /// Takes over what has become of an order.
    pub(in crate::controller) fn apply_mig_report(
        &mut self,
        report: MigReport,
    ) -> Result<(), StoreError> {
        let of_gpu = self.migs.gpu(&report.gpu);
        of_gpu.outstanding = of_gpu.outstanding.saturating_sub(1);
        of_gpu.epoch = of_gpu.epoch.max(report.epoch);
        if let Some(slot) = report.outcome.slot() {
            self.migs.busy_slots.remove(slot);
        }
        self.effects.replan = true;
        // The next look is to show it.
        self.observer.sample_soon();
        match report.outcome {
            MigOutcome::Created {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => match result {
                Ok(made) => self.made(&slot, made, report.took),
                Err(failure) => self.create_failed(&slot, &failure),
            },
            MigOutcome::Checked {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => match result {
                Ok(true) => self.reused(&slot, report.took),
                // Whoever was to have it may have let go of it meanwhile: it is of no use to the next, either.
                Ok(false) => self.destroy(&slot, DestroyReason::Unclean),
                Err(failure) => self.check_failed(&slot, &failure),
            },
            MigOutcome::Destroyed {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => {
                self.instance_destroyed(&slot, generation, result, report.took)
            }
            MigOutcome::Created { slot, .. }
            | MigOutcome::Checked { slot, .. }
            | MigOutcome::Destroyed { slot, .. } => {
                tracing::error!(%slot, "ignoring a report about an unknown MIG instance");
                Ok(())
            }
            MigOutcome::ModeSet { on, result } => self.mode_set(&report.gpu, on, result),
        }
    }

    fn is_of(&self, slot: &MigSlot, generation: u64) -> bool {
        let instance = self.migs.instances.get(slot);
        instance.is_some_and(|instance| instance.generation == generation)
    }

    fn made(
        &mut self,
        slot: &MigSlot,
        made: InstanceInfo,
        took: Duration,
    ) -> Result<(), StoreError> {
        reach("mig.create.done");
        self.effects.failpoints.push("mig.create.kept");
        if let Some(instance) = self.migs.instances.get_mut(slot) {
            instance.state = InstanceState::Ready;
            instance.info = Some(made);
            instance.since = now();
        }
        self.migs.counts.created.add(took);
        self.handed_over(slot, "mig_created", "created", took)
    }

    fn reused(&mut self, slot: &MigSlot, took: Duration) -> Result<(), StoreError> {
        reach("mig.reuse.done");
        self.effects.failpoints.push("mig.reuse.kept");
        if self.waiting_job(slot).is_none() {
            // It is as idle as it was.
            return Ok(());
        }
        self.migs.counts.reused.add(took);
        self.handed_over(slot, "mig_reused", "reused", took)
    }

    /// An instance is there for its job, if it still has one.
    fn handed_over(
        &mut self,
        slot: &MigSlot,
        kind: &str,
        verb: &str,
        took: Duration,
    ) -> Result<(), StoreError> {
        let heir = self.waiting_job(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        let (label, job) = (instance.label(), instance.job);
        let mut ready = None;
        if let Some(living) = heir.and_then(|job| self.jobs.get_mut(&job)) {
            living.pending_instances.remove(slot);
            // From here on a program of this tenant may run in it.
            instance.last_user = Some(living.job.tenant());
            if living.pending_instances.is_empty() {
                living.refusals = 0;
                ready = heir;
            }
        }
        self.store.save_mig(instance)?;
        self.migs.gpu(&slot.gpu).busy_refusals = 0;
        let text = format!(
            "{label} of GPU {} {verb} in {} ms",
            self.index(&slot.gpu),
            took.as_millis()
        );
        tracing::info!(?job, "{text}");
        self.record_event(job, kind, &text)?;
        ready.map_or(Ok(()), |id| self.ready(id))
    }

    fn create_failed(&mut self, slot: &MigSlot, failure: &MigOpError) -> Result<(), StoreError> {
        // Whoever is in the way goes some day.
        let waits = failure.is_in_use() || (!failure.is_final() && self.is_blocked(slot));
        let heir = self.waiting_job(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        let (label, job) = (instance.label(), instance.job.take());
        let text = format!("{label} of GPU {}: {failure}", self.index(&slot.gpu));
        match failure {
            MigOpError::Refused { .. } => {
                self.migs.instances.remove(slot);
                self.store.forget_mig(slot)?;
                let place = (!failure.is_in_use()).then_some(slot.placement);
                self.back_off(&slot.gpu, place, failure.is_in_use());
                tracing::warn!(?job, "{text}");
                self.record_event(job, "mig_create_failed", &text)?;
            }
            MigOpError::Stuck(why) => self.quarantine(slot, &why.clone())?,
        }
        match heir {
            Some(job) if waits => self.requeue_unstarted(job, &text),
            Some(job) => self.requeue_or_fail(job, &text, failure.is_final()),
            None => Ok(()),
        }
    }

    /// Whether one of ours that cannot be destroyed lies where another was to be. It is in every plan, so nobody is sent there again
    /// before it is gone.
    fn is_blocked(&self, slot: &MigSlot) -> bool {
        let sized = |slot: &MigSlot| (slot.placement, self.size(slot));
        let mut ours = self.migs.instances.values();
        ours.any(|other| {
            other.state == InstanceState::Quarantined
                && other.slot.gpu == slot.gpu
                && overlap(sized(&other.slot), sized(slot))
        })
    }

    /// Nobody knows whether an instance is clean, and nothing was done to it: it stays as it is, and is given to nobody for a time.
    fn check_failed(&mut self, slot: &MigSlot, failure: &MigOpError) -> Result<(), StoreError> {
        let heir = self.waiting_job(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.job = None;
        self.store.save_mig(instance)?;
        let label = instance.label();
        self.back_off(&slot.gpu, Some(slot.placement), true);
        let text = format!(
            "cannot inspect {label} of GPU {}: {failure}",
            self.index(&slot.gpu)
        );
        tracing::warn!(job = ?heir, "{text}");
        heir.map_or(Ok(()), |job| self.requeue_unstarted(job, &text))
    }

    /// Puts a job back that cannot have what it was to have, or gives it up: where that is final, or has come too often.
    pub(super) fn requeue_or_fail(
        &mut self,
        id: JobId,
        why: &str,
        is_final: bool,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.refusals += 1;
        if is_final || living.refusals >= MAX_REFUSALS {
            living.pending_instances.clear();
            self.fail_start(id, why);
            return Ok(());
        }
        self.requeue_unstarted(id, why)
    }

    fn instance_destroyed(
        &mut self,
        slot: &MigSlot,
        generation: u64,
        result: Result<bool, MigOpError>,
        took: Duration,
    ) -> Result<(), StoreError> {
        reach("mig.destroy.done");
        self.effects.failpoints.push("mig.destroy.kept");
        let why = self.migs.destroy_reasons.remove(&generation);
        let heir = self.waiting_job(slot);
        let Some(instance) = self.migs.instances.get(slot) else {
            return Ok(());
        };
        let (job, name, label) = (instance.job, instance.profile, instance.label());
        match result {
            Err(failure) => return self.destroy_failed(slot, &failure),
            Ok(false) => self.forget_instance(slot, job, "no longer exists")?,
            Ok(true) => {
                self.migs.instances.remove(slot);
                self.store.forget_mig(slot)?;
                let counts = &mut self.migs.counts;
                match why {
                    Some(DestroyReason::MakeRoom) => counts.reclaimed.add(took),
                    _ => counts.destroyed.add(took),
                }
                let text = format!(
                    "{label} of GPU {} destroyed in {} ms, {}",
                    self.index(&slot.gpu),
                    took.as_millis(),
                    why.unwrap_or(DestroyReason::Leftover).describe()
                );
                tracing::info!("{text}");
                self.record_event(job, "mig_destroyed", &text)?;
            }
        }
        heir.map_or(Ok(()), |job| self.make(slot, name, job))
    }

    /// Whoever was to have the place gets another, or waits: nobody is sent here again before it is gone.
    fn destroy_failed(&mut self, slot: &MigSlot, failure: &MigOpError) -> Result<(), StoreError> {
        let heir = self.waiting_job(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.job = None;
        let label = instance.label();
        self.quarantine(slot, &failure.to_string())?;
        let text = format!("{label} of GPU {}: {failure}", self.index(&slot.gpu));
        heir.map_or(Ok(()), |job| self.requeue_unstarted(job, &text))
    }

    /// Nobody gets it until it is as it should be, or gone.
    pub(super) fn quarantine(&mut self, slot: &MigSlot, why: &str) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.state = InstanceState::Quarantined;
        let said = instance.reason.replace(why.to_owned());
        self.store.save_mig(instance)?;
        let (label, job) = (instance.label(), instance.job);
        let of_gpu = self.migs.gpu(&slot.gpu);
        of_gpu
            .last_destroy_attempt
            .insert(slot.placement, Instant::now());
        if said.as_deref() == Some(why) {
            return Ok(());
        }
        self.migs.counts.quarantined.add(Duration::ZERO);
        let text = format!("{label} of GPU {}: {why}", self.index(&slot.gpu));
        tracing::warn!("{text}");
        self.record_event(job, "mig_quarantined", &text)
    }
}
