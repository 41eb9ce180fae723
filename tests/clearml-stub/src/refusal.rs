//! Refusals with the server's codes.

use std::fmt;

/// What the server answers instead of data: `result_code`, `result_subcode` and `result_msg`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// The server's own number within it.
    pub subcode: u16,
    /// In words.
    pub message: String,
    /// Whether the caller did what this server is strict about.
    pub complaint: bool,
}

impl Refusal {
    pub(crate) fn new(code: u16, subcode: u16, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            subcode,
            message,
            complaint: false,
        }
    }

    fn complaint(code: u16, subcode: u16, message: impl Into<String>) -> Self {
        Self {
            complaint: true,
            ..Self::new(code, subcode, message)
        }
    }

    /// Somebody else is called so.
    pub(crate) fn taken(name: &str) -> Self {
        let message = format!("Value combination already exists: name={name}");
        Self::new(400, 801, message)
    }

    /// The database takes no such text.
    pub(crate) fn short(field: &str) -> Self {
        let message = format!("Data validation error: {field}=String value is too short");
        Self::complaint(400, 800, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::complaint(400, 12, format!("Validation error ({})", message.into()))
    }

    pub(crate) fn no_endpoint(name: &str) -> Self {
        Self::complaint(
            404,
            0,
            format!("Unable to process request: endpoint not found ({name})"),
        )
    }

    pub(crate) fn no_task(task: &str) -> Self {
        Self::new(400, 101, format!("Invalid task id: id={task}"))
    }

    /// What `tasks.started` says of a task that was deleted.
    pub(crate) fn no_object() -> Self {
        Self::new(400, 10, "Invalid object id: task=None")
    }

    pub(crate) fn no_queue(queue: &str) -> Self {
        Self::new(400, 701, format!("Invalid queue id: id={queue}"))
    }

    pub(crate) fn not_queued(queue: &str, task: &str) -> Self {
        Self::new(
            400,
            703,
            format!("Invalid queue id or task not in queue: task={task}, id={queue}"),
        )
    }

    pub(crate) fn status(current: impl fmt::Display, new: impl fmt::Display) -> Self {
        let text = format!(
            "Invalid task status (Invalid status change): current_status={current}, new_status={new}"
        );
        Self::complaint(400, 110, text)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.code, self.subcode, self.message)
    }
}

impl std::error::Error for Refusal {}
