//! Adoption of a container that another program starts in a job's slice: checks a container like it first, waits for
//! it, and records its exit.
//!
//! ```text
//! starter (`docker run`, not ours)            this supervisor                engine
//!                                             makes one like it ────────────► created
//!                                             inspects and removes it ──────► gone
//!                                             launch
//! starts the container ────────────────────────────────────────────────────► created, with the label JOINS
//!                                             started ◄────────────────────── started
//!                                             exit ◄───────────────────────── ended, with its code
//! ```
//! The starter gets the options to add once `launch` is written: a container that the limiter cannot hold is never
//! started. This supervisor does not open the container itself, as the engine could not remove it meanwhile (`--rm`).
//! The job lives as long as the container, even without the starter; without a started container, as long as the
//! starter. The starter owns the container, so it is never removed here. A removed one has its exit code in the
//! engine's events.

use std::collections::HashMap;
use std::process::{Child, Command};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerSummaryStateEnum::CREATED;
use bollard::models::{ContainerSummary, EventMessage, EventMessageTypeEnum};
use bollard::query_parameters::EventsOptions;
use futures_util::StreamExt as _;
use jiff::Timestamp;
use tokio::time::Instant;

use super::follow::{CreatedContainer, State, until};
use super::make::{ContainerCreation, Ended};
use super::signals::{SignalEvent, Signals};
use super::stop::StopSequence;
use super::{AGAIN, ContainerJob, LOOKS, launch_failed, lost, withdrawn};
use crate::container::gc::ContainerActivity;
use crate::container::inspect;
use crate::host::clock::now;
use crate::host::process::Process;
use crate::job_dir::container_spec::{JOINS, Starter};
use crate::job_dir::{ContainerRecord, RunOutcome, StartRecord};
use crate::supervisor::{SuperviseError, log_record_error, write_stderr};

/// The watch over a container that another program starts.
struct Adoption<'a> {
    job: ContainerJob<'a>,
    starter: Process,
    /// The moment of the launch.
    since: Timestamp,
    story: Story,
    made: Option<CreatedContainer<'a>>,
    /// Its first process is written down.
    runs: bool,
    /// The number of successive checks that found no container that runs or has run.
    missed: u32,
    ending: StopSequence,
}

/// The engine's events of the container, from the launch on. The label alone does not make a container the job's: an
/// image committed from it has the label too, and a command line may be started twice. The first started container is
/// the job's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Story {
    /// Which that is, once one was.
    id: Option<String>,
}

impl Story {
    /// Takes the next event; how the container ended, if that is what it tells.
    fn hear(&mut self, event: &EventMessage) -> Option<RunOutcome> {
        let action = event.action.as_deref()?;
        if event.typ != Some(EventMessageTypeEnum::CONTAINER) || !["start", "die"].contains(&action)
        {
            return None;
        }
        let actor = event.actor.as_ref()?;
        let id = actor.id.as_ref()?;
        if self.id.get_or_insert_with(|| id.clone()) != id || action != "die" {
            return None;
        }
        let exit_code = actor.attributes.as_ref()?.get("exitCode")?;
        let exit_code = exit_code.parse().ok()?;
        Some(RunOutcome::Exited { exit_code })
    }
}

/// From the first supervisor or a later one to the end of the container; what is left of one that was only looked into.
pub(super) async fn adopt<'a>(
    creation: &mut ContainerCreation<'a>,
    starter: &Starter,
    signals: &mut Signals,
) -> Result<(RunOutcome, Option<CreatedContainer<'a>>), SuperviseError> {
    let job = creation.job;
    let first = job.dir.launch()?;
    if first.is_none()
        && let Err(ended) = look_ahead(creation, signals).await
    {
        return Ok(ended);
    }
    // It may start at any moment from here on, so no second supervisor may be started for this job.
    let since = first.as_ref().map_or_else(now, |begun| begun.at);
    job.dir.write_launch(&StartRecord {
        process: job.me,
        at: since,
        boot_ns: None,
    })?;
    let line = match starter {
        Starter::Process(process) => {
            let outcome = Adoption::new(job, *process, since).watch(signals).await;
            return Ok((outcome, None));
        }
        Starter::Line(line) => line,
    };
    let mut child = match started(line) {
        Ok(child) => child,
        Err(why) => {
            write_stderr(&why);
            return Ok((launch_failed(125, why), None));
        }
    };
    // An ended container has no process any more, and is not waited for.
    let process = Process::with_pid(child.id()).unwrap_or(Process {
        pid: child.id(),
        start_time: 0,
    });
    let outcome = Adoption::new(job, process, since).watch(signals).await;
    let ended = tokio::task::spawn_blocking(move || child.wait()).await;
    let code = ended
        .ok()
        .and_then(Result::ok)
        .and_then(|status| status.code());
    let outcome = match (outcome, code) {
        // Without a container the starter's own code says why.
        (RunOutcome::Withdrawn { withdrawn }, Some(code)) => launch_failed(code, withdrawn),
        (outcome, _) => outcome,
    };
    Ok((outcome, None))
}

