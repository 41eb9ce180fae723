//! Withdrawals: a front end takes a job's task out of the other system's queue before the job counts as cancelled.

use std::sync::Arc;
use std::time::Duration;

use divvy_api::front_end::{Withdrawal, Withdrawn};
use divvy_api::v1::{Error, ErrorCode};
use tokio::sync::oneshot;

/// Takes a withdrawal to the front end's thread.
pub type Withdraw = Arc<dyn Fn(Withdrawal) + Send + Sync>;

/// How long a withdrawal may take: a quick server answers its four calls within a second, and a caller at a terminal
/// waits no longer than for the daemon itself.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(20);

/// Asks the front end to take a job's task out of its queue.
///
/// # Errors
/// The front end's, and [`ErrorCode::TimedOut`].
pub async fn withdraw(by: &Withdraw, job: String, because: String) -> Result<Withdrawn, Error> {
    let (reply, answer) = oneshot::channel();
    let what = job.clone();
    by(Withdrawal {
        job,
        because,
        reply,
    });
    match tokio::time::timeout(WITHDRAWN_WITHIN, answer).await {
        Ok(answer) => answer.unwrap_or_else(|_| {
            let why = format!("the front end stops, so the task of job {what} stays where it is");
            Err(Error::new(ErrorCode::Conflict, why).hint("cancel it again once the daemon runs"))
        }),
        Err(_) => {
            let within = WITHDRAWN_WITHIN.as_secs();
            let why = format!(
                "the ClearML server has not answered within {within} s, so it is unknown whether the task of job {what} left its queue"
            );
            Err(Error::new(ErrorCode::TimedOut, why).hint(format!(
                "the daemon goes on trying; `divvy describe {what}` shows the job's state"
            )))
        }
    }
}
