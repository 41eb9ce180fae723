//! Claims: what another scheduler has given to somebody here, held exactly as it says until it is given back.
//!
//! ```text
//! PUT ──► placed or refused ──► journal ──► MIG instances ──► slice, files, CDI device ──► journal: lent ──► answer
//! DELETE ──► journal: stopping ──► nobody left? ──► device, slice, instances go ──► journal: ended
//! ```
//! A claim is a job that has no program and no supervisor. Nothing is answered for one that is not lent yet, so a daemon that finds
//! one begun by another takes it back, and whoever asked asks again. One that is lent ends when it is given back, or when the machine
//! was started anew since: nothing else that happens to a job happens to it.

mod files;
mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_api::v1::{self, Error, ErrorCode, Runner};
use divvy_core::exact::place_exactly;
use divvy_core::job::{Event, Gone, Stop};
use divvy_core::{GpuUuid, Job as Life, JobId, QueueName};

use super::mig::is_divided;
use super::start::{cut, overheads};
use super::{Cycle, place};
use crate::access::Caller;
use crate::claim::{self, Asked, Claim};
use crate::clock::now;
use crate::container::cdi;
use crate::failpoint::reach;
use crate::gpu::slice::HeldSlice;
use crate::intake::budget;
use crate::job::{Ask, Job, NewJob, Submitter};
use crate::records::{Exit, Outcome};
use crate::store::StoreError;
use crate::supervise::chain;
use crate::terms::Terms;

impl Job {
    /// What it is the claim of, where it is one.
    pub fn claim(&self) -> Option<&Claim> {
        self.ask.terms.claim.as_deref()
    }

    /// Whose programs run in what it holds. Whoever brings claims is one account for everybody, so of a claim it is its namespace,
    /// in a form that no account's name has.
    pub(super) fn tenant(&self) -> String {
        match self.claim() {
            Some(claim) => format!("{}/", claim.namespace),
            // A front end names users as it likes.
            None => self.ask.user.trim_end_matches('/').to_owned(),
        }
    }
}

impl Cycle {
    pub(super) fn is_claim(&self, id: JobId) -> bool {
        let living = self.jobs.get(&id);
        living.is_some_and(|living| living.job.claim().is_some())
    }

    /// The living job that is this claim.
    pub(super) fn claimed(&self, uid: &str) -> Option<JobId> {
        let mut jobs = self.jobs.values().map(|living| &living.job);
        let job = jobs.find(|job| job.claim().is_some_and(|claim| claim.uid == uid))?;
        Some(job.id)
    }

    /// What is said to whoever would do to a claim what is done to jobs.
    pub(super) fn not_of_claims(&self, id: JobId, what: &str) -> Option<Error> {
        let living = self.jobs.get(&id)?;
        let claim = living.job.claim()?;
        let why = format!(
            "job {id} is the claim {} of another scheduler, and cannot be {what} here",
            claim.label()
        );
        Some(Error::new(ErrorCode::Conflict, why).hint(
            "delete its pods with `kubectl delete pod`; `kubectl describe resourceclaim` lists them",
        ))
    }

    /// That no program which uses CUDA starts in what it holds, where that is known. A claim is legal all the same.
    fn below_context(&self, job: &Job) -> Option<String> {
        job.life.grants().iter().find_map(|grant| {
            let mut gpus = self.devices.iter().map(|device| &device.gpu);
            let context = gpus.find(|gpu| gpu.uuid == grant.gpu)?.context;
            let is_small = grant.mig.is_none() && grant.memory < context;
            is_small.then(|| {
                let (limit, context, index) = (grant.memory.human(), context.human(), grant.index);
                format!(
                    "its limit is {limit}, but a CUDA context alone takes {context} of GPU {index}"
                )
            })
        })
    }

