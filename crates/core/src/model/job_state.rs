//! The job state machine: the states of one job, and the one transition function.
//!
//! ```text
//!             Placed             Spawned          (starting, running: Resized)
//!   queued ───────────► starting ───────────► running
//!    │ ▲  NeverStarted   │  │                  │  │
//!    │ ├─────────────────┘  │ Stop       Failed│  │
//!    │ ├────────────────────┼──────────────────┤  │
//!    │ │ Exited        ┌────┼──────────────────┘  │
//!    │ │ (to come back)▼    ▼     Stop            │
//!    │ └──────────── stopping                     │
//!    │ Stop             │        │ Exited         │ Exited
//!    └──────────────────┴────────┴────► ended ◄───┘
//! ```
//!
//! A claim of another scheduler has no program of ours. It is `lent` where a job is running: after `starting`, and
//! before `stopping` when the claim is released.
//!
//! A job ends once: no transition leaves `ended`, and every state leads to it. It holds its grants from `Placed` until
//! it is queued again or has ended. Its program runs again only after a preemption, a requeue, or a failure with
//! retries left. The agent acts on a state: journal, supervisor, signals.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::slice::Grant;
use crate::units::JobId;

/// A job, with what its state needs and nothing more. In JSON: `{"state":"running","grants":[…],"process":{…}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobState {
    /// Waits for its turn and its GPUs.
    Queued,
    /// Has its grants; its supervisor is being started.
    Starting { grants: Vec<Grant> },
    /// Its program runs.
    Running {
        grants: Vec<Grant>,
        process: Process,
    },
    /// The claim is allocated to another scheduler, until it is released.
    #[serde(rename = "lent")]
    Bound { grants: Vec<Grant> },
    /// Is to stop, and something of it may be left. No process yet when it was to stop while starting.
    Stopping {
        grants: Vec<Grant>,
        process: Option<Process>,
        #[serde(default)]
        why: StopReason,
    },
    /// Holds nothing, for good.
    Ended { outcome: Outcome },
}

/// Why a job is to stop. A later cause takes an earlier one's place, never the reverse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// What it was on is not there any more.
    GpuLost,
    /// A job that is within its project's quota starts in its place; it goes back into its queue.
    Preempt,
    /// A user requeues it, to start from its beginning.
    Requeue,
    /// Its time is over.
    TimeLimit,
    /// It did nothing with what it held for too long.
    Idle,
    /// The other scheduler has released the claim.
    Release,
    /// A user cancels it.
    #[default]
    Cancel,
}

impl StopReason {
    pub const ALL: [Self; 7] = [
        Self::GpuLost,
        Self::Preempt,
        Self::Requeue,
        Self::TimeLimit,
        Self::Idle,
        Self::Release,
        Self::Cancel,
    ];

    /// The word for it in the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::GpuLost => "gpu_lost",
            Self::Preempt => "preempt",
            Self::Requeue => "requeue",
            Self::TimeLimit => "time_limit",
            Self::Idle => "idle",
            Self::Release => "release",
            Self::Cancel => "cancel",
        }
    }

    /// Whether the job goes back into its queue.
    pub fn requeues(self) -> bool {
        matches!(self, Self::Preempt | Self::Requeue)
    }

    /// What becomes of a job that was stopped, once its program has left like this.
    fn end(self, gone: ProgramExit) -> JobState {
        let outcome = match (self, gone) {
            (Self::Cancel, _) => Outcome::Cancelled,
            (Self::Release, _) => Outcome::Released,
            (Self::TimeLimit, _) => Outcome::TimeLimit,
            (Self::Idle, _) => Outcome::Idle,
            (Self::GpuLost, _) => Outcome::GpuLost,
            // It would not be started the next time either, and is not wanted any more.
            (_, gone @ (ProgramExit::LaunchFailed(_) | ProgramExit::Bypass)) => gone.into(),
            (Self::Preempt | Self::Requeue, _) => return JobState::Queued,
        };
        JobState::Ended { outcome }
    }
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Clock ticks after boot, field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The program exited with this code.
    Exited(i32),
    /// This signal ended the program, and Divvy had not been asked to stop it.
    Signaled(i32),
    /// It was cancelled, whether or not its program had started.
    Cancelled,
    /// The program could not be started: the system's words.
    LaunchFailed(String),
    /// The supervisor is gone without a record; the program is gone and its exit code unknown.
    SupervisorLost,
    /// Divvy killed it: it held GPU memory past the limiter, and that is the policy.
    Bypass,
    /// It ran for as long as it was to run at most.
    TimeLimit,
    /// It did nothing with what it held for too long, and that is the rule.
    Idle,
    /// It was to run after this job, which did not end well.
    DependencyFailed(JobId),
    /// A GPU that it was on fell off the bus, or is not there any more.
    GpuLost,
    /// It had no program of ours, and what it held was given back.
    Released,
}

