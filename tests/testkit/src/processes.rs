//! Processes by their ids: signals, their end, and the removal of all that a test leaves behind. Jobs outlive their
//! daemon by design, so a test has to end them itself.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::Bounded as _;

/// Sends a signal by its name (`KILL`), if the process is still there.
///
/// # Panics
/// When kill(1) does not start.
pub fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .stderr(Stdio::null())
        .wait_bounded();
    let _ = status.expect("kill(1) starts");
}

/// Whether it runs: a zombie does not.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    let state = stat(pid).and_then(|fields| fields.first()?.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// The fields of `/proc/PID/stat` after the name, which may contain anything (proc_pid_stat(5)).
pub(crate) fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Kills every process of this user with `text` in its environment, until there is none. With the path of a private
/// home these are its daemon, its supervisors and its jobs, and no others.
pub fn kill_all_that_mention(text: &str) {
    while mentioning(text)
        .into_iter()
        .any(|pid| kill_process(pid, Signal::KILL).is_ok())
    {
        std::thread::yield_now();
    }
}

fn mentioning(text: &str) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
        .filter(|pid| pid.as_raw_pid().cast_unsigned() != std::process::id())
        .filter(|pid| {
            // A zombie has an empty environment, so the loop above ends.
            fs::read(format!("/proc/{}/environ", pid.as_raw_pid()))
                .is_ok_and(|environ| mentions(&environ, text))
        })
        .collect()
}

/// Whether bytes contain a text. The search is the standard library's, which is optimised: a search written here takes a
/// second for 20 MB of a journal, and a test that ends looks at the environment of every process.
#[must_use]
pub fn mentions(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}
