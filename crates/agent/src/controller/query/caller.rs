//! Callers: how a reference resolves for its caller, which user owns a job, and as which user its program runs.

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::JobId;

use crate::controller::halt::journal_error;
use crate::controller::io::Io;
use crate::controller::reference;
use crate::controller::reference::JobRef;
use crate::controller::state::Jobs;
use crate::journal::StoreError;

/// The job or array that a caller's reference means, and its owner's uid. One user owns all jobs of an array. `last`
/// and ambiguous names mean the caller's own jobs first.
///
/// # Errors
/// As `Queries::job`.
pub fn resolve_for_caller(
    jobs: &Jobs,
    io: &Io,
    reference: &str,
    caller: u32,
) -> Result<(JobRef, u32), Error> {
    let own = reference::find_own(jobs, io, reference, caller).map_err(journal_error)?;
    let meant = match own {
        Some(meant) => meant,
        None => reference::resolve_reference(jobs, io, reference)?,
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

/// The uid of a job's owner.
///
/// # Errors
/// When the journal cannot be read.
pub fn owner(jobs: &Jobs, io: &Io, id: JobId) -> Result<Option<u32>, StoreError> {
    if let Some(active) = jobs.active.get(&id) {
        return Ok(Some(active.job.spec.credentials.uid));
    }
    Ok(io.store.job(id)?.map(|job| job.spec.credentials.uid))
}
