//! Taking over what the driver says: what is ours, what is a stranger's, what is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use divvy_core::job::Stop;
use divvy_core::{GpuUuid, Grant, Job as Life, JobId, Mode};

use super::{Cycle, Living};
use crate::gpu::Trouble;
use crate::gpu::look::{Book, Look};
use crate::gpu::slice::Tampering;
use crate::store::StoreError;
use crate::supervise::chain;

/// How long the driver may take over one look. It takes milliseconds, and seconds where a GPU has to be woken for it.
const SILENCE: Duration = Duration::from_secs(5);

impl Cycle {
    /// Takes over a look: tends the slices, weighs their accounts, sees what GPUs there are.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn observed(&mut self, look: &Look) -> Result<(), StoreError> {
        self.blind = None;
        self.unseen = Some(self.held_and_unseen(look));
        for (id, book) in &look.books {
            if let Some(living) = self.jobs.get_mut(id) {
                tend(*id, living, look, book);
                self.mend(*id)?;
            }
        }
        self.hear(look)?;
        self.reconcile(look)?;
        self.meter(look);
        self.take_what_is_given_up()?;
        self.lost_and_found(look)?;
        for seen in &look.gpus {
            self.assign(&seen.observed.uuid)?;
        }
        Ok(())
    }

    /// Puts a slice's control file right where its job has changed it, which is said once.
    fn mend(&mut self, id: JobId) -> Result<(), StoreError> {
        let living = self.jobs.get_mut(&id);
        let Some(slice) = living.and_then(|living| living.slice.as_mut()) else {
            return Ok(());
        };
        let (found, then) = match slice.mend() {
            Ok(None) => return Ok(()),
            Ok(Some(found)) => {
                if found == Tampering::Replaced {
                    // The thread of turns has the other file open.
                    self.keeper.release(id);
                    self.apply_limits(id);
                }
                (found, "the daemon restored it".to_owned())
            }
            Err(error) => {
                let why = format!("the daemon cannot restore it: {}", chain(&error));
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
            self.tell(Some(id), "tampered", &text)?;
        }
        Ok(())
    }

    /// The GPUs cannot be observed: none is given out, and jobs keep what they hold.
    pub(super) fn blinded(&mut self, why: String) -> Result<(), StoreError> {
        if self.blind.as_ref() != Some(&why) {
            tracing::error!(%why, "the GPUs cannot be observed");
            self.tell(None, "gpu_error", &why)?;
            let trouble = Trouble {
                index: 0,
                uuid: None,
                what: why.clone(),
                lost: false,
            };
            self.blind = Some(why);
            self.lost_and_found(&Look {
                troubles: vec![trouble],
                ..Look::default()
            })?;
        }
        Ok(())
    }

    /// Does not wait for a driver that does not answer.
    ///
    /// # Errors
    /// When the journal fails.
    pub(super) fn look_for_silence(&mut self) -> Result<(), StoreError> {
        match self.observer.silent_for() {
            Some(silent) if silent > SILENCE => {
                let seconds = SILENCE.as_secs();
                self.blinded(format!("the driver has not responded for {seconds} s"))
            }
            _ => Ok(()),
        }
    }

    /// A GPU that does not answer is given out no more. Jobs on one that is lost are ended; on one that only makes trouble they
    /// keep what they hold.
    fn lost_and_found(&mut self, look: &Look) -> Result<(), StoreError> {
        let mut news = Vec::new();
        for device in &mut self.devices {
            let uuid = &device.gpu.uuid;
            let answers = answers(look, uuid);
            device.gone = is_lost(look, uuid);
            let mode = if answers {
                device.assigned
            } else {
                Mode::Unmanaged
            };
            if device.gpu.away == answers {
                (device.gpu.mode, device.gpu.away) = (mode, !answers);
                let index = device.gpu.index;
                let why = match trouble(look, uuid) {
                    Some(trouble) => format!(": {}", trouble.what),
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
            self.tell(None, kind, &text)?;
            self.round.replan = true;
        }
        self.end_those_on_lost_gpus(look)
    }

    /// GPUs that somebody holds of which a look does not show who is on them. On one that is lost is nobody.
    fn held_and_unseen(&mut self, look: &Look) -> BTreeSet<GpuUuid> {
        let mut unseen = BTreeSet::new();
        if look.troubles.is_empty()
            && !look
                .gpus
                .iter()
                .any(|seen| seen.observed.hides_who_is_there())
        {
            return unseen;
        }
        self.each_busy(|_, living| {
            let held = living.job.life.grants().iter().map(|grant| &grant.gpu);
            let held = held.filter(|gpu| !shows_who_is_there(look, gpu) && !is_lost(look, gpu));
            unseen.extend(held.cloned());
        });
        unseen
    }

    /// Whether nobody knows who is on what a job holds. Of what no look has shown since this daemon started it is none of its devices.
    pub(super) fn is_not_seen(&self, id: JobId) -> bool {
        let living = self.jobs.get(&id).into_iter();
        let mut held = living.flat_map(|one| one.job.life.grants());
        self.blind.is_some()
            || self
                .unseen
                .as_ref()
                .is_none_or(|unseen| held.any(|grant| unseen.contains(&grant.gpu)))
    }

    /// What was on a GPU that has fallen off the bus is gone, and whoever waits for it waits for ever. Two looks have to say so.
    fn end_those_on_lost_gpus(&mut self, look: &Look) -> Result<(), StoreError> {
        let busy = self.busy();
        let living = || busy.iter().filter_map(|id| self.jobs.get(id));
        // What is aside is on none, and waits for it to be back.
        let held = living().filter(|one| one.job.holds());
        let held = held.flat_map(|one| one.job.life.grants());
        let lost: BTreeMap<GpuUuid, u32> = held
            .filter(|grant| is_lost(look, &grant.gpu))
            .map(|grant| (grant.gpu.clone(), grant.index))
            .collect();
        if lost.is_empty() && self.lost.is_empty() {
            return self.claims_on_lost_gpus(&lost);
        }
        let before = std::mem::replace(&mut self.lost, lost.keys().cloned().collect());
        let on = |living: &Living| {
            let mut grants = living.job.life.grants().iter();
            let is_on =
                |grant: &&Grant| lost.contains_key(&grant.gpu) && before.contains(&grant.gpu);
            grants.find(is_on).map(|grant| grant.index)
        };
        let ended: Vec<(JobId, u32)> = self
            .jobs
            .iter()
            .filter(|(_, living)| !matches!(living.job.life, Life::Stopping { .. }))
            .filter(|(_, living)| living.job.claim().is_none() && living.job.holds())
            .filter_map(|(id, living)| Some((*id, on(living)?)))
            .collect();
        let mut still = lost;
        still.retain(|gpu, _| before.contains(gpu));
        self.claims_on_lost_gpus(&still)?;
        for (id, index) in ended {
            self.stop_job(id, Stop::GpuLost, format!("GPU {index} is lost"))?;
        }
        Ok(())
    }
}

/// What a GPU that does not answer said.
fn trouble<'a>(look: &'a Look, uuid: &GpuUuid) -> Option<&'a Trouble> {
    let mut troubles = look.troubles.iter();
    troubles.find(|trouble| trouble.uuid.as_ref() == Some(uuid))
}

