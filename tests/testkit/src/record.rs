//! The record in a job's folder, as its supervisor writes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;

use crate::processes::{signal, stat};
use crate::until;

/// The latest entry of this kind in the record of a job's folder: `launch`, `started`, `held`, `exit`.
#[must_use]
pub fn recorded(folder: &Path, what: &str) -> Option<Value> {
    let text = fs::read_to_string(folder.join("record")).unwrap_or_default();
    let lines = text.lines().skip(1);
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line.get(what).cloned()).last()
}

/// Whether the record still holds the program to start and its environment.
#[must_use]
pub fn has_spec(folder: &Path) -> bool {
    let text = fs::read_to_string(folder.join("record")).unwrap_or_default();
    text.lines()
        .next()
        .is_some_and(|spec| !spec.trim_matches(['\0', ' ']).is_empty())
}

/// Kills all that the records of these jobs name, and removes their control groups.
pub(crate) fn end_all(jobs: &Path) {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    // A job that ran several times has a folder below its own for each run but the first.
    for job in folders(jobs).flat_map(|job| folders(&job.path()).chain([job])) {
        for what in ["launch", "started"] {
            if let Some(begun) = recorded(&job.path(), what) {
                kill_begun(&begun);
            }
        }
        let held = recorded(&job.path(), "held");
        let group = held.and_then(|held| Some(PathBuf::from(held["group"].as_str()?)));
        if let Some(group) = group {
            remove_group(&group);
        }
    }
}

/// Kills a process by its record, unless another process has its pid by now.
fn kill_begun(begun: &Value) {
    let pid = begun["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    let Some(pid) = pid else { return };
    let started = stat(pid).and_then(|fields| fields.get(19).cloned());
    if started == Some(begun["start_time"].to_string()) {
        signal(pid, "KILL");
    }
}

/// Kills the rest of a job, and removes its control group.
fn remove_group(group: &Path) {
    let is_gone = || {
        let _ = fs::write(group.join("cgroup.kill"), "1");
        fs::remove_dir(group).is_ok() || !group.is_dir()
    };
    // A second panic would end the test program before the first one is printed.
    if !is_gone() && !thread::panicking() {
        let what = format!("the control group {} is empty", group.display());
        until(what, is_gone);
    }
}
