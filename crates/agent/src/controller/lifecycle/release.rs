//! Release: what a round has freed is removed, once the journal has it.

use divvy_core::JobId;

use crate::controller::actuators::Actuators;
use crate::controller::claims::files;
use crate::controller::effects::{Effects, FreedSlice, RunOver};
use crate::controller::io::Io;
use crate::controller::lifecycle::driver_limit;
use crate::controller::state::Jobs;
use crate::gpu::slice;
use crate::host::error::error_chain;
use crate::host::failpoint::reach;
use crate::job_dir;
use crate::job_dir::replica::Replica;

/// Removes what the round has freed. A daemon that dies before it leaves the rest to the next one: startup removes each
/// slice that no job holds, and the specs of runs that are over.
pub(in crate::controller) fn release(
    jobs: &mut Jobs,
    fx: &mut Effects,
    io: &Io,
    actuators: &Actuators,
) {
    for FreedSlice { job: id, slice } in std::mem::take(&mut fx.jobs.freed) {
        files::remove_files(jobs, io, id);
        driver_limit::take_off(jobs, fx, id);
        actuators.observer.unregister(id);
        actuators.compute_scheduler.remove_slice(id);
        stop_launch_watch(jobs, io, actuators, id);
        let removed = match slice {
            Some(slice) => slice.remove(),
            None => slice::remove(&io.config.home.slice(&id.to_string())),
        };
        if let Err(error) = removed {
            tracing::warn!(job = %id, error = error_chain(&error), "cannot remove the slice folder; it stays until the next start");
        }
        reach("end.freed");
    }
    for RunOver {
        job: id,
        dir,
        is_last,
    } in std::mem::take(&mut fx.jobs.over)
    {
        if let Some(watch) = &actuators.watch {
            watch.remove(id);
        }
        // The spec may be what names it.
        let group = dir.group();
        if let Err(error) = dir.erase_spec() {
            tracing::warn!(job = %id, error = error_chain(&error), "cannot delete the job's spec, which contains its environment");
        }
        let folder = io.config.home.job(&id.to_string());
        if dir.path() != folder
            && let Err(error) = job_dir::remove_middle_runs(&folder)
        {
            tracing::warn!(job = %id, %error, "cannot remove the records of the job's earlier runs");
        }
        if is_last {
            if let Some(group) = group.filter(|group| !jobs.limits.retire(group.path())) {
                group.remove();
            }
            Replica::remove(&dir);
            reach("end.forgotten");
        }
    }
}

/// Stops the watch for launches, because the slice is about to be removed.
fn stop_launch_watch(jobs: &mut Jobs, io: &Io, actuators: &Actuators, id: JobId) {
    if let Some(active) = jobs.active.get_mut(&id)
        && active.activity.launches_watched_since.take().is_some()
    {
        let folder = io.config.home.slice(&id.to_string());
        actuators.compute_scheduler.unwatch(id, &folder);
    }
}
