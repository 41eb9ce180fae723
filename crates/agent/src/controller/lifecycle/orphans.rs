//! Who is still there when a job has ended: its slice is free when the last of them is gone, and none of them keeps it for ever.
//!
//! A job writes its slots itself, so it could name anybody in them, and have any process of its user map the file. For the grace of a
//! stop they are waited for. Then those that are the job's are killed: whom the driver lists is by the kernel's word, and whoever else has
//! the slice mapped by its user. A process of another user that holds nothing of the GPUs is let be, and said.
//!
//! Whoever is in a MIG instance has no slice, and only the driver's list shows him. Where the last look could not read it, the next is
//! waited for, as long as for anybody.

use std::fs;
use std::os::unix::fs::MetadataExt;

use divvy_core::JobId;
use rustix::process::Signal;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::mig::is_divided;
use crate::controller::observe;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::{GpuState, Jobs};
use crate::host::clock::Instant;
use crate::host::process::{Process, proc_path};
use crate::journal::StoreError;

/// Whether an ended job's slice has to wait for somebody.
pub(in crate::controller) fn has_orphans(
    jobs: &mut Jobs,
    gpus: &GpuState,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<bool, StoreError> {
    let grace = io.config.grace;
    let is_not_seen = observe::is_unobserved(jobs, gpus, id);
    let Some(active) = jobs.active.get_mut(&id) else {
        return Ok(false);
    };
    let holders = holders(active);
    // Of who is in an instance nothing else tells.
    let may_have = is_not_seen && active.is_launched() && is_divided(active.job.state.grants());
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
            io.observer.sample_soon();
        }
        return Ok(true);
    }
    if holders.is_empty() {
        placed.orphans_since = None;
        return Ok(false);
    }
    let its = own_orphans(active);
    let strangers = holders.iter().filter(|process| !its.contains(process));
    for process in &its {
        // Gone by itself is as well; one that cannot be killed is waited for.
        let _ = process.signal(Signal::KILL);
    }
    if its.is_empty() {
        let pids: Vec<String> = strangers.map(|process| process.pid.to_string()).collect();
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

/// Those of the holders that are the job's: of the driver's list, or its user's.
pub(in crate::controller) fn own_orphans(active: &ActiveJob) -> Vec<Process> {
    let by = active.job.spec.credentials.uid;
    let mut its = holders(active);
    its.retain(|process| active.members().contains(process) || owner(*process) == Some(by));
    its
}

fn owner(process: Process) -> Option<u32> {
    let uid = fs::metadata(proc_path(process.pid, "")).ok()?.uid();
    process.is_alive().then_some(uid)
}

/// Whoever holds something of what the job was granted, wherever it has gone: whom the driver listed, which is the job's by the
/// kernel's word or its own, and who has the slice mapped; a slot alone is only a word.
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
