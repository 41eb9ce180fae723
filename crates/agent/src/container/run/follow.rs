//! Following a running container: passes on its output and its input and signals, until the engine reports its end.

use std::cell::RefCell;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerStateStatusEnum;
use bollard::query_parameters::{
    KillContainerOptions, ResizeContainerTTYOptions, WaitContainerOptions,
};
use futures_util::StreamExt as _;
use tokio::time::{Instant, timeout};

use super::output::Attached;
use super::signals::{SignalEvent, Signals};
use super::stop::{StopRequest, StopSequence, named};
use super::{AGAIN, ContainerJob, lost};
use crate::container::{engine, inspect, terminal};
use crate::host::process::Process;
use crate::job_dir::RunOutcome;

/// How long the last words of a container may take to come, once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// How long an engine may take to pass on what is urgent. It is less than what a daemon waits beyond a job's grace.
const PROMPT: Duration = Duration::from_secs(4);

/// How long the engine's report of a running container is trusted: Podman keeps it up when its own clean-up did not
/// run.
const BELIEVED: Duration = Duration::from_secs(60);

/// What the engine says of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It was never started.
    Created,
    Running {
        /// Its first process, by the host's number.
        pid: Option<u32>,
    },
    Ended(RunOutcome),
    /// It is not there, or the engine has forgotten how it ended.
    Gone,
    /// The engine does not answer.
    Unknown,
}

/// A container of the job, and the engine that has it.
pub(super) struct CreatedContainer<'a> {
    pub(super) job: ContainerJob<'a>,
    pub(super) docker: Docker,
    pub(super) id: String,
    /// The signal that ends the container, once the engine has reported it.
    stop_signal: RefCell<Option<String>>,
}

impl ContainerJob<'_> {
    pub(super) fn grace(self) -> Duration {
        Duration::from_millis(self.spec.grace_ms)
    }
}

impl<'a> CreatedContainer<'a> {
    pub(super) fn new(job: ContainerJob<'a>, docker: Docker, id: String) -> Self {
        Self {
            job,
            docker,
            id,
            stop_signal: RefCell::default(),
        }
    }

    pub(super) async fn state(&self) -> State {
        let found = match inspect::inspect(&self.job.plan.socket, &self.docker, &self.id).await {
            Ok(found) => found,
            Err(error) if engine::status(&error) == Some(404) => return State::Gone,
            Err(_) => return State::Unknown,
        };
        let signal = found.config.and_then(|config| config.stop_signal);
        let signal = signal.filter(|signal| !signal.is_empty());
        let signal = signal.unwrap_or_else(|| "SIGTERM".to_owned());
        self.stop_signal.replace(Some(signal));
        let Some(state) = found.state else {
            return State::Unknown;
        };
        // It ended with the machine, with an unknown code; or only the engine has forgotten it.
        if inspect::has_run_before(&state) {
            let first = self
                .job
                .dir
                .started()
                .ok()
                .flatten()
                .map(|begun| begun.process);
            let first = first.filter(|first| *first != self.job.me && first.is_alive());
            return first.map_or(State::Gone, |first| State::Running {
                pid: Some(first.pid),
            });
        }
        match state.status {
            Some(ContainerStateStatusEnum::CREATED) => State::Created,
            Some(ContainerStateStatusEnum::EXITED | ContainerStateStatusEnum::DEAD) => {
                let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
                State::Ended(RunOutcome::Exited {
                    exit_code: code.unwrap_or(125),
                })
            }
            _ => State::Running {
                pid: state
                    .pid
                    .and_then(|pid| u32::try_from(pid).ok())
                    .filter(|pid| *pid > 0),
            },
        }
    }

    /// From its start to its end.
    pub(super) async fn follow(
        &self,
        attached: Option<Attached>,
        signals: &mut Signals,
    ) -> RunOutcome {
        let words = self.copy(attached);
        tokio::pin!(words);
        let mut said_all = false;
        self.tell_size().await;
        let begins = self.tell_start();
        tokio::pin!(begins);
        let mut is_told = false;
        let ends = self.outcome();
        tokio::pin!(ends);
        let mut ending = StopSequence::new(self.job.grace());
        if self.job.dir.is_stop_requested() {
            ending.request(Instant::now());
        }
        let outcome = loop {
            tokio::select! {
                outcome = &mut ends => break outcome,
                () = &mut begins, if !is_told => is_told = true,
                () = &mut words, if !said_all => said_all = true,
                told = signals.next() => match told {
                    SignalEvent::Stop => ending.request(Instant::now()),
                    SignalEvent::Pass(signal) => { self.signal(signal).await; }
                    SignalEvent::Resized => self.tell_size().await,
                },
                () = until(ending.due()) => self.urge(&mut ending).await,
            }
        };
        if !is_told {
            self.job.started(self.job.me);
        }
        if !said_all {
            // They end by themselves, but where a process outside the container holds its output open.
            let _ = timeout(LAST_WORDS, &mut words).await;
        }
        outcome
    }

