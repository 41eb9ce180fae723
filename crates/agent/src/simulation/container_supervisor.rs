//! The simulated supervisor of a container job: the steps of `crate::container::run`, one at a time. The records are
//! the real ones, the engine is [`super::engine`].

use std::time::Duration;

use super::engine::{Called, State};
use super::kernel::Kind;
use super::supervisor::{At, Supervisor};
use super::{World, clock};
use crate::job_dir::{ContainerRecord, RunOutcome, StartRecord};
use divvy_testkit::Rng;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerStage {
    Make,
    Place,
    Launch,
    Start,
    /// Another supervisor made it, or the engine did not say whether it started: this supervisor now writes down its
    /// own identity.
    Again,
    /// The engine is asked what has become of it.
    Seek,
    /// Its start is told.
    Tell,
    Follow(ContainerStop),
}

/// How far its end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerStop {
    Unwanted,
    /// It is asked until it has heard.
    Asked,
    /// It has, and is killed then.
    Heard(Duration),
}

fn failed(why: &str, exit_code: i32) -> RunOutcome {
    RunOutcome::Launch {
        launch_error: why.to_owned(),
        exit_code,
    }
}

fn withdrawn() -> RunOutcome {
    RunOutcome::Withdrawn {
        withdrawn: "the job was stopped before it started".to_owned(),
    }
}

fn lost() -> RunOutcome {
    RunOutcome::Lost {
        lost: "the exit code is unknown: the container was removed".to_owned(),
    }
}

impl Supervisor {
    fn goes(&mut self, stage: ContainerStage) {
        self.at = At::Attends(stage);
    }

    fn ends(&mut self, outcome: RunOutcome) {
        self.outcome = Some(outcome);
        self.at = At::Ends;
    }
}

