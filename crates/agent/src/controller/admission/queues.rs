//! Queues: the queue that a name means.

use divvy_api::spelling;
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::units::IdError;
use divvy_core::{QueueName, QueueSpec};

use crate::controller::io::Io;
use crate::model::validate::usage;

/// The queue of this name.
///
/// # Errors
/// [`ErrorCode::Usage`] for a name that no queue can have, [`ErrorCode::NotFound`] for one that no queue has.
pub(in crate::controller) fn served_queue<'a>(
    io: &'a Io,
    name: &str,
) -> Result<&'a QueueSpec, Error> {
    let name: QueueName =
        (name.parse()).map_err(|error: IdError| usage(error.to_string()).hint(error.hint()))?;
    let queues = &io.config.schedule.queues;
    queues.iter().find(|spec| spec.name == name).ok_or_else(|| {
        let there: Vec<&str> = queues.iter().map(|spec| spec.name.as_str()).collect();
        Error::new(ErrorCode::NotFound, format!("there is no queue {name}")).hint(spelling::hint(
            name.as_str(),
            "queues",
            &there,
        ))
    })
}