    /// How it ended, once it has. An engine that goes away comes back.
    async fn outcome(&self) -> RunOutcome {
        loop {
            self.ended().await;
            match self.state().await {
                State::Ended(outcome) => return outcome,
                State::Gone => return lost(),
                State::Unknown if self.job.is_abandoned() => return lost(),
                // Or has not yet noticed.
                State::Unknown | State::Running { .. } | State::Created => {
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }

    /// Returns when the container has probably ended, or is to be looked at again.
    pub(super) async fn ended(&self) {
        let options = WaitContainerOptions {
            condition: "not-running".to_owned(),
        };
        let mut wait = std::pin::pin!(self.docker.wait_container(&self.id, Some(options)));
        // Any answer will do: the state is read next.
        let _ = timeout(BELIEVED, wait.next()).await;
    }

    /// Does what is due to bring it to its end.
    pub(super) async fn urge(&self, ending: &mut StopSequence) {
        match ending.due_request(Instant::now()) {
            Some(StopRequest::Terminate) => {
                let is_heard = self.stop().await;
                ending.terminate_sent(is_heard, Instant::now());
            }
            Some(StopRequest::Kill) => {
                self.signal("SIGKILL").await;
                ending.killed(Instant::now());
            }
            None => {}
        }
    }

    /// Asks it to end, in the way that its image wants; whether it has heard of it.
    async fn stop(&self) -> bool {
        if self.stop_signal.borrow().is_none() {
            // It learns which.
            let _ = timeout(PROMPT, self.state()).await;
        }
        let signal = self.stop_signal.borrow().clone();
        self.signal(signal.as_deref().unwrap_or("SIGTERM")).await
    }

    /// Has the engine send it a signal; whether it has heard of that. Gone by itself is just as well. What an engine that does not
    /// answer, or cannot, does not pass on its first process is sent from here: a signal of the host's is the same to it.
    pub(super) async fn signal(&self, signal: &str) -> bool {
        let options = KillContainerOptions {
            signal: signal.to_owned(),
        };
        let sent = self.docker.kill_container(&self.id, Some(options));
        let sent = timeout(PROMPT, sent)
            .await
            .unwrap_or(Err(Error::RequestTimeoutError));
        match sent {
            Ok(()) => true,
            Err(error) if matches!(engine::status(&error), Some(404 | 409)) => true,
            Err(error) => self.signal_directly(signal) || !engine::is_unavailable(&error),
        }
    }

    fn signal_directly(&self, signal: &str) -> bool {
        let started = self.job.dir.started().ok().flatten();
        let first = started.map(|begun| begun.process);
        match (first.filter(|first| *first != self.job.me), named(signal)) {
            (Some(first), Some(signal)) => first.signal(signal).is_ok(),
            _ => false,
        }
    }

    /// Writes down the container's first process, once the engine has said which it is: by it alone the container's processes are known
    /// for the job's.
    async fn tell_start(&self) {
        loop {
            match self.first_process().await {
                Some(first) => return self.job.started(first),
                None => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// The container's first process; this one for one that is gone already, none where the engine does not say. It is asked again once
    /// the process is looked up: by then its number may be another's.
    pub(super) async fn first_process(&self) -> Option<Process> {
        let state = self.state().await;
        match state {
            State::Running { pid: Some(pid) } => {
                let process = Process::with_pid(pid).unwrap_or(self.job.me);
                (self.state().await == state).then_some(process)
            }
            State::Unknown => None,
            State::Running { pid: None } | State::Created | State::Ended(_) | State::Gone => {
                Some(self.job.me)
            }
        }
    }

    async fn tell_size(&self) {
        if self.job.plan.options.tty
            && let Some((h, w)) = terminal::size()
        {
            let options = ResizeContainerTTYOptions { h, w };
            // It has another size then, and works.
            let _ = timeout(PROMPT, self.docker.resize_container_tty(&self.id, options)).await;
        }
    }
}

/// Returns at that moment; where there is none, never.
pub(super) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