impl World {
    /// The next thing that it has to do.
    pub fn attends(&mut self, pid: u32, stage: ContainerStage, dice: &mut Rng) {
        let Some(proc) = self.processes.get_mut(&pid) else {
            return;
        };
        let (me, told) = (proc.process, proc.told);
        let slices = self.home.slices().to_owned();
        let Kind::Supervisor(supervisor) = &mut proc.kind else {
            return;
        };
        let Some(name) = supervisor.container.clone() else {
            return;
        };
        let dir = supervisor.dir.clone();
        let begun = StartRecord::now;
        match stage {
            ContainerStage::Make | ContainerStage::Place | ContainerStage::Launch
                if told || dir.is_stop_requested() =>
            {
                supervisor.ends(withdrawn());
            }
            ContainerStage::Make => {
                let spec = dir.spec().ok().flatten();
                let job = spec.as_ref().and_then(|spec| spec.job.parse().ok());
                let journal = spec.and_then(|spec| spec.container?.journal);
                let called = self.engine.call();
                let before = self.engine.state(&name);
                if called != Called::Away && matches!(before, None | Some(State::Created)) {
                    self.engine.create(&name, job.unwrap_or(0), journal);
                }
                match (called, before) {
                    // An engine that is away is waited for, and then all is done anew.
                    (Called::Away | Called::Unanswered, _) => {}
                    (Called::Answered, None | Some(State::Created)) => {
                        self.goes(pid, ContainerStage::Place);
                    }
                    (Called::Answered, Some(_)) => {
                        let why = "a container of that name exists already";
                        self.ends(pid, failed(why, 125));
                    }
                }
            }
            ContainerStage::Place => {
                let placed = ContainerRecord {
                    id: format!("id-{name}"),
                    name,
                    log_from: 0,
                };
                // Without the line no exec session can start, and all else works.
                let _ = dir.write_container(&placed);
                supervisor.goes(ContainerStage::Launch);
            }
            ContainerStage::Launch => match dir.write_launch(&begun(me)) {
                Ok(()) => supervisor.goes(ContainerStage::Start),
                Err(_) => self.die(pid, 1 << 8),
            },
            ContainerStage::Start => {
                let called = self.engine.call();
                let is_there = self.engine.state(&name).is_some();
                if called == Called::Answered && !is_there {
                    return self.ends(pid, failed("no such container", 125));
                }
                if called == Called::Answered && dice.once_in(12) {
                    return self.ends(pid, failed("no such program", 127));
                }
                if called != Called::Away && is_there {
                    self.container_starts(&name, &dir, &slices, dice);
                }
                // Without an answer the supervisor does not know whether the container runs.
                self.goes(
                    pid,
                    match called {
                        Called::Answered => ContainerStage::Tell,
                        Called::Unanswered | Called::Away => ContainerStage::Again,
                    },
                );
            }
            ContainerStage::Again => match dir.write_launch(&begun(me)) {
                Ok(()) => supervisor.goes(ContainerStage::Seek),
                Err(_) => self.die(pid, 1 << 8),
            },
            ContainerStage::Seek => {
                if self.engine.call() != Called::Answered {
                    return;
                }
                match self.engine.state(&name) {
                    None => self.ends(pid, lost()),
                    Some(State::Created) if dir.is_stop_requested() => self.ends(pid, withdrawn()),
                    Some(State::Created) => self.goes(pid, ContainerStage::Start),
                    Some(State::Running(_) | State::Exited(_)) => {
                        self.goes(pid, ContainerStage::Tell)
                    }
                }
            }
            ContainerStage::Tell => {
                if self.engine.call() != Called::Answered {
                    return;
                }
                let first = match self.engine.state(&name) {
                    Some(State::Running(first)) => {
                        self.processes.get(&first).map(|one| one.process)
                    }
                    _ => None,
                };
                let _ = dir.write_started(&begun(first.unwrap_or(me)));
                let ending = match dir.is_stop_requested() {
                    true => self.asks_to_end(pid, &name),
                    false => ContainerStop::Unwanted,
                };
                self.goes(pid, ContainerStage::Follow(ending));
            }
            ContainerStage::Follow(ending) => {
                let time = clock::boot().unwrap_or_default();
                match self.engine.state(&name).filter(|_| !self.engine.is_away) {
                    Some(State::Exited(exit_code)) => {
                        return self.ends(pid, RunOutcome::Exited { exit_code });
                    }
                    None if !self.engine.is_away => return self.ends(pid, lost()),
                    _ => {}
                }
                match ending {
                    ContainerStop::Unwanted if !told => {}
                    ContainerStop::Unwanted | ContainerStop::Asked => {
                        let ending = self.asks_to_end(pid, &name);
                        self.goes(pid, ContainerStage::Follow(ending));
                    }
                    ContainerStop::Heard(kill) if time >= kill => {
                        if self.engine.call() != Called::Away
                            && let Some(State::Running(first)) = self.engine.state(&name)
                        {
                            self.kill(first);
                        }
                    }
                    ContainerStop::Heard(_) => {}
                }
            }
        }
    }

    /// SIGTERM, which is lost if no process passes it on. The grace period begins when the engine has said that it was
    /// sent.
    fn asks_to_end(&mut self, pid: u32, name: &str) -> ContainerStop {
        let called = self.engine.call();
        if called != Called::Away
            && let Some(State::Running(first)) = self.engine.state(name)
            && let Some(first) = self.processes.get_mut(&first)
        {
            first.told = true;
        }
        if called != Called::Answered {
            return ContainerStop::Asked;
        }
        let grace = self.supervisor(pid).map(|one| one.grace);
        ContainerStop::Heard(clock::boot().unwrap_or_default() + grace.unwrap_or_default())
    }

    fn goes(&mut self, pid: u32, stage: ContainerStage) {
        if let Some(supervisor) = self.supervisor(pid) {
            supervisor.goes(stage);
        }
    }

    fn ends(&mut self, pid: u32, outcome: RunOutcome) {
        if let Some(supervisor) = self.supervisor(pid) {
            supervisor.ends(outcome);
        }
    }
}
