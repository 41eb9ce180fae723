//! Process ids as a reader in another PID namespace has them.

use std::fs;

/// The pid that this process's namespace gives to a process which calls itself `pid` and started at `start_time` (clock ticks
/// after boot); `None` when it is in no namespace that is seen from here. What cannot be found out is taken for the same.
pub fn as_seen_here(pid: u32, start_time: u64) -> Option<u32> {
    if start_time == 0 || start_of(pid) == Some(start_time) {
        return Some(pid);
    }
    let Ok(folder) = fs::read_dir("/proc") else {
        return Some(pid);
    };
    let here = folder.flatten();
    let pids = here.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter()
        .find(|here| start_of(*here) == Some(start_time) && innermost(*here) == Some(pid))
}

/// Field 22 of `/proc/PID/stat`, counted behind the name, which may hold anything.
pub fn start_of(pid: impl std::fmt::Display) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit(')').next()?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// The letter of a process's state in `/proc/PID/stat`: `T` is stopped by a signal, `t` by a debugger (proc_pid_stat(5)).
pub fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit(')').next()?;
    after_name.trim_start().chars().next()
}

/// The process that a thread or process id belongs to.
pub fn leader_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    leader.trim().parse().ok()
}

/// The last of the pids that a process has, one in each namespace that it is in: its own.
fn innermost(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    pids.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_the_same_namespace_has_the_pid_it_knows() {
        let (me, start) = (
            std::process::id(),
            start_of("self").expect("/proc is there"),
        );
        assert_eq!(as_seen_here(me, start), Some(me));
        assert_eq!(as_seen_here(me, 0), Some(me), "not to be found out");
    }

    #[test]
    fn a_process_that_is_not_to_be_seen_has_none() {
        assert_eq!(as_seen_here(std::process::id(), 1), None);
    }

    #[test]
    fn a_thread_belongs_to_its_process_which_runs() {
        // SAFETY: no arguments, no memory.
        let thread = || unsafe { libc::gettid() } as u32;
        let other = std::thread::spawn(move || leader_of(thread()));
        let own = std::process::id();
        assert_eq!(other.join().expect("no panic"), Some(own));
        assert!(matches!(state_of(own), Some('R' | 'S' | 'D')));
        assert_eq!(leader_of(u32::MAX), None);
    }
}
