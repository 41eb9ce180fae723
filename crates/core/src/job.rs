//! The life of one job.
//!
//! ```text
//!             Placed             Spawned          (starting, running: Resized)
//!   queued ───────────► starting ───────────► running
//!    │ ▲  NeverStarted   │  │                  │  │
//!    │ └─────────────────┘  │ Cancel           │  │
//!    │                 ┌────┼──────────────────┘  │
//!    │ Cancel          ▼    ▼     Cancel          │
//!    │               stopping                     │
//!    │                  │        │ Gone           │ Gone
//!    └──────────────────┴────────┴────► ended ◄───┘
//! ```
//!
//! A job ends once: nothing leads out of `ended`, and every state leads to it. It holds its grants from `Placed` until it
//! is back in the queue or has ended. What is done about a state (journal, supervisor, signals) is the agent's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::slice::Grant;

/// A job, with what its state needs and nothing more. In JSON: `{"state":"running","grants":[…],"process":{…}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Job {
    /// Waits for its turn and its GPUs.
    Queued,
    /// Has its grants; its supervisor is being started.
    Starting { grants: Vec<Grant> },
    /// Its program runs.
    Running {
        grants: Vec<Grant>,
        process: Process,
    },
    /// Was cancelled, and something of it may be left. No process yet when it was cancelled while starting.
    Stopping {
        grants: Vec<Grant>,
        process: Option<Process>,
    },
    /// Holds nothing, for good.
    Ended { outcome: Outcome },
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
}

/// What the world tells about a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The plan gave it these.
    Placed(Vec<Grant>),
    /// Its program runs.
    Spawned(Process),
    /// Its program was never started, and will not be: its supervisor left no trace.
    NeverStarted,
    /// It holds these from now on.
    Resized(Vec<Grant>),
    /// Somebody wants it to stop.
    Cancel,
    /// Its program is gone, or never came to be; told by the exit record or by its absence.
    Gone(Gone),
}

/// How a program left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gone {
    Exited(i32),
    Signaled(i32),
    LaunchFailed(String),
    SupervisorLost,
    Bypass,
}

impl Job {
    /// The one transition function.
    ///
    /// # Errors
    /// [`Refused`], with the job as it was, for an event that its state knows no answer to.
    pub fn on(self, event: Event) -> Result<Self, Refused> {
        match (self, event) {
            (Self::Queued, Event::Placed(grants)) => Ok(Self::Starting { grants }),
            (Self::Queued, Event::Cancel) => Ok(Self::Ended {
                outcome: Outcome::Cancelled,
            }),

            (Self::Starting { grants }, Event::Spawned(process)) => {
                Ok(Self::Running { grants, process })
            }
            (Self::Starting { .. }, Event::NeverStarted) => Ok(Self::Queued),
            (Self::Starting { grants }, Event::Cancel) => Ok(Self::Stopping {
                grants,
                process: None,
            }),

            (Self::Starting { .. }, Event::Resized(grants)) => Ok(Self::Starting { grants }),
            (Self::Running { process, .. }, Event::Resized(grants)) => {
                Ok(Self::Running { grants, process })
            }

            (Self::Running { grants, process }, Event::Cancel) => Ok(Self::Stopping {
                grants,
                process: Some(process),
            }),

            // The program came to be before the stop reached its supervisor.
            (
                Self::Stopping {
                    grants,
                    process: None,
                },
                Event::Spawned(process),
            ) => Ok(Self::Stopping {
                grants,
                process: Some(process),
            }),
            (Self::Stopping { process: None, .. }, Event::NeverStarted) => Ok(Self::Ended {
                outcome: Outcome::Cancelled,
            }),
            (stopping @ Self::Stopping { .. }, Event::Cancel) => Ok(stopping),
            // However its program left: it was asked to, and nobody can tell whether it would have otherwise.
            (Self::Stopping { .. }, Event::Gone(_)) => Ok(Self::Ended {
                outcome: Outcome::Cancelled,
            }),

            // A short program may be gone before anybody saw it run.
            (Self::Starting { .. } | Self::Running { .. }, Event::Gone(gone)) => Ok(Self::Ended {
                outcome: gone.into(),
            }),

            (job, event) => Err(Refused { job, event }),
        }
    }

    /// What it holds; empty while queued and once ended.
    pub fn grants(&self) -> &[Grant] {
        match self {
            Self::Starting { grants }
            | Self::Running { grants, .. }
            | Self::Stopping { grants, .. } => grants,
            Self::Queued | Self::Ended { .. } => &[],
        }
    }

    /// Its program's process, where there is one.
    pub fn process(&self) -> Option<Process> {
        match self {
            Self::Running { process, .. } => Some(*process),
            Self::Stopping { process, .. } => *process,
            Self::Queued | Self::Starting { .. } | Self::Ended { .. } => None,
        }
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Ended { outcome } => Some(outcome),
            _ => None,
        }
    }

    /// The word for its state in JSON, tables and the journal.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting { .. } => "starting",
            Self::Running { .. } => "running",
            Self::Stopping { .. } => "stopping",
            Self::Ended { .. } => "ended",
        }
    }
}