/// What the world tells about a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The plan gave it these.
    Placed(Vec<Grant>),
    /// Its program runs.
    Spawned(Process),
    /// The claim is allocated to another scheduler from now on; no program of ours runs.
    #[serde(rename = "lent")]
    Bound,
    /// Its program was never started, and will not be: its supervisor left no trace.
    NeverStarted,
    /// It holds these from now on.
    Resized(Vec<Grant>),
    /// It is to stop.
    Stop(StopReason),
    /// Its program is gone, or never came to be; told by the exit record or by its absence.
    #[serde(rename = "gone")]
    Exited(ProgramExit),
    /// The same, and it had left before it was told to stop.
    #[serde(rename = "gone_before")]
    ExitedBeforeStop(ProgramExit),
    /// Its program failed, and it may try again.
    Failed,
    /// A job that it was to run after did not end well.
    DependencyFailed(JobId),
}

/// How a program left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramExit {
    Exited(i32),
    Signaled(i32),
    LaunchFailed(String),
    SupervisorLost,
    Bypass,
    /// Its program failed, and a GPU that it was on is lost.
    GpuLost,
}

impl JobState {
    /// The one transition function.
    ///
    /// # Errors
    /// [`InvalidTransition`], with the unchanged job, for an event that its state does not accept.
    pub fn on(self, event: Event) -> Result<Self, InvalidTransition> {
        match (self, event) {
            (Self::Queued, Event::Placed(grants)) => Ok(Self::Starting { grants }),
            (Self::Queued, Event::Stop(StopReason::Cancel)) => Ok(Self::Ended {
                outcome: Outcome::Cancelled,
            }),
            (Self::Queued, Event::DependencyFailed(on)) => Ok(Self::Ended {
                outcome: Outcome::DependencyFailed(on),
            }),

            (Self::Starting { grants }, Event::Spawned(process)) => {
                Ok(Self::Running { grants, process })
            }
            (Self::Starting { grants }, Event::Bound) => Ok(Self::Bound { grants }),
            (Self::Bound { grants }, Event::Stop(why)) => Ok(Self::Stopping {
                grants,
                process: None,
                why,
            }),
            (Self::Starting { .. }, Event::NeverStarted) => Ok(Self::Queued),
            (Self::Starting { grants }, Event::Stop(why)) => Ok(Self::Stopping {
                grants,
                process: None,
                why,
            }),

            (Self::Starting { .. }, Event::Resized(grants)) => Ok(Self::Starting { grants }),
            (Self::Running { process, .. }, Event::Resized(grants)) => {
                Ok(Self::Running { grants, process })
            }

            (Self::Running { grants, process }, Event::Stop(why)) => Ok(Self::Stopping {
                grants,
                process: Some(process),
                why,
            }),

            // The program came to be before the stop reached its supervisor.
            (
                Self::Stopping {
                    grants,
                    process: None,
                    why,
                },
                Event::Spawned(process),
            ) => Ok(Self::Stopping {
                grants,
                process: Some(process),
                why,
            }),
            (
                Self::Stopping {
                    process: None, why, ..
                },
                Event::NeverStarted,
            ) => Ok(why.end(ProgramExit::SupervisorLost)),
            (
                Self::Stopping {
                    grants,
                    process,
                    why,
                },
                Event::Stop(then),
            ) => Ok(Self::Stopping {
                grants,
                process,
                why: why.max(then),
            }),
            // The exit code does not matter: the program got a signal to stop, and may have failed only because of it.
            (Self::Stopping { why, .. }, Event::Exited(gone)) => Ok(why.end(gone)),
            (
                Self::Stopping {
                    why: StopReason::Cancel,
                    ..
                },
                Event::ExitedBeforeStop(gone),
            ) => Ok(StopReason::Cancel.end(gone)),
            (Self::Stopping { .. }, Event::ExitedBeforeStop(gone)) => Ok(Self::Ended {
                outcome: gone.into(),
            }),

            (Self::Starting { .. } | Self::Running { .. }, Event::Failed) => Ok(Self::Queued),
            (
                Self::Stopping {
                    why: StopReason::GpuLost,
                    ..
                },
                Event::Failed,
            ) => Ok(Self::Queued),
            // A short program may exit before an observation.
            (Self::Starting { .. } | Self::Running { .. }, Event::Exited(gone)) => {
                Ok(Self::Ended {
                    outcome: gone.into(),
                })
            }

            (job, event) => Err(InvalidTransition { job, event }),
        }
    }

