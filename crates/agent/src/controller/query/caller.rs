//! Whose jobs are whose: what a reference means to its caller, and as whom a program runs.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::JobId;

use super::journal_error;
use super::reference::JobRef;
use crate::controller::io::Io;
use crate::controller::query::reference;
use crate::controller::state::Jobs;
use crate::host::run_as::Identity;
use crate::journal::StoreError;
use crate::model::job::{Credentials, Job};

/// What this caller means, and the uid of its submitter, who has all jobs of an array. `last`, and a name that several have,
/// mean the caller's own first.
///
/// # Errors
/// As [`Queries::job`].
pub fn resolve_for_caller(
    jobs: &Jobs,
    io: &Io,
    reference: &str,
    caller: u32,
) -> Result<(JobRef, u32), Error> {
    let own = reference::find_own(jobs, io, reference, caller).map_err(journal_error)?;
    let meant = match own {
        Some(meant) => meant,
        None => reference::resolve_reference(jobs, io, reference).map_err(journal_error)??,
    };
    let owner = match meant {
        JobRef::Job { id, .. } => self::owner(jobs, io, id),
        JobRef::Array(array) => {
            let first = reference::first_kept(io, array).map_err(journal_error)?;
            Ok(first.map(|job| job.spec.credentials.uid))
        }
    };
    match owner.map_err(journal_error)? {
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
pub fn owner(jobs: &Jobs, io: &Io, id: JobId) -> Result<Option<u32>, StoreError> {
    if let Some(active) = jobs.active.get(&id) {
        return Ok(Some(active.job.spec.credentials.uid));
    }
    Ok(io.store.job(id)?.map(|job| job.spec.credentials.uid))
}

/// As whom a job's program is started; nobody else's than the agent's own user is.
pub(in crate::controller) fn run_as(job: &Job) -> Option<Identity> {
    let Credentials { uid, gid } = job.spec.credentials;
    (uid != Credentials::current().uid).then_some(Identity {
        uid,
        gid,
        groups: None,
    })
}
