//! The state machine of one task, from the moment its job has a slice: events in, the next action out. Pure.
//!
//! ```text
//! Looking ─► Claiming ─► Taken ─► Starting ─► Preparing ─► Confirming ─► Running ─► Stopping ─► Ending ─► Done
//!              │  ▲        └────── its user has taken it back ───────────────────────────────────────────►┘
//!              ▼  │                                          └─ no slice any more, told to stop ─► Returning ─► Done
//!            Unsure: the answer is lost, or we died before it came
//! ```
//! From `Taken` on the task is ours, and no other agent will pick it up: every path from there leads to a state that
//! ends it on the server, or back to the front of its queue. [`ClaimPhase`] is the part of the state that is on disk
//! before an action begins.

use serde::{Deserialize, Serialize};

use crate::server::Status;

/// How far a task is, as its record says: written down before the first action of it is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimPhase {
    /// The server may have given it to us.
    Claiming,
    /// It has.
    Ours,
    /// The agent may have started it.
    Confirmed,
    /// It is on its way back into its queue.
    Returning,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the task.
    Look,
    /// Read it a while later, with whether it is in its queue.
    LookAgain,
    /// `queues.get_next_task`.
    Pop,
    /// `queues.remove_task`: it passes others, whose projects' quotas hold them back.
    Remove,
    /// `tasks.started`, and what the task's page shows of its slot.
    Start,
    /// Have the agent start what is run for it.
    Confirm,
    /// Wait for its job's end, for its user, and for the word to stop.
    Watch,
    /// Stop its job, and wait for its end.
    Cancel(StopReason),
    /// Send what is left of its log, read it, and say how it ended.
    ReportEnd(Ending),
    /// Put it back to the front of its queue.
    PutBack,
    /// Nothing more: let go of the job, the worker and the record.
    Finish(Outcome),
}

/// The result of an action, or an event meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The task, and whether it is in its queue where that was asked.
    Seen {
        seen: TaskState,
        listed: bool,
    },
    Popped,
    /// The queue's head is another task.
    NotPopped,
    /// It is unknown whether the task was popped.
    PopLost,
    Started,
    /// The server knows a reason why it cannot be started.
    StartRefused,
    Confirmed,
    /// The job has no slice any more, or has ended.
    NoSlice,
    /// The task's request cannot be run.
    Unfit,
    /// The job waits for its confirmation once more.
    GrantedAgain,
    JobEnded(JobEnd),
    Verdict(StopReason),
    EndReported,
    PutBack,
    /// The daemon is told to stop, and its tasks with it.
    Stop,
}

/// A task as the server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskState {
    /// `None`: there is no such task.
    pub status: Option<Status>,
    /// Its user has asked for its end.
    pub stopping: bool,
}

/// Why a task that runs is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// Its user stopped it.
    Abort,
    /// Another client has changed its status.
    Changed,
    Reset,
    /// It was deleted.
    Gone,
    /// Its own agent has told how it ended, and its process lives on.
    Ended,
    /// The daemon stops.
    Shutdown,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    Exited(i32),
    /// It was never started.
    NotLaunched,
    /// Its exit code is unknown.
    Lost,
    /// A user of this machine cancelled the job.
    Cancelled,
    /// Divvy stopped it, for its time or for memory past its limit.
    Killed,
}

/// How a task's run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Job(JobEnd),
    Stopped(StopReason),
    /// Its request cannot be run.
    Unfit,
    /// It was out of its queue and never started: its user has stopped it, or a user of this machine.
    Unstarted,
}

/// The final status that the server gets at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalStatus {
    Completed,
    Failed,
    Stopped,
}

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It never was ours.
    NotOurs,
    /// Its user has taken it back before it ran.
    Released,
    /// It is at the front of its queue.
    Returned,
    /// It ran, and its end is on the server.
    Ended,
}

/// Observations of a task without a visible worker before it counts as ours: another agent that popped it registers
/// within moments. Five are 10 s; the stock agent registers 3 s after its start, so half would be too soon on a slow
/// network.
const LOOKS: u8 = 5;

/// How often the front end tries to start a task before it returns it to the queue. One failure may be a passing fault
/// of the server; a task that fails three times would hold up those behind it.
const STARTS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Looking,
    Claiming { was: Status },
    Unsure { looks: u8 },
    Taken { was: Status, tries: u8 },
    Starting { tries: u8 },
    Preparing,
    Confirming,
    Running,
    Stopping(StopReason),
    Ending(Ending),
    Returning,
    Done(Outcome),
}

