//! Process identity: pid and start time, so that a recycled pid is never taken for the earlier process.
//!
//! Everything here reads `/proc` (proc(5)); signals go through a pidfd, which cannot hit an unmanaged process.

pub mod evidence;
pub mod mounts;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use divvy_ledger::ProcessIdentity;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::machine::machine;

/// One process, for ever: its id and when it started, in clock ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    pub start_time: u64,
}

impl From<Process> for divvy_core::job::Process {
    fn from(Process { pid, start_time }: Process) -> Self {
        Self { pid, start_time }
    }
}

impl From<divvy_core::job::Process> for Process {
    fn from(process: divvy_core::job::Process) -> Self {
        let divvy_core::job::Process { pid, start_time } = process;
        Self { pid, start_time }
    }
}

/// What `/proc/PID/stat` says, as far as we ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: u8,
    parent: u32,
    session: u32,
    threads: u32,
    start_time: u64,
}

impl Process {
    /// The process that has `pid` now.
    pub fn with_pid(pid: u32) -> Option<Self> {
        stat(pid).map(|stat| Self {
            pid,
            start_time: stat.start_time,
        })
    }

    /// This process.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn this() -> io::Result<Self> {
        Self::with_pid(std::process::id())
            .ok_or_else(|| io::Error::other("/proc does not list this process"))
    }

    /// Whether it still holds anything: a zombie has given back all it had, unless only its first thread has ended.
    pub fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start_time == self.start_time && stat.is_alive())
    }

    /// Whether its first thread runs, the one that `/proc/PID` shows.
    pub fn has_running_leader(self) -> bool {
        let stat = stat(self.pid).filter(|stat| stat.start_time == self.start_time);
        stat.is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
    }

    /// Whether it is known to have ended. Unlike the opposite of [`is_alive`](Self::is_alive), an error of the kernel,
    /// such as too many open files, is no end.
    pub fn has_ended(self) -> bool {
        match fs::symlink_metadata(proc_path(self.pid, "stat")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(_) => false,
            Ok(_) => stat(self.pid)
                .is_some_and(|stat| stat.start_time != self.start_time || !stat.is_alive()),
        }
    }

    /// Whether a signal has stopped it, so that it does nothing until it is continued. A stop of a debugger's may be
    /// over at once.
    pub fn is_stopped(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start_time == self.start_time && stat.state == b'T')
    }

    /// Sends a signal to this process and to nothing else.
    ///
    /// # Errors
    /// `ESRCH` when it is gone, `EPERM` when it is not ours.
    pub fn signal(self, signal: Signal) -> io::Result<()> {
        machine().signal(self, signal)
    }
}

/// All descendants of `ancestor` that are alive, parents before children.
pub fn descendants(ancestor: u32) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    for (process, stat) in living() {
        children.entry(stat.parent).or_default().push(process);
    }
    let mut found = children.remove(&ancestor).unwrap_or_default();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let below = children.remove(&parent.pid).unwrap_or_default();
        // `/proc` is not read in one moment. If this parent has reused a process's pid meanwhile, that process's child
        // is older.
        let own = |child: &Process| child.start_time >= parent.start_time;
        found.extend(below.into_iter().filter(own));
        next += 1;
    }
    found
}

/// A process and the number of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionMember {
    pub process: Process,
    pub session: u32,
}

/// A process and its ancestors, nearest first; ends where one is gone, and is empty when `of` is. What a subreaper or
/// init has taken in descends from it.
pub fn ancestry(of: Process) -> Vec<SessionMember> {
    // A real tree has a few dozen levels, so a deeper one is a chain that a job made to hold up the daemon.
    const DEEP: usize = 512;
    let mut line: Vec<SessionMember> = Vec::new();
    let Some(mut stat) = self::stat(of.pid).filter(|stat| stat.start_time == of.start_time) else {
        return line;
    };
    let mut process = of;
    while line.len() < DEEP {
        line.push(SessionMember {
            process,
            session: stat.session,
        });
        let Some(parent) = parent(process, &stat) else {
            break;
        };
        (process, stat) = parent;
    }
    line
}