impl From<Gone> for Outcome {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Exited(code) => Self::Exited(code),
            Gone::Signaled(signal) => Self::Signaled(signal),
            Gone::LaunchFailed(why) => Self::LaunchFailed(why),
            Gone::SupervisorLost => Self::SupervisorLost,
            Gone::Bypass => Self::Bypass,
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
            Self::Bypass => out.write_str("killed: it held GPU memory past the limiter"),
        }
    }
}

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::Placed(_) => "placed",
            Self::Spawned(_) => "spawned",
            Self::NeverStarted => "given up as never started",
            Self::Resized(_) => "resized",
            Self::Cancel => "cancelled",
            Self::Gone(_) => "reported gone",
        }
    }
}

/// The event does not belong to the job's state; the job is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {} cannot be {}", job.state(), event.name())]
pub struct Refused {
    pub job: Job,
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
        let share = crate::Share::from_thousandths(250).unwrap();
        let gpu = crate::GpuUuid::from_bytes([2; 16]);
        vec![Grant {
            gpu,
            index: 2,
            memory: crate::Bytes::gib(20),
            share,
            label: "gpu2.25a".to_owned(),
            mig: None,
        }]
    }

    fn states() -> Vec<Job> {
        vec![
            Job::Queued,
            Job::Starting { grants: grants() },
            Job::Running {
                grants: grants(),
                process: PROCESS,
            },
            Job::Stopping {
                grants: grants(),
                process: None,
            },
            Job::Stopping {
                grants: grants(),
                process: Some(PROCESS),
            },
            Job::Ended {
                outcome: Outcome::Exited(0),
            },
        ]
    }

    fn events() -> Vec<Event> {
        vec![
            Event::Placed(grants()),
            Event::Spawned(PROCESS),
            Event::NeverStarted,
            Event::Resized(Vec::new()),
            Event::Cancel,
            Event::Gone(Gone::Exited(3)),
            Event::Gone(Gone::Signaled(9)),
            Event::Gone(Gone::LaunchFailed("no such file".to_owned())),
            Event::Gone(Gone::SupervisorLost),
            Event::Gone(Gone::Bypass),
        ]
    }

    #[test]
    fn a_job_runs_and_keeps_its_grants_until_it_ends() {
        let job = Job::Queued.on(Event::Placed(grants())).unwrap();
        assert_eq!(
            (job.state(), job.grants(), job.process()),
            ("starting", &grants()[..], None)
        );
        let job = job.on(Event::Spawned(PROCESS)).unwrap();
        assert_eq!(
            (job.state(), job.grants(), job.process()),
            ("running", &grants()[..], Some(PROCESS))
        );
        let job = job.on(Event::Gone(Gone::Exited(3))).unwrap();
        assert_eq!(
            (job.state(), job.grants(), job.outcome()),
            ("ended", &[][..], Some(&Outcome::Exited(3)))
        );
    }

    #[test]
    fn a_job_ends_exactly_once() {
        for event in events() {
            let ended = Job::Ended {
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
            let resized = job.on(Event::Resized(Vec::new()));
            match state {
                "starting" | "running" => {
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
        let starting = Job::Starting { grants: grants() };
        assert_eq!(
            starting.clone().on(Event::NeverStarted).unwrap(),
            Job::Queued
        );
        let stopping = starting.on(Event::Cancel).unwrap();
        assert_eq!(
            stopping.on(Event::NeverStarted).unwrap().outcome(),
            Some(&Outcome::Cancelled)
        );
    }

    #[test]
    fn a_job_whose_program_was_seen_is_never_put_back() {
        for job in [
            Job::Running {
                grants: grants(),
                process: PROCESS,
            },
            Job::Stopping {
                grants: grants(),
                process: Some(PROCESS),
            },
        ] {
            assert!(job.on(Event::NeverStarted).is_err());
        }
    }

    #[test]
    fn a_cancelled_job_ends_as_cancelled_however_its_program_leaves() {
        for event in events()
            .into_iter()
            .filter(|event| matches!(event, Event::Gone(_)))
        {
            let stopping = Job::Stopping {
                grants: grants(),
                process: Some(PROCESS),
            };
            assert_eq!(
                stopping.on(event).unwrap().outcome(),
                Some(&Outcome::Cancelled)
            );
        }
    }

    #[test]
    fn every_state_can_be_cancelled_but_the_last() {
        for job in states() {
            let ended = job.outcome().is_some();
            assert_eq!(job.on(Event::Cancel).is_err(), ended);
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
                kept || placed || matches!(after, Job::Queued | Job::Ended { .. }),
                "{before:?} to {after:?}"
            );
        }
    }

    #[test]
    fn a_refusal_names_the_state_and_the_event() {
        let refused = Job::Ended {
            outcome: Outcome::Cancelled,
        }
        .on(Event::Cancel)
        .unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a job that is ended cannot be cancelled"
        );
    }
}
