//! A model of a task's events and of every point where the glue can die. The decisions are production code; their
//! inputs are a few small numbers, so that all combinations can be tried.

use std::collections::{HashSet, VecDeque};

use divvy_clearml::frontend::requeue::{RequeueStep, requeue_steps};
use divvy_clearml::frontend::task_state::TaskState;
use divvy_clearml::server::Status;

use super::{ended, facts};
use crate::glue::pod_status::{PodState, TaskPodStatus};
use crate::glue::task_state::{ClaimPhase, FinalStatus, TaskFacts, TaskStep, next};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Waits,
    Runs { begun: bool },
    Ended(Option<i32>),
}

/// One call of the glue's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Call {
    MakeRecord,
    Pop,
    Mark(MarkName),
    RemoveRecord,
    MakePod,
    DeletePod,
    Started,
    Completed,
    Failed,
    Stopped,
    Add,
    Reset,
    Enqueue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MarkName {
    Claiming,
    Ours,
    Returning,
}

/// A task, its queue, its record and its pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    status: Option<u8>,
    listed: bool,
    stopping: bool,
    record: Option<MarkName>,
    pod: Option<(Stage, bool)>,
    /// The glue's pending calls.
    calls: Vec<Call>,
    looks: u8,
    runs: u8,
    queued: u8,
    /// The events that may still happen.
    crashes: u8,
    acts: u8,
    losses: u8,
}

/// Statuses as numbers, so that they have an order.
const STATUSES: [Status; 6] = [
    Status::Created,
    Status::Queued,
    Status::InProgress,
    Status::Stopped,
    Status::Failed,
    Status::Completed,
];

impl World {
    fn new(crashes: u8, acts: u8, losses: u8) -> Self {
        Self {
            status: Some(1),
            listed: true,
            stopping: false,
            record: None,
            pod: None,
            calls: Vec::new(),
            looks: 0,
            runs: 0,
            queued: 1,
            crashes,
            acts,
            losses,
        }
    }

    fn is(&self, status: Status) -> bool {
        self.status() == Some(status)
    }

    fn status(&self) -> Option<Status> {
        self.status.map(|at| STATUSES[usize::from(at)])
    }

    fn set(&mut self, status: Status) {
        let at = STATUSES.iter().position(|one| *one == status).unwrap();
        self.status = Some(u8::try_from(at).unwrap());
        self.stopping = false;
    }

    fn known(&self) -> Option<MarkName> {
        self.record.or(self.pod.map(|_| MarkName::Ours))
    }

    fn facts(&self, mark: MarkName) -> TaskFacts {
        let state = |stage| match stage {
            Stage::Waits => PodState::Waits(None),
            Stage::Runs { .. } => PodState::Runs,
            Stage::Ended(exit) => ended(exit, None),
        };
        let over = [Status::Stopped, Status::Failed, Status::Created];
        TaskFacts {
            mark: match mark {
                MarkName::Claiming => ClaimPhase::Claiming,
                MarkName::Ours => ClaimPhase::Ours,
                MarkName::Returning => ClaimPhase::Returning,
            },
            pod: self.pod.map(|(stage, terminating)| TaskPodStatus {
                state: state(stage),
                terminating,
                preempted: None,
            }),
            status: self.status(),
            stopping: self.stopping,
            listed: self.listed,
            looks: self.looks,
            verdict: self.stopping || self.status().is_none_or(|status| over.contains(&status)),
            ..facts(None, None)
        }
    }

