//! The simulated supervisor: the steps of `crate::supervisor`, one at a time, so that it can be killed between any two.
//! The records are the real ones.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::container_supervisor::ContainerStage;
use super::engine::Called;
use super::kernel::{Kind, SIGTERM};
use super::program::Program;
use super::{World, clock};
use crate::host::clock::now;
use crate::job_dir::{ExitRecord, JobDir, LaunchSpec, RunOutcome, StartRecord};
use divvy_testkit::Rng;

pub struct Supervisor {
    pub dir: JobDir,
    lock: Option<File>,
    pub(super) at: At,
    pub(super) grace: Duration,
    program: Option<u32>,
    pub(super) outcome: Option<RunOutcome>,
    told_at: Option<Duration>,
    /// The name of its container, where its job has one.
    pub(super) container: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Begin,
    Launched,
    Spawned,
    Watches,
    /// To a container.
    Attends(ContainerStage),
    Ends,
    /// Its container is to go.
    Clears,
}

/// From what wait(2) says.
fn outcome(status: i32) -> RunOutcome {
    match status & 0x7f {
        0 => RunOutcome::Exited {
            exit_code: status >> 8,
        },
        signal => RunOutcome::Signaled { signal },
    }
}

impl Supervisor {
    pub fn new(dir: &Path, lock: File) -> Self {
        Self {
            dir: JobDir::new(dir),
            lock: Some(lock),
            at: At::Begin,
            grace: Duration::ZERO,
            program: None,
            outcome: None,
            told_at: None,
            container: None,
        }
    }

    /// It lets others into its job.
    pub fn takes_guests(&self) -> bool {
        self.at == At::Watches && self.told_at.is_none() && self.outcome.is_none()
    }

    /// A child of its has ended.
    pub fn reap(&mut self, pid: u32, status: i32) {
        if self.program == Some(pid) {
            self.outcome = Some(outcome(status));
        }
    }
}

impl World {
    /// A supervisor does the next thing that it has to do.
    pub fn supervisor_steps(&mut self, pid: u32, dice: &mut Rng) {
        let Some(proc) = self.processes.get_mut(&pid) else {
            return;
        };
        let (process, session, told) = (proc.process, proc.session, proc.told);
        let Kind::Supervisor(supervisor) = &mut proc.kind else {
            return;
        };
        let begun = StartRecord::now;
        let dir = supervisor.dir.clone();
        match supervisor.at {
            // Its signal handlers are not there yet.
            At::Begin if told => self.die(pid, SIGTERM),
            At::Begin => {
                let spec = dir.spec().ok().flatten();
                let launched = !matches!(dir.launch(), Ok(None));
                let plan = spec.as_ref().and_then(|spec| spec.container.as_ref());
                let spent = !matches!(dir.exit(), Ok(None)) || (launched && plan.is_none());
                match spec.filter(|_| !spent) {
                    Some(LaunchSpec {
                        container: Some(plan),
                        grace_ms,
                        ..
                    }) => {
                        supervisor.grace = Duration::from_millis(grace_ms);
                        supervisor.container = Some(plan.name);
                        supervisor.at = At::Attends(match launched {
                            true => ContainerStage::Again,
                            false => ContainerStage::Make,
                        });
                    }
                    Some(spec) if dir.write_launch(&begun(process)).is_ok() => {
                        supervisor.grace = Duration::from_millis(spec.grace_ms);
                        supervisor.at = At::Launched;
                    }
                    _ => self.die(pid, 1 << 8),
                }
            }
            At::Launched if dice.once_in(12) => {
                supervisor.outcome = Some(RunOutcome::Launch {
                    launch_error: "no such program".to_owned(),
                    exit_code: 127,
                });
                supervisor.at = At::Ends;
            }
            At::Launched => {
                supervisor.at = At::Spawned;
                let program = Program::of(&dir, self.home.slices(), pid, dice);
                self.ran(&program);
                let program = self.spawn(pid, Some(session), Kind::Program(Box::new(program)));
                if let Some(supervisor) = self.supervisor(pid) {
                    supervisor.program = Some(program);
                }
            }
            At::Spawned => {
                supervisor.at = At::Watches;
                let program = supervisor.program;
                let program = program.and_then(|pid| self.processes.get(&pid));
                // One that has ended already is a zombie until it was waited for: its pid is known all the same.
                if let Some(program) = program {
                    let _ = dir.write_started(&begun(program.process));
                }
            }
            At::Watches => self.watches(pid, told),
            At::Attends(stage) => self.attends(pid, stage, dice),
            At::Clears => {
                let name = supervisor.container.clone().unwrap_or_default();
                match self.engine.call() {
                    Called::Away => return,
                    Called::Unanswered => return self.container_goes(&name),
                    Called::Answered => self.container_goes(&name),
                }
                self.die(pid, 0);
            }
            At::Ends => {
                let exit = ExitRecord {
                    outcome: supervisor
                        .outcome
                        .clone()
                        .unwrap_or(RunOutcome::Exited { exit_code: 0 }),
                    at: now(),
                };
                // A full disk is waited out.
                let written = dir.write_exit(&exit).is_ok();
                if written && supervisor.container.is_some() {
                    supervisor.at = At::Clears;
                } else if written {
                    supervisor.lock = None;
                    self.die(pid, 0);
                }
            }
        }
    }

    fn watches(&mut self, pid: u32, told: bool) {
        let time = clock::boot().unwrap_or_default();
        let below = self.below(pid);
        let Some(supervisor) = self.supervisor(pid) else {
            return;
        };
        let ended = supervisor.outcome.is_some();
        if ended && below.is_empty() {
            supervisor.at = At::Ends;
            return;
        }
        if supervisor.told_at.is_none() && (told || ended) {
            supervisor.told_at = Some(time);
            for pid in below {
                for signal in [Signal::TERM, Signal::CONT] {
                    self.send(pid, signal);
                }
            }
            return;
        }
        let grace = supervisor.grace;
        if supervisor.told_at.is_some_and(|at| time >= at + grace) {
            for pid in below {
                self.kill(pid);
            }
        }
    }

    /// All processes below a supervisor that has told them to end.
    pub fn are_to_end(&self) -> BTreeSet<u32> {
        let told = self.processes.iter().filter(|(_, one)| match &one.kind {
            Kind::Supervisor(supervisor) => supervisor.told_at.is_some(),
            _ => false,
        });
        told.flat_map(|(pid, _)| self.below(*pid)).collect()
    }

    fn send(&mut self, pid: u32, signal: Signal) {
        if let Some(proc) = self.processes.get_mut(&pid) {
            match signal {
                Signal::CONT => proc.stopped = false,
                _ => proc.told = true,
            }
        }
    }

    pub fn supervisor(&mut self, pid: u32) -> Option<&mut Supervisor> {
        match &mut self.processes.get_mut(&pid)?.kind {
            Kind::Supervisor(supervisor) => Some(supervisor),
            _ => None,
        }
    }

    /// A client that was told that its job starts comes for it.
    pub fn client_comes(&mut self, dir: &PathBuf) {
        if let Ok(Some(lock)) = JobDir::new(dir).lock() {
            let client = Supervisor::new(dir, lock);
            self.spawn(1, None, Kind::Supervisor(Box::new(client)));
        }
    }
}