    /// What it holds; empty while queued and once ended.
    pub fn grants(&self) -> &[Grant] {
        match self {
            Self::Starting { grants }
            | Self::Running { grants, .. }
            | Self::Bound { grants }
            | Self::Stopping { grants, .. } => grants,
            Self::Queued | Self::Ended { .. } => &[],
        }
    }

    /// Its program's process, where there is one.
    pub fn process(&self) -> Option<Process> {
        match self {
            Self::Running { process, .. } => Some(*process),
            Self::Stopping { process, .. } => *process,
            Self::Queued | Self::Starting { .. } | Self::Bound { .. } | Self::Ended { .. } => None,
        }
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Ended { outcome } => Some(outcome),
            _ => None,
        }
    }

    /// The name of its state in tables and the journal. A lent allocation counts as running.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting { .. } => "starting",
            Self::Running { .. } | Self::Bound { .. } => "running",
            Self::Stopping { .. } => "stopping",
            Self::Ended { .. } => "ended",
        }
    }
}

impl From<ProgramExit> for Outcome {
    fn from(gone: ProgramExit) -> Self {
        match gone {
            ProgramExit::Exited(code) => Self::Exited(code),
            ProgramExit::Signaled(signal) => Self::Signaled(signal),
            ProgramExit::LaunchFailed(why) => Self::LaunchFailed(why),
            ProgramExit::SupervisorLost => Self::SupervisorLost,
            ProgramExit::Bypass => Self::Bypass,
            ProgramExit::GpuLost => Self::GpuLost,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(out, "exited with code {code}"),
            Self::Signaled(signal) => write!(out, "ended by signal {signal}"),
            Self::Cancelled => out.write_str("cancelled"),
            Self::LaunchFailed(why) => write!(out, "could not be started: {why}"),
            Self::SupervisorLost => out.write_str("supervisor lost, exit code unknown"),
            Self::Bypass => out.write_str("killed: it bypassed the limiter"),
            Self::TimeLimit => out.write_str("stopped: time limit reached"),
            Self::Idle => out.write_str("stopped: its GPUs were idle"),
            Self::Released => out.write_str("released"),
            Self::GpuLost => out.write_str("stopped: one of its GPUs was lost"),
            Self::DependencyFailed(on) => {
                write!(out, "never started: its dependency #{on} did not succeed")
            }
        }
    }
}

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::Placed(_) => "placed",
            Self::Spawned(_) => "spawned",
            Self::Bound => "lent",
            Self::NeverStarted => "declared never started",
            Self::Resized(_) => "resized",
            Self::Stop(StopReason::Cancel) => "cancelled",
            Self::Stop(StopReason::Release) => "released",
            Self::Stop(StopReason::Preempt) => "preempted",
            Self::Stop(StopReason::Requeue) => "requeued",
            Self::Stop(StopReason::TimeLimit) => "stopped by its time limit",
            Self::Stop(StopReason::Idle) => "stopped by its idle rule",
            Self::Stop(StopReason::GpuLost) => "stopped after the loss of its GPU",
            Self::Exited(_) | Self::ExitedBeforeStop(_) => "reported as ended",
            Self::Failed => "retried",
            Self::DependencyFailed(_) => "ended by its dependency",
        }
    }
}

/// The event does not belong to the job's state; the job is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {} cannot be {}", job.state(), event.name())]
pub struct InvalidTransition {
    pub job: JobState,
    pub event: Event,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: Process = Process {
        pid: 7,
        start_time: 42,
    };

    fn grants() -> Vec<Grant> {
        let share = crate::units::Share::from_thousandths(250).unwrap();
        let gpu = crate::units::GpuUuid::from_bytes([2; 16]);
        vec![Grant {
            gpu,
            index: 2,
            memory: crate::units::Bytes::gib(20),
            share,
            label: "gpu2.25a".to_owned(),
            mig: None,
        }]
    }

    fn states() -> Vec<JobState> {
        vec![
            JobState::Queued,
            JobState::Starting { grants: grants() },
            JobState::Running {
                grants: grants(),
                process: PROCESS,
            },
            JobState::Bound { grants: grants() },
            JobState::Stopping {
                grants: grants(),
                process: None,
                why: StopReason::Cancel,
            },
            JobState::Stopping {
                grants: grants(),
                process: Some(PROCESS),
                why: StopReason::Cancel,
            },
            JobState::Ended {
                outcome: Outcome::Exited(0),
            },
        ]
    }

