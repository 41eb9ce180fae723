//! Follows a container that runs: passes on what it says and what it is told, until the engine says that it has ended.

use std::time::Duration;

use bollard::models::ContainerStateStatusEnum;
use bollard::query_parameters::{
    KillContainerOptions, ResizeContainerTTYOptions, WaitContainerOptions,
};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::output::Attached;
use super::signals::{Signals, Told};
use super::{AGAIN, Job, Made, lost};
use crate::container::{engine, terminal};
use crate::process::Process;
use crate::records::Outcome;

/// How long the last words of a container may take to come, once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// What the engine says of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It was never started.
    Fresh,
    Running {
        /// Its first process, by the host's number.
        pid: Option<u32>,
    },
    Ended(Outcome),
    /// It is not there.
    Gone,
    /// The engine does not answer.
    Unknown,
}

impl Job<'_> {
    pub(super) async fn state(&self, made: &Made) -> State {
        let found = match made.docker.inspect_container(&made.id, None).await {
            Ok(found) => found,
            Err(error) if engine::status(&error) == Some(404) => return State::Gone,
            Err(_) => return State::Unknown,
        };
        let Some(state) = found.state else {
            return State::Unknown;
        };
        match state.status {
            Some(ContainerStateStatusEnum::CREATED) => State::Fresh,
            Some(ContainerStateStatusEnum::EXITED | ContainerStateStatusEnum::DEAD) => {
                let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
                State::Ended(Outcome::Exited {
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
        made: &Made,
        attached: Option<Attached>,
        signals: &mut Signals,
    ) -> Outcome {
        let words = self.copy(made, attached);
        tokio::pin!(words);
        let mut said_all = false;
        self.tell_size(made).await;
        self.tell_start(made).await;
        let grace = Duration::from_millis(self.spec.grace_ms);
        // When it is to be killed, once it was asked to end.
        let mut kill: Option<Instant> = None;
        if self.dir.is_to_stop() {
            self.stop(made).await;
            kill = Some(Instant::now() + grace);
        }
        let outcome = loop {
            tokio::select! {
                () = self.ended(made) => match self.state(made).await {
                    State::Ended(outcome) => break outcome,
                    State::Gone => break lost(),
                    State::Unknown if self.is_forsaken() => break lost(),
                    // The engine comes back, or has not yet noticed.
                    State::Unknown | State::Running { .. } | State::Fresh => tokio::time::sleep(AGAIN).await,
                },
                () = &mut words, if !said_all => said_all = true,
                told = signals.next() => match told {
                    Told::Stop if kill.is_some() => {}
                    Told::Stop => {
                        self.stop(made).await;
                        kill = Some(Instant::now() + grace);
                    }
                    Told::Pass(signal) => self.signal(made, signal).await,
                    Told::Resized => self.tell_size(made).await,
                },
                () = tokio::time::sleep_until(kill.unwrap_or_else(Instant::now)), if kill.is_some() => {
                    self.signal(made, "SIGKILL").await;
                    kill = Some(Instant::now() + AGAIN);
                }
            }
        };
        if !said_all {
            // They end by themselves, but where a process outside the container holds its output open.
            let _ = tokio::time::timeout(LAST_WORDS, &mut words).await;
        }
        outcome
    }

    /// Returns when the container has probably ended.
    pub(super) async fn ended(&self, made: &Made) {
        let options = WaitContainerOptions {
            condition: "not-running".to_owned(),
        };
        let mut wait = std::pin::pin!(made.docker.wait_container(&made.id, Some(options)));
        // Whatever the answer: the state is asked for.
        let _ = wait.next().await;
    }

    pub(super) async fn signal(&self, made: &Made, signal: &str) {
        let options = KillContainerOptions {
            signal: signal.to_owned(),
        };
        // Gone by itself is just as well.
        let _ = made.docker.kill_container(&made.id, Some(options)).await;
    }

    /// Asks it to end, in the way that its image wants.
    pub(super) async fn stop(&self, made: &Made) {
        let found = made.docker.inspect_container(&made.id, None).await.ok();
        let signal = found
            .and_then(|found| found.config?.stop_signal)
            .filter(|signal| !signal.is_empty());
        self.signal(made, signal.as_deref().unwrap_or("SIGTERM"))
            .await;
    }

    /// Writes down the container's first process. One that is gone already leaves this supervisor's.
    async fn tell_start(&self, made: &Made) {
        self.started(self.first_process(made).await.unwrap_or(self.me));
    }

    /// The container's first process. The engine is asked again once it is looked up: by then its number may be another's.
    pub(super) async fn first_process(&self, made: &Made) -> Option<Process> {
        let mut state = self.state(made).await;
        loop {
            match state {
                State::Running { pid: Some(pid) } => {
                    let process = Process::with_pid(pid);
                    let before = std::mem::replace(&mut state, self.state(made).await);
                    if state == before {
                        return process;
                    }
                }
                // By it alone the container's processes are known for the job's.
                State::Unknown if !self.is_forsaken() => {
                    tokio::time::sleep(AGAIN).await;
                    state = self.state(made).await;
                }
                _ => return None,
            }
        }
    }

    async fn tell_size(&self, made: &Made) {
        if self.plan.options.tty
            && let Some((h, w)) = terminal::size()
        {
            let options = ResizeContainerTTYOptions { h, w };
            // It has another size then, and works.
            let _ = made.docker.resize_container_tty(&made.id, options).await;
        }
    }
}
