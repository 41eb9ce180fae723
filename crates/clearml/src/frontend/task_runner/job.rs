//! The agent's job of a task, as the agent's API reports it.

use std::sync::Arc;
use std::time::Duration;

use divvy_api::client::WaitFor;
use divvy_api::v1::{Confirmation, EndReason, ErrorCode, Job, JobState};
use tokio::sync::watch;

use crate::frontend::context::Context;
use crate::frontend::task_state::{JobEnd, RecoveredJob};

/// One call that waits for a job's end; it also confirms to the agent that a client still uses the job's slice. A third
/// of the 30 s after which the daemon takes a client as gone, which leaves room for two lost calls.
pub(super) const WAIT: Duration = Duration::from_secs(10);

/// How the agent's job stands.
#[derive(Clone, Debug)]
pub(super) enum JobSight {
    NotYet,
    Is(Arc<Job>),
    /// The agent does not know it.
    Unknown,
}

/// Follows the agent's job until it has ended, and stands by its slice meanwhile.
pub(super) async fn follow(context: Arc<Context>, job: String, tell: watch::Sender<JobSight>) {
    loop {
        let waited = context
            .agent(async |client| client.wait(&job, WaitFor::Ended, WAIT).await)
            .await;
        match waited {
            Ok(job) => {
                let is_over = job.state == JobState::Ended;
                if tell.send(JobSight::Is(Arc::new(job))).is_err() || is_over {
                    return;
                }
            }
            Err(error) if error.code == ErrorCode::TimedOut => {}
            Err(error) => {
                tracing::warn!(job, %error, "the daemon does not know the job");
                let _ = tell.send(JobSight::Unknown);
                return;
            }
        }
    }
}

pub(super) fn end_of(job: &Job) -> JobEnd {
    match job.end_reason {
        Some(EndReason::Completed) => JobEnd::Exited(0),
        Some(EndReason::Failed) => JobEnd::Exited(job.exit_code.unwrap_or(1)),
        Some(EndReason::Cancelled) => JobEnd::Cancelled,
        Some(EndReason::LaunchFailed | EndReason::DependencyFailed) => JobEnd::NotLaunched,
        Some(EndReason::SupervisorLost) | None => JobEnd::Lost,
        Some(_) => JobEnd::Killed,
    }
}

/// The life of a task whose record was found, by what has become of its job.
pub fn recovered_job(job: Option<&Job>) -> RecoveredJob {
    match job {
        Some(job) if job.confirmation == Some(Confirmation::Awaiting) => RecoveredJob::Awaited,
        Some(job)
            if job.started_at.is_some() || job.confirmation == Some(Confirmation::Confirmed) =>
        {
            RecoveredJob::Begun
        }
        _ => RecoveredJob::Nothing,
    }
}
