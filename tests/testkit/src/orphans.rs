//! The processes that this test program has started, and the processes that those have started.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Kills every descendant of this process. Descendants that have another parent by now, such as a daemon's jobs, are not found.
pub fn kill_descendants() {
    let parents = parents();
    let mut doomed = vec![std::process::id()];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(
            parents
                .iter()
                .filter(|(_, its_parent)| **its_parent == parent)
                .map(|(pid, _)| pid),
        );
        next += 1;
    }
    for pid in doomed.into_iter().skip(1) {
        if let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Process id to parent's process id, by /proc/PID/stat (proc_pid_stat(5)).
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
        Some((pid, parent))
    })
    .collect()
}
