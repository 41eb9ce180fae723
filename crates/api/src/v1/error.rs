//! Errors of calls, with their HTTP status and their exit code.

use serde::{Deserialize, Serialize};

/// Body of every failed call, and of `-o json` errors on stderr.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ErrorBody {
    pub error: Error,
}

/// The failure with its values, the cause, and the next step.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct Error {
    pub code: ErrorCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Values behind the message, for programs.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub details: serde_json::Value,
}

impl Error {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            details: serde_json::Value::Null,
        }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn details(mut self, details: serde_json::Value) -> Self {
        self.details = details;
        self
    }

    /// The error as commands print it: two lines for people, or one document for programs, both without a trailing
    /// newline. `clean` removes control characters from foreign text.
    pub fn render(&self, json: bool, clean: impl Fn(&str) -> String) -> String {
        if json {
            let body = ErrorBody {
                error: self.clone(),
            };
            return serde_json::to_string(&body)
                .unwrap_or_else(|_| format!("{{\"error\":{{\"message\":{:?}}}}}", self.message));
        }
        let message = clean(&self.message);
        match &self.hint {
            Some(hint) => format!("error: {message}\nhint: {}", clean(hint)),
            None => format!("error: {message}"),
        }
    }
}

/// Error codes that a caller can branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    Internal,
    Usage,
    NotFound,
    NotAllowed,
    NeverFits,
    WouldWait,
    NoDaemon,
    /// The daemon exists, but answers neither the call nor a probe. Only clients report this code.
    Unresponsive,
    Conflict,
    TimedOut,
    LaunchFailed,
    /// The object existed, and is no longer stored.
    Gone,
    /// The daemon's disk is full: it answers reads, and accepts nothing new.
    DiskFull,
    /// The caller has reached its limit of connections or of unfinished bodies.
    TooMany,
}

impl ErrorCode {
    pub const ALL: [Self; 14] = [
        Self::Internal,
        Self::Usage,
        Self::NotFound,
        Self::NotAllowed,
        Self::NeverFits,
        Self::WouldWait,
        Self::NoDaemon,
        Self::Unresponsive,
        Self::Conflict,
        Self::TimedOut,
        Self::LaunchFailed,
        Self::Gone,
        Self::DiskFull,
        Self::TooMany,
    ];

    /// Returns the exit code of the command line.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Internal | Self::DiskFull => 1,
            Self::Usage => 2,
            Self::NotFound | Self::Gone => 3,
            Self::NotAllowed | Self::TooMany => 4,
            Self::NeverFits => 5,
            Self::WouldWait => 6,
            Self::NoDaemon | Self::Unresponsive => 7,
            Self::Conflict => 8,
            Self::TimedOut => 9,
            Self::LaunchFailed => 125,
        }
    }

    /// Returns the HTTP status of the answer.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Internal | Self::LaunchFailed => 500,
            Self::Usage => 400,
            Self::NotFound => 404,
            Self::Gone => 410,
            Self::NotAllowed => 403,
            Self::NeverFits => 422,
            Self::WouldWait | Self::Conflict => 409,
            Self::NoDaemon | Self::Unresponsive | Self::DiskFull => 503,
            Self::TimedOut => 408,
            Self::TooMany => 429,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_two_lines_or_one_document() {
        let error = Error::new(ErrorCode::Usage, "`4` has no\tunit").hint("write `4G`");
        let clean = |text: &str| text.replace('\t', " ");
        assert_eq!(
            error.render(false, clean),
            "error: `4` has no unit\nhint: write `4G`"
        );
        assert_eq!(
            error.render(true, clean),
            r#"{"error":{"code":"usage","message":"`4` has no\tunit","hint":"write `4G`"}}"#
        );
    }
}
