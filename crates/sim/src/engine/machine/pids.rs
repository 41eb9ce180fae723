//! Process ids (PID) as a reader in another PID namespace has them.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process as it knows itself.
#[derive(Clone, Copy)]
pub struct Own {
    pub pid: u32,
    /// Clock ticks after boot; 0 where it cannot be found out.
    pub start_time: u64,
    /// Inode of its PID namespace; 0 where it cannot be found out.
    pub namespace: u64,
}

impl Own {
    pub fn of_this_process() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            start_time: start_of(pid).unwrap_or_default(),
            namespace: namespace_of("self").unwrap_or_default(),
        }
    }

    /// The pid that this process's namespace gives to it; `None` when it is in no namespace that is seen from here.
    /// What cannot be found out is taken for the same.
    pub fn pid_here(self) -> Option<u32> {
        if self.start_time == 0 || self.is_at(self.pid) {
            return Some(self.pid);
        }
        let Ok(folder) = fs::read_dir("/proc") else {
            return Some(self.pid);
        };
        let here = folder.flatten();
        let mut pids = here.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|here| self.is_at(*here) && innermost(*here) == Some(self.pid))
    }

    /// Containers that start in one tick of the clock have first processes of the same pid and time, in namespaces of
    /// their own.
    fn is_at(self, here: u32) -> bool {
        let namespace = || namespace_of(here).filter(|_| self.namespace != 0);
        start_of(here) == Some(self.start_time)
            && namespace().is_none_or(|namespace| namespace == self.namespace)
    }
}

/// The inode of a process's PID namespace; `None` where that is not to be seen.
fn namespace_of(pid: impl std::fmt::Display) -> Option<u64> {
    let namespace = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?;
    Some(namespace.ino())
}

/// Field 22 of `/proc/PID/stat`, counted behind the name, which may hold anything. This process is read as the ledger reads
/// it (its `Stat::of`), for QEMU.
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = if pid == std::process::id() {
        let first = fs::read_to_string(format!("/proc/self/task/{pid}/stat"));
        first.or_else(|_| fs::read_to_string("/proc/self/stat"))
    } else {
        fs::read_to_string(format!("/proc/{pid}/stat"))
    };
    let stat = stat.ok()?;
    let after_name = stat.rsplit(')').next()?;
    after_name.split_whitespace().nth(19)?.parse().ok()
}

/// The letter of a process's state in `/proc/PID/stat`: `T` is stopped by a signal, `t` by a debugger
/// (proc_pid_stat(5)).
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
        let me = Own::of_this_process();
        assert_eq!(me.pid, std::process::id());
        assert!(me.start_time != 0 && me.namespace != 0, "/proc is there");
        assert_eq!(me.pid_here(), Some(me.pid));
        let unknown = Own {
            start_time: 0,
            ..me
        };
        assert_eq!(unknown.pid_here(), Some(me.pid), "not to be found out");
        let unknown = Own { namespace: 0, ..me };
        assert_eq!(unknown.pid_here(), Some(me.pid), "not to be found out");
    }

    #[test]
    fn a_process_that_is_not_to_be_seen_has_none() {
        let me = Own::of_this_process();
        let other = Own {
            start_time: 1,
            ..me
        };
        assert_eq!(other.pid_here(), None);
        let elsewhere = Own {
            namespace: me.namespace + 1,
            ..me
        };
        assert_eq!(elsewhere.pid_here(), None, "of another container");
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
