//! Whose jobs are whose: what a reference means to its caller, and as whom a program runs.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::JobId;

use super::Cycle;
use super::read::journal;
use super::reference::Meant;
use crate::job::{Job, Submitter};
use crate::store::StoreError;
use crate::supervise::identity::Identity;

impl Cycle {
    /// What this caller means, and the uid of its submitter, who has all jobs of an array. `last`, and a name that several have,
    /// mean the caller's own first.
    ///
    /// # Errors
    /// As [`Cycle::job`].
    pub fn job_of(&mut self, reference: &str, caller: u32) -> Result<(Meant, u32), Error> {
        let own = self.own(reference, caller).map_err(journal)?;
        let meant = match own {
            Some(meant) => meant,
            None => self.meant(reference).map_err(journal)??,
        };
        let owner = match meant {
            Meant::Job { id, .. } => self.owner(id),
            Meant::Array(array) => {
                let first = self.first_kept(array).map_err(journal)?;
                Ok(first.map(|job| job.ask.by.uid))
            }
        };
        match owner.map_err(journal)? {
            Some(owner) => Ok((meant, owner)),
            None => Err(Error::new(
                ErrorCode::NotFound,
                format!("there is no job {meant}"),
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
