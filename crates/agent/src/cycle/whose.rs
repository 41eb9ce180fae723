//! Whose jobs are whose: what a reference means to its caller, and as whom a program runs.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::JobId;

use super::Cycle;
use super::read::journal;
use crate::job::{Job, Submitter};
use crate::store::StoreError;
use crate::supervise::identity::Identity;

impl Cycle {
    /// The job that this caller means, and its submitter's uid. `last`, and a name that several jobs have, mean the caller's own first.
    ///
    /// # Errors
    /// As [`Cycle::job`].
    pub fn job_of(&mut self, reference: &str, caller: u32) -> Result<(JobId, u32), Error> {
        let own = self.own(reference, caller).map_err(journal)?;
        let id = match own {
            Some(id) => id,
            None => self.find(reference).map_err(journal)??,
        };
        match self.owner(id).map_err(journal)? {
            Some(owner) => Ok((id, owner)),
            None => Err(Error::new(
                ErrorCode::NotFound,
                format!("there is no job {id}"),
            )),
        }
    }

    /// Whose a job is.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn owner(&self, id: JobId) -> Result<Option<u32>, StoreError> {
        if let Some(living) = self.jobs.get(&id) {
            return Ok(Some(living.job.ask.by.uid));
        }
        Ok(self.store.job(id)?.map(|job| job.ask.by.uid))
    }

    /// The one of the caller's own jobs that a reference means, where it is not a number.
    pub(super) fn own(&self, reference: &str, caller: u32) -> Result<Option<JobId>, StoreError> {
        if reference == "last" {
            let by = Submitter {
                uid: caller,
                gid: 0,
            };
            return self.store.newest_of(by);
        }
        let mut named = self
            .jobs
            .values()
            .map(|living| &living.job)
            .filter(|job| job.ask.name == reference && job.ask.by.uid == caller);
        Ok(match (named.next(), named.next()) {
            (Some(job), None) => Some(job.id),
            _ => None,
        })
    }
}

/// As whom a job's program is started; nobody else's than the agent's own user is.
pub(super) fn identity(job: &Job) -> Option<Identity> {
    let Submitter { uid, gid } = job.ask.by;
    (uid != Submitter::me().uid).then_some(Identity {
        uid,
        gid,
        groups: None,
    })
}
