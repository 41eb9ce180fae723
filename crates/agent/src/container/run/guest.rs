//! A container that somebody else starts, in a job's slice: looks into one like it first, waits for it, writes down how it ended.
//!
//! ```text
//! starter (`docker run`, not ours)            this supervisor                engine
//!                                             makes one like it ────────────► created
//!                                             looks into it, takes it away ──► gone
//!                                             launch
//! starts the container ────────────────────────────────────────────────────► created, with the label JOINS
//!                                             started ◄────────────────────── started
//!                                             exit ◄───────────────────────── ended, with its code
//! ```
//! The starter is told what to add when `launch` is there: what cannot be held is never started. Nobody looks into the container
//! itself, as the engine could not take it away meanwhile (`--rm`). The job lives as long as the container, whatever becomes of the
//! starter; without a container, as long as the starter. The container is never taken away here: it is its starter's. One that is gone by
//! itself has its code in the engine's events.

use std::collections::HashMap;
use std::process::{Child, Command};
use std::time::Duration;

use bollard::Docker;
use bollard::models::EventMessage;
use bollard::query_parameters::{EventsOptions, ListContainersOptions};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use tokio::time::Instant;

use super::follow::State;
use super::make::Ended;
use super::signals::{Signals, Told};
use super::{AGAIN, Job, LOOKS, Made, launch_failed, lost, withdrawn};
use crate::clock::now;
use crate::container::plan::{JOINS, Starter};
use crate::process::Process;
use crate::records::{Begun, Outcome};
use crate::supervise::{SuperviseError, say};

/// What is known of the container.
#[derive(Default)]
struct Sight {
    made: Option<Made>,
    /// Its first process is written down.
    runs: bool,
    /// So many looks in a row found nothing.
    missed: u32,
    /// When it is to be killed, once the job was asked to end.
    kill: Option<Instant>,
}

