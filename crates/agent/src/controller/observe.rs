//! Taking over what the driver says: what is ours, what is a stranger's, what is gone.

pub(super) mod limiter_alarms;
pub(super) mod reconcile;
pub(super) mod unjournaled;
pub(super) mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_core::job::StopReason;
use divvy_core::{GpuUuid, Grant, JobId, JobState as Life, Mode};

use super::{ActiveJob, Controller};
use crate::gpu::FaultyGpu;
use crate::gpu::sample::{NodeSample, SliceReading};
use crate::gpu::slice::Tampering;
use crate::host::error::error_chain;
use crate::journal::StoreError;

/// How long the driver may take over one look. It takes milliseconds, and seconds where a GPU has to be woken for it.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);

impl Controller {
    /// Takes over a look: tends the slices, weighs their accounts, sees what GPUs there are.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn apply_sample(&mut self, look: &NodeSample) -> Result<(), StoreError> {
        self.observation_error = None;
        self.unobserved_gpus = Some(self.unobserved_held_gpus(look));
        for (id, book) in &look.ledgers {
            if let Some(living) = self.jobs.get_mut(id) {
                maintain_slice(*id, living, look, book);
                self.repair_control_file(*id)?;
            }
        }
        self.apply_alarms(look)?;
        self.reconcile(look)?;
        self.meter(look);
        self.reclaim_released()?;
        self.update_gpu_health(look)?;
        for seen in &look.gpus {
            self.assign(&seen.observed.uuid)?;
        }
        Ok(())
    }

    /// Puts a slice's control file right where its job has changed it, which is said once.
    fn repair_control_file(&mut self, id: JobId) -> Result<(), StoreError> {
        let living = self.jobs.get_mut(&id);
        let Some(slice) = living.and_then(|living| living.slice.as_mut()) else {
            return Ok(());
        };
        let (found, then) = match slice.repair() {
            Ok(None) => return Ok(()),
            Ok(Some(found)) => {
                if found == Tampering::Replaced {
                    // The thread of turns has the other file open.
                    self.compute_scheduler.remove_slice(id);
                    self.apply_limits(id);
                }
                (found, "the daemon restored it".to_owned())
            }
            Err(error) => {
                let why = format!("the daemon cannot restore it: {}", error_chain(&error));
                (Tampering::Replaced, why)
            }
        };
        if let Some(living) = self.jobs.get_mut(&id)
            && !std::mem::replace(&mut living.tampered, true)
        {
            let text = format!(
                "a process other than the daemon changed the slice's control file: {found}; {then}"
            );
            tracing::warn!(job = %id, "{text}");
            self.record_event(Some(id), "tampered", &text)?;
        }
        Ok(())
    }

    /// The GPUs cannot be observed: none is given out, and jobs keep what they hold.
    pub(super) fn observation_failed(&mut self, why: String) -> Result<(), StoreError> {
        if self.observation_error.as_ref() != Some(&why) {
            tracing::error!(%why, "the GPUs cannot be observed");
            self.record_event(None, "gpu_error", &why)?;
            let trouble = FaultyGpu {
                index: 0,
                uuid: None,
                message: why.clone(),
                is_lost: false,
            };
            self.observation_error = Some(why);
            self.update_gpu_health(&NodeSample {
                troubles: vec![trouble],
                ..NodeSample::default()
            })?;
        }
        Ok(())
    }

    /// Does not wait for a driver that does not answer.
    ///
    /// # Errors
    /// When the journal fails.
    pub(super) fn check_driver_timeout(&mut self) -> Result<(), StoreError> {
        match self.observer.unresponsive_for() {
            Some(silent) if silent > DRIVER_TIMEOUT => {
                let seconds = DRIVER_TIMEOUT.as_secs();
                self.observation_failed(format!("the driver has not responded for {seconds} s"))
            }
            _ => Ok(()),
        }
    }

    /// A GPU that does not answer is given out no more. Jobs on one that is lost are ended; on one that only makes trouble they
    /// keep what they hold.
    fn update_gpu_health(&mut self, look: &NodeSample) -> Result<(), StoreError> {
        let mut news = Vec::new();
        for device in &mut self.devices {
            let uuid = &device.gpu.uuid;
            let answers = answers(look, uuid);
            device.is_lost = is_lost(look, uuid);
            let mode = if answers {
                device.assigned
            } else {
                Mode::Unmanaged
            };
            if device.gpu.away == answers {
                (device.gpu.mode, device.gpu.away) = (mode, !answers);
                let index = device.gpu.index;
                let why = match trouble(look, uuid) {
                    Some(trouble) => format!(": {}", trouble.message),
                    None => String::new(),
                };
                news.push(match answers {
                    true => (
                        "gpu_recovered",
                        format!("GPU {index} ({uuid}) responds again"),
                    ),
                    false => (
                        "gpu_lost",
                        format!(
                            "GPU {index} ({uuid}) does not respond and is no longer available to jobs{why}"
                        ),
                    ),
                });
            }
        }
        for (kind, text) in news {
            tracing::warn!("{text}");
            self.record_event(None, kind, &text)?;
            self.effects.replan = true;
        }
        self.end_those_on_lost_gpus(look)
    }

    /// GPUs that somebody holds of which a look does not show who is on them. On one that is lost is nobody.
    fn unobserved_held_gpus(&mut self, look: &NodeSample) -> BTreeSet<GpuUuid> {
        let mut unseen = BTreeSet::new();
        if look.troubles.is_empty() && !look.gpus.iter().any(|seen| seen.observed.hides_processes())
        {
            return unseen;
        }
        self.for_each_active(|_, living| {
            let held = living.job.state.grants().iter().map(|grant| &grant.gpu);
            let held = held.filter(|gpu| !lists_processes(look, gpu) && !is_lost(look, gpu));
            unseen.extend(held.cloned());
        });
        unseen
    }

    /// Whether nobody knows who is on what a job holds. Of what no look has shown since this daemon started it is none of its devices.
    pub(super) fn is_unobserved(&self, id: JobId) -> bool {
        let living = self.jobs.get(&id).into_iter();
        let mut held = living.flat_map(|one| one.job.state.grants());
        self.observation_error.is_some()
            || self
                .unobserved_gpus
                .as_ref()
                .is_none_or(|unseen| held.any(|grant| unseen.contains(&grant.gpu)))
    }

    /// What was on a GPU that has fallen off the bus is gone, and whoever waits for it waits for ever. Two looks have to say so.
    fn end_those_on_lost_gpus(&mut self, look: &NodeSample) -> Result<(), StoreError> {
        let busy = self.active_jobs();
        let living = || busy.iter().filter_map(|id| self.jobs.get(id));
        // What is aside is on none, and waits for it to be back.
        let held = living().filter(|one| one.job.holds());
        let held = held.flat_map(|one| one.job.state.grants());
        let lost: BTreeMap<GpuUuid, u32> = held
            .filter(|grant| is_lost(look, &grant.gpu))
            .map(|grant| (grant.gpu.clone(), grant.index))
            .collect();
        if lost.is_empty() && self.lost_gpus.is_empty() {
            return self.report_claims_on_lost_gpus(&lost);
        }
        let before = std::mem::replace(&mut self.lost_gpus, lost.keys().cloned().collect());
        let on = |living: &ActiveJob| {
            let mut grants = living.job.state.grants().iter();
            let is_on =
                |grant: &&Grant| lost.contains_key(&grant.gpu) && before.contains(&grant.gpu);
            grants.find(is_on).map(|grant| grant.index)
        };
        let ended: Vec<(JobId, u32)> = self
            .jobs
            .iter()
            .filter(|(_, living)| !matches!(living.job.state, Life::Stopping { .. }))
            .filter(|(_, living)| living.job.claim().is_none() && living.job.holds())
            .filter_map(|(id, living)| Some((*id, on(living)?)))
            .collect();
        let mut still = lost;
        still.retain(|gpu, _| before.contains(gpu));
        self.report_claims_on_lost_gpus(&still)?;
        for (id, index) in ended {
            self.stop_job(id, StopReason::GpuLost, format!("GPU {index} is lost"))?;
        }
        Ok(())
    }
}

