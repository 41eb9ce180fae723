//! The processes of a simulated machine: a folder in the form of proc(5), and what signals do.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use divvy_ledger::Owner;
use rustix::io::Errno;
use rustix::process::Signal;

use super::program::Program;
use super::supervisor::Supervisor;
use super::{World, clock, with};
use crate::process::Process;

/// Above the most that a kernel gives out (PID_MAX_LIMIT, 2^22): nobody on the machine that simulates has such a pid.
const FIRST_PID: u32 = 5_000_000;
const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;

/// A process.
pub struct Proc {
    pub process: Process,
    pub parent: u32,
    pub session: u32,
    pub stopped: bool,
    /// Has been told to end, and has not heard it yet.
    pub told: bool,
    pub kind: Kind,
}

pub enum Kind {
    /// The agent itself.
    Daemon,
    Supervisor(Box<Supervisor>),
    Program(Box<Program>),
    /// Somebody who uses a GPU and has nothing to do with us: so much of which.
    Stranger {
        gpu: usize,
        bytes: u64,
    },
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
        let supervisor = Supervisor::new(dir, lock);
        Ok(world.spawn(parent, None, Kind::Supervisor(Box::new(supervisor))))
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

impl World {
    /// A new process; one that is to lead a session of its own has none yet.
    pub fn spawn(&mut self, parent: u32, session: Option<u32>, kind: Kind) -> u32 {
        let pid = FIRST_PID + self.spawned;
        self.spawned += 1;
        let boot = clock::boot().unwrap_or_default();
        let start_time = crate::process::ticks(u64::try_from(boot.as_nanos()).unwrap_or(u64::MAX));
        let process = Process { pid, start_time };
        let proc = Proc {
            process,
            parent,
            session: session.unwrap_or(pid),
            stopped: false,
            told: false,
            kind,
        };
        let folder = self.proc.join(pid.to_string());
        let namespace = format!("pid:[{}]", Owner::me().pid_namespace);
        let make = || -> io::Result<()> {
            fs::create_dir_all(folder.join("ns"))?;
            fs::create_dir(folder.join("fd"))?;
            symlink(namespace, folder.join("ns/pid"))?;
            fs::write(folder.join("status"), format!("NSpid:\t{pid}\n"))?;
            fs::write(folder.join("maps"), "")?;
            fs::write(folder.join("comm"), "sim\n")
        };
        make().expect("a folder for a simulated process");
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

    /// What a process has mapped, from now on.
    pub fn map(&self, pid: u32, files: &[&Path]) {
        let lines: String = files
            .iter()
            .map(|file| format!("7f0-7f1 rw-s 00000000 00:00 0 {}\n", file.display()))
            .collect();
        let path = self.proc.join(pid.to_string()).join("maps");
        fs::write(path, lines).expect("the maps of a simulated process");
    }

    fn signal(&mut self, pid: u32, signal: Signal) {
        let Some(proc) = self.processes.get_mut(&pid) else {
            return;
        };
        if signal == Signal::KILL {
            self.say(|| format!("pid {pid} is killed"));
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
        let Some(proc) = self.processes.get_mut(&pid) else {
            return;
        };
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
        let heir = self.reaper_above(parent);
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

    fn vanish(&mut self, pid: u32) {
        self.processes.remove(&pid);
        let _ = fs::remove_dir_all(self.proc.join(pid.to_string()));
    }

    /// The agent is gone: init takes its children in, and waits for those that have ended.
    pub fn daemon_died(&mut self) {
        let Some(daemon) = self.daemon.take() else {
            return;
        };
        for pid in std::mem::take(&mut self.zombies).into_keys() {
            self.vanish(pid);
        }
        self.die(daemon, SIGKILL);
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
