//! Reader of `/proc/PID/stat` (proc(5)).

use std::fs;

/// The fields of `/proc/PID/stat` from the third on, the state: those before end with the name, which may have spaces in it.
pub(crate) fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    Some(after.trim_start().to_owned())
}