/// What a GPU that does not answer said.
fn trouble<'a>(look: &'a NodeSample, uuid: &GpuUuid) -> Option<&'a FaultyGpu> {
    let mut troubles = look.troubles.iter();
    troubles.find(|trouble| trouble.uuid.as_ref() == Some(uuid))
}

fn answers(look: &NodeSample, uuid: &GpuUuid) -> bool {
    look.gpus.iter().any(|seen| seen.observed.uuid == *uuid)
}

fn lists_processes(look: &NodeSample, uuid: &GpuUuid) -> bool {
    let mut there = look.gpus.iter().map(|seen| &seen.observed);
    there.any(|gpu| gpu.uuid == *uuid && !gpu.hides_processes())
}

/// Whether a GPU is not there any more: it does not answer, and is none of those that may again.
fn is_lost(look: &NodeSample, uuid: &GpuUuid) -> bool {
    // One that never answered since this agent started has no name, and may be any that nothing else is said of.
    let nameless = |trouble: &FaultyGpu| !trouble.is_lost && trouble.uuid.is_none();
    let may_again = match trouble(look, uuid) {
        Some(said) => !said.is_lost,
        None => look.troubles.iter().any(nameless),
    };
    !answers(look, uuid) && !may_again
}

/// Shows the slice's processes that the agent lives, and gives back what the dead among them held.
fn maintain_slice(id: JobId, living: &mut ActiveJob, look: &NodeSample, book: &SliceReading) {
    let Some(held) = &living.slice else { return };
    held.heartbeat();
    let tended = match &book.snapshots {
        Ok(pages) if pages.has_dead => held
            .reap(&|owner| look.is_listed(owner))
            .map_err(|error| error.to_string()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.clone()),
    };
    if let Err(error) = tended
        && !std::mem::replace(&mut living.damaged, true)
    {
        tracing::error!(job = %id, error, "cannot read the job's slice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_gpu_decides_and_otherwise_a_nameless_one_may_be_it() {
        let gpu: GpuUuid = "GPU-00000000-0000-0000-0000-000000000001".parse().unwrap();
        let trouble = |uuid: Option<&GpuUuid>, lost| FaultyGpu {
            index: 0,
            uuid: uuid.cloned(),
            message: "unknown error".to_owned(),
            is_lost: lost,
        };
        let lost = |troubles: &[FaultyGpu]| {
            let look = NodeSample {
                troubles: troubles.to_vec(),
                ..NodeSample::default()
            };
            is_lost(&look, &gpu)
        };
        assert!(lost(&[]), "the driver lists it no more");
        assert!(lost(&[trouble(Some(&gpu), true)]));
        assert!(!lost(&[trouble(Some(&gpu), false)]));
        assert!(!lost(&[trouble(None, false)]));
        assert!(lost(&[trouble(None, true)]));
        let other_is_ill = trouble(None, false);
        assert!(lost(&[other_is_ill, trouble(Some(&gpu), true)]));
    }
}
