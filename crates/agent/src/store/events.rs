//! Events: what happened, numbered in the order of the journal.

use std::path::Path;

use divvy_api::v1::Event;
use divvy_core::JobId;
use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, params};

use super::{BUSY, Store, StoreError, sql};

impl Store {
    /// Appends an event and gives it as the API tells it.
    pub fn tell(
        &self,
        at: Timestamp,
        job: Option<JobId>,
        kind: &str,
        text: &str,
    ) -> Result<Event, StoreError> {
        let told = "tell an event";
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

    /// Whether there is an event of this kind about a job. Reads all that are kept.
    pub fn has_told(&self, job: JobId, kind: &str) -> Result<bool, StoreError> {
        let query = "SELECT EXISTS (SELECT 1 FROM event WHERE job = ?1 AND kind = ?2)";
        self.db
            .query_row(query, params![job.0, kind], |row| row.get(0))
            .map_err(sql("look for an event"))
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
