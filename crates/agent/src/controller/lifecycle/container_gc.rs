//! Garbage collection of containers, their CDI files and their mounts: what dead supervisors left.

use crate::container::gc::{self, ContainerGc};
use crate::container::{engine, user_mounts};
use crate::controller::claims::files;
use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::Jobs;
use crate::host::clock::Instant;
use crate::job_dir::container_spec;
use crate::journal::StoreError;
use crate::supervisor::forkserver;

/// The input for the garbage collection: which containers may belong to active jobs.
///
/// # Errors
/// When the journal cannot be read.
pub fn container_gc(jobs: &Jobs, io: &Io) -> Result<ContainerGc, StoreError> {
    // Jobs that ended in this round are still in the map.
    let active = jobs.active.values();
    let active = active.filter(|active| active.job.state.outcome().is_none());
    Ok(ContainerGc {
        journal: io.store.name()?,
        began: io.store.began()?,
        living: active.map(|active| active.job.id).collect(),
        newest: io.store.last_numbered()?,
    })
}

/// Starts the garbage collection of containers and CDI files once it is due.
pub(in crate::controller) fn run_container_gc(
    jobs: &Jobs,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    if fx.container_gc_at.is_none_or(|due| due > Instant::now()) {
        return Ok(());
    }
    fx.container_gc_at = None;
    files::remove_stale_cdi_files(jobs, io);
    remove_stale_mounts(jobs, io);
    let Ok(socket) = engine::socket() else {
        return Ok(());
    };
    let instance = container_spec::instance(io.config.home.instance());
    if let Err(error) = gc::start(socket, instance, container_gc(jobs, io)?) {
        tracing::warn!(%error, "cannot search for leftover containers");
    }
    Ok(())
}

/// Removes staged mounts of containers whose jobs hold nothing any more: their supervisors died before they could.
pub(in crate::controller) fn remove_stale_mounts(jobs: &Jobs, io: &Io) {
    let instance = container_spec::instance(io.config.home.instance());
    let jobs = jobs.active.values().map(|active| &active.job);
    let holds = jobs.filter(|job| !job.state.grants().is_empty());
    let names =
        holds.map(|job| container_spec::name(&instance, &job.id.to_string(), job.run_state.runs));
    for folder in user_mounts::stale(&io.config.home.mounts(), &names.collect()) {
        if let Err(error) = forkserver::remove_mounts(&folder) {
            tracing::warn!(%error, folder = %folder.display(), "cannot remove the mounts of a dead supervisor");
        }
    }
}
