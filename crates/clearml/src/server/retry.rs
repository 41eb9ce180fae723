//! Retry with backoff of calls that a front end cannot go on without.

use std::time::Duration;

use super::error::ServerError;
use super::http::Server;

/// How long to wait before something is tried again that can pass. A server restarts in some ten seconds; shorter would
/// add calls of all front ends to its start.
const AGAIN: Duration = Duration::from_secs(1);

impl Server {
    /// Asks until the server says yes, or no for good.
    ///
    /// # Errors
    /// Its no.
    pub async fn retry<T>(
        &self,
        call: impl AsyncFn(&Self) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        loop {
            match call(self).await {
                Err(error) if error.passes() => {
                    tracing::warn!(%error, "a call to the ClearML server failed; retrying");
                    tokio::time::sleep(AGAIN).await;
                }
                answer => return answer,
            }
        }
    }

    /// Puts a task into a queue, first: back to where it was, when it was given in place of the one that was asked for, as by
    /// a server older than API 2.21.
    ///
    /// # Errors
    /// A no to either call; both are made.
    pub async fn add_first(&self, queue: &str, task: &str) -> Result<(), ServerError> {
        let added = self
            .retry(async |server| server.add(queue, task).await)
            .await;
        let moved = self
            .retry(async |server| server.move_to_front(queue, task).await)
            .await;
        added.and(moved)
    }
}
