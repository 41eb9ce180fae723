//! The processes of a job, found from its record and the kernel's tables.

use super::{JobDir, RecordError};
use crate::host::cgroup::Cgroup;
use crate::host::process::{self, Process};

/// All processes of a job but its supervisor, which may be gone.
pub fn processes_of(dir: &JobDir, supervisor: Process) -> Vec<Process> {
    // Another process may have its pid by now.
    match supervisor.is_alive() {
        true => process::descendants(supervisor.pid),
        false => survivors(dir, supervisor).unwrap_or_default(),
    }
}

/// The processes left of a job after its supervisor has gone.
pub fn survivors(dir: &JobDir, supervisor: Process) -> Result<Vec<Process>, RecordError> {
    let mut found = process::session_members(supervisor);
    if let Some(program) = dir.started()?.map(|begun| begun.process)
        && program.is_alive()
    {
        found.push(program);
        found.extend(process::descendants(program.pid));
    }
    found.extend(dir.group().iter().flat_map(Cgroup::members));
    found.retain(|process| *process != supervisor);
    found.sort_unstable_by_key(|process| process.pid);
    found.dedup();
    Ok(found)
}

/// Whether a run has its supervisor, or left processes without one.
pub fn has_processes(dir: &JobDir) -> bool {
    let has_supervisor = !matches!(dir.lock(), Ok(Some(_)));
    let launch = dir.launch().ok().flatten().map(|launch| launch.process);
    has_supervisor
        || launch.is_some_and(|launch| survivors(dir, launch).is_ok_and(|left| !left.is_empty()))
}
