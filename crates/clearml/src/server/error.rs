//! Errors of API calls.

use std::time::Duration;

/// Why a call was not answered with data.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot set up HTTP: {0}")]
    Client(String),
    #[error("{path}: {why}")]
    Bundle {
        path: std::path::PathBuf,
        why: String,
    },
    /// The server said no.
    #[error("{endpoint}: {message} ({code}/{subcode})")]
    Refused {
        endpoint: &'static str,
        code: u16,
        subcode: u32,
        message: String,
    },
    /// No answer, after every attempt that the configuration allows.
    #[error("{endpoint}: {server} does not respond: {why}")]
    Unreachable {
        endpoint: &'static str,
        server: String,
        why: String,
    },
    /// An answer that is no answer of a ClearML API server.
    #[error("{endpoint}: {server} did not answer like a ClearML API server: {why}")]
    NotClearml {
        endpoint: &'static str,
        server: String,
        why: String,
    },
    /// The request is larger than `api.http.max_req_size`.
    #[error("{endpoint}: the request has {bytes} bytes, more than api.http.max_req_size = {most}")]
    TooLarge {
        endpoint: &'static str,
        bytes: usize,
        most: usize,
    },
}

/// The meaning of a refusal, by code and subcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subcode {
    /// 401: missing credentials, a bad key, a bad token.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404/0.
    NoEndpoint,
    /// 400/12.
    Validation,
    /// 400/101; 400/10 of `tasks.started`.
    NoTask,
    /// 400/110; 400/121 if another call changed it at the same moment.
    StatusChange,
    /// 400/131.
    EventsNotAdded,
    /// 400/701.
    NoQueue,
    /// 400/706.
    AlreadyQueued,
    Other,
}

impl ServerError {
    /// The meaning of a refusal; `None` for any other error.
    pub fn refusal(&self) -> Option<Subcode> {
        let Self::Refused { code, subcode, .. } = self else {
            return None;
        };
        Some(match (code, subcode) {
            (401, _) => Subcode::Unauthorized,
            (403, _) => Subcode::Forbidden,
            (404, 0) => Subcode::NoEndpoint,
            (400, 12) => Subcode::Validation,
            (400, 10 | 101) => Subcode::NoTask,
            (400, 110 | 121) => Subcode::StatusChange,
            (400, 131) => Subcode::EventsNotAdded,
            (400, 701) => Subcode::NoQueue,
            (400, 706) => Subcode::AlreadyQueued,
            _ => Subcode::Other,
        })
    }

    /// Whether the same call may be answered later: nothing was said about the request itself.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::NotClearml { .. } => true,
            Self::Refused { code, .. } => *code >= 500 || *code == 429 || *code == 401,
            Self::Client(_) | Self::Bundle { .. } | Self::TooLarge { .. } => false,
        }
    }

    /// The remedy.
    pub fn hint(&self) -> Option<&'static str> {
        match (self, self.refusal()) {
            (_, Some(Subcode::Unauthorized)) => Some(
                "create new API keys in the server's web UI under Settings > Workspace, and put them into clearml.conf",
            ),
            (Self::Unreachable { .. } | Self::NotClearml { .. }, _) => Some(
                "set api.api_server in clearml.conf, or CLEARML_API_HOST, to the API server (default port: 8008)",
            ),
            _ => None,
        }
    }
}

/// How long to wait before attempt `attempt + 1`, counted from 1: the stock agent's rule, `factor * 2^(attempt - 1)` up to `most`.
pub(super) fn backoff(attempt: u32, factor: f64, most: Duration) -> Duration {
    let power = 2_f64.powi(
        i32::try_from(attempt.saturating_sub(1))
            .unwrap_or(i32::MAX)
            .min(64),
    );
    Duration::from_secs_f64((factor * power).clamp(0.0, most.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_doubles_up_to_its_most() {
        let most = Duration::from_secs(120);
        let waits: Vec<u64> = [1, 2, 3, 4, 8, 9, 1000]
            .map(|attempt| backoff(attempt, 1.0, most).as_secs())
            .into();
        assert_eq!(waits, [1, 2, 4, 8, 120, 120, 120]);
        assert_eq!(backoff(1, 0.25, most), Duration::from_millis(250));
    }

    #[test]
    fn refusals_are_told_apart_by_code_and_subcode() {
        let refused = |code, subcode| ServerError::Refused {
            endpoint: "tasks.started",
            code,
            subcode,
            message: "current_status=stopped, new_status=in_progress".into(),
        };
        let meaning = |code, subcode| refused(code, subcode).refusal().unwrap();
        assert_eq!(meaning(400, 110), Subcode::StatusChange);
        assert_eq!(meaning(400, 706), Subcode::AlreadyQueued);
        assert_eq!(meaning(404, 0), Subcode::NoEndpoint);
        assert_eq!(meaning(401, 30), Subcode::Unauthorized);
        assert_eq!(meaning(400, 13), Subcode::Other);
        assert!(!refused(400, 110).passes() && refused(500, 0).passes());
        assert_eq!(
            refused(400, 110).to_string(),
            "tasks.started: current_status=stopped, new_status=in_progress (400/110)"
        );
    }
}