    /// Holds what a claim says, or refuses it; the same again is the one that is held.
    pub(super) fn hold_claim(
        &mut self,
        uid: &str,
        body: v1::Claim,
        by: &Caller,
    ) -> Result<Result<JobId, Error>, StoreError> {
        let asked = match claim::asked(uid, body, &self.migs.boot) {
            Ok(asked) => asked,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(id) = self.claimed(uid) {
            return self.hold_again(id, &asked);
        }
        let placed = match place_exactly(&self.snapshot(), &asked.devices) {
            Ok(placed) => placed,
            Err(misfit) => return Ok(Err(claim::refusal(&misfit))),
        };
        let Asked { claim, request, .. } = asked;
        let new = NewJob {
            ask: Ask {
                name: claim.label(),
                user: by.account.name.clone(),
                by: Submitter {
                    uid: by.account.uid,
                    gid: by.account.gid,
                },
                project: None,
                queue: QueueName::default_queue(),
                request,
                runner: Runner::Claim,
                command: Vec::new(),
                container: None,
                cwd: "/".to_owned(),
                terms: Terms {
                    claim: Some(Box::new(claim)),
                    ..Terms::default()
                },
                secrets: Vec::new(),
            },
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            key: None,
            at: now(),
            hold: None,
        };
        let mut job = self.store.insert(&new)?;
        let id = job.id;
        job.place(placed.grants);
        self.store.hold(&job)?;
        self.store.save(&job)?;
        let mut text = format!("{}: {}", new.ask.name, place::labels(&job));
        if let Some(warning) = self.below_context(&job) {
            tracing::warn!(job = %id, "{warning}");
            text = format!("{text}; {warning}");
        }
        self.enter(job, budget::of_new(&new));
        self.tell(Some(id), "allocated", &text)?;
        reach("claim.intent");
        self.round.points.push("claim.kept");
        if self.claim(id, &placed.reclaim)? {
            self.ready(id)?;
        }
        self.round.replan = true;
        Ok(Ok(id))
    }

    /// The same claim once more: what is missing of its files is made anew.
    fn hold_again(&mut self, id: JobId, asked: &Asked) -> Result<Result<JobId, Error>, StoreError> {
        let conflict =
            |why: String, hint: &str| Ok(Err(Error::new(ErrorCode::Conflict, why).hint(hint)));
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(Ok(id));
        };
        let job = &mut living.job;
        let Some(claim) = job.claim() else {
            return Ok(Ok(id));
        };
        let uid = &claim.uid;
        if matches!(job.life, Life::Stopping { .. }) {
            let why = format!("claim {uid} is still being released");
            return conflict(why, "try again in a moment");
        }
        if !claim.is_like(&asked.claim) || job.ask.request.compute != asked.request.compute {
            let why = format!("claim {uid} is already allocated, with other devices or settings");
            let hint = format!("release it first: DELETE /v1/claims/{uid}");
            return conflict(why, &hint);
        }
        if claim.pods != asked.claim.pods {
            let ask = Arc::make_mut(&mut job.ask);
            ask.terms.claim = Some(Box::new(Claim {
                boot: self.migs.boot.clone(),
                ..asked.claim.clone()
            }));
            let job = job.clone();
            self.store.save_amended(&job, &BTreeMap::new())?;
            self.round.changed.insert(id);
        }
        let is_lent = self
            .jobs
            .get(&id)
            .is_some_and(|one| matches!(one.job.life, Life::Lent { .. }));
        if is_lent && let Err(error) = self.lay(id) {
            let why = format!("cannot create the claim's files again: {}", chain(&error));
            tracing::error!(job = %id, "{why}");
            return Ok(Err(Error::new(ErrorCode::LaunchFailed, why)));
        }
        Ok(Ok(id))
    }

    /// Has a claim given back; nothing for one that is not held.
    pub(super) fn release_claim(&mut self, uid: &str) -> Result<Option<JobId>, StoreError> {
        let Some(id) = self.claimed(uid) else {
            return Ok(None);
        };
        self.stop_job(id, Stop::Release, "released")?;
        self.round.points.push("claim.released");
        Ok(Some(id))
    }

    /// Makes what a claim that has its grants is used through; the next round journals it.
    pub(super) fn lend(&mut self, id: JobId) {
        match self.lay(id) {
            Ok(()) => {
                if let Some(living) = self.jobs.get_mut(&id) {
                    living.laid = true;
                }
                self.round.again.push(id);
            }
            Err(error) => self.give_up_claim(id, &chain(&error)),
        }
    }

    /// A claim cannot have what it was to have.
    pub(super) fn give_up_claim(&mut self, id: JobId, why: &str) {
        tracing::error!(job = %id, why, "cannot allocate the claim");
        if let Some(living) = self.jobs.get_mut(&id) {
            living.awaits.clear();
            living.failed = Some(Exit {
                outcome: Outcome::Withdrawn {
                    withdrawn: why.to_owned(),
                },
                at: now(),
            });
        }
        self.round.again.push(id);
    }

    /// Looks at how far a claim has come.
    pub(super) fn look_at_claim(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let failed = living.failed.as_ref().map(|exit| match &exit.outcome {
            Outcome::Withdrawn { withdrawn } => withdrawn.clone(),
            other => format!("{other:?}"),
        });
        match (&living.job.life, failed) {
            (Life::Starting { .. }, Some(why)) => {
                let gone = Event::Gone(Gone::LaunchFailed(why.clone()));
                self.end_claim(id, gone, &why)
            }
            (Life::Starting { .. }, None) if living.laid => self.lent(id),
            (Life::Stopping { .. }, _) => match self.is_not_seen(id) || self.is_held(id)? {
                true => {
                    self.round.reached.push(id);
                    Ok(())
                }
                false => self.end_claim(id, Event::Gone(Gone::Exited(0)), ""),
            },
            (Life::Queued | Life::Starting { .. } | Life::Running { .. }, _)
            | (Life::Lent { .. } | Life::Ended { .. }, _) => Ok(()),
        }
    }

