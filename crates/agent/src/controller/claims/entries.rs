//! Entries of slices: the files by which processes enter a slice, written when the slice is lent and removed before its
//! release.

use std::collections::BTreeSet;
use std::io;

use divvy_core::{JobId, JobState};

use crate::container::edits::JobFiles;
use crate::controller::io::Io;
use crate::controller::state::mig::is_divided;
use crate::controller::state::{Jobs, State};
use crate::host::run_as::Identity;
use crate::job_dir::injection::{InjectionPolicy, Wrapper};
use crate::job_dir::slice_entry::{self, SliceEntry, VERSION};
use crate::model::claim::Claim;
use crate::model::job::{Credentials, Job};

/// Writes the entry of a slice that has its files; nothing for a claim of a scheduler with namespaces.
///
/// # Errors
/// Those of the file system.
pub(in crate::controller) fn write(state: &State, io: &Io, id: JobId) -> io::Result<()> {
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    let (job, grants) = (&active.job, active.job.state.grants());
    let Some(claim) = job.claim().filter(|claim| claim.is_slice()) else {
        return Ok(());
    };
    let visible = grants.iter().map(|grant| state.mig.visible_uuid(grant));
    // Instances that are being made have no UUID yet; the entry is written once they exist.
    let Some(visible) = visible.collect::<Option<Vec<String>>>() else {
        return Ok(());
    };
    let config = &io.config;
    let folder = config.home.slice(&id.to_string());
    let slice = (!is_divided(grants)).then_some(folder);
    let simulated = config.node.simulated.as_ref();
    let limiter = slice
        .as_ref()
        .map(|folder| config.programs.choose_injection(folder, simulated))
        .map(by_file);
    let entry = SliceEntry {
        version: VERSION,
        name: claim.uid.clone(),
        job: id.to_string(),
        owner: identity(job.spec.credentials),
        visible,
        slice,
        preload: config.programs.preload.clone(),
        simulated: simulated.cloned(),
        limiter,
        marker: JobFiles::of(state.jobs.dir(&io.config.home, id).path()).folder,
        refuse_user_namespaces: config.confinement.refuse_user_namespaces,
    };
    let me = identity(Credentials::current());
    if entry.owner.uid != me.uid {
        entry.write(&config.home, &entry.owner)?;
    }
    entry.write(&config.home, &me)
}

/// Removes the entry of a slice, so that no process enters it from now on.
pub(super) fn remove(jobs: &Jobs, io: &Io, id: JobId) {
    let job = jobs.active.get(&id).map(|active| &active.job);
    if let Some(claim) = job.and_then(Job::claim).filter(|claim| claim.is_slice()) {
        slice_entry::remove(&io.config.home, &claim.uid);
    }
}

/// Removes entries of slices that are not lent: the daemon died before it removed them.
pub(in crate::controller) fn remove_stale(jobs: &Jobs, io: &Io) {
    let jobs = jobs.active.values().map(|active| &active.job);
    let lent = jobs.filter(|job| matches!(job.state, JobState::Bound { .. }));
    let names: BTreeSet<&str> = lent
        .filter_map(Job::claim)
        .filter(|claim| Claim::is_slice(claim))
        .map(|claim| claim.uid.as_str())
        .collect();
    slice_entry::remove_others(&io.config.home, |name| names.contains(name));
}

fn by_file(limiter: InjectionPolicy) -> InjectionPolicy {
    let by_file = |wrapper| Wrapper {
        slice_by_file: true,
        ..wrapper
    };
    match limiter {
        InjectionPolicy::Best(wrapper) => InjectionPolicy::Best(by_file(wrapper)),
        InjectionPolicy::Wrapper(wrapper) => InjectionPolicy::Wrapper(by_file(wrapper)),
        preload @ InjectionPolicy::Preload { .. } => preload,
    }
}

fn identity(Credentials { uid, gid }: Credentials) -> Identity {
    Identity {
        uid,
        gid,
        groups: None,
        account: None,
    }
}
