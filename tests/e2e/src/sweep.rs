//! Leaving nothing behind: jobs outlive their daemon by design, so a test has to end them itself.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Kills every process of this user whose environment mentions `text`, until there is none. With the path of a private
/// home that is its daemon, its supervisors and its jobs, and nobody else's.
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
            // A dead process that nobody has waited for has an empty environment, so the loop above ends.
            fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).is_ok_and(|environ| {
                environ
                    .windows(text.len())
                    .any(|window| window == text.as_bytes())
            })
        })
        .collect()
}
