//! Exec targets: how an exec session enters a running job.

use std::path::PathBuf;

use divvy_api::v1::{Error, ErrorCode, Runner};
use divvy_core::{JobId, JobState};

use crate::controller::io::Io;
use crate::controller::reference;
use crate::controller::run_as::run_as;
use crate::controller::state::Jobs;
use crate::host::run_as::Identity;
use crate::job_dir::JobDir;

/// A running job that an exec session can enter.
#[derive(Clone, Debug)]
pub struct ExecTarget {
    pub job: JobId,
    /// The folder of its present run.
    pub dir: JobDir,
    pub environment: ExecEnvironment,
    pub runs_on_client: bool,
}

#[derive(Clone, Debug)]
pub enum ExecEnvironment {
    Process {
        /// The user as which it runs, unless that is the daemon's own.
        user: Option<Identity>,
    },
    Container {
        /// The engine's socket.
        socket: PathBuf,
        name: String,
        /// The user and group of its programs, if they are its submitter's.
        user: Option<String>,
    },
}

/// The exec target of a running job.
///
/// # Errors
/// [`ErrorCode::NotFound`] if there is no such job, [`ErrorCode::Conflict`] for one that does not run now.
pub fn exec_target(jobs: &Jobs, io: &Io, reference: &str) -> Result<ExecTarget, Error> {
    let job = reference::find(jobs, io, reference)?;
    let conflict = |why: String, hint: String| Error::new(ErrorCode::Conflict, why).hint(hint);
    jobs.refuse_for_claim(job, "entered or signalled")?;
    let Some(active) = jobs.active.get(&job) else {
        let hint = format!("`divvy describe {job}` shows how it ended");
        return Err(conflict(format!("job {job} has ended"), hint));
    };
    let (why, hint) = match &active.job.state {
        JobState::Running { .. } if active.job.run_state.suspended => (
            "is suspended, and a new process in it would keep running",
            format!("divvy resume {job}"),
        ),
        JobState::Running { .. } => {
            let dir = jobs.dir(&io.config.home, job);
            return Ok(ExecTarget {
                job,
                environment: exec_environment(job, &dir, run_as(&active.job))?,
                dir,
                runs_on_client: active.job.spec.runner == Runner::Client,
            });
        }
        JobState::Bound { .. } => (
            "is a claim, and Divvy does not run its programs",
            "`kubectl exec` runs a program in a pod".to_owned(),
        ),
        JobState::Queued => (
            "is queued",
            format!("`divvy why {job}` shows what it waits for"),
        ),
        JobState::Starting { .. } => ("is still starting", "try again in a moment".to_owned()),
        JobState::Stopping { .. } => ("is being stopped", format!("divvy wait {job}")),
        JobState::Ended { .. } => (
            "has ended",
            format!("`divvy describe {job}` shows how it ended"),
        ),
    };
    Err(conflict(format!("job {job} {why}"), hint))
}

fn exec_environment(
    job: JobId,
    dir: &JobDir,
    user: Option<Identity>,
) -> Result<ExecEnvironment, Error> {
    let unread = |error| Error::new(ErrorCode::Internal, crate::host::error::error_chain(&error));
    let plan = dir.spec().map_err(unread)?.and_then(|spec| spec.container);
    let Some(plan) = plan else {
        return Ok(ExecEnvironment::Process { user });
    };
    match dir.container().map_err(unread)? {
        Some(placed) => Ok(ExecEnvironment::Container {
            user: plan.submitter.map(|submitter| submitter.user()),
            socket: plan.socket,
            name: placed.id,
        }),
        None => Err(Error::new(
            ErrorCode::Conflict,
            format!("the container of job {job} does not exist yet"),
        )
        .hint("try again in a moment")),
    }
}