    fn events() -> Vec<Event> {
        vec![
            Event::Placed(grants()),
            Event::Spawned(PROCESS),
            Event::Bound,
            Event::NeverStarted,
            Event::Resized(Vec::new()),
            Event::Stop(StopReason::Cancel),
            Event::Stop(StopReason::Preempt),
            Event::Stop(StopReason::Requeue),
            Event::Stop(StopReason::TimeLimit),
            Event::Stop(StopReason::Idle),
            Event::Stop(StopReason::Release),
            Event::Stop(StopReason::GpuLost),
            Event::ExitedBeforeStop(ProgramExit::Exited(0)),
            Event::Failed,
            Event::DependencyFailed(JobId(1)),
            Event::Exited(ProgramExit::Exited(3)),
            Event::Exited(ProgramExit::Signaled(9)),
            Event::Exited(ProgramExit::LaunchFailed("no such file".to_owned())),
            Event::Exited(ProgramExit::SupervisorLost),
            Event::Exited(ProgramExit::Bypass),
            Event::Exited(ProgramExit::GpuLost),
        ]
    }

    #[test]
    fn a_job_runs_and_keeps_its_grants_until_it_ends() {
        let job = JobState::Queued.on(Event::Placed(grants())).unwrap();
        assert_eq!(
            (job.state(), job.grants(), job.process()),
            ("starting", &grants()[..], None)
        );
        let job = job.on(Event::Spawned(PROCESS)).unwrap();
        assert_eq!(
            (job.state(), job.grants(), job.process()),
            ("running", &grants()[..], Some(PROCESS))
        );
        let job = job.on(Event::Exited(ProgramExit::Exited(3))).unwrap();
        assert_eq!(
            (job.state(), job.grants(), job.outcome()),
            ("ended", &[][..], Some(&Outcome::Exited(3)))
        );
    }

    #[test]
    fn a_job_ends_exactly_once() {
        for event in events() {
            let ended = JobState::Ended {
                outcome: Outcome::Exited(0),
            };
            let refused = ended.clone().on(event.clone()).unwrap_err();
            assert_eq!((refused.job, refused.event), (ended, event));
        }
    }

    #[test]
    fn a_job_that_runs_can_be_resized_and_one_that_ends_cannot() {
        for job in states() {
            let (state, process) = (job.state(), job.process());
            let is_bound = matches!(job, JobState::Bound { .. });
            let resized = job.on(Event::Resized(Vec::new()));
            match state {
                "starting" | "running" if !is_bound => {
                    let resized = resized.unwrap();
                    assert_eq!((resized.state(), resized.process()), (state, process));
                    assert!(resized.grants().is_empty());
                }
                _ => assert!(resized.is_err(), "{state}"),
            }
        }
    }

    #[test]
    fn a_job_that_never_started_goes_back_to_the_queue_unless_it_was_cancelled() {
        let starting = JobState::Starting { grants: grants() };
        assert_eq!(
            starting.clone().on(Event::NeverStarted).unwrap(),
            JobState::Queued
        );
        let stopping = starting.on(Event::Stop(StopReason::Cancel)).unwrap();
        assert_eq!(
            stopping.on(Event::NeverStarted).unwrap().outcome(),
            Some(&Outcome::Cancelled)
        );
    }

    #[test]
    fn a_job_whose_program_was_seen_is_never_put_back() {
        for job in [
            JobState::Running {
                grants: grants(),
                process: PROCESS,
            },
            JobState::Stopping {
                grants: grants(),
                process: Some(PROCESS),
                why: StopReason::Cancel,
            },
        ] {
            assert!(job.on(Event::NeverStarted).is_err());
        }
    }

    #[test]
    fn a_cancelled_job_ends_as_cancelled_however_its_program_leaves() {
        for event in events()
            .into_iter()
            .filter(|event| matches!(event, Event::Exited(_)))
        {
            let stopping = JobState::Stopping {
                grants: grants(),
                process: Some(PROCESS),
                why: StopReason::Cancel,
            };
            assert_eq!(
                stopping.on(event).unwrap().outcome(),
                Some(&Outcome::Cancelled)
            );
        }
    }

