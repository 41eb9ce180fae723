//! The ends of slices: a slice is released or cancelled once its process has ended, and released once its control group
//! was removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::JobId;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::{Jobs, State};
use crate::journal::StoreError;
use crate::model::claim::end::{End, Found};
use crate::model::claim::{Claim, ClaimRequest};

/// Finds the process or the control group that a new claim ends with.
///
/// # Errors
/// As [`End::begin`], and [`ErrorCode::Conflict`] for the control group of another slice: its processes count as that
/// slice's.
pub(super) fn begin(jobs: &Jobs, mut asked: ClaimRequest) -> Result<ClaimRequest, Error> {
    let ends = asked.claim.ends.take();
    asked.claim.ends = ends.map(End::begin).transpose()?;
    let Some(folder) = asked.claim.ends.as_ref().and_then(End::cgroup) else {
        return Ok(asked);
    };
    let mut claims = jobs.active.values().filter_map(|active| active.job.claim());
    let other = claims.find(|claim| claim.ends.as_ref().and_then(End::cgroup) == Some(folder));
    let Some(other) = other else {
        return Ok(asked);
    };
    let (folder, name) = (folder.display(), &other.uid);
    let why = format!("the control group {folder} belongs to the slice {name}");
    Err(Error::new(ErrorCode::Conflict, why)
        .hint("name a group of the new slice alone, such as one below it, or a pid"))
}

/// Releases or cancels a lent slice whose process or control group is gone.
pub(super) fn check(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let Some(active) = state.jobs.active.get_mut(&id) else {
        return Ok(());
    };
    let age = active.state_age();
    let Some(claim) = active.job.claim() else {
        return Ok(());
    };
    let found = claim.ends.as_ref().map(|end| end.look(age));
    match found {
        None | Some(Found::Nothing) => Ok(()),
        Some(Found::Appeared(end)) => {
            let seen = Claim {
                ends: Some(end),
                ..claim.clone()
            };
            Arc::make_mut(&mut active.job.spec).policy.claim = Some(Box::new(seen));
            let job = active.job.clone();
            fx.jobs.changed.insert(id);
            io.store.save_amended(&job, &BTreeMap::new())
        }
        Some(Found::Over(how, why)) => {
            super::end(&mut state.jobs, fx, io, id, how, why)?;
            fx.failpoints.push("claim.released");
            Ok(())
        }
    }
}