    /// The glue's calls for the observed state.
    fn plan(&self) -> Vec<Call> {
        let Some(mark) = self.known() else {
            return if self.listed {
                vec![Call::MakeRecord, Call::Pop, Call::Mark(MarkName::Ours)]
            } else {
                Vec::new()
            };
        };
        let facts = self.facts(mark);
        match next(&facts) {
            TaskStep::Nothing | TaskStep::ReportWaiting(_) | TaskStep::LookAgain => Vec::new(),
            TaskStep::Forget => vec![Call::RemoveRecord],
            TaskStep::Return => vec![Call::Mark(MarkName::Returning)],
            TaskStep::PutBack => {
                let seen = TaskState {
                    status: facts.status,
                    stopping: facts.stopping,
                };
                let calls =
                    requeue_steps(seen, facts.listed)
                        .iter()
                        .filter_map(|step| match step {
                            RequeueStep::Add => Some(Call::Add),
                            RequeueStep::Reset => Some(Call::Reset),
                            RequeueStep::Enqueue => Some(Call::Enqueue),
                            RequeueStep::Stop => Some(Call::Stopped),
                            RequeueStep::Front => None,
                        });
                calls.chain([Call::RemoveRecord]).collect()
            }
            TaskStep::Make => vec![Call::MakePod],
            TaskStep::Delete => vec![Call::DeletePod],
            TaskStep::Start => vec![Call::Started],
            TaskStep::ReportEnd(FinalStatus::Completed) => vec![Call::Completed],
            TaskStep::ReportEnd(FinalStatus::Failed(_)) => vec![Call::Failed],
            TaskStep::ReportEnd(FinalStatus::Stopped) => vec![Call::Stopped],
        }
    }

    fn done(&mut self, call: Call) {
        let from =
            |of: &[Status], world: &Self| world.status().is_some_and(|status| of.contains(&status));
        match call {
            Call::MakeRecord if self.record.is_none() => self.record = Some(MarkName::Claiming),
            // It is there already: nothing is claimed.
            Call::MakeRecord => self.calls.clear(),
            Call::Pop if self.listed => {
                self.listed = false;
                if self.is(Status::Stopped) {
                    self.set(Status::Queued);
                }
            }
            Call::Pop => self.calls = vec![Call::RemoveRecord],
            Call::Mark(mark) => self.record = self.record.map(|_| mark),
            Call::RemoveRecord => self.record = None,
            Call::MakePod => self.pod = self.pod.or(Some((Stage::Waits, false))),
            Call::DeletePod => self.pod = self.pod.map(|(stage, _)| (stage, true)),
            Call::Started
                if from(
                    &[
                        Status::Created,
                        Status::Queued,
                        Status::Stopped,
                        Status::Completed,
                    ],
                    self,
                ) =>
            {
                self.set(Status::InProgress);
            }
            Call::Completed if from(&[Status::InProgress, Status::Stopped], self) => {
                self.set(Status::Completed)
            }
            Call::Failed if from(&[Status::Queued, Status::InProgress, Status::Stopped], self) => {
                self.set(Status::Failed);
            }
            Call::Stopped if from(&[Status::Queued, Status::InProgress, Status::Failed], self) => {
                self.set(Status::Stopped);
            }
            Call::Add => self.listed = true,
            Call::Reset if self.status.is_some() => self.reset(),
            Call::Enqueue if from(&[Status::Created, Status::Stopped, Status::Failed], self) => {
                self.set(Status::Queued);
                self.listed = true;
            }
            _ => {}
        }
    }

    fn reset(&mut self) {
        self.set(Status::Created);
        self.listed = false;
    }

    /// The glue's next call, or its next decision.
    fn glue(&self) -> Option<Self> {
        let mut world = self.clone();
        if world.calls.is_empty() {
            let mark = world.known();
            let looks = mark.is_some_and(|mark| next(&world.facts(mark)) == TaskStep::LookAgain);
            world.calls = world.plan();
            world.looks = if looks { world.looks + 1 } else { 0 };
        } else {
            let call = world.calls.remove(0);
            world.done(call);
        }
        (world != *self).then_some(world)
    }

