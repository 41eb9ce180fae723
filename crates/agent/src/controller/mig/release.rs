//! Release of MIG instances: at a job's end they stay as idle instances.

use std::collections::BTreeSet;

use divvy_core::JobId;

use crate::controller::io::Io;
use crate::controller::state::Jobs;
use crate::controller::state::mig::{MigManager, slot};
use crate::host::clock::now;
use crate::journal::StoreError;
use crate::model::mig_instance::{ManagedInstance, MigSlot};

/// Releases the instances of a job without processes; they stay as idle instances.
pub(in crate::controller) fn release_instances(
    mig: &mut MigManager,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let held = |instance: &&mut ManagedInstance| instance.job == Some(id);
    for instance in mig.instances.values_mut().filter(held) {
        instance.job = None;
        instance.since = now();
        io.store.save_mig(instance)?;
    }
    Ok(())
}

/// After a start: releases the instances that their job does not hold by its own row.
pub(in crate::controller) fn release_stray_instances(
    jobs: &Jobs,
    mig: &mut MigManager,
    io: &Io,
) -> Result<(), StoreError> {
    let holds = |job: &JobId, slot: &MigSlot| {
        let active = jobs.active.get(job);
        let mut grants = active.into_iter().flat_map(|one| one.job.state.grants());
        grants.any(|grant| self::slot(grant).as_ref() == Some(slot))
    };
    let owners: BTreeSet<JobId> = mig
        .instances
        .values()
        .filter_map(|instance| instance.job.filter(|job| !holds(job, &instance.slot)))
        .collect();
    owners
        .into_iter()
        .try_for_each(|job| release_instances(mig, io, job))
}
