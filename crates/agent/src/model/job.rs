//! The record of a job: its spec, its state, its times and its allocation.

use std::collections::BTreeMap;
use std::sync::Arc;

use divvy_api::v1::{Container, Runner};
use divvy_core::job::{Event, Outcome, StopReason};
use divvy_core::resize::{ResizeTarget, Resized};
use divvy_core::{
    Amount, Bytes, Compute, Enforcement, Grant, JobId, JobState, OrderKey, QueueName, Request,
    SchedulingClass, show_labels,
};
use jiff::Timestamp;

use crate::host::clock::now;
use crate::model::bypass::Bypass;
use crate::model::cause::StopRecord;
use crate::model::claim::Claim;
use crate::model::policy::{Hold, JobPolicy, RunState};

/// A job. Its environment stays in the store until it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    /// What it asks for since it was resized.
    pub resized: Option<Amount>,
    /// How its compute time is divided since that was changed.
    pub redivided: Option<Compute>,
    pub state: JobState,
    /// How many times it was placed: the generation of its slice.
    pub attempt: u32,
    pub submitted_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// What a shell would report, where a program ended or could not be started.
    pub exit_code: Option<i32>,
    /// What went wrong, in words.
    pub reason: Option<String>,
    /// What it held last, with the traces of it; empty before it was placed.
    pub allocations: Vec<Allocation>,
    /// Its processes that held memory past the limiter, oldest first.
    pub bypasses: Vec<Bypass>,
    pub run_state: RunState,
}

/// The user that submitted a job, from the socket's peer credentials: the job's owner, and the user of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
}

impl Credentials {
    /// The daemon's own user.
    pub fn current() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }
}

/// What was submitted, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    pub name: String,
    pub user: String,
    pub credentials: Credentials,
    pub project: Option<String>,
    pub queue: QueueName,
    pub request: Request,
    pub runner: Runner,
    pub command: Vec<String>,
    /// What the command runs in; judged.
    pub container: Option<Container>,
    pub cwd: String,
    pub policy: JobPolicy,
    /// Names of its secret variables, in order.
    pub secrets: Vec<String>,
}

/// A grant and, once it was given back, what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub grant: Grant,
    /// What it is to be once the job uses no more than that.
    pub goal: Option<ResizeTarget>,
    pub stats: AllocationStats,
    /// What is to hold its limit.
    pub enforcement: Enforcement,
}

/// What a slice's ledger remembers of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationStats {
    pub peak: Bytes,
    /// Allocations refused at the limit.
    pub denied: u64,
    /// Size of the last of them.
    pub last_denied: Option<Bytes>,
    /// The ledger's largest error against the driver.
    pub mismatch_max: Bytes,
}

/// A job about to be stored for the first time.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub spec: JobSpec,
    pub env: BTreeMap<String, String>,
    pub secrets: BTreeMap<String, String>,
    pub key: Option<String>,
    pub at: Timestamp,
    /// It is held from the start.
    pub hold: Option<Hold>,
}

impl Job {
    /// The job that was just stored under `id`.
    pub fn queued(id: JobId, new: &NewJob) -> Self {
        Self {
            run_state: RunState::with_hold(new.hold.clone()),
            ..Self::waiting(id, Arc::new(new.spec.clone()), new.at)
        }
    }

    /// Since when it waits in its queue: since its submission or, if it was stopped to be requeued, since that stop.
    pub fn waits_since(&self) -> Timestamp {
        let stopped = self.run_state.stopped_before.as_ref();
        stopped.map_or(self.submitted_at, |stop| stop.at.max(self.submitted_at))
    }

    /// The name of the account whose uid the job has.
    pub fn account(&self) -> &str {
        let recorded = self.spec.policy.account.as_ref();
        recorded.unwrap_or(&self.spec.user)
    }

    /// What users refer to this job and to no other by: its number, or `12_3` for a job of an array.
    pub fn reference(&self) -> String {
        match self.spec.policy.array {
            Some(task) => format!("{}_{}", task.array.unwrap_or(self.id), task.index),
            None => self.id.to_string(),
        }
    }

    /// A job with which nothing was done since it was submitted.
    pub fn waiting(id: JobId, ask: Arc<JobSpec>, submitted_at: Timestamp) -> Self {
        Self {
            id,
            spec: ask,
            resized: None,
            redivided: None,
            state: JobState::Queued,
            attempt: 0,
            submitted_at,
            started_at: None,
            ended_at: None,
            exit_code: None,
            reason: None,
            allocations: Vec::new(),
            bypasses: Vec::new(),
            run_state: RunState::default(),
        }
    }

    /// Gives it what the plan decided; a bug where it does not wait.
    pub fn place(&mut self, grants: Vec<Grant>) {
        self.allocations = grants
            .iter()
            .map(|grant| Allocation {
                grant: grant.clone(),
                goal: None,
                stats: AllocationStats::default(),
                enforcement: Enforcement::without_driver(grant),
            })
            .collect();
        self.attempt += 1;
        self.reason = None;
        self.run_state.confirmed = None;
        self.apply_event(Event::Placed(grants));
    }