    /// Events of the node, and of the task's own agent there. The first is the normal one.
    fn node(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut may = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            all.push(world);
        };
        match self.pod {
            None => {}
            Some((Stage::Waits | Stage::Ended(_), true)) => may(&|world| world.pod = None),
            Some((Stage::Runs { .. }, true)) => {
                may(&|world| world.pod = None);
                may(&|world| world.pod = Some((Stage::Ended(Some(143)), true)));
            }
            Some((Stage::Waits, false)) => {
                may(&|world| world.pod = Some((Stage::Runs { begun: false }, false)));
                may(&|world| world.pod = Some((Stage::Ended(None), false)));
            }
            Some((Stage::Runs { begun: false }, false)) => {
                // `execute --require-queue`: a task that is neither queued nor in progress is not run.
                may(&|world| {
                    if world.is(Status::Queued) || world.is(Status::InProgress) {
                        world.set(Status::InProgress);
                        world.listed = false;
                        world.runs += 1;
                        world.pod = Some((Stage::Runs { begun: true }, false));
                    } else {
                        world.pod = Some((Stage::Ended(Some(1)), false))
                    }
                });
            }
            Some((Stage::Runs { begun: true }, false)) => {
                may(&|world| {
                    if world.is(Status::InProgress) {
                        world.set(Status::Completed);
                    }
                    world.pod = Some((Stage::Ended(Some(0)), false));
                });
                may(&|world| world.pod = Some((Stage::Ended(Some(137)), false)));
            }
            Some((Stage::Ended(_), false)) => {}
        }
        if self.losses > 0 && self.pod.is_some() {
            may(&|world| {
                world.losses -= 1;
                world.pod = None;
            });
        }
        all
    }

    /// Events of its user.
    fn user(&self) -> Vec<Self> {
        if self.acts == 0 || self.status.is_none() {
            return Vec::new();
        }
        let mut all = Vec::new();
        let mut may = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            world.acts -= 1;
            change(&mut world);
            all.push(world);
        };
        match self.status() {
            Some(Status::InProgress) => may(&|world| world.stopping = true),
            Some(Status::Queued) => may(&|world| {
                world.set(Status::Stopped);
                world.listed = false;
            }),
            Some(Status::Created | Status::Stopped | Status::Failed) => may(&|world| {
                world.set(Status::Queued);
                world.listed = true;
                world.queued += 1;
            }),
            _ => {}
        }
        may(&|world| world.reset());
        may(&|world| {
            world.status = None;
            world.listed = false;
        });
        all
    }

    fn crash(&self) -> Option<Self> {
        let dies = self.crashes > 0 && !self.calls.is_empty();
        dies.then(|| Self {
            crashes: self.crashes - 1,
            calls: Vec::new(),
            looks: 0,
            ..self.clone()
        })
    }

    /// Nothing is left of it, and no client waits for it.
    fn is_over(&self) -> bool {
        let ends = [
            None,
            Some(Status::Created),
            Some(Status::Stopped),
            Some(Status::Failed),
            Some(Status::Completed),
        ];
        self.record.is_none()
            && self.pod.is_none()
            && self.calls.is_empty()
            && ends.contains(&self.status())
    }
}

/// Tries everything, and from each state whether it comes to an end when nothing more goes wrong.
fn explore(first: World) -> usize {
    let (mut seen, mut left) = (HashSet::from([first.clone()]), VecDeque::from([first]));
    while let Some(world) = left.pop_front() {
        assert!(
            world.runs <= world.queued,
            "it ran more often than it was queued: {world:?}"
        );
        let mut calm = world.clone();
        let mut steps = 0;
        while !calm.is_over() {
            steps += 1;
            assert!(steps < 100, "it never ends: {world:?}");
            // The glue looks often while a node does one thing.
            calm = match calm.glue() {
                Some(next) => next,
                None => match calm.node().into_iter().next() {
                    Some(next) => next,
                    None => panic!("nothing more happens: {calm:?}, after {world:?}"),
                },
            };
        }
        let nexts = world
            .glue()
            .into_iter()
            .chain(world.node())
            .chain(world.user())
            .chain(world.crash());
        for next in nexts {
            if seen.insert(next.clone()) {
                left.push_back(next);
            }
        }
    }
    seen.len()
}

#[test]
fn wherever_the_glue_dies_a_task_runs_once_and_ends() {
    assert!(explore(World::new(3, 0, 1)) > 100);
}

#[test]
fn whatever_its_user_does_meanwhile_a_task_runs_no_more_than_it_was_queued() {
    assert!(explore(World::new(1, 3, 0)) > 1000);
}
