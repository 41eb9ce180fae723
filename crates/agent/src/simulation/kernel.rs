//! The simulated kernel: processes in a folder in the form of proc(5), and the effect of signals.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use divvy_ledger::ProcessIdentity;
use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::process::Signal;

use super::program::Program;
use super::supervisor::Supervisor;
use super::{World, clock, with};
use crate::host::process::Process;

/// Above the highest pid that a kernel assigns (PID_MAX_LIMIT, 2^22): no real process of this machine has such a pid.
const FIRST_PID: u32 = 5_000_000;
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;

/// A process.
pub struct Proc {
    pub process: Process,
    pub parent: u32,
    pub session: u32,
    pub stopped: bool,
    /// Has been told to end, and has not heard it yet.
    pub told: bool,
    /// It is in a container.
    pub within: Option<Within>,
    pub kind: Kind,
}

/// Where a process of a container is, and what it calls itself there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within {
    /// Inode of its PID namespace.
    pub namespace: u64,
    /// 1 for the first process; all others end with it.
    pub pid: u32,
}

pub enum Kind {
    /// The daemon itself.
    Daemon,
    /// A process of an engine, which uses no GPU and with which a slice ends.
    Engine,
    Supervisor(Box<Supervisor>),
    Program(Box<Program>),
    /// An unmanaged process that uses so much of a GPU.
    Stranger {
        gpu: usize,
        bytes: u64,
    },
}

impl Proc {
    /// As it writes itself into a slice.
    pub fn owner(&self) -> ProcessIdentity {
        let within = self.within;
        ProcessIdentity {
            pid: within.map_or(self.process.pid, |within| within.pid),
            start_time: self.process.start_time,
            pid_namespace: within.map_or(ProcessIdentity::current().pid_namespace, |within| {
                within.namespace
            }),
        }
    }
}

/// The folder of processes, while there is a simulation.
pub fn proc() -> Option<PathBuf> {
    with(|world| world.proc.clone())
}

/// Sends a signal in a simulation; `None` where there is none.
pub fn signal(to: Process, signal: Signal) -> Option<io::Result<()>> {
    with(|world| match world.processes.get(&to.pid) {
        Some(found) if found.process == to && !world.zombies.contains_key(&to.pid) => {
            world.signal(to.pid, signal);
            Ok(())
        }
        _ => Err(Errno::SRCH.into()),
    })
}

