//! The simulated container engine: it makes containers, starts and ends them, and may be away, with its containers or
//! without. In a container processes have numbers of their own, and all end with the first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::kernel::{Kind, SIGKILL, Within};
use super::program::Program;
use super::{World, with};
use crate::container::gc::{ContainerActivity, ContainerGc, FoundContainer};
use crate::job_dir::JobDir;
use divvy_testkit::Rng;

/// The engine, and what it knows.
#[derive(Default)]
pub struct Engine {
    /// The engine does not answer.
    pub is_away: bool,
    /// It takes one more call, carries it out, and is away before it answers.
    pub breaks: bool,
    /// By name.
    pub containers: BTreeMap<String, Container>,
    namespaces: u64,
}

pub struct Container {
    pub job: u64,
    journal: Option<String>,
    pub state: State,
    /// Its first process's namespace, once it was started.
    namespace: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Created,
    /// By its first process.
    Running(u32),
    /// With the code that the engine gives.
    Exited(i32),
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    Answered,
    /// It was carried out, and the answer was lost.
    Unanswered,
    /// The call did not arrive.
    Away,
}

/// The kernel numbers its namespaces above 0xEFFFFFFB (include/linux/proc_ns.h), so no real process is in these.
const FIRST_NAMESPACE: u64 = 1_000_000;

/// Where the engine of a simulation listens; `None` where there is no simulation.
pub fn socket() -> Option<PathBuf> {
    with(|world| world.home.state().join("engine.sock"))
}

/// Takes away what is left over of a simulation's containers; whether there is a simulation.
pub fn is_swept(sweep: &ContainerGc) -> bool {
    with(|world| world.swept(sweep)).is_some()
}

impl Engine {
    pub fn call(&mut self) -> Called {
        match () {
            () if self.is_away => Called::Away,
            () if self.breaks => {
                (self.breaks, self.is_away) = (false, true);
                Called::Unanswered
            }
            () => Called::Answered,
        }
    }

    pub fn next_namespace(&mut self) -> u64 {
        self.namespaces += 1;
        FIRST_NAMESPACE + self.namespaces
    }

    pub fn create(&mut self, name: &str, job: u64, journal: Option<String>) {
        let container = Container {
            job,
            journal,
            state: State::Created,
            namespace: None,
        };
        self.containers.insert(name.to_owned(), container);
    }

    pub fn state(&self, name: &str) -> Option<State> {
        Some(self.containers.get(name)?.state)
    }

    /// The first process of a namespace has ended.
    pub fn ended(&mut self, namespace: u64, status: i32) {
        let its = |one: &&mut Container| one.namespace == Some(namespace);
        if let Some(container) = self.containers.values_mut().find(its) {
            container.state = State::Exited(shell(status));
        }
    }
}

/// A status as wait(2) has it, as a shell and the engine say it.
pub fn shell(status: i32) -> i32 {
    match status & 0x7f {
        0 => status >> 8,
        signal => 128 + signal,
    }
}

impl World {
    /// Starts a container that was made; its program is the job's.
    pub fn container_starts(&mut self, name: &str, dir: &JobDir, slices: &Path, dice: &mut Rng) {
        let namespace = self.engine.next_namespace();
        let program = Program::of(dir, slices, 0, dice);
        self.ran(&program);
        let within = Within { namespace, pid: 1 };
        // Its parent is a process of the engine's that outlives it (containerd-shim).
        let first = self.spawn_within(1, None, Kind::Program(Box::new(program)), Some(within));
        if let Some(container) = self.engine.containers.get_mut(name) {
            container.state = State::Running(first);
            container.namespace = Some(namespace);
        }
    }

    /// A container is removed, and its processes end.
    pub fn container_goes(&mut self, name: &str) {
        if let Some(State::Running(first)) = self.engine.state(name) {
            self.die(first, SIGKILL);
        }
        self.engine.containers.remove(name);
    }

    /// The engine goes away, perhaps with all that runs.
    pub fn engine_goes(&mut self, ends_all: bool) {
        self.engine.is_away = true;
        let running = self.engine.containers.values().map(|one| one.state);
        let running: Vec<u32> = running
            .filter_map(|state| match state {
                State::Running(first) => Some(first),
                State::Created | State::Exited(_) => None,
            })
            .filter(|_| ends_all)
            .collect();
        for first in running {
            self.kill(first);
        }
    }

    /// What a daemon that has just started takes away, as soon as the engine answers it.
    pub fn swept(&mut self, sweep: &ContainerGc) {
        if self.engine.call() == Called::Away {
            return;
        }
        let stray = |container: &Container| {
            let standing = match container.state {
                State::Running(_) => ContainerActivity::Running,
                State::Created | State::Exited(_) => ContainerActivity::Idle,
            };
            let job = container.job.to_string();
            sweep.should_remove(FoundContainer {
                journal: container.journal.as_deref(),
                job: Some(&job),
                created: None,
                state: standing,
            })
        };
        let all = self.engine.containers.iter();
        let strays = all.filter(|(_, one)| stray(one));
        let strays: Vec<String> = strays.map(|(name, _)| name.clone()).collect();
        for name in strays {
            self.container_goes(&name);
        }
    }
}
