//! Errors as text: an error with its causes, and a system call's error as the API's internal error.

use std::io;

use divvy_api::v1::{Error, ErrorCode};

/// An error and its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// What failed in the daemon, and the kernel's reason.
pub fn internal(what: &str, error: &io::Error) -> Error {
    Error::new(ErrorCode::Internal, format!("{what}: {error}"))
}