/// A task's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLifecycle {
    state: State,
    /// The daemon stops: what does not run yet goes back.
    stop: bool,
    /// It is not the first of its queue.
    passes: bool,
    /// It is taken from its queue to be stopped: a user of this machine has cancelled it.
    withdraws: bool,
}

/// A job after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveredJob {
    /// It holds a slice and waits for its confirmation.
    Awaited,
    /// It runs, is about to, or has ended.
    Begun,
    /// Neither.
    Nothing,
}

impl Default for TaskLifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl TaskLifecycle {
    /// Of a task whose job has just been given its slice.
    pub fn new() -> Self {
        Self::at(State::Looking)
    }

    /// Of one that is not the first of its queue.
    pub fn passing() -> Self {
        Self {
            passes: true,
            ..Self::new()
        }
    }

    /// Of a task that a user of this machine cancels while it waits. Its record does not say so: the next daemon puts the
    /// task back into its queue, because no client got an answer.
    pub fn withdrawing() -> Self {
        Self {
            passes: true,
            withdraws: true,
            ..Self::new()
        }
    }

    /// Of a task whose record was found, and its job.
    pub fn recovered(mark: ClaimPhase, job: RecoveredJob) -> Self {
        Self::at(match (mark, job) {
            (ClaimPhase::Claiming, _) => State::Unsure { looks: 0 },
            (ClaimPhase::Ours, RecoveredJob::Awaited) => State::Taken {
                was: Status::Queued,
                tries: 0,
            },
            (ClaimPhase::Ours | ClaimPhase::Confirmed, RecoveredJob::Nothing)
            | (ClaimPhase::Returning, _) => State::Returning,
            (ClaimPhase::Confirmed, RecoveredJob::Awaited) => State::Preparing,
            // `ClaimPhase::Confirmed` is written before the confirmation, so a job that runs in phase `Ours` was
            // started by another client.
            (ClaimPhase::Ours | ClaimPhase::Confirmed, RecoveredJob::Begun) => State::Running,
        })
    }

    fn at(state: State) -> Self {
        Self {
            state,
            stop: false,
            passes: false,
            withdraws: false,
        }
    }

    pub fn action(&self) -> Action {
        match self.state {
            State::Looking | State::Taken { .. } | State::Preparing => Action::Look,
            State::Unsure { .. } => Action::LookAgain,
            State::Claiming { .. } if self.passes => Action::Remove,
            State::Claiming { .. } => Action::Pop,
            State::Starting { .. } => Action::Start,
            State::Confirming => Action::Confirm,
            State::Running => Action::Watch,
            State::Stopping(why) => Action::Cancel(why),
            State::Ending(ending) => Action::ReportEnd(ending),
            State::Returning => Action::PutBack,
            State::Done(outcome) => Action::Finish(outcome),
        }
    }

    /// The phase that the record must have before the action begins; `None`: no record is needed yet, or any more.
    pub fn mark(&self) -> Option<ClaimPhase> {
        match self.state {
            State::Looking | State::Done(_) => None,
            State::Claiming { .. } | State::Unsure { .. } => Some(ClaimPhase::Claiming),
            State::Taken { .. } | State::Starting { .. } | State::Preparing => {
                Some(ClaimPhase::Ours)
            }
            State::Confirming | State::Running | State::Stopping(_) | State::Ending(_) => {
                Some(ClaimPhase::Confirmed)
            }
            State::Returning => Some(ClaimPhase::Returning),
        }
    }

    /// Whether the queue's next task may be claimed: this one is out of the queue, or stays in it.
    pub fn is_past_claim(&self) -> bool {
        !matches!(
            self.state,
            State::Looking | State::Claiming { .. } | State::Unsure { .. }
        )
    }