/// The parent, and what is said of it. A parent is never younger than its child: one that is has come by the pid of a
/// parent that has just died, and then the child has another by now.
fn parent(child: Process, seen: &Stat) -> Option<(Process, Stat)> {
    let mut number = seen.parent;
    for _ in 0..8 {
        if number == 0 {
            return None;
        }
        if let Some(stat) = stat(number).filter(|stat| stat.start_time <= child.start_time) {
            let process = Process {
                pid: number,
                start_time: stat.start_time,
            };
            return Some((process, stat));
        }
        number = stat(child.pid)
            .filter(|stat| stat.start_time == child.start_time)?
            .parent;
    }
    None
}

/// A moment of CLOCK_BOOTTIME (nanoseconds) as processes' start times have it.
pub fn ticks(boot_time_ns: u64) -> u64 {
    let a_second = u128::from(rustix::param::clock_ticks_per_second());
    u64::try_from(u128::from(boot_time_ns) * a_second / 1_000_000_000).unwrap_or(u64::MAX)
}

/// How long a process of this start time (in ticks) has run at least, at this moment of CLOCK_BOOTTIME (nanoseconds).
/// The kernel rounds a start time down to a tick (`nsec_to_clock_t`), so the process may have started up to one tick
/// later.
pub fn age(start_time: u64, now_ns: u64) -> Duration {
    let a_second = u128::from(rustix::param::clock_ticks_per_second().max(1));
    let latest_ns = ((u128::from(start_time) + 1) * 1_000_000_000).div_ceil(a_second);
    let age_ns = u128::from(now_ns).saturating_sub(latest_ns);
    Duration::from_nanos(u64::try_from(age_ns).unwrap_or(u64::MAX))
}

/// All other living processes of the session that `leader` led: what a supervisor leaves behind when it is killed,
/// daemonised children aside. The kernel keeps a session's number from being used again while it has members, so a new
/// leader of that number means that there are none.
pub fn session_members(leader: Process) -> Vec<Process> {
    if stat(leader.pid).is_some_and(|stat| stat.start_time != leader.start_time) {
        return Vec::new();
    }
    let members =
        living().filter(|(process, stat)| stat.session == leader.pid && *process != leader);
    members.map(|(process, _)| process).collect()
}

/// The PID namespace of this process (inode of `/proc/self/ns/pid`, 0 where that cannot be found out). It is the same
/// as long as it lives (pid_namespaces(7)), and that of copies of it.
pub fn own_pid_namespace() -> u64 {
    static HERE: OnceLock<u64> = OnceLock::new();
    *HERE.get_or_init(|| ProcessIdentity::current().pid_namespace)
}

/// The inode of the machine's first PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether every process of the machine is seen from here, under a pid that no other process has.
pub fn sees_all() -> bool {
    own_pid_namespace() == INITIAL_PID_NAMESPACE
}

/// Every living process that is seen from here.
pub fn processes() -> impl Iterator<Item = Process> {
    living().map(|(process, _)| process)
}

fn living() -> impl Iterator<Item = (Process, Stat)> {
    let pids = fs::read_dir(root()).into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| {
            stat(pid).map(|stat| {
                (
                    Process {
                        pid,
                        start_time: stat.start_time,
                    },
                    stat,
                )
            })
        })
        .filter(|(_, stat)| stat.is_alive())
}

impl Stat {
    fn is_alive(&self) -> bool {
        match self.state {
            b'X' | b'x' => false,
            b'Z' => self.threads > 1,
            _ => true,
        }
    }
}

/// Where proc(5) is.
fn root() -> PathBuf {
    machine().proc()
}

/// What proc(5) has about a process under this name.
pub fn proc_path(pid: u32, name: &str) -> PathBuf {
    let mut path = root();
    path.push(pid.to_string());
    path.push(name);
    path
}

/// The folders of a process's threads in proc(5).
///
/// # Errors
/// When it is gone.
pub fn threads(pid: u32) -> io::Result<impl Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(proc_path(pid, "task"))?;
    Ok(entries.flatten().map(|entry| entry.path()))
}

