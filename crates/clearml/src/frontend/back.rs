//! What brings a task back to the front of its queue, from wherever it is. Pure.

use super::life::Seen;
use crate::server::Status;

/// One call of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
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

/// The calls that are left. A task in progress cannot be made `queued` again but through a draft. What its user has made of it
/// meanwhile stays, whatever we had meant to do.
pub fn way(seen: Seen, listed: bool) -> &'static [Back] {
    match seen.status {
        Some(Status::Queued) if listed => &[Back::Front],
        Some(Status::Queued) => &[Back::Add, Back::Front],
        Some(Status::InProgress) if seen.stopping => &[Back::Stop],
        Some(Status::InProgress) => &[Back::Reset, Back::Enqueue, Back::Front],
        // Our own doing, halfway: a user's reset at this very moment cannot be told from it.
        Some(Status::Created) => &[Back::Enqueue, Back::Front],
        _ => &[],
    }
}
