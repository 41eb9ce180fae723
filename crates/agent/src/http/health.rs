//! Health routes: liveness and readiness of the daemon, for supervisors and monitors.

use std::time::Duration;

use axum::http::StatusCode;
use divvy_api::v1::Error;

use super::Api;

/// A round of the controller takes milliseconds; one that takes longer than this is stuck in the journal or the driver.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server answers.
pub async fn alive() -> &'static str {
    "ok\n"
}

/// The journal can be written, and GPUs be given out: an answer comes only after a round was made durable.
pub async fn ready(api: Api) -> (StatusCode, String) {
    let asked = api
        .mailbox
        .query(|queries| Ok::<_, Error>(queries.not_ready_reason()));
    let answer = tokio::time::timeout(PATIENCE, asked).await;
    let answer = answer.unwrap_or_else(|_| {
        let seconds = PATIENCE.as_secs();
        Ok(Some(format!(
            "the daemon's main loop has not responded for {seconds} s"
        )))
    });
    let why = match answer {
        Ok(None) => return (StatusCode::OK, "ready\n".to_owned()),
        Ok(Some(why)) => why,
        Err(error) => error.message,
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}
