//! Reader of `/proc/PID/stat` (proc(5)).

use std::fs;

/// The fields of `/proc/PID/stat` from the third on, the state: those before end with the name, which may have spaces in it.
pub(crate) fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    Some(after.trim_start().to_owned())
}

/// When a process started, in clock ticks since boot (field 22); `None` without such a process.
pub fn start_time(pid: u32) -> Option<u64> {
    // The state is the third field.
    stat(pid)?
        .split_ascii_whitespace()
        .nth(22 - 3)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_start_time_and_no_process_has_none() {
        let own = start_time(std::process::id()).unwrap();
        assert_eq!(start_time(std::process::id()), Some(own));
        let first = start_time(1).unwrap();
        assert!(first <= own, "{first} {own}");
        assert_eq!(start_time(i32::MAX.unsigned_abs()), None);
    }
}