    /// The next state. An event without a meaning in this state changes nothing.
    #[must_use]
    pub fn on(mut self, event: Event) -> Self {
        if event == Event::Stop {
            self.stop = true;
        }
        let next = match (self.state, event) {
            (State::Looking, Event::Seen { seen, .. }) => match seen.status {
                _ if self.stop => State::Done(Outcome::NotOurs),
                // A task that is gone, or no longer waits, blocks its queue until it is taken from it.
                was => State::Claiming {
                    was: was.unwrap_or_default(),
                },
            },
            (State::Claiming { was }, Event::Popped) => State::Taken { was, tries: 0 },
            (State::Claiming { .. }, Event::NotPopped) => State::Done(Outcome::NotOurs),
            (State::Claiming { .. }, Event::PopLost) => State::Unsure { looks: 0 },
            (State::Unsure { looks }, Event::Seen { seen, listed }) => match seen.status {
                Some(Status::Queued) if listed => State::Done(Outcome::NotOurs),
                Some(Status::Queued) if looks + 1 < LOOKS => State::Unsure { looks: looks + 1 },
                // No other agent started it within the time, so it would be lost.
                Some(Status::Queued) => State::Returning,
                _ => State::Done(Outcome::NotOurs),
            },
            (State::Taken { .. }, Event::Seen { seen, .. }) if self.withdraws => {
                match seen.status {
                    Some(Status::Queued) => State::Ending(Ending::Unstarted),
                    Some(Status::InProgress) => State::Done(Outcome::NotOurs),
                    // It waits nowhere, and runs nowhere.
                    _ => State::Done(Outcome::Released),
                }
            }
            (State::Taken { was, tries }, Event::Seen { seen, .. }) => {
                taken(was, tries, seen, self.stop)
            }
            (State::Starting { .. }, Event::Started) => State::Preparing,
            (State::Starting { tries }, Event::StartRefused) if tries + 1 < STARTS => {
                State::Taken {
                    was: Status::Queued,
                    tries: tries + 1,
                }
            }
            (State::Starting { .. }, Event::StartRefused) => State::Returning,
            (State::Preparing, Event::Seen { seen, .. }) => match seen.status {
                Some(Status::InProgress) if seen.stopping => {
                    State::Ending(Ending::Stopped(StopReason::Abort))
                }
                Some(Status::InProgress) if self.stop => State::Returning,
                Some(Status::InProgress) => State::Confirming,
                _ => State::Done(Outcome::Released),
            },
            (State::Confirming, Event::Confirmed) if self.stop => {
                State::Stopping(StopReason::Shutdown)
            }
            (State::Confirming, Event::Confirmed) => State::Running,
            (State::Confirming, Event::NoSlice) => State::Returning,
            // A user of this machine was quicker.
            (State::Confirming, Event::JobEnded(end)) => State::Ending(Ending::Job(end)),
            (State::Confirming, Event::Unfit) => State::Ending(Ending::Unfit),
            (State::Running, Event::GrantedAgain) => State::Preparing,
            (State::Running, Event::Verdict(why)) => State::Stopping(why),
            (State::Running, Event::Stop) => State::Stopping(StopReason::Shutdown),
            (State::Running, Event::JobEnded(end)) => State::Ending(Ending::Job(end)),
            (State::Stopping(why), Event::JobEnded(_)) => State::Ending(Ending::Stopped(why)),
            (State::Ending(_), Event::EndReported) => State::Done(Outcome::Ended),
            (State::Returning, Event::PutBack) => State::Done(Outcome::Returned),
            (state, _) => state,
        };
        self.state = next;
        self
    }
}

/// A task that is out of its queue by our hand, as the server has it now; `was` is what it was before.
fn taken(was: Status, tries: u8, seen: TaskState, stop: bool) -> State {
    match seen.status {
        // Popping made it `queued` again, against its user's word.
        Some(Status::Queued) if was == Status::Stopped => State::Ending(Ending::Unstarted),
        Some(Status::Queued) if stop => State::Returning,
        Some(Status::Queued) => State::Starting { tries },
        // We said that it runs, and died before that was written down.
        Some(Status::InProgress) if seen.stopping => {
            State::Ending(Ending::Stopped(StopReason::Abort))
        }
        Some(Status::InProgress) if was == Status::Queued => State::Preparing,
        _ => State::Done(Outcome::Released),
    }
}

impl Ending {
    /// The status to report, if any. A status that another client has set stays.
    pub fn final_status(self, seen: TaskState) -> Option<FinalStatus> {
        let ours = match seen.status {
            Some(Status::InProgress) => self != Self::Unstarted,
            // A task that had started and is queued again waits for its next run, which is not this one's to end.
            Some(Status::Queued) => self == Self::Unstarted,
            _ => false,
        };
        let word = match self {
            Self::Stopped(
                StopReason::Changed | StopReason::Reset | StopReason::Gone | StopReason::Ended,
            ) => return None,
            Self::Stopped(StopReason::Abort | StopReason::Shutdown) | Self::Unstarted => {
                FinalStatus::Stopped
            }
            Self::Job(_) | Self::Unfit if seen.stopping => FinalStatus::Stopped,
            Self::Job(JobEnd::Exited(0)) => FinalStatus::Completed,
            Self::Job(JobEnd::Cancelled) => FinalStatus::Stopped,
            Self::Job(_) | Self::Unfit => FinalStatus::Failed,
        };
        ours.then_some(word)
    }
}

#[cfg(test)]
mod tests;
