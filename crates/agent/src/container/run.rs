//! The supervisor of a container job: creates the container, starts it once, stops it on request, and records its exit.
//!
//! The engine does what the kernel does for a program: the container lives on when this process dies, and the next
//! supervisor finds it by its name. What the container says is copied into the job's log from the engine's own, so
//! nothing of it is lost between two supervisors.

mod adopt;
mod follow;
mod make;
mod output;
mod remove;
mod signals;
mod stop;
mod submitter;

use std::time::Duration;

use bollard::Docker;
use divvy_core::docker::Mount;

use super::engine;
use super::user_mounts::StagedMounts;
use crate::host::clock::now;
use crate::host::failpoint::reach;
use crate::host::process::Process;
use crate::job_dir::container_spec::Plan;
use crate::job_dir::{JobDir, LaunchSpec, RunOutcome, StartRecord};
use crate::supervisor::{StdioMode, SuperviseError, finish, log_record_error, write_stderr};
use follow::CreatedContainer;
use make::ContainerCreation;
use output::Attached;
use signals::{SignalEvent, Signals};

/// Between two questions to an engine that does not answer. An engine restarts within seconds, so a shorter pause would
/// only load its start.
const AGAIN: Duration = Duration::from_millis(500);

/// How many searches for a missing container fail before it counts as missing: it may be about to be created. So a
/// second and a half, longer than a creation that was already accepted takes.
const LOOKS: u32 = 3;

/// One job, for as long as this process supervises it.
#[derive(Clone, Copy)]
struct ContainerJob<'a> {
    dir: &'a JobDir,
    spec: &'a LaunchSpec,
    plan: &'a Plan,
    place: StdioMode,
    me: Process,
}

/// Sees to the job until its container has ended and is gone.
///
/// # Errors
/// When nothing was started, and nothing will be by this process.
pub fn run(
    dir: &JobDir,
    spec: &LaunchSpec,
    plan: &Plan,
    place: StdioMode,
) -> Result<RunOutcome, SuperviseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SuperviseError::Setup)?;
    let job = ContainerJob {
        dir,
        spec,
        plan,
        place,
        me: Process::this().map_err(SuperviseError::Setup)?,
    };
    let outcome = runtime.block_on(async {
        // From here on a signal is handled and kills no process.
        let mut signals = Signals::new(place).map_err(SuperviseError::Setup)?;
        let mut creation = ContainerCreation::new(job);
        let (outcome, made) = match &plan.starter {
            Some(starter) => adopt::adopt(&mut creation, starter, &mut signals).await?,
            None => job.live(&mut creation, &mut signals).await?,
        };
        reach("container.ended");
        finish(dir, place, &outcome);
        job.unstage();
        creation.clear(made.as_ref()).await;
        Ok::<_, SuperviseError>(outcome)
    })?;
    // A thread may be waiting for a key press that never comes.
    runtime.shutdown_background();
    Ok(outcome)
}

impl<'a> ContainerJob<'a> {
    async fn live(
        self,
        creation: &mut ContainerCreation<'a>,
        signals: &mut Signals,
    ) -> Result<(RunOutcome, Option<CreatedContainer<'a>>), SuperviseError> {
        if self.dir.launch()?.is_some() {
            return self.go_on(signals).await;
        }
        let made = match creation.make(signals).await {
            Ok(made) => made,
            Err((outcome, made)) => return Ok((outcome, made)),
        };
        let attached = match made.attach().await {
            Ok(attached) => attached,
            Err(outcome) => return Ok((outcome, Some(made))),
        };
        reach("container.made");
        if self.dir.is_stop_requested() {
            return Ok((withdrawn(), Some(made)));
        }
        self.dir.write_launch(&self.begun(self.me))?;
        reach("container.launched");
        let outcome = match made.docker.start_container(&made.id, None).await {
            Ok(()) => {
                reach("container.started");
                self.unstage();
                made.follow(attached, signals).await
            }
            // It may have been heard, and its answer lost.
            Err(error) if engine::is_unavailable(&error) => {
                self.print(&format!(
                    "{}; waiting until the container engine reports whether the container started",
                    engine::describe_error(&error)
                ));
                self.start_unless_started(&made, attached, signals).await?
            }
            Err(error) => start_failed(&error),
        };
        Ok((outcome, Some(made)))
    }

    /// Another supervisor made it, and died.
    async fn go_on(
        self,
        signals: &mut Signals,
    ) -> Result<(RunOutcome, Option<CreatedContainer<'a>>), SuperviseError> {
        // The receiver of stop requests, from now on.
        self.dir.write_launch(&self.begun(self.me))?;
        let Some(docker) = self.engine_again().await else {
            return Ok((lost(), None));
        };
        let made = CreatedContainer::new(self, docker, self.plan.name.clone());
        let outcome = self.start_unless_started(&made, None, signals).await?;
        Ok((outcome, Some(made)))
    }

