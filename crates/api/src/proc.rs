//! Reader of `/proc/PID/stat` (proc(5)).

use std::fs;
use std::str::FromStr;

/// The fields of `/proc/PID/stat` from the third on, the state: those before end with the name, which may have spaces in it.
pub(crate) fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    Some(after.trim_start().to_owned())
}

/// A field of `/proc/PID/stat` by its number in proc(5), from the third on.
fn field<T: FromStr>(pid: u32, number: usize) -> Option<T> {
    // The state is the third field.
    stat(pid)?
        .split_ascii_whitespace()
        .nth(number - 3)?
        .parse()
        .ok()
}

/// When a process started, in clock ticks since boot (field 22); `None` without such a process.
pub fn start_time(pid: u32) -> Option<u64> {
    field(pid, 22)
}

/// The parent of a process (field 4), 0 for the first one of the PID namespace; `None` without such a process.
pub fn parent(pid: u32) -> Option<u32> {
    field(pid, 4)
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

    #[test]
    fn a_process_has_the_parent_that_the_kernel_says() {
        let own = std::os::unix::process::parent_id();
        assert_eq!(parent(std::process::id()), Some(own));
        assert_eq!(parent(0), None);
    }
}
