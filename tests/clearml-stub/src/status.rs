//! The states of a task, and which may follow which.

use std::fmt;

/// State of a task. `closed`, `publishing` and `unknown` of the server are never reached by what is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// A draft.
    Created,
    /// In a queue, or taken out of one and not started.
    Queued,
    /// Started.
    InProgress,
    /// Ended by somebody's wish.
    Stopped,
    /// Ended by itself, well.
    Completed,
    /// Ended by itself, badly.
    Failed,
    /// Locked.
    Published,
}

const NAMES: [(Status, &str); 7] = [
    (Status::Created, "created"),
    (Status::Queued, "queued"),
    (Status::InProgress, "in_progress"),
    (Status::Stopped, "stopped"),
    (Status::Completed, "completed"),
    (Status::Failed, "failed"),
    (Status::Published, "published"),
];

impl Status {
    /// The state that the server calls so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(status, _)| *status)
    }

    /// The server's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(status, _)| *status == self)
            .map_or("", |(_, name)| name)
    }

    /// Whether a task that is over is in this state.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Stopped | Self::Completed | Self::Failed | Self::Published
        )
    }

    /// Whether a task may go from here to `next` without force. A state may always follow itself.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use Status::{Completed, Created, Failed, InProgress, Published, Queued, Stopped};
        let may: &[Self] = match self {
            Created => &[Queued, InProgress],
            Queued => &[Created, InProgress, Stopped],
            InProgress => &[Stopped, Failed, Created, Completed],
            Stopped => &[Created, Failed, Queued, InProgress, Published, Completed],
            Failed => &[Created, Stopped, Published, Queued],
            Completed => &[Published, InProgress, Created],
            Published => &[],
        };
        self == next || may.contains(&next)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_cannot_go_back_into_a_queue_unforced() {
        assert!(Status::Queued.may_become(Status::InProgress));
        assert!(Status::InProgress.may_become(Status::InProgress));
        assert!(!Status::InProgress.may_become(Status::Queued));
        assert!(!Status::Completed.may_become(Status::Queued));
        assert!(!Status::Queued.may_become(Status::Completed));
    }

    #[test]
    fn every_state_has_a_name_of_its_own() {
        for (status, name) in NAMES {
            assert_eq!(Status::named(name), Some(status));
            assert_eq!(status.name(), name);
        }
        assert_eq!(Status::named("running"), None);
    }
}