/// What is found in the folder of a process in proc(5). The kernel shows nothing of a first thread that has ended; then
/// another thread's folder has it.
pub fn of_any_thread<T>(pid: u32, read: impl Fn(PathBuf) -> Option<T>) -> Option<T> {
    read(proc_path(pid, "")).or_else(|| threads(pid).ok()?.find_map(read))
}

fn stat(pid: u32) -> Option<Stat> {
    // proc(5): the name has 64 bytes at most, and each of the 50 numbers 20 digits. The kernel returns such a file
    // whole to a large enough buffer.
    let mut line = [0; 2048];
    // As the ledger does (its `Stat::of`), for QEMU.
    let own = (std::process::id() == pid)
        .then(|| fs::File::open(proc_path(pid, &format!("task/{pid}/stat"))).ok());
    let mut file = match own.flatten() {
        Some(file) => file,
        None => fs::File::open(proc_path(pid, "stat")).ok()?,
    };
    let length = file.read(&mut line).ok()?;
    parse(line.get(..length)?)
}

/// The real user of a process; `None` where `/proc` does not show it.
pub fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(proc_path(pid, "status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The name of a process's program, as `/proc/PID/comm` shows it to every user: at most 15 bytes.
pub fn program_of(pid: u32) -> Option<String> {
    let name = fs::read(proc_path(pid, "comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(name.trim_end_matches('\n').to_owned())
}

/// The second field is the program's name in brackets and may hold anything, so fields are counted from its last
/// bracket.
fn parse(line: &[u8]) -> Option<Stat> {
    let after = line.iter().rposition(|byte| *byte == b')')? + 2;
    let text = std::str::from_utf8(line.get(after..)?).ok()?;
    let mut fields = (3..).zip(text.split_ascii_whitespace());
    let mut field = |wanted| {
        fields
            .find(|(number, _)| *number == wanted)
            .map(|(_, field)| field)
    };
    Some(Stat {
        state: *field(3)?.as_bytes().first()?,
        parent: field(4)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        threads: field(20)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

/// A pid as rustix has it; `None` for 0 and for what no pid can be.
pub fn to_rustix_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_with_brackets_and_spaces_shifts_no_field() {
        let line = b"77 (a) R 1 (b) S 5 70 60 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 10 20 18446744073709551615\n";
        let expected = Stat {
            state: b'S',
            parent: 5,
            session: 60,
            threads: 1,
            start_time: 4242,
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b"77 (cut"), None);
    }

    #[test]
    fn a_process_is_never_taken_for_older_than_it_is() {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        // Every tenth of a tick within a second, and 0.9 s to 2.1 s later.
        for started_ns in (7_000_000_000..8_000_000_000).step_by(tick_ns as usize / 10) {
            for passed_ns in (900_000_000..2_100_000_000).step_by(12_345_678) {
                let now_ns = started_ns + passed_ns;
                let told = age(ticks(started_ns), now_ns).as_nanos();
                let true_age = u128::from(passed_ns);
                assert!(told <= true_age, "{started_ns} {passed_ns}: {told}");
                assert!(true_age - told <= u128::from(tick_ns), "{told}");
            }
        }
        assert_eq!(age(u64::MAX, 1), Duration::ZERO);
        assert_eq!(age(0, 0), Duration::ZERO);
    }

    #[test]
    fn what_a_process_is_called_does_not_change_where_it_is() {
        let me = std::process::id();
        assert_eq!(Some(own_pid_namespace()), evidence::pid_namespace(me));
        assert_eq!(Process::with_pid(me), Process::this().ok());
        assert!(processes().any(|process| process.pid == me));
    }

    #[test]
    fn a_process_is_alive_until_it_ends_and_its_zombie_is_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::with_pid(child.id()).unwrap();
        assert!(process.is_alive());
        assert!(
            !Process {
                start_time: process.start_time + 1,
                ..process
            }
            .is_alive()
        );
        assert!(descendants(std::process::id()).contains(&process));

        process.signal(Signal::KILL).unwrap();
        let pid = to_rustix_pid(child.id()).unwrap();
        let exited =
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), exited).unwrap();
        assert!(!process.is_alive(), "a zombie holds nothing");
        assert!(process.signal(Signal::TERM).is_err());
        child.wait().unwrap();
    }
}
