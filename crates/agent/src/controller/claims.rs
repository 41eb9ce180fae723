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
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_api::v1::{self, Error, ErrorCode, Runner};
use divvy_core::exact::allocate_pinned;
use divvy_core::job::{Event, ProgramExit, StopReason};
use divvy_core::{GpuUuid, JobId, JobState as Life, QueueName};

use super::Controller;
use super::lifecycle::schedule;
use super::lifecycle::start::{overheads, slice_layout};
use super::mig::is_divided;
use crate::auth::Caller;
use crate::container::cdi;
use crate::gpu::slice::HeldSlice;
use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::job_dir::{ExitRecord, RunOutcome};
use crate::journal::StoreError;
use crate::model::claim::{self, Claim, ClaimRequest};
use crate::model::job::{Credentials, Job, JobSpec, NewJob};
use crate::model::policy::JobPolicy;
use crate::model::validate::budget;

impl Job {
    /// What it is the claim of, where it is one.
    pub fn claim(&self) -> Option<&Claim> {
        self.spec.policy.claim.as_deref()
    }

    /// Whose programs run in what it holds. Whoever brings claims is one account for everybody, so of a claim it is its namespace,
    /// in a form that no account's name has.
    pub(super) fn tenant(&self) -> String {
        match self.claim() {
            Some(claim) => format!("{}/", claim.namespace),
            // A front end names users as it likes.
            None => self.spec.user.trim_end_matches('/').to_owned(),
        }
    }
}

impl Controller {
    pub(super) fn is_claim(&self, id: JobId) -> bool {
        let living = self.jobs.get(&id);
        living.is_some_and(|living| living.job.claim().is_some())
    }

    /// The living job that is this claim.
    pub(super) fn find_claim(&self, uid: &str) -> Option<JobId> {
        let mut jobs = self.jobs.values().map(|living| &living.job);
        let job = jobs.find(|job| job.claim().is_some_and(|claim| claim.uid == uid))?;
        Some(job.id)
    }