    #[test]
    fn a_preempted_or_requeued_job_waits_again_and_a_cancel_is_final() {
        let stopping = |why| {
            let running = JobState::Running {
                grants: grants(),
                process: PROCESS,
            };
            running.on(Event::Stop(why)).unwrap()
        };
        for why in [StopReason::Preempt, StopReason::Requeue] {
            assert!(why.requeues());
            for gone in [
                ProgramExit::Exited(0),
                ProgramExit::Signaled(15),
                ProgramExit::SupervisorLost,
            ] {
                let back = stopping(why).on(Event::Exited(gone)).unwrap();
                assert_eq!(back, JobState::Queued);
            }
            let spent = stopping(why).on(Event::Exited(ProgramExit::LaunchFailed(String::new())));
            assert!(spent.unwrap().outcome().is_some());
            // A job that had ended before the stop stays ended.
            let done = stopping(why)
                .on(Event::ExitedBeforeStop(ProgramExit::Exited(0)))
                .unwrap();
            assert_eq!(done.outcome(), Some(&Outcome::Exited(0)));
            let cancelled = stopping(why).on(Event::Stop(StopReason::Cancel)).unwrap();
            let cancelled = cancelled.on(Event::Stop(StopReason::Preempt)).unwrap();
            let ended = cancelled.on(Event::Exited(ProgramExit::Exited(0))).unwrap();
            assert_eq!(ended.outcome(), Some(&Outcome::Cancelled));
        }
        let late = stopping(StopReason::TimeLimit);
        assert_eq!(
            late.on(Event::Exited(ProgramExit::Signaled(9)))
                .unwrap()
                .outcome(),
            Some(&Outcome::TimeLimit)
        );
        // A job that was to be requeued anyway is, and finds another GPU; so is a job with retries left.
        let gone = Event::Exited(ProgramExit::Signaled(15));
        let preempted = stopping(StopReason::Preempt).on(Event::Stop(StopReason::GpuLost));
        assert_eq!(preempted.unwrap().on(gone.clone()), Ok(JobState::Queued));
        let lost = stopping(StopReason::GpuLost);
        assert_eq!(lost.clone().on(Event::Failed), Ok(JobState::Queued));
        assert_eq!(lost.on(gone).unwrap().outcome(), Some(&Outcome::GpuLost));
    }

    #[test]
    fn only_what_waits_can_be_given_up_for_another_and_only_what_started_can_be_tried_again() {
        for job in states() {
            let state = job.state();
            let given_up = job.clone().on(Event::DependencyFailed(JobId(1)));
            assert_eq!(given_up.is_ok(), state == "queued", "{state}");
            let runs =
                matches!(state, "starting" | "running") && !matches!(job, JobState::Bound { .. });
            let again = job.on(Event::Failed);
            assert_eq!(again.is_ok(), runs, "{state}");
        }
    }

    #[test]
    fn every_state_can_be_cancelled_but_the_last() {
        for job in states() {
            let ended = job.outcome().is_some();
            assert_eq!(job.on(Event::Stop(StopReason::Cancel)).is_err(), ended);
        }
    }

    #[test]
    fn grants_appear_when_placed_and_vanish_only_with_the_queue_or_the_end() {
        for (job, event) in states()
            .iter()
            .flat_map(|job| events().into_iter().map(move |event| (job.clone(), event)))
        {
            let placed = matches!(event, Event::Placed(_) | Event::Resized(_));
            let (before, Ok(after)) = (job.clone(), job.on(event)) else {
                continue;
            };
            let kept = after.grants() == before.grants();
            assert!(
                kept || placed || matches!(after, JobState::Queued | JobState::Ended { .. }),
                "{before:?} to {after:?}"
            );
        }
    }

    #[test]
    fn what_is_lent_ends_when_it_is_given_back_and_by_nothing_that_ends_programs() {
        let bound = JobState::Starting { grants: grants() }
            .on(Event::Bound)
            .unwrap();
        assert_eq!(
            (bound.state(), bound.grants(), bound.process()),
            ("running", &grants()[..], None)
        );
        for event in events() {
            let is_stop = matches!(event, Event::Stop(_));
            assert_eq!(
                bound.clone().on(event.clone()).is_ok(),
                is_stop,
                "{event:?}"
            );
        }
        let stopping = bound.on(Event::Stop(StopReason::Release)).unwrap();
        assert_eq!(stopping.grants(), grants());
        let ended = stopping.on(Event::Exited(ProgramExit::Exited(0))).unwrap();
        assert_eq!(ended.outcome(), Some(&Outcome::Released));
    }

    #[test]
    fn a_refusal_names_the_state_and_the_event() {
        let refused = JobState::Ended {
            outcome: Outcome::Cancelled,
        }
        .on(Event::Stop(StopReason::Cancel))
        .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a job that is ended cannot be cancelled"
        );
    }
}
