//! Orphans: processes that outlive their job's run. The slice stays allocated until the last of them is gone, but not
//! for ever.
//!
//! The daemon closes the slice before it looks for them, so that no process reserves memory after the look. A process
//! that has reserved some may be about to call the driver, which does not list it yet: the daemon waits for it as for
//! an orphan.
//!
//! A job writes its ledger slots itself. It could name any process there, and could have any process of its user map
//! the slice. So the daemon waits for orphans for the grace period of a stop. Then it kills the processes that the
//! driver lists, and the processes of the job's user that have the slice mapped. A process of another user that has
//! only the slice mapped is left alone, and an event reports it.
//!
//! A job on MIG instances has no slice, so only the driver's list shows its processes. If the last observation could
//! not read that list, the daemon waits for the next one, for the same grace period.

use std::fs;
use std::os::unix::fs::MetadataExt;

use divvy_core::JobId;
use rustix::process::Signal;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::mig::is_divided;
use crate::controller::state::{GpuState, Jobs};
use crate::gpu::slice::HeldSlice;
use crate::host::clock::Instant;
use crate::host::process::{Process, proc_path};
use crate::journal::StoreError;

/// Whether an ended job's slice has to wait for orphans.
pub(in crate::controller) fn has_orphans(
    jobs: &mut Jobs,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<bool, StoreError> {
    let grace = io.config.grace;
    let is_not_seen = jobs.is_unobserved(gpus, id);
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(false);
    };
    if let Some(placed) = active.placed_mut() {
        placed.close();
    }
    let holders = holders(active);
    // Only the driver's list shows processes in a MIG instance.
    let is_hidden = is_not_seen && active.is_launched() && is_divided(active.job.state.grants());
    let may_have = is_hidden || active.slice().is_some_and(HeldSlice::has_reservations);
    let Some(placed) = active.placed_mut() else {
        return Ok(false);
    };
    if holders.is_empty() && !may_have {
        placed.orphans_since = None;
        return Ok(false);
    }
    let since = *placed.orphans_since.get_or_insert_with(Instant::now);
    if since.elapsed() < grace {
        if may_have {
            fx.machine.sample_soon = true;
        }
        return Ok(true);
    }
    if holders.is_empty() {
        placed.orphans_since = None;
        return Ok(false);
    }
    let own = own_orphans(active);
    let others = holders.iter().filter(|process| !own.contains(process));
    for process in &own {
        // The process may have exited by itself. The daemon waits for one that cannot be killed.
        let _ = process.signal(Signal::KILL);
    }
    if own.is_empty() {
        let pids: Vec<String> = others.map(|process| process.pid.to_string()).collect();
        let words = format!(
            "pid {} belongs to another user and has the slice open; the slice is released nevertheless",
            pids.join(", ")
        );
        tracing::warn!(job = %id, words);
        // An orphan of a later run gets a grace period of its own.
        if let Some(placed) = active.placed_mut() {
            placed.orphans_since = None;
        }
        fx.record_event(io, Some(id), "orphan_process", &words)?;
        return Ok(false);
    }
    Ok(true)
}

/// The orphans that belong to the job: the driver lists them, or its user owns them.
pub(in crate::controller) fn own_orphans(active: &ActiveJob) -> Vec<Process> {
    let by = active.job.spec.credentials.uid;
    let mut own = holders(active);
    own.retain(|process| active.members().contains(process) || owner(*process) == Some(by));
    own
}

fn owner(process: Process) -> Option<u32> {
    let uid = fs::metadata(proc_path(process.pid, "")).ok()?.uid();
    process.is_alive().then_some(uid)
}

/// All processes that hold something of the job's grants: the driver listed them, or they have the slice mapped. A
/// ledger slot alone proves nothing.
fn holders(active: &ActiveJob) -> Vec<Process> {
    let listed = active.members().iter().copied();
    let mut holders: Vec<Process> = listed.filter(|member| member.is_alive()).collect();
    if let Some(slice) = active.slice()
        && let Ok(snapshot) = slice.read()
    {
        holders.extend(slice.live_processes(&snapshot));
    }
    holders
}
