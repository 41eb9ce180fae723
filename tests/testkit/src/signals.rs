//! Signal dispositions of the programs that a test starts.
//!
//! A shell ignores SIGINT and SIGQUIT for programs that a script starts with `&`, and `nohup` ignores SIGHUP. An ignored signal stays ignored
//! across fork and exec (signal(7)), so a client under test would not see Ctrl-C. A signal with a handler becomes a default one at exec.

use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};

/// Gives SIGHUP, SIGINT and SIGQUIT their default disposition in every program that this process starts from now on.
///
/// This process itself still ends with any of them that was not ignored before.
pub fn reset_for_children() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        for signal in ignored() {
            // A handler that does nothing: this process goes on ignoring the signal, as its starter wanted.
            let nothing = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, nothing).expect("these signals may be handled");
        }
    });
}

/// Which of the three this process ignores, by /proc/self/status (proc_pid_status(5)).
fn ignored() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.unwrap_or_default();
    [SIGHUP, SIGINT, SIGQUIT]
        .into_iter()
        .filter(|signal| mask & (1 << (signal - 1)) != 0)
        .collect()
}
