//! A container that somebody else starts, in a job's slice: waits for it, sees that it can be held, writes down how it ended.
//!
//! ```text
//! starter (`docker run`, not ours)            this supervisor                engine
//!                                             launch.json
//! starts the container ────────────────────────────────────────────────────► created, with the label JOINS
//!                                             sees it, looks into it ◄────── started
//!                                             started.json
//!                                             exit.json ◄─────────────────── ended, with its code
//! ```
//! The job lives as long as the container, whatever becomes of the starter; without a container, as long as the starter. The container
//! is never taken away here: it is its starter's. One that is gone by itself (`--rm`) has its code in the engine's events.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{EventMessage, ImageConfig};
use bollard::query_parameters::{EventsOptions, ListContainersOptions};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::follow::State;
use super::signals::{Signals, Told};
use super::{AGAIN, Job, Made, lost};
use crate::container::engine;
use crate::container::plan::JOINS;
use crate::process::Process;
use crate::records::Outcome;
use crate::supervise::{SuperviseError, say};

/// How often a container that is nowhere is looked for before it is believed: the engine's event of its end may be on its way.
const LOOKS: u32 = 3;

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
    /// From the first supervisor or a later one to the end of the container.
    pub(super) async fn host(
        &self,
        starter: Process,
        signals: &mut Signals,
    ) -> Result<Outcome, SuperviseError> {
        // It may start at any moment from here on, so nobody else is to be started for this job.
        let first = self.dir.launch()?;
        let since = first.map_or_else(|| self.begun(self.me).at, |begun| begun.at);
        self.dir.write_launch(&crate::records::Begun {
            process: self.me,
            at: since,
        })?;
        let mut sight = Sight::default();
        loop {
            let Some(docker) = self.engine_again().await else {
                return Ok(lost());
            };
            let options = EventsOptions {
                since: Some(since.as_second().to_string()),
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
                if let Some(outcome) = self.glance(&docker, starter, &mut sight).await {
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
        starter: Process,
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
                return (sight.missed >= LOOKS).then(|| match sight.made {
                    Some(_) => lost(),
                    None => not_begun(sight.kill.is_some()),
                });
            }
            State::Running { .. } if !sight.runs => {
                let made = sight.made.as_ref()?;
                // What is not found in a container that has ended meanwhile says nothing.
                if let Err(why) = self.look_at_guest(made).await
                    && matches!(self.state(made).await, State::Running { .. })
                {
                    say(&why);
                    self.signal(made, "SIGKILL").await;
                }
                let first = self.first_process(made).await;
                self.started(first.unwrap_or(self.me));
                sight.runs = true;
                if self.dir.is_to_stop() {
                    self.end(docker, sight).await;
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

    async fn look_at_guest(&self, made: &Made) -> Result<(), String> {
        let image = made.docker.inspect_image(&self.plan.image).await;
        let config: ImageConfig = image
            .map_err(|error| engine::words(&error))?
            .config
            .unwrap_or_default();
        self.look(made, &config).await
    }
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
}