    /// What is said to whoever would do to a claim what is done to jobs.
    pub(super) fn refuse_for_claim(&self, id: JobId, what: &str) -> Option<Error> {
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
        job.state.grants().iter().find_map(|grant| {
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
        let asked = match claim::parse(uid, body, &self.migs.boot) {
            Ok(asked) => asked,
            Err(error) => return Ok(Err(error)),
        };
        if let Some(id) = self.find_claim(uid) {
            return self.hold_existing(id, &asked);
        }
        let placed = match allocate_pinned(&self.snapshot(), &asked.devices) {
            Ok(placed) => placed,
            Err(misfit) => return Ok(Err(claim::refusal(&misfit))),
        };
        let ClaimRequest { claim, request, .. } = asked;
        let new = NewJob {
            spec: JobSpec {
                name: claim.label(),
                user: by.account.name.clone(),
                credentials: Credentials {
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
                policy: JobPolicy {
                    claim: Some(Box::new(claim)),
                    ..JobPolicy::default()
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
        self.store.save_allocations(&job)?;
        self.store.save(&job)?;
        let mut text = format!("{}: {}", new.spec.name, schedule::labels(&job));
        if let Some(warning) = self.below_context(&job) {
            tracing::warn!(job = %id, "{warning}");
            text = format!("{text}; {warning}");
        }
        self.add_job(job, budget::new_job_size(&new));
        self.record_event(Some(id), "allocated", &text)?;
        reach("claim.intent");
        self.effects.failpoints.push("claim.kept");
        if self.claim_instances(id, &placed.reclaim)? {
            self.ready(id)?;
        }
        self.effects.replan = true;
        Ok(Ok(id))
    }

    /// The same claim once more: what is missing of its files is made anew.
    fn hold_existing(
        &mut self,
        id: JobId,
        asked: &ClaimRequest,
    ) -> Result<Result<JobId, Error>, StoreError> {
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
        if matches!(job.state, Life::Stopping { .. }) {
            let why = format!("claim {uid} is still being released");
            return conflict(why, "try again in a moment");
        }
        if !claim.is_same_request(&asked.claim) || job.spec.request.compute != asked.request.compute
        {
            let why = format!("claim {uid} is already allocated, with other devices or settings");
            let hint = format!("release it first: DELETE /v1/claims/{uid}");
            return conflict(why, &hint);
        }
        if claim.pods != asked.claim.pods {
            let ask = Arc::make_mut(&mut job.spec);
            ask.policy.claim = Some(Box::new(Claim {
                boot: self.migs.boot.clone(),
                ..asked.claim.clone()
            }));
            let job = job.clone();
            self.store.save_amended(&job, &BTreeMap::new())?;
            self.effects.changed.insert(id);
        }
        let is_lent = self
            .jobs
            .get(&id)
            .is_some_and(|one| matches!(one.job.state, Life::Lent { .. }));
        if is_lent && let Err(error) = self.create_claim_files(id) {
            let why = format!(
                "cannot create the claim's files again: {}",
                error_chain(&error)
            );
            tracing::error!(job = %id, "{why}");
            return Ok(Err(Error::new(ErrorCode::LaunchFailed, why)));
        }
        Ok(Ok(id))
    }

    /// Has a claim given back; nothing for one that is not held.
    pub(super) fn release_claim(&mut self, uid: &str) -> Result<Option<JobId>, StoreError> {
        let Some(id) = self.find_claim(uid) else {
            return Ok(None);
        };
        self.stop_job(id, StopReason::Release, "released")?;
        self.effects.failpoints.push("claim.released");
        Ok(Some(id))
    }

    /// Makes what a claim that has its grants is used through; the next round journals it.
    pub(super) fn bind_claim(&mut self, id: JobId) {
        match self.create_claim_files(id) {
            Ok(()) => {
                if let Some(living) = self.jobs.get_mut(&id) {
                    living.has_claim_files = true;
                }
                self.effects.recheck.push(id);
            }
            Err(error) => self.give_up_claim(id, &error_chain(&error)),
        }
    }

    /// A claim cannot have what it was to have.
    pub(super) fn give_up_claim(&mut self, id: JobId, why: &str) {
        tracing::error!(job = %id, why, "cannot allocate the claim");
        if let Some(living) = self.jobs.get_mut(&id) {
            living.pending_instances.clear();
            living.start_failure = Some(ExitRecord {
                outcome: RunOutcome::Withdrawn {
                    withdrawn: why.to_owned(),
                },
                at: now(),
            });
        }
        self.effects.recheck.push(id);
    }

    /// Looks at how far a claim has come.
    pub(super) fn check_claim(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let failed = living
            .start_failure
            .as_ref()
            .map(|exit| match &exit.outcome {
                RunOutcome::Withdrawn { withdrawn } => withdrawn.clone(),
                other => format!("{other:?}"),
            });
        match (&living.job.state, failed) {
            (Life::Starting { .. }, Some(why)) => {
                let gone = Event::Gone(ProgramExit::LaunchFailed(why.clone()));
                self.end_claim(id, gone, &why)
            }
            (Life::Starting { .. }, None) if living.has_claim_files => self.mark_bound(id),
            (Life::Stopping { .. }, _) => match self.is_unobserved(id) || self.has_orphans(id)? {
                true => {
                    self.effects.milestones_reached.push(id);
                    Ok(())
                }
                false => self.end_claim(id, Event::Gone(ProgramExit::Exited(0)), ""),
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
    fn mark_bound(&mut self, id: JobId) -> Result<(), StoreError> {
        let device = self.device_of(id).map(|name| cdi::device(&name));
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.apply_event(Event::Lent);
        living.job.started_at = Some(now());
        let job = living.job.clone();
        self.store.save(&job)?;
        self.effects.changed.insert(id);
        self.effects.milestones_reached.push(id);
        self.effects.failpoints.push("claim.lent");
        let device = device.unwrap_or_default();
        let text = format!("CDI device {device}: {}", schedule::labels(&job));
        self.record_event(Some(id), "running", &text)
    }

    /// Takes a claim's device, slice and instances, and journals its end.
    fn end_claim(&mut self, id: JobId, event: Event, why: &str) -> Result<(), StoreError> {
        self.save_allocation_stats(id)?;
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        living.job.reason = Some(why.to_owned()).filter(|why| !why.is_empty());
        living.job.ended_at = Some(now());
        living.job.apply_event(event);
        living.pending_instances.clear();
        self.journal_metered(id)?;
        if let Some(name) = self.device_of(id)
            && let Err(error) = cdi::remove(&self.cdi_folder(), &name)
        {
            tracing::warn!(job = %id, %error, "cannot remove the claim's CDI file; it stays until the next start");
        }
        self.free_slice(id);
        reach("claim.freed");
        self.release_instances(id)?;
        self.close_bypasses(id)?;
        self.journal_end(id)
    }

    /// What a start does about a claim that it finds.
    pub(super) fn resume_claim(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let boot = living.job.claim().map(|claim| claim.boot.as_str());
        let is_of_another = boot != Some(self.migs.boot.as_str());
        match &living.job.state {
            Life::Starting { .. } => {
                let why = "the daemon was killed before the claim was ready";
                let gone = Event::Gone(ProgramExit::LaunchFailed(why.to_owned()));
                self.end_claim(id, gone, why)
            }
            Life::Lent { .. } | Life::Stopping { .. } if is_of_another => {
                living.job.stop(StopReason::Release);
                let why = "the machine was restarted, so no process uses the claim any longer";
                self.record_event(Some(id), "stopping", why)?;
                self.end_claim(id, Event::Gone(ProgramExit::Exited(0)), why)
            }
            Life::Lent { .. } | Life::Stopping { .. } => {
                if !is_divided(living.job.state.grants()) {
                    let (name, job) = (id.to_string(), &living.job);
                    let overheads = overheads(&self.devices, job.state.grants());
                    let cut = slice_layout(&name, job, &overheads);
                    match HeldSlice::adopt(&self.config.home.slice(&name), &cut) {
                        Ok(slice) => living.slice = Some(slice),
                        // Whoever asks for it again has it made anew.
                        Err(error) => {
                            tracing::warn!(job = %id, error = error_chain(&error), "cannot adopt the claim's slice");
                        }
                    }
                }
                self.register_claim(id);
                self.apply_limits(id);
                // Who is still there is known once the driver has been asked.
                self.effects.recheck.push(id);
                Ok(())
            }
            Life::Queued | Life::Running { .. } | Life::Ended { .. } => Ok(()),
        }
    }

    /// Says of claims whether the GPUs that they are on are there: nobody but their pods ends them.
    pub(super) fn report_claims_on_lost_gpus(
        &mut self,
        lost: &BTreeMap<GpuUuid, u32>,
    ) -> Result<(), StoreError> {
        let mut news = Vec::new();
        self.for_each_active(|_, living| {
            let Life::Lent { grants } = &living.job.state else {
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
            self.record_event(Some(job.id), kind, &text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal;

    #[test]
    fn no_user_of_a_front_end_is_the_tenant_of_a_claim() {
        let mut ask = journal::tests::new(None).spec;
        for (user, tenant) in [("ana", "ana"), ("team/", "team"), ("a/b", "a/b")] {
            ask.user = user.to_owned();
            let job = Job::waiting(JobId(1), Arc::new(ask.clone()), now());
            assert_eq!(job.tenant(), tenant);
        }
    }
}
