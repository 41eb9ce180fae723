//! The wait between the closing of a parked job's gate and the driver's lock: a thread that has passed the gate already
//! must be in the driver, or back, before the lock. A call that the lock holds does not wake the job.
//!
//! The limiter makes no system call between its gate and the driver. So a thread has left that place once it was seen
//! asleep, or has used a tick of the processor since.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::clock::{self, Instant};
use crate::host::process::{self, Process};

/// How long to wait for the gate, and for the threads. A thread that a busy machine does not run for so long may still
/// have its call held by the lock; the page about parking says so. Half would fail at loads that tests reach.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks: a tick of the kernel, in which a running thread uses a tick.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until the gate is closed, then until each thread of these processes has left the way from it to the driver.
pub fn settle(is_gated: impl Fn() -> bool, processes: &[Process]) {
    let deadline = Instant::now() + PATIENCE;
    while !is_gated() && Instant::now() < deadline {
        clock::sleep(LOOK);
    }
    let threads = processes.iter().flat_map(|one| process::threads(one.pid));
    let mut on_the_way: BTreeSet<(PathBuf, u64)> = threads
        .flatten()
        .filter_map(|thread| Some((thread.clone(), running_ticks(&thread)?)))
        .collect();
    while !on_the_way.is_empty() && Instant::now() < deadline {
        clock::sleep(LOOK);
        on_the_way.retain(|(thread, before)| running_ticks(thread) == Some(*before));
    }
}

/// The processor time of a thread that runs or is ready to, in ticks; none of one that sleeps or is gone.
fn running_ticks(thread: &Path) -> Option<u64> {
    let line = fs::read_to_string(thread.join("stat")).ok()?;
    parse(&line)
}

/// proc(5): behind the name in parentheses the state, and eleven fields later the ticks in user mode and in the kernel.
fn parse(line: &str) -> Option<u64> {
    let (_, fields) = line.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if !matches!(fields.next()?, "R" | "D") {
        return None;
    }
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some(user + kernel)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_is_on_its_way_while_it_runs_and_not_while_it_sleeps() {
        let line =
            |state| format!("7 (a) b) {state} 1 7 7 0 -1 64 1 2 3 4 21 2 0 0 20 0 1 0 99 0 0");
        assert_eq!(parse(&line("R")), Some(23));
        assert_eq!(parse(&line("D")), Some(23));
        for state in ["S", "T", "Z", "X"] {
            assert_eq!(parse(&line(state)), None);
        }
        assert_eq!(parse("7 (a"), None);
    }

    #[test]
    fn threads_that_compute_and_threads_that_sleep_are_settled_long_before_the_patience() {
        // Not this process: a thread that looks at itself is always seen to run.
        let mut children = ["while :; do :; done", "exec sleep 1000"].map(|script| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).spawn().unwrap()
        });
        let before = Instant::now();
        let processes = children
            .each_ref()
            .map(|child| Process::with_pid(child.id()).unwrap());
        settle(|| true, &processes);
        let took = before.elapsed();
        for child in &mut children {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert!(took < PATIENCE, "{took:?}");
    }
}