impl Job<'_> {
    /// From the first supervisor or a later one to the end of the container; what is left of one that was only looked into.
    pub(super) async fn host(
        &self,
        starter: &Starter,
        signals: &mut Signals,
    ) -> Result<(Outcome, Option<Made>), SuperviseError> {
        let first = self.dir.launch()?;
        if first.is_none()
            && let Err(ended) = self.look_ahead(signals).await
        {
            return Ok(ended);
        }
        // It may start at any moment from here on, so nobody else is to be started for this job.
        let since = first.as_ref().map_or_else(now, |begun| begun.at);
        self.dir.write_launch(&Begun {
            process: self.me,
            at: since,
        })?;
        let line = match starter {
            Starter::Process(process) => {
                return Ok((self.attend(*process, since, signals).await?, None));
            }
            Starter::Line(line) => line,
        };
        let mut child = match started(line) {
            Ok(child) => child,
            Err(why) => {
                say(&why);
                return Ok((launch_failed(125, why), None));
            }
        };
        // One that has ended already is nobody's number any more, and is not waited for.
        let process = Process::with_pid(child.id()).unwrap_or(Process {
            pid: child.id(),
            start_time: 0,
        });
        let outcome = self.attend(process, since, signals).await?;
        let ended = tokio::task::spawn_blocking(move || child.wait()).await;
        let code = ended
            .ok()
            .and_then(Result::ok)
            .and_then(|status| status.code());
        let outcome = match (outcome, code) {
            // Without a container the starter's own code says why.
            (Outcome::Withdrawn { withdrawn }, Some(code)) => launch_failed(code, withdrawn),
            (outcome, _) => outcome,
        };
        Ok((outcome, None))
    }

    /// Makes a container as the starter's will be, looks into it, and takes it away again.
    async fn look_ahead(&self, signals: &mut Signals) -> Result<(), Ended> {
        let made = self.make(signals).await?;
        tokio::select! {
            () = self.clear(Some(&made)) => Ok(()),
            () = self.is_unwanted(signals) => Err((withdrawn(), Some(made))),
        }
    }

    async fn attend(
        &self,
        starter: Process,
        since: Timestamp,
        signals: &mut Signals,
    ) -> Result<Outcome, SuperviseError> {
        let mut sight = Sight::default();
        loop {
            let Some(docker) = self.engine_again().await else {
                return Ok(lost());
            };
            let options = EventsOptions {
                since: Some(moment(since)),
                filters: Some(self.mark()),
                ..EventsOptions::default()
            };
            let mut events = docker.events(Some(options));
            loop {
                // Events first: what they say of a container that is gone comes before the looks that do not find it.
                tokio::select! {
                    biased;
                    event = events.next() => match event {
                        Some(Ok(event)) => match ended(&event) {
                            Some(outcome) => return Ok(outcome),
                            None if event.action.as_deref() == Some("start") => {}
                            None => continue,
                        },
                        // The engine has gone away; what happens meanwhile is in its events when it is back.
                        Some(Err(_)) | None => break,
                    },
                    told = signals.next() => match told {
                        Told::Stop => self.end(&docker, &mut sight).await,
                        // The starter is in the foreground, and passes on what it hears.
                        Told::Pass(_) | Told::Resized => {}
                    },
                    () = tokio::time::sleep(AGAIN / 2) => {}
                }
                if let Some(outcome) = self.glance(&docker, (starter, since), &mut sight).await {
                    return Ok(outcome);
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Looks where the container is; how it ended, if it has.
    async fn glance(
        &self,
        docker: &Docker,
        (starter, since): (Process, Timestamp),
        sight: &mut Sight,
    ) -> Option<Outcome> {
        if self.is_forsaken() {
            return Some(lost());
        }
        if sight.made.is_none() {
            sight.made = self.find(docker).await;
        }
        let state = match &sight.made {
            Some(made) => self.state(made).await,
            None if starter.is_alive() && sight.kill.is_none() => return None,
            None => State::Gone,
        };
        match state {
            State::Ended(outcome) => return Some(outcome),
            State::Gone => {
                sight.missed += 1;
                if sight.missed < LOOKS {
                    return None;
                }
                return Some(match (self.written(docker, since).await, &sight.made) {
                    (Some(outcome), _) => outcome,
                    (None, Some(_)) => lost(),
                    (None, None) => not_begun(sight.kill.is_some()),
                });
            }
            State::Running { .. } if !sight.runs => {
                let made = sight.made.as_ref()?;
                // Asked again at the next look, where the engine does not say.
                if let Some(first) = self.first_process(made).await {
                    self.started(first);
                    sight.runs = true;
                    if self.dir.is_to_stop() {
                        self.end(docker, sight).await;
                    }
                }
            }
            State::Running { .. } | State::Fresh | State::Unknown => {}
        }
        sight.missed = 0;
        if sight.kill.is_some_and(|kill| kill <= Instant::now())
            && let Some(made) = &sight.made
        {
            self.signal(made, "SIGKILL").await;
        }
        None
    }

    /// How the container ended, by the events that there have been: the engine writes down the end before it takes a container away,
    /// and those who follow its events may hear of it later.
    async fn written(&self, docker: &Docker, since: Timestamp) -> Option<Outcome> {
        let options = EventsOptions {
            since: Some(moment(since)),
            until: Some(moment(now())),
            filters: Some(self.mark()),
        };
        let mut events = docker.events(Some(options));
        while let Some(Ok(event)) = events.next().await {
            if let Some(outcome) = ended(&event) {
                return Some(outcome);
            }
        }
        None
    }

    /// Asks the container to end; one that is not there yet will find its slice gone, and does not start.
    async fn end(&self, docker: &Docker, sight: &mut Sight) {
        if sight.kill.is_some() {
            return;
        }
        sight.kill = Some(Instant::now() + Duration::from_millis(self.spec.grace_ms));
        if sight.made.is_none() {
            sight.made = self.find(docker).await;
        }
        if let Some(made) = &sight.made {
            self.stop(made).await;
        }
    }

    /// The container that has the job's mark.
    async fn find(&self, docker: &Docker) -> Option<Made> {
        let options = ListContainersOptions {
            all: true,
            filters: Some(self.mark()),
            ..ListContainersOptions::default()
        };
        let found = docker.list_containers(Some(options)).await.ok()?;
        let id = found.into_iter().find_map(|container| container.id)?;
        let docker = docker.clone();
        Some(Made { docker, id })
    }

    fn mark(&self) -> HashMap<String, Vec<String>> {
        let label = format!("{JOINS}={}", self.plan.name);
        HashMap::from([("label".to_owned(), vec![label])])
    }
}

/// As the engine reads it: in whole seconds it would tell what came before, too.
fn moment(at: Timestamp) -> String {
    format!("{}.{:09}", at.as_second(), at.subsec_nanosecond())
}

/// Starts the line, with this process's terminal and environment.
fn started(line: &[String]) -> Result<Child, String> {
    let [program, words @ ..] = line else {
        return Err("there is no `docker run` to start".to_owned());
    };
    let child = Command::new(program).args(words).spawn();
    child.map_err(|error| format!("{program} cannot be started: {error}"))
}

/// How the container ended, if that is what the engine tells.
fn ended(event: &EventMessage) -> Option<Outcome> {
    if event.action.as_deref() != Some("die") {
        return None;
    }
    let told = event.actor.as_ref()?.attributes.as_ref()?.get("exitCode")?;
    let exit_code = told.parse().ok()?;
    Some(Outcome::Exited { exit_code })
}

fn not_begun(told: bool) -> Outcome {
    let why = match told {
        true => "it was stopped before its container was started",
        false => "the process that was to start its container has ended and has not started one",
    };
    Outcome::Withdrawn {
        withdrawn: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::EventActor;

    use super::*;

    fn event(action: &str, attributes: &[(&str, &str)]) -> EventMessage {
        let attributes = attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        EventMessage {
            action: Some(action.to_owned()),
            actor: Some(EventActor {
                id: None,
                attributes: Some(attributes.collect()),
            }),
            ..EventMessage::default()
        }
    }

    #[test]
    fn a_container_that_is_gone_already_has_its_code_in_the_engines_events() {
        let told = |action: &str, code| ended(&event(action, &[("exitCode", code)]));
        assert_eq!(told("die", "5"), Some(Outcome::Exited { exit_code: 5 }));
        assert_eq!(told("start", "5"), None);
        assert_eq!(told("die", "?"), None);
        assert_eq!(ended(&event("die", &[])), None);
    }

    #[test]
    fn the_engine_is_asked_for_events_from_a_moment_on_and_not_from_its_second() {
        let at: Timestamp = "2026-01-02T03:04:05.000000678Z".parse().unwrap();
        assert_eq!(moment(at), "1767323045.000000678");
    }
}