    /// The project and the user that the job counts for, and its rank. A claim counts for no user: another scheduler
    /// allocated it.
    pub fn owner(&self) -> SchedulingClass {
        SchedulingClass {
            user: (self.claim().is_none()).then(|| self.spec.user.as_str().into()),
            ..self.spec.policy.owner(self.spec.project.as_deref())
        }
    }

    /// What decides its place in its queue besides its priority and its age.
    pub fn turn(&self) -> OrderKey {
        OrderKey {
            user: self.spec.credentials.uid,
            requeued: self.run_state.requeued,
            top: self.run_state.top,
        }
    }

    /// What it asks for now.
    pub fn request(&self) -> Request {
        Request {
            compute: self.compute(),
            ..self.spec.request.with_amount(self.amount())
        }
    }

    /// How much of a GPU that is.
    pub fn amount(&self) -> Amount {
        self.resized.unwrap_or(self.spec.request.amount)
    }

    /// How its compute time is divided now.
    pub fn compute(&self) -> Compute {
        self.redivided.unwrap_or(self.spec.request.compute)
    }

    /// Changes what it holds; a bug where it holds nothing, or is being stopped.
    pub fn regrant(&mut self, resized: Vec<Resized>) {
        let grants = resized.iter().map(|one| one.grant.clone()).collect();
        for (
            holding,
            Resized {
                grant,
                target: goal,
            },
        ) in self.allocations.iter_mut().zip(resized)
        {
            (holding.grant, holding.goal) = (grant, goal);
        }
        self.apply_event(Event::Resized(grants));
    }

    /// Has what it holds go by these labels; a bug where it does not run.
    pub fn relabel(&mut self, grants: Vec<Grant>) {
        for (holding, grant) in self.allocations.iter_mut().zip(&grants) {
            holding.grant = grant.clone();
        }
        self.apply_event(Event::Resized(grants));
    }

    /// The current limits of its processes on each GPU: the allocation, or less if a resize lowers it. Zero while its
    /// memory is offloaded, even if a signal wakes its processes.
    pub fn limits(&self) -> Vec<Grant> {
        let aside = !self.run_state.aside.memory.holds_gpus();
        let limit = |holding: &Allocation| {
            let mut grant = holding.grant.clone();
            if aside {
                grant.memory = Bytes::ZERO;
            }
            if let Some(goal) = holding.goal.filter(|_| !aside) {
                (grant.memory, grant.share) = (goal.memory, goal.share);
            }
            grant
        };
        self.allocations.iter().map(limit).collect()
    }

    /// Tells it to stop; a bug where it has ended.
    pub fn stop(&mut self, why: StopReason) {
        let (before, told) = self.run_state.stop.unwrap_or((why, now()));
        self.run_state.stop = Some((why.max(before), told));
        self.run_state.suspended = false;
        self.apply_event(Event::Stop(why));
    }

    /// Why and when Divvy stopped its program; `None` where that is not what ended it. Of one that goes on, its last
    /// run's.
    pub fn stopped(&self) -> Option<StopRecord> {
        let is_ours = match &self.state {
            JobState::Stopping { .. } => true,
            JobState::Ended { outcome } => matches!(
                outcome,
                Outcome::Cancelled
                    | Outcome::TimeLimit
                    | Outcome::Idle
                    | Outcome::GpuLost
                    | Outcome::Released
            ),
            _ => return self.run_state.stopped_before.clone(),
        };
        let (cause, (_, at)) = (self.run_state.cause.clone()?, self.run_state.stop?);
        is_ours.then_some(StopRecord { cause, at })
    }

    /// Applies an event; the caller has checked the state, so a refusal is a bug.
    pub fn apply_event(&mut self, event: Event) {
        let life = std::mem::replace(&mut self.state, JobState::Queued);
        self.state = life
            .on(event)
            .unwrap_or_else(|refused| panic!("job {}: {refused}", self.id));
    }
}

impl Job {
    /// The claim that the job stands for, if it is one.
    pub fn claim(&self) -> Option<&Claim> {
        self.spec.policy.claim.as_deref()
    }

    /// The owner of the programs in a job's MIG instances. One user brings all claims with a namespace, so that is
    /// their tenant. The `/` at its end occurs in no user name.
    pub fn tenant(&self) -> String {
        match self.claim().filter(|claim| !claim.is_slice()) {
            Some(claim) => format!("{}/", claim.namespace),
            // A front end may name its users freely, and so a name could equal a namespace.
            None => self.spec.user.trim_end_matches('/').to_owned(),
        }
    }

    /// `gpu0,1`: what the job holds, by label.
    pub fn grant_labels(&self) -> String {
        show_labels((self.allocations.iter()).map(|holding| holding.grant.label.as_str()))
    }
}
