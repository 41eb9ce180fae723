//! Inherited signal dispositions: `nohup` starts a program with SIGHUP ignored, a script's `&` with SIGINT and SIGQUIT ignored.
//!
//! `divvy run` stands in front of a program as `env` and `timeout` do, so it leaves them ignored, for itself and for the program.

use std::fs;
use std::sync::OnceLock;

/// Whether this process was started with this signal ignored.
///
/// The first call reads all of them, and has to come before the first handler: a handler takes the place of the inherited disposition.
#[must_use]
pub fn is_ignored(signal: i32) -> bool {
    static IGNORED: OnceLock<u64> = OnceLock::new();
    let read = || ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    (1..=64).contains(&signal) && IGNORED.get_or_init(read) >> (signal - 1) & 1 == 1
}

/// The line `SigIgn` of a process's status: a bit for each signal, signal 1 the lowest (proc_pid_status(5)).
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_a_status_is_read() {
        // `nohup sh -c 'grep SigIgn /proc/self/status'`, Linux 6.1.
        assert_eq!(ignored("Name:\tgrep\nSigIgn:\t0000000000000001\n"), 1);
        assert_eq!(ignored("Name:\tgrep\n"), 0);
        assert_eq!(ignored("SigIgn:\tnothing\n"), 0);
    }

    #[test]
    fn no_number_of_a_signal_is_out_of_range() {
        for signal in [i32::MIN, -1, 0, 65, i32::MAX] {
            assert!(!is_ignored(signal), "{signal}");
        }
    }
}