/// Makes a container as the starter's will be, looks into it, and takes it away again.
async fn look_ahead<'a>(
    creation: &mut ContainerCreation<'a>,
    signals: &mut Signals,
) -> Result<(), Ended<'a>> {
    let job = creation.job;
    let made = creation.make(signals).await?;
    tokio::select! {
        () = creation.clear(Some(&made)) => Ok(()),
        () = job.is_unwanted(signals) => Err((withdrawn(), Some(made))),
    }
}

impl<'a> Adoption<'a> {
    fn new(job: ContainerJob<'a>, starter: Process, since: Timestamp) -> Self {
        Self {
            job,
            starter,
            since,
            story: Story { id: known(job) },
            made: None,
            runs: false,
            missed: 0,
            ending: StopSequence::new(job.grace()),
        }
    }

    /// From the launch to the end of the container.
    async fn watch(&mut self, signals: &mut Signals) -> RunOutcome {
        loop {
            let Some(docker) = self.engine_meanwhile(signals).await else {
                return lost();
            };
            let mut events = docker.events(Some(self.events(None)));
            loop {
                // Events first: those of a removed container come before the checks that do not find it.
                tokio::select! {
                    biased;
                    event = events.next() => match event {
                        Some(Ok(event)) => match self.story.hear(&event) {
                            Some(outcome) => return outcome,
                            None if event.action.as_deref() == Some("start") => {}
                            None => continue,
                        },
                        // The engine has gone away; what happens meanwhile is in its events when it is back.
                        Some(Err(_)) | None => break,
                    },
                    told = signals.next() => self.told(told),
                    () = tokio::time::sleep(AGAIN / 2) => {}
                }
                let look = self.glance(&docker);
                tokio::select! {
                    outcome = look => if let Some(outcome) = outcome {
                        return outcome;
                    },
                    // Independent of the engine's delays.
                    told = signals.next() => self.told(told),
                }
                if let Some(made) = &self.made {
                    made.urge(&mut self.ending).await;
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The engine, once it answers. What is to be done about the container meanwhile is done.
    async fn engine_meanwhile(&mut self, signals: &mut Signals) -> Option<Docker> {
        let job = self.job;
        let engine = job.engine_again();
        tokio::pin!(engine);
        loop {
            let due = self.made.as_ref().and_then(|_| self.ending.due());
            tokio::select! {
                docker = &mut engine => return docker,
                told = signals.next() => self.told(told),
                () = until(due) => if let Some(made) = &self.made {
                    made.urge(&mut self.ending).await;
                },
            }
        }
    }

    /// Looks where the container is; how it ended, if it has. One that was made and not started is as good as none.
    async fn glance(&mut self, docker: &Docker) -> Option<RunOutcome> {
        if self.job.is_abandoned() {
            return Some(lost());
        }
        if self.job.dir.is_stop_requested() {
            self.ending.request(Instant::now());
        }
        let is_to_come = self.starter.is_alive() && !self.ending.is_wanted();
        if self.made.is_none() {
            // An engine that does not say what there is has not said that there is nothing.
            self.made = self.find(docker).await.ok()?;
        }
        let state = match &self.made {
            Some(made) => made.state().await,
            None => State::Gone,
        };
        match state {
            State::Ended(outcome) => return Some(outcome),
            State::Unknown => return None,
            State::Gone | State::Created if self.story.id.is_none() && is_to_come => return None,
            State::Gone | State::Created => {
                self.missed += 1;
                if self.missed < LOOKS {
                    return None;
                }
                let written = self.written(docker).await.ok()?;
                return Some(match written {
                    Some(outcome) => outcome,
                    None if self.story.id.is_some() => lost(),
                    None => not_begun(self.ending.is_wanted()),
                });
            }
            State::Running { .. } => {}
        }
        self.missed = 0;
        if !self.runs {
            // Asked again at the next look, where the engine does not say.
            let first = self.made.as_ref()?.first_process().await?;
            self.job.started(first);
            self.runs = true;
        }
        None
    }

    /// The container's exit, from the events so far: the engine records the end before it removes a container, and
    /// clients that follow its events may get it later.
    async fn written(&self, docker: &Docker) -> Result<Option<RunOutcome>, Error> {
        let mut story = self.story.clone();
        let mut events = docker.events(Some(self.events(Some(now()))));
        while let Some(event) = events.next().await {
            if let Some(outcome) = story.hear(&event?) {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    }

    fn events(&self, until: Option<Timestamp>) -> EventsOptions {
        EventsOptions {
            since: Some(moment(self.since)),
            until: until.map(moment),
            filters: Some(HashMap::from([("label".to_owned(), vec![mark(self.job)])])),
        }
    }

    /// The job's container, among those that have its mark. Where it is written down, others get in.
    async fn find(&mut self, docker: &Docker) -> Result<Option<CreatedContainer<'a>>, Error> {
        let all = inspect::labelled(&self.job.plan.socket, docker, mark(self.job)).await?;
        let found = its(&all, self.story.id.as_deref(), self.since);
        let Some((id, found)) = found.and_then(|one| Some((one.id.clone()?, one))) else {
            return Ok(None);
        };
        if known(self.job).as_ref() != Some(&id) {
            let mut names = found.names.iter().flatten();
            let name = names.next().map(|name| name.trim_start_matches('/'));
            log_record_error(self.job.dir.write_container(&ContainerRecord {
                name: name.unwrap_or(&id).to_owned(),
                id: id.clone(),
                log_from: self.job.log_size(),
            }));
        }
        self.story.id = Some(id.clone());
        Ok(Some(CreatedContainer::new(self.job, docker.clone(), id)))
    }

    /// The starter is in the foreground, and passes on what it hears.
    fn told(&mut self, told: SignalEvent) {
        if told == SignalEvent::Stop {
            self.ending.request(Instant::now());
        }
    }
}

/// The container that was found before, by this supervisor or another; not the one that was only looked into.
fn known(job: ContainerJob<'_>) -> Option<String> {
    let placed = job.dir.container().ok().flatten();
    let found = placed.filter(|placed| placed.name != job.plan.name);
    found.map(|placed| placed.id)
}

/// The label of the job's container.
fn mark(job: ContainerJob<'_>) -> String {
    format!("{JOINS}={}", job.plan.name)
}

/// As the engine reads it: in whole seconds it would tell what came before, too.
fn moment(at: Timestamp) -> String {
    format!("{}.{:09}", at.as_second(), at.subsec_nanosecond())
}

/// Starts the line, with this process's terminal and environment.
fn started(line: &[String]) -> Result<Child, String> {
    let [program, words @ ..] = line else {
        return Err("the job record has no `docker run` command line".to_owned());
    };
    let child = Command::new(program).args(words).spawn();
    child.map_err(|error| format!("cannot start {program}: {error}"))
}

/// Which of those that have the job's mark is its container: the one that is known, or the first that was made since
/// the launch and was started. Where the clock was set back since, it is one that runs.
fn its<'a>(
    all: &'a [ContainerSummary],
    known: Option<&str>,
    since: Timestamp,
) -> Option<&'a ContainerSummary> {
    if known.is_some() {
        return all.iter().find(|one| one.id.as_deref() == known);
    }
    let made_since = |one: &&ContainerSummary| {
        one.created >= Some(since.as_second()) && one.state != Some(CREATED)
    };
    let runs =
        |one: &&ContainerSummary| ContainerActivity::from(one.state) == ContainerActivity::Running;
    // The engine lists the newest first.
    let oldest_first = || all.iter().rev();
    let first = oldest_first()
        .filter(made_since)
        .min_by_key(|one| one.created);
    first.or_else(|| oldest_first().find(runs))
}

fn not_begun(told: bool) -> RunOutcome {
    let why = match told {
        true => "the job was stopped before its container started",
        false => "the process that should start the container ended without starting it",
    };
    RunOutcome::Withdrawn {
        withdrawn: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::EventActor;

    use super::*;

    fn event(id: &str, action: &str, attributes: &[(&str, &str)]) -> EventMessage {
        let attributes = attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        EventMessage {
            typ: Some(EventMessageTypeEnum::CONTAINER),
            action: Some(action.to_owned()),
            actor: Some(EventActor {
                id: Some(id.to_owned()),
                attributes: Some(attributes.collect()),
            }),
            ..EventMessage::default()
        }
    }

    fn dies(id: &str, code: &str) -> EventMessage {
        event(id, "die", &[("exitCode", code)])
    }

    #[test]
    fn a_container_that_is_gone_already_has_its_code_in_the_engines_events() {
        let told = |event: &EventMessage| Story::default().hear(event);
        let exited = |exit_code| Some(RunOutcome::Exited { exit_code });
        assert_eq!(told(&dies("a", "5")), exited(5));
        assert_eq!(told(&event("a", "start", &[("exitCode", "5")])), None);
        assert_eq!(told(&dies("a", "?")), None);
        assert_eq!(told(&event("a", "die", &[])), None);
    }

    #[test]
    fn the_end_of_another_container_with_the_same_mark_is_not_the_guests() {
        let mut story = Story::default();
        let of_image = EventMessage {
            typ: Some(EventMessageTypeEnum::IMAGE),
            ..event("image", "create", &[])
        };
        for event in [
            // A program in it has ended, and an image was made of it.
            of_image,
            // It could not be started, and is tried again.
            event("c", "create", &[]),
            event("a", "create", &[]),
            event("a", "start", &[]),
            event("a", "exec_die", &[("exitCode", "3")]),
            event("a", "commit", &[]),
            event("b", "create", &[]),
            event("b", "start", &[]),
            dies("b", "7"),
        ] {
            assert_eq!(story.hear(&event), None, "{event:?}");
        }
        let exited = RunOutcome::Exited { exit_code: 5 };
        assert_eq!(story.hear(&dies("a", "5")), Some(exited));
        // A container found in another way counts as well.
        let id = Some("b".to_owned());
        assert_eq!(Story { id }.hear(&dies("a", "5")), None);
    }

    #[test]
    fn the_guest_is_the_first_with_its_mark_since_the_launch() {
        use bollard::models::ContainerSummaryStateEnum as State;
        let one = |id: &str, created, state| ContainerSummary {
            id: Some(id.to_owned()),
            created: Some(created),
            state: Some(state),
            ..ContainerSummary::default()
        };
        let since = Timestamp::from_second(100).unwrap();
        let ids =
            |all: &[ContainerSummary], known| its(all, known, since).and_then(|one| one.id.clone());
        // The newest first, as engines list them: of an image that was made of it, of a line that was started twice,
        // and of a job with the same number in an earlier journal.
        let all = [
            one("image", 130, State::RUNNING),
            one("twice", 101, State::RUNNING),
            one("guest", 101, State::EXITED),
            one("unstarted", 100, State::CREATED),
            one("earlier", 99, State::EXITED),
        ];
        assert_eq!(ids(&all, None).as_deref(), Some("guest"));
        assert_eq!(ids(&all, Some("image")).as_deref(), Some("image"));
        assert_eq!(ids(&all, Some("gone")), None);
        assert_eq!(ids(&all[3..], None), None);
        let set_back = [one("guest", 40, State::RUNNING), all[4].clone()];
        assert_eq!(ids(&set_back, None).as_deref(), Some("guest"));
    }

    #[test]
    fn the_engine_is_asked_for_events_from_a_moment_on_and_not_from_its_second() {
        let at: Timestamp = "2026-01-02T03:04:05.000000678Z".parse().unwrap();
        assert_eq!(moment(at), "1767323045.000000678");
    }
}