fn answers(look: &Look, uuid: &GpuUuid) -> bool {
    look.gpus.iter().any(|seen| seen.observed.uuid == *uuid)
}

fn shows_who_is_there(look: &Look, uuid: &GpuUuid) -> bool {
    let mut there = look.gpus.iter().map(|seen| &seen.observed);
    there.any(|gpu| gpu.uuid == *uuid && !gpu.hides_who_is_there())
}

/// Whether a GPU is not there any more: it does not answer, and is none of those that may again.
fn is_lost(look: &Look, uuid: &GpuUuid) -> bool {
    // One that never answered since this agent started has no name, and may be any that nothing else is said of.
    let nameless = |trouble: &Trouble| !trouble.lost && trouble.uuid.is_none();
    let may_again = match trouble(look, uuid) {
        Some(said) => !said.lost,
        None => look.troubles.iter().any(nameless),
    };
    !answers(look, uuid) && !may_again
}

/// Shows the slice's processes that the agent lives, and gives back what the dead among them held.
fn tend(id: JobId, living: &mut Living, look: &Look, book: &Book) {
    let Some(held) = &living.slice else { return };
    held.beat();
    let tended = match &book.pages {
        Ok(pages) if pages.has_dead => held
            .reap(&|owner| look.lists(owner))
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
        let trouble = |uuid: Option<&GpuUuid>, lost| Trouble {
            index: 0,
            uuid: uuid.cloned(),
            what: "unknown error".to_owned(),
            lost,
        };
        let lost = |troubles: &[Trouble]| {
            let look = Look {
                troubles: troubles.to_vec(),
                ..Look::default()
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
