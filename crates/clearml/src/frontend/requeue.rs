//! Requeuing of a task: the calls that bring it back to the front of its queue, from any status. Pure.

use super::task_state::TaskState;
use crate::server::Status;

/// One call of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequeueStep {
    /// `queues.add_task`: into the queue, its status as it is.
    Add,
    /// `tasks.reset`: a draft again.
    Reset,
    /// `tasks.enqueue`.
    Enqueue,
    /// `queues.move_task_to_front`.
    Front,
    /// `tasks.stopped`: its user has asked for its end meanwhile.
    Stop,
}

/// The remaining calls. A task in progress can become `queued` again only by way of a draft. A change that its user has
/// made meanwhile takes precedence.
pub fn requeue_steps(seen: TaskState, listed: bool) -> &'static [RequeueStep] {
    match seen.status {
        Some(Status::Queued) if listed => &[RequeueStep::Front],
        Some(Status::Queued) => &[RequeueStep::Add, RequeueStep::Front],
        Some(Status::InProgress) if seen.stopping => &[RequeueStep::Stop],
        Some(Status::InProgress) => &[RequeueStep::Reset, RequeueStep::Enqueue, RequeueStep::Front],
        // A requeue of ours, halfway. A user's reset at this very moment looks the same.
        Some(Status::Created) => &[RequeueStep::Enqueue, RequeueStep::Front],
        _ => &[],
    }
}
