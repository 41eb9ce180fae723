//! Events in the journal, numbered in its order.

use std::path::Path;

use divvy_api::v1::Event;
use divvy_core::JobId;
use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, params};

use super::{BUSY, Store, StoreError, sql};

/// The kind of the event that tells of calls that a job's limiter did not count.
pub const UNCOUNTED: &str = "uncounted_calls";

/// The index has those of this kind, so the kind is no parameter.
const TOLD_UNCOUNTED: &str =
    "SELECT EXISTS (SELECT 1 FROM event WHERE job = ?1 AND kind = 'uncounted_calls')";

impl Store {
    /// Appends an event and gives it as the API tells it.
    pub fn append_event(
        &self,
        at: Timestamp,
        job: Option<JobId>,
        kind: &str,
        text: &str,
    ) -> Result<Event, StoreError> {
        let told = "record an event";
        let mut insert = self
            .db
            .prepare_cached("INSERT INTO event (at, job, kind, text) VALUES (?1, ?2, ?3, ?4)")
            .map_err(sql(told))?;
        let seq = insert
            .insert(params![
                at.as_microsecond(),
                job.map(|job| job.0),
                kind,
                text
            ])
            .map_err(sql(told))?;
        Ok(Event {
            seq: u64::try_from(seq).unwrap_or_default(),
            at,
            job: job.map(|job| job.to_string()),
            kind: kind.to_owned(),
            text: text.to_owned(),
        })
    }

    /// Whether there is an event [`UNCOUNTED`] about a job.
    pub fn has_uncounted_event(&self, job: JobId) -> Result<bool, StoreError> {
        self.db
            .query_row(TOLD_UNCOUNTED, [job.0], |row| row.get(0))
            .map_err(sql("find an event"))
    }
}

/// Events after `after`, oldest first, at most `limit`; through a connection of its own, so that no reader holds up the
/// writer.
pub fn events_after(database: &Path, after: u64, limit: u32) -> Result<Vec<Event>, StoreError> {
    let read = || -> rusqlite::Result<Vec<Event>> {
        let db = reader(database)?;
        let mut query = db.prepare(
            "SELECT seq, at, job, kind, text FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2",
        )?;
        let rows = query.query_map(params![super::rows::figure(after), limit], |row| {
            Ok(Event {
                seq: row.get(0)?,
                at: super::rows::time(row, 1)?,
                job: row.get::<_, Option<u64>>(2)?.map(|job| job.to_string()),
                kind: row.get(3)?,
                text: row.get(4)?,
            })
        })?;
        rows.collect()
    };
    read().map_err(sql("read events"))
}

pub(super) fn reader(database: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    db.busy_timeout(BUSY)?;
    Ok(db)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_of_a_job_is_known_by_kind() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let at = Timestamp::from_second(1).unwrap();
        store
            .append_event(at, Some(JobId(3)), UNCOUNTED, "")
            .unwrap();
        store
            .append_event(at, Some(JobId(4)), "bypass", "")
            .unwrap();
        store.append_event(at, None, UNCOUNTED, "").unwrap();
        for (job, told) in [(3, true), (4, false), (5, false)] {
            assert_eq!(
                store.has_uncounted_event(JobId(job)).unwrap(),
                told,
                "{job}"
            );
        }
    }

    #[test]
    fn whether_a_job_was_told_of_is_asked_of_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {TOLD_UNCOUNTED}");
        let mut plan = store.db.prepare(&explain).unwrap();
        let steps = plan.query_map([3], |row| row.get(3)).unwrap();
        let steps: Vec<String> = steps.map(Result::unwrap).collect();
        let served = |step: &String| {
            step.starts_with("SEARCH event") && step.contains("INDEX event_uncounted (job=?)")
        };
        assert!(steps.iter().any(served), "{steps:?}");
        assert!(!steps.iter().any(|step| step.starts_with("SCAN event")));
    }
}