    /// The name of a claim's device.
    pub(super) fn device_of(&self, id: JobId) -> Option<String> {
        let claim = self.jobs.get(&id)?.job.claim()?;
        Some(self.cdi_name_of(claim))
    }

    /// Everything of it is there: it is the other scheduler's from here on.
    fn lent(&mut self, id: JobId) -> Result<(), StoreError> {
        let device = self.device_of(id).map(|name| cdi::device(&name));
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.step(Event::Lent);
        living.job.started_at = Some(now());
        let job = living.job.clone();
        self.store.save(&job)?;
        self.round.changed.insert(id);
        self.round.reached.push(id);
        self.round.points.push("claim.lent");
        let device = device.unwrap_or_default();
        let text = format!("CDI device {device}: {}", place::labels(&job));
        self.tell(Some(id), "running", &text)
    }

    /// Takes a claim's device, slice and instances, and journals its end.
    fn end_claim(&mut self, id: JobId, event: Event, why: &str) -> Result<(), StoreError> {
        self.keep_traces(id)?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.reason = Some(why.to_owned()).filter(|why| !why.is_empty());
        living.job.ended_at = Some(now());
        living.job.step(event);
        living.awaits.clear();
        self.journal_metered(id)?;
        if let Some(name) = self.device_of(id)
            && let Err(error) = cdi::remove(&self.cdi_folder(), &name)
        {
            tracing::warn!(job = %id, %error, "cannot remove the claim's CDI file; it stays until the next start");
        }
        self.free_slice(id);
        reach("claim.freed");
        self.let_go(id)?;
        self.close_bypasses(id)?;
        self.ended(id)
    }

    /// What a start does about a claim that it finds.
    pub(super) fn resume_claim(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let boot = living.job.claim().map(|claim| claim.boot.as_str());
        let is_of_another = boot != Some(self.migs.boot.as_str());
        match &living.job.life {
            Life::Starting { .. } => {
                let why = "the daemon was killed before the claim was ready";
                let gone = Event::Gone(Gone::LaunchFailed(why.to_owned()));
                self.end_claim(id, gone, why)
            }
            Life::Lent { .. } | Life::Stopping { .. } if is_of_another => {
                living.job.stop(Stop::Release);
                let why = "the machine was restarted, so no process uses the claim any longer";
                self.tell(Some(id), "stopping", why)?;
                self.end_claim(id, Event::Gone(Gone::Exited(0)), why)
            }
            Life::Lent { .. } | Life::Stopping { .. } => {
                if !is_divided(living.job.life.grants()) {
                    let (name, job) = (id.to_string(), &living.job);
                    let overheads = overheads(&self.devices, job.life.grants());
                    let cut = cut(&name, job, &overheads);
                    match HeldSlice::adopt(&self.config.home.slice(&name), &cut) {
                        Ok(slice) => living.slice = Some(slice),
                        // Whoever asks for it again has it made anew.
                        Err(error) => {
                            tracing::warn!(job = %id, error = chain(&error), "cannot adopt the claim's slice");
                        }
                    }
                }
                self.enlist_claim(id);
                self.apply_limits(id);
                // Who is still there is known once the driver has been asked.
                self.round.again.push(id);
                Ok(())
            }
            Life::Queued | Life::Running { .. } | Life::Ended { .. } => Ok(()),
        }
    }

    /// Says of claims whether the GPUs that they are on are there: nobody but their pods ends them.
    pub(super) fn claims_on_lost_gpus(
        &mut self,
        lost: &BTreeMap<GpuUuid, u32>,
    ) -> Result<(), StoreError> {
        let mut news = Vec::new();
        self.each_busy(|_, living| {
            let Life::Lent { grants } = &living.job.life else {
                return;
            };
            let mut on = grants.iter().filter_map(|grant| lost.get(&grant.gpu));
            let trouble = on.next().map(|index| format!("GPU {index} is lost"));
            if living.job.reason != trouble {
                living.job.reason.clone_from(&trouble);
                news.push((living.job.clone(), trouble));
            }
        });
        for (job, trouble) in news {
            self.store.save(&job)?;
            let (kind, text) = match trouble {
                Some(trouble) => (
                    "gpu_lost",
                    format!("{trouble}; the claim stays allocated until it is released"),
                ),
                None => ("gpu_recovered", "its GPUs respond again".to_owned()),
            };
            self.tell(Some(job.id), kind, &text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store;

    #[test]
    fn no_user_of_a_front_end_is_the_tenant_of_a_claim() {
        let mut ask = store::tests::new(None).ask;
        for (user, tenant) in [("ana", "ana"), ("team/", "team"), ("a/b", "a/b")] {
            ask.user = user.to_owned();
            let job = Job::waiting(JobId(1), Arc::new(ask.clone()), now());
            assert_eq!(job.tenant(), tenant);
        }
    }
}
