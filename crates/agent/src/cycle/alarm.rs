//! Alarms of the limiter: calls that it had to pass on without counting them or holding them up, and errors of its own. A job is
//! told of once; how many there are is shown with it.

use divvy_core::JobId;

use super::Cycle;
use crate::gpu::look::{Book, Look};
use crate::store::{StoreError, UNCOUNTED};

impl Cycle {
    /// Takes over what a look found in the accounts.
    pub(super) fn hear(&mut self, look: &Look) -> Result<(), StoreError> {
        let count = |(id, book): (&JobId, &Book)| Some((*id, book.pages.as_ref().ok()?.alarms()));
        let heard: Vec<(JobId, u64)> = look.books.iter().filter_map(count).collect();
        heard
            .into_iter()
            .try_for_each(|(id, count)| self.alarmed(id, count))
    }

    /// A job's slice counts so many.
    pub(super) fn alarmed(&mut self, id: JobId, count: u64) -> Result<(), StoreError> {
        let living = self.jobs.get_mut(&id);
        let Some(living) = living.filter(|living| count > 0 && !living.alarmed) else {
            return Ok(());
        };
        living.alarmed = true;
        // What an earlier agent has started, that one may have told of.
        let is_news = living.supervisor.is_some() || !self.store.told_uncounted(id)?;
        if !is_news {
            return Ok(());
        }
        let text = format!(
            "its limiter did not account for some calls ({count} so far: unsupported calls or internal errors); \
             only the driver reports their memory"
        );
        tracing::warn!(job = %id, "{text}");
        self.tell(Some(id), UNCOUNTED, &text)
    }
}