/// Starts a supervisor in a simulation; `None` where there is none.
pub fn supervise(dir: &Path, lock: &fs::File) -> Option<io::Result<u32>> {
    with(|world| {
        if world.no_processes {
            return Err(Errno::AGAIN.into());
        }
        let lock = lock.try_clone()?;
        let parent = world.daemon.ok_or(io::ErrorKind::NotFound)?;
        let supervisor = Kind::Supervisor(Box::new(Supervisor::new(dir, lock)));
        if std::mem::take(&mut world.fork_server_dies) {
            // Before it was copied, or after that.
            if world.spawned.is_multiple_of(2) {
                world.spawn(1, None, supervisor);
            }
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(world.spawn(parent, None, supervisor))
    })
}

/// What is left of a child that has ended is taken away; `None` while it lives.
pub fn wait(pid: u32) -> Option<ExitStatus> {
    with(|world| {
        let status = world.zombies.remove(&pid)?;
        world.vanish(pid);
        Some(ExitStatus::from_raw(status))
    })?
}

/// Says in a process's folder which mount namespace it is in, and that this is mounted there.
pub fn mount(folder: &Path, namespace: &str, what: &Path) -> io::Result<()> {
    symlink(namespace, folder.join("ns/mnt"))?;
    let line = format!("2 1 0:1 {} / rw - tmpfs tmpfs rw\n", what.display());
    fs::write(folder.join("mountinfo"), line)
}

impl World {
    /// A new process; one that is to lead a session of its own has none yet.
    pub fn spawn(&mut self, parent: u32, session: Option<u32>, kind: Kind) -> u32 {
        self.spawn_within(parent, session, kind, None)
    }

    /// The same in a container.
    pub fn spawn_within(
        &mut self,
        parent: u32,
        session: Option<u32>,
        kind: Kind,
        within: Option<Within>,
    ) -> u32 {
        let pid = FIRST_PID + self.spawned;
        self.spawned += 1;
        let boot = clock::boot().unwrap_or_default();
        let start_time =
            crate::host::process::ticks(u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX));
        let process = Process { pid, start_time };
        let proc = Proc {
            process,
            parent,
            session: session.unwrap_or(pid),
            stopped: false,
            told: false,
            within,
            kind,
        };
        let folder = self.proc.join(pid.to_string());
        let owner = proc.owner();
        let namespace = format!("pid:[{}]", owner.pid_namespace);
        let pids = match within {
            Some(within) => format!("{pid}\t{}", within.pid),
            None => pid.to_string(),
        };
        let make = || -> io::Result<()> {
            fs::create_dir_all(folder.join("ns"))?;
            fs::create_dir(folder.join("fd"))?;
            symlink(namespace, folder.join("ns/pid"))?;
            fs::write(folder.join("status"), format!("NSpid:\t{pids}\n"))?;
            fs::write(folder.join("maps"), "")?;
            fs::write(folder.join("comm"), "sim\n")
        };
        make().expect("a folder for a simulated process");
        if let Kind::Program(program) = &proc.kind {
            if let Some(uid) = program.uid {
                chown(&folder, Some(uid), None).expect("a folder that is another's");
            }
            if let Some(mounted) = &program.mounted {
                mount(&folder, "mnt:[2]", mounted)
                    .expect("what is mounted for a simulated process");
            }
        }
        self.processes.insert(pid, proc);
        self.show(pid);
        pid
    }

    /// Writes down how a process is, where others read it.
    fn show(&self, pid: u32) {
        let Some(proc) = self.processes.get(&pid) else {
            return;
        };
        let state = match () {
            () if self.zombies.contains_key(&pid) => 'Z',
            () if proc.stopped => 'T',
            () => 'S',
        };
        let (parent, session, start) = (proc.parent, proc.session, proc.process.start_time);
        let stat = format!(
            "{pid} (sim) {state} {parent} {pid} {session} 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 1 2 3\n"
        );
        let path = self.proc.join(pid.to_string()).join("stat");
        fs::write(path, stat).expect("the state of a simulated process");
    }

    /// What a process has mapped, from now on. In a container the files have other names.
    pub fn map(&self, pid: u32, files: &[&Path]) {
        let is_within = self
            .processes
            .get(&pid)
            .is_some_and(|one| one.within.is_some());
        let line = |file: &&Path| match fs::metadata(file) {
            Ok(there) if is_within => {
                let (major, minor) = (major(there.dev()), minor(there.dev()));
                let inode = there.ino();
                format!("7f0-7f1 rw-s 00000000 {major:x}:{minor:x} {inode} /mounted\n")
            }
            _ => format!("7f0-7f1 rw-s 00000000 00:00 0 {}\n", file.display()),
        };
        let lines: String = files.iter().map(line).collect();
        let path = self.proc.join(pid.to_string()).join("maps");
        fs::write(path, lines).expect("the maps of a simulated process");
    }

    fn signal(&mut self, pid: u32, signal: Signal) {
        let Some(proc) = self.processes.get_mut(&pid) else {
            return;
        };
        if signal == Signal::KILL {
            self.trace(|| format!("pid {pid} is killed"));
            return self.die(pid, SIGKILL);
        }
        match signal {
            Signal::STOP => proc.stopped = true,
            Signal::CONT => proc.stopped = false,
            _ => proc.told = true,
        }
        self.show(pid);
    }

    /// SIGKILL.
    pub fn kill(&mut self, pid: u32) {
        if self.processes.contains_key(&pid) && !self.zombies.contains_key(&pid) {
            self.signal(pid, Signal::KILL);
        }
    }

    /// Ends a process, with a status as wait(2) has it.
    pub fn die(&mut self, pid: u32, status: i32) {
        let within = self.processes.get(&pid).and_then(|one| one.within);
        if let Some(Within { namespace, pid: 1 }) = within {
            let is_there = |one: &&Proc| one.within.is_some_and(|one| one.namespace == namespace);
            let all = self.processes.values().filter(is_there);
            let all: Vec<u32> = all.map(|one| one.process.pid).collect();
            for other in all.into_iter().filter(|other| *other != pid) {
                self.die(other, SIGKILL);
            }
            self.engine.ended(namespace, status);
        }
        let Some(proc) = self.processes.get_mut(&pid) else {
            return;
        };
        if let Kind::Program(program) = &proc.kind
            && program.is_first
        {
            self.ends.insert(program.run.clone(), status);
        }
        let parent = proc.parent;
        // Its descriptors close and its locks with them; its memory is the driver's again.
        let was_supervisor = matches!(proc.kind, Kind::Supervisor(_));
        proc.kind = Kind::Stranger { gpu: 0, bytes: 0 };
        let orphans: Vec<u32> = self
            .processes
            .values()
            .filter(|other| other.parent == pid)
            .map(|other| other.process.pid)
            .collect();
        let heir = match within {
            // Of their namespace.
            Some(within) => self.first_of(within.namespace).unwrap_or(1),
            None => self.reaper_above(parent),
        };
        for orphan in orphans {
            if let Some(orphan) = self.processes.get_mut(&orphan) {
                orphan.parent = heir;
            }
            self.show(orphan);
        }
        if was_supervisor && Some(parent) == self.daemon {
            self.zombies.insert(pid, status);
            return self.show(pid);
        }
        if let Some(Proc {
            kind: Kind::Supervisor(supervisor),
            ..
        }) = self.processes.get_mut(&parent)
        {
            supervisor.reap(pid, status);
        }
        self.vanish(pid);
    }

    /// The nearest supervisor at or above a process, else init.
    fn reaper_above(&self, mut pid: u32) -> u32 {
        while let Some(proc) = self.processes.get(&pid) {
            if matches!(proc.kind, Kind::Supervisor(_)) {
                return pid;
            }
            pid = proc.parent;
        }
        1
    }

    /// For one more process in a namespace.
    pub fn next_within(&self, namespace: u64) -> Within {
        // No other has it: every process of the machine adds one.
        let pid = self.spawned + 2;
        Within { namespace, pid }
    }

    fn first_of(&self, namespace: u64) -> Option<u32> {
        let first = Some(Within { namespace, pid: 1 });
        let mut all = self.processes.values();
        all.find(|one| one.within == first)
            .map(|one| one.process.pid)
    }

    fn vanish(&mut self, pid: u32) {
        self.processes.remove(&pid);
        let _ = fs::remove_dir_all(self.proc.join(pid.to_string()));
    }

    /// The daemon is gone: init takes its children in, and waits for those that have ended.
    pub fn daemon_died(&mut self) {
        let Some(daemon) = self.daemon.take() else {
            return;
        };
        for pid in std::mem::take(&mut self.zombies).into_keys() {
            self.vanish(pid);
        }
        self.die(daemon, SIGKILL);
        self.orders_are_lost();
    }

    /// All processes below one, those of other sessions too.
    pub fn below(&self, pid: u32) -> Vec<u32> {
        let mut found = vec![pid];
        let mut next = 0;
        while let Some(parent) = found.get(next).copied() {
            let children = self.processes.values().filter(|one| one.parent == parent);
            found.extend(children.map(|one| one.process.pid));
            next += 1;
        }
        found.split_off(1)
    }
}
