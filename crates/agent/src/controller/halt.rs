//! Handler errors: a request is refused, or the journal fails.

use divvy_api::v1::{Error, ErrorCode};

use crate::host::error::error_chain;
use crate::journal::StoreError;

/// Why a handler ends early: the caller gets an error, or the daemon ends.
#[derive(Debug)]
pub enum Halt {
    /// The request is refused.
    Refused(Error),
    /// The journal fails, so the round has no effect.
    Journal(StoreError),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        Self::Journal(error)
    }
}

/// For reads, which answer each failure to their caller.
impl From<Halt> for Error {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Refused(error) => error,
            Halt::Journal(error) => journal_error(error),
        }
    }
}

/// Passes a result or a refusal to `reply`.
///
/// # Errors
/// When the journal failed.
pub fn answer<T>(
    result: Result<T, Halt>,
    reply: impl FnOnce(Result<T, Error>),
) -> Result<(), StoreError> {
    match result {
        Ok(value) => reply(Ok(value)),
        Err(Halt::Refused(error)) => reply(Err(error)),
        Err(Halt::Journal(error)) => return Err(error),
    }
    Ok(())
}

/// The value; `None` if the request was refused.
///
/// # Errors
/// When the journal failed.
pub fn accepted<T>(result: Result<T, Halt>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Halt::Refused(_)) => Ok(None),
        Err(Halt::Journal(error)) => Err(error),
    }
}

pub fn journal_error(error: StoreError) -> Error {
    Error::new(ErrorCode::Internal, error_chain(&error))
}
