//! Look-ups of active jobs: claims among them, their folders, and whether their processes are known.

use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, Runner};
use divvy_core::JobId;

use crate::controller::state::{GpuState, Jobs};
use crate::job_dir::{self, JobDir};
use crate::model::job::Job;

impl Jobs {
    pub(in crate::controller) fn is_claim(&self, id: JobId) -> bool {
        let active = self.active.get(&id);
        active.is_some_and(|active| active.job.claim().is_some())
    }

    /// The active job that stands for this claim.
    pub(in crate::controller) fn find_claim(&self, uid: &str) -> Option<JobId> {
        let mut jobs = self.active.values().map(|active| &active.job);
        let job = jobs.find(|job| job.claim().is_some_and(|claim| claim.uid == uid))?;
        Some(job.id)
    }

    /// Refuses an operation on jobs that is not for claims.
    pub(in crate::controller) fn refuse_for_claim(
        &self,
        id: JobId,
        what: &str,
    ) -> Result<(), Error> {
        let active = self.active.get(&id);
        let Some(claim) = active.and_then(|active| active.job.claim()) else {
            return Ok(());
        };
        if claim.is_slice() {
            let name = &claim.uid;
            let why = format!(
                "job {id} is the slice {name} of a program that Divvy did not start, and cannot be {what}"
            );
            let hint = format!(
                "enter it with `divvy slice enter {name}`, or end it with `divvy slice rm {name}`"
            );
            return Err(Error::new(ErrorCode::Conflict, why).hint(hint));
        }
        let why = format!(
            "job {id} is the claim {} of another scheduler, and cannot be {what} here",
            claim.label()
        );
        Err(Error::new(ErrorCode::Conflict, why).hint(
            "delete its pods with `kubectl delete pod`; `kubectl describe resourceclaim` lists them",
        ))
    }

    pub(in crate::controller) fn runs_on_client(&self, id: JobId) -> bool {
        self.active
            .get(&id)
            .is_some_and(|active| active.job.spec.runner == Runner::Client)
    }

    pub(in crate::controller) fn dir(&self, home: &Home, id: JobId) -> JobDir {
        match self.active.get(&id) {
            Some(active) => records(home, id, &active.job),
            None => JobDir::new(home.job(&id.to_string())),
        }
    }

    /// Whether the processes on a job's GPUs are unknown. GPUs of the journal count too: one that has not responded since
    /// the daemon's start is no device.
    pub(in crate::controller) fn is_unobserved(&self, gpus: &GpuState, id: JobId) -> bool {
        let active = self.active.get(&id).into_iter();
        let mut held = active.flat_map(|one| one.job.state.grants());
        gpus.observation_error.is_some()
            || gpus
                .unobserved
                .as_ref()
                .is_none_or(|unseen| held.any(|grant| unseen.contains(&grant.gpu)))
    }
}

/// The folder of a job's present run.
pub fn records(home: &Home, id: JobId, job: &Job) -> JobDir {
    let folder = home.job(&id.to_string());
    JobDir::new(job_dir::run_folder(&folder, job.run_state.runs))
}