    /// Brings the container from any state to its end; the engine knows whether it was started. A supervisor that is
    /// told to stop before the engine answers leaves a note for the next one, because no other job may get the slice
    /// while the container may run in it.
    ///
    /// # Errors
    /// The attached client gave up.
    async fn start_unless_started(
        &self,
        made: &CreatedContainer<'_>,
        attached: Option<Attached>,
        signals: &mut Signals,
    ) -> Result<RunOutcome, SuperviseError> {
        loop {
            match made.state().await {
                follow::State::Created if self.dir.is_stop_requested() => return Ok(withdrawn()),
                // The terminal's streams to it broke off as well.
                follow::State::Created if self.place != StdioMode::Background => {
                    let why =
                        "the container engine stopped responding before it started the container";
                    return Ok(launch_failed(125, why));
                }
                // A reboot removes staged mounts, and the engine would mount the empty folders below them.
                follow::State::Created if !self.has_staged() => {
                    let why =
                        "the mounts of the container are not there any more; submit the job again";
                    return Ok(launch_failed(125, why));
                }
                follow::State::Created => match made.docker.start_container(&made.id, None).await {
                    Ok(()) => break,
                    Err(error) if engine::is_unavailable(&error) => {}
                    Err(error) => return Ok(start_failed(&error)),
                },
                follow::State::Unknown => {}
                follow::State::Gone => return Ok(lost()),
                follow::State::Running { .. } | follow::State::Ended(_) => break,
            }
            if self.is_abandoned() {
                return Ok(lost());
            }
            tokio::select! {
                () = tokio::time::sleep(AGAIN) => {}
                told = signals.next() => self.is_given_up(told)?,
            }
        }
        self.unstage();
        Ok(made.follow(attached, signals).await)
    }

    /// Whether the mounts of a submitter's container are still staged for its start.
    fn has_staged(&self) -> bool {
        let mounts = self.plan.options.mounts.iter();
        let binds = mounts.filter(|mount| matches!(mount, Mount::Bind { .. }));
        let submitter = self.plan.submitter.as_ref();
        submitter.is_none_or(|one| StagedMounts::at(&one.staging).has(binds.count()))
    }

    /// Removes the staged mounts: a container that was started has its own, and another does not start any more.
    fn unstage(&self) {
        if let Some(submitter) = &self.plan.submitter {
            StagedMounts::at(&submitter.staging).clear();
        }
    }

    /// Handles a signal before it is known whether there is a container to pass it on to.
    fn is_given_up(&self, told: SignalEvent) -> Result<(), SuperviseError> {
        let is_before_it = self.place != StdioMode::Background;
        match told {
            SignalEvent::Pass(_) if is_before_it => {}
            SignalEvent::Stop => {}
            SignalEvent::Pass(_) | SignalEvent::Resized => return Ok(()),
        }
        self.dir.request_stop()?;
        match is_before_it {
            true => Err(SuperviseError::ContainerStateUnknown(
                self.plan.name.clone(),
            )),
            false => Ok(()),
        }
    }

    /// The engine, once it answers, as long as its result is wanted.
    async fn engine_again(&self) -> Option<Docker> {
        loop {
            match engine::connect(&self.plan.socket).await {
                Ok(docker) => return Some(docker),
                Err(_) if self.is_abandoned() => return None,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// The job's folder was removed: its record is not awaited any more.
    fn is_abandoned(&self) -> bool {
        !self.dir.path().is_dir()
    }

    /// Whether an absent engine may be waited for: no client is attached to this job, and it is still wanted.
    fn may_wait(&self) -> bool {
        self.place == StdioMode::Background && !self.is_abandoned()
    }

    fn begun(&self, process: Process) -> StartRecord {
        StartRecord {
            process,
            at: now(),
            // Another supervisor may write it down again, long after the container started.
            boot_ns: None,
        }
    }

    /// Prints to the attached terminal. After a job's start its log holds the container's output alone: its length
    /// tells the next supervisor where to go on.
    fn print(&self, text: &str) {
        if self.place != StdioMode::Background || self.dir.exit().is_ok_and(|exit| exit.is_some()) {
            write_stderr(text);
        }
    }

    fn started(&self, process: Process) {
        log_record_error(self.dir.write_started(&self.begun(process)));
    }
}

/// It was to end before anything of it ran.
fn withdrawn() -> RunOutcome {
    RunOutcome::Withdrawn {
        withdrawn: "the job was stopped before it started".to_owned(),
    }
}

/// It could not be made or started; nothing has run.
fn launch_failed(code: i32, why: impl Into<String>) -> RunOutcome {
    RunOutcome::Launch {
        launch_error: why.into(),
        exit_code: code,
    }
}

/// With the code that a shell gives.
fn start_failed(error: &bollard::errors::Error) -> RunOutcome {
    let why = engine::describe_error(error);
    write_stderr(&why);
    launch_failed(code(&why), why)
}

/// What a shell would say of a start that the engine words so.
pub fn code(why: &str) -> i32 {
    let says = |text: &str| why.contains(text);
    // Podman's words are the second, with every runtime.
    if says("executable file not found")
        || says("invoke a command that was not found")
        || says("no such file or directory")
    {
        127
    } else if says("permission denied") {
        126
    } else {
        125
    }
}

fn lost() -> RunOutcome {
    RunOutcome::Lost {
        lost: "the exit code is unknown: the container was removed, or the container engine has no record of its end".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_fails_has_the_code_of_a_shell() {
        let missing = "OCI runtime create failed: exec: \"nope\": executable file not found in $PATH: unknown";
        assert_eq!(code(missing), 127);
        let podmans = "crun: executable file `nope` not found in $PATH: OCI runtime attempted to invoke a command that was not found";
        assert_eq!(code(podmans), 127);
        assert_eq!(code("exec: \"/etc/passwd\": permission denied"), 126);
        assert_eq!(code("invalid mount config"), 125);
    }
}
