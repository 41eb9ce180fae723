//! What has become of an order: an instance is handed over, made anew, kept apart, forgotten; its job goes on or back.

use std::time::Duration;

use divvy_core::JobId;
use divvy_core::mig::recover::Stage;

use super::{Why, overlap};
use crate::clock::{Instant, now};
use crate::cycle::Cycle;
use crate::failpoint::reach;
use crate::mig::{Failure, Made, Outcome, Report, Slot};
use crate::store::StoreError;

/// How often a job's instances may be refused, where nobody is in the way, before the job is given up.
const REFUSALS: u32 = 3;

impl Cycle {
    /// Takes over what has become of an order.
    pub(in crate::cycle) fn reported(&mut self, report: Report) -> Result<(), StoreError> {
        let of_gpu = self.migs.gpu(&report.gpu);
        of_gpu.outstanding = of_gpu.outstanding.saturating_sub(1);
        of_gpu.epoch = of_gpu.epoch.max(report.epoch);
        if let Some(slot) = report.result.slot() {
            self.migs.busy.remove(slot);
        }
        self.round.replan = true;
        // The next look is to show it.
        self.observer.hurry();
        match report.result {
            Outcome::Made {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => match result {
                Ok(made) => self.made(&slot, made, report.took),
                Err(failure) => self.not_made(&slot, &failure),
            },
            Outcome::Checked {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => match result {
                Ok(true) => self.reused(&slot, report.took),
                // Whoever was to have it may have let go of it meanwhile: it is of no use to the next, either.
                Ok(false) => self.destroy(&slot, Why::Unclean),
                Err(failure) => self.not_checked(&slot, &failure),
            },
            Outcome::Unmade {
                slot,
                generation,
                result,
            } if self.is_of(&slot, generation) => {
                self.unmade(&slot, generation, result, report.took)
            }
            Outcome::Made { slot, .. }
            | Outcome::Checked { slot, .. }
            | Outcome::Unmade { slot, .. } => {
                tracing::error!(%slot, "ignoring a report about an unknown MIG instance");
                Ok(())
            }
            Outcome::Mode { on, result } => self.mode_set(&report.gpu, on, result),
        }
    }

    fn is_of(&self, slot: &Slot, generation: u64) -> bool {
        let instance = self.migs.instances.get(slot);
        instance.is_some_and(|instance| instance.generation == generation)
    }

    fn made(&mut self, slot: &Slot, made: Made, took: Duration) -> Result<(), StoreError> {
        reach("mig.create.done");
        self.round.points.push("mig.create.kept");
        if let Some(instance) = self.migs.instances.get_mut(slot) {
            instance.stage = Stage::Ready;
            instance.made = Some(made);
            instance.since = now();
        }
        self.migs.counts.created.add(took);
        self.handed_over(slot, "mig_created", "created", took)
    }

    fn reused(&mut self, slot: &Slot, took: Duration) -> Result<(), StoreError> {
        reach("mig.reuse.done");
        self.round.points.push("mig.reuse.kept");
        if self.heir(slot).is_none() {
            // It is as idle as it was.
            return Ok(());
        }
        self.migs.counts.reused.add(took);
        self.handed_over(slot, "mig_reused", "reused", took)
    }

    /// An instance is there for its job, if it still has one.
    fn handed_over(
        &mut self,
        slot: &Slot,
        kind: &str,
        verb: &str,
        took: Duration,
    ) -> Result<(), StoreError> {
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        let (label, job) = (instance.label(), instance.job);
        let mut ready = None;
        if let Some(living) = heir.and_then(|job| self.jobs.get_mut(&job)) {
            living.awaits.remove(slot);
            // From here on a program of this tenant may run in it.
            instance.user = Some(living.job.tenant());
            if living.awaits.is_empty() {
                living.refusals = 0;
                ready = heir;
            }
        }
        self.store.save_mig(instance)?;
        self.migs.gpu(&slot.gpu).in_use = 0;
        let text = format!(
            "{label} of GPU {} {verb} in {} ms",
            self.index(&slot.gpu),
            took.as_millis()
        );
        tracing::info!(?job, "{text}");
        self.tell(job, kind, &text)?;
        ready.map_or(Ok(()), |id| self.ready(id))
    }

    fn not_made(&mut self, slot: &Slot, failure: &Failure) -> Result<(), StoreError> {
        // Whoever is in the way goes some day.
        let waits = failure.is_in_use() || (!failure.is_final() && self.is_blocked(slot));
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        let (label, job) = (instance.label(), instance.job.take());
        let text = format!("{label} of GPU {}: {failure}", self.index(&slot.gpu));
        match failure {
            Failure::Refused { .. } => {
                self.migs.instances.remove(slot);
                self.store.forget_mig(slot)?;
                let place = (!failure.is_in_use()).then_some(slot.placement);
                self.keep_off(&slot.gpu, place, failure.is_in_use());
                tracing::warn!(?job, "{text}");
                self.tell(job, "mig_create_failed", &text)?;
            }
            Failure::Stuck(why) => self.quarantine(slot, &why.clone())?,
        }
        match heir {
            Some(job) if waits => self.put_back(job, &text),
            Some(job) => self.set_back(job, &text, failure.is_final()),
            None => Ok(()),
        }
    }

    /// Whether one of ours that cannot be destroyed lies where another was to be. It is in every plan, so nobody is sent there again
    /// before it is gone.
    fn is_blocked(&self, slot: &Slot) -> bool {
        let sized = |slot: &Slot| (slot.placement, self.size(slot));
        let mut ours = self.migs.instances.values();
        ours.any(|other| {
            other.stage == Stage::Quarantined
                && other.slot.gpu == slot.gpu
                && overlap(sized(&other.slot), sized(slot))
        })
    }

    /// Nobody knows whether an instance is clean, and nothing was done to it: it stays as it is, and is given to nobody for a time.
    fn not_checked(&mut self, slot: &Slot, failure: &Failure) -> Result<(), StoreError> {
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.job = None;
        self.store.save_mig(instance)?;
        let label = instance.label();
        self.keep_off(&slot.gpu, Some(slot.placement), true);
        let text = format!(
            "cannot inspect {label} of GPU {}: {failure}",
            self.index(&slot.gpu)
        );
        tracing::warn!(job = ?heir, "{text}");
        heir.map_or(Ok(()), |job| self.put_back(job, &text))
    }

    /// Puts a job back that cannot have what it was to have, or gives it up: where that is final, or has come too often.
    pub(super) fn set_back(
        &mut self,
        id: JobId,
        why: &str,
        is_final: bool,
    ) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.refusals += 1;
        if is_final || living.refusals >= REFUSALS {
            living.awaits.clear();
            self.withdraw(id, why);
            return Ok(());
        }
        self.put_back(id, why)
    }

    fn unmade(
        &mut self,
        slot: &Slot,
        generation: u64,
        result: Result<bool, Failure>,
        took: Duration,
    ) -> Result<(), StoreError> {
        reach("mig.destroy.done");
        self.round.points.push("mig.destroy.kept");
        let why = self.migs.leaving.remove(&generation);
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get(slot) else {
            return Ok(());
        };
        let (job, name, label) = (instance.job, instance.name, instance.label());
        match result {
            Err(failure) => return self.not_unmade(slot, &failure),
            Ok(false) => self.forget(slot, job, "no longer exists")?,
            Ok(true) => {
                self.migs.instances.remove(slot);
                self.store.forget_mig(slot)?;
                let counts = &mut self.migs.counts;
                match why {
                    Some(Why::Room) => counts.reclaimed.add(took),
                    _ => counts.destroyed.add(took),
                }
                let text = format!(
                    "{label} of GPU {} destroyed in {} ms, {}",
                    self.index(&slot.gpu),
                    took.as_millis(),
                    why.unwrap_or(Why::Remains).words()
                );
                tracing::info!("{text}");
                self.tell(job, "mig_destroyed", &text)?;
            }
        }
        heir.map_or(Ok(()), |job| self.make(slot, name, job))
    }

    /// Whoever was to have the place gets another, or waits: nobody is sent here again before it is gone.
    fn not_unmade(&mut self, slot: &Slot, failure: &Failure) -> Result<(), StoreError> {
        let heir = self.heir(slot);
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.job = None;
        let label = instance.label();
        self.quarantine(slot, &failure.to_string())?;
        let text = format!("{label} of GPU {}: {failure}", self.index(&slot.gpu));
        heir.map_or(Ok(()), |job| self.put_back(job, &text))
    }

    /// Nobody gets it until it is as it should be, or gone.
    pub(super) fn quarantine(&mut self, slot: &Slot, why: &str) -> Result<(), StoreError> {
        let Some(instance) = self.migs.instances.get_mut(slot) else {
            return Ok(());
        };
        instance.stage = Stage::Quarantined;
        let said = instance.reason.replace(why.to_owned());
        self.store.save_mig(instance)?;
        let (label, job) = (instance.label(), instance.job);
        let of_gpu = self.migs.gpu(&slot.gpu);
        of_gpu.tried.insert(slot.placement, Instant::now());
        if said.as_deref() == Some(why) {
            return Ok(());
        }
        self.migs.counts.quarantined.add(Duration::ZERO);
        let text = format!("{label} of GPU {}: {why}", self.index(&slot.gpu));
        tracing::warn!("{text}");
        self.tell(job, "mig_quarantined", &text)
    }
}
