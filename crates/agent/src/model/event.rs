//! An event, with the owner of its job: only the owner, and roles that see all jobs, may read what it says.

use divvy_api::v1::Event;

/// An event of the journal.
#[derive(Clone, Debug)]
pub struct JobEvent {
    pub event: Event,
    /// The uid of the job's owner; `None` for an event of no job.
    pub owner: Option<u32>,
}

impl JobEvent {
    /// The event as a caller may see it. Of another user's job it says that something happened: the words may say what
    /// runs.
    pub fn into_visible(mut self, can_see: impl FnOnce(u32) -> bool) -> Event {
        if self.event.job.is_some() && !self.owner.is_some_and(can_see) {
            self.event.text.clear();
        }
        self.event
    }
}
