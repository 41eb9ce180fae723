//! Errors as text: an error with its causes, and a system call's error as the API's internal error.

use std::io;

pub use divvy_api::error_chain::error_chain;
use divvy_api::v1::{Error, ErrorCode};

/// What failed in the daemon, and the kernel's reason.
pub fn internal(what: &str, error: &io::Error) -> Error {
    Error::new(ErrorCode::Internal, format!("{what}: {error}"))
}
