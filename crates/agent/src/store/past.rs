//! Forgetting the past in small steps: what may go is found through a connection of its own, and goes in the writer's.

use std::collections::BTreeSet;
use std::path::Path;

use divvy_core::JobId;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::{Store, StoreError, bypasses, events, rows, sql};
use crate::terms::Terms;

/// The setting that says which event was the last to be forgotten.
const FORGOTTEN: &str = "events_forgotten";

/// What is to be found: ended jobs beyond one of these.
#[derive(Clone, Copy, Debug)]
pub struct Beyond {
    /// Ended before this.
    pub ended: Timestamp,
    /// And more than this number of them.
    pub most: u32,
    /// Jobs with idempotency keys that ended after this are not found.
    pub keys: Timestamp,
}

/// Ended jobs that may go, oldest first, at most `limit`.
pub fn jobs_beyond(
    database: &Path,
    beyond: Beyond,
    limit: usize,
) -> Result<Vec<JobId>, StoreError> {
    let read = || -> rusqlite::Result<Vec<JobId>> {
        let db = events::reader(database)?;
        // The end of the newest one that is too many.
        let newest: Option<i64> = db
            .query_row(
                "SELECT ended_at FROM job WHERE state = 'ended' ORDER BY ended_at DESC LIMIT 1 OFFSET ?1",
                [beyond.most],
                |row| row.get(0),
            )
            .optional()?;
        let cut = newest
            .map_or(i64::MIN, |newest| newest.saturating_add(1))
            .max(beyond.ended.as_microsecond());
        let followed = followed(&db)?;
        let mut query = db.prepare(
            "SELECT id FROM job WHERE state = 'ended' AND ended_at < ?1 AND (key IS NULL OR ended_at < ?2) ORDER BY ended_at",
        )?;
        let keys = beyond.keys.as_microsecond();
        let mut found = Vec::new();
        for id in query.query_map(params![cut, keys], |row| row.get(0))? {
            let id = JobId(id?);
            if !followed.contains(&id) {
                found.push(id);
            }
            if found.len() == limit {
                break;
            }
        }
        Ok(found)
    };
    read().map_err(sql("find what may be forgotten"))
}

/// Jobs that living ones run after.
fn followed(db: &Connection) -> rusqlite::Result<BTreeSet<JobId>> {
    let mut query = db.prepare("SELECT terms FROM job WHERE state <> 'ended'")?;
    let mut followed = BTreeSet::new();
    for terms in query.query_map([], |row| row.get::<_, String>(0))? {
        // What cannot be read keeps its daemon from starting, and is no matter of this.
        let terms: Terms = serde_json::from_str(&terms?).unwrap_or_default();
        followed.extend(terms.after.iter().map(|after| after.job));
    }
    Ok(followed)
}

/// What of a table may go: rows up to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpTo(i64);

/// Up to where events may go, at most `limit` of them at once: those of before `told` and those that are more than `most`.
/// `None`: none of them.
pub fn events_beyond(
    database: &Path,
    told: Timestamp,
    most: u64,
    limit: u32,
) -> Result<Option<UpTo>, StoreError> {
    up_to(database, "event", "seq", "at", told, most, limit)
}

/// The same for rows of usage.
pub fn usage_beyond(
    database: &Path,
    ended: Timestamp,
    most: u64,
    limit: u32,
) -> Result<Option<UpTo>, StoreError> {
    up_to(database, "usage", "id", "ended", ended, most, limit)
}

fn up_to(
    database: &Path,
    table: &str,
    key: &str,
    time: &str,
    before: Timestamp,
    most: u64,
    limit: u32,
) -> Result<Option<UpTo>, StoreError> {
    let read = || -> rusqlite::Result<Option<UpTo>> {
        let db = events::reader(database)?;
        let end = |which: &str| -> rusqlite::Result<Option<i64>> {
            db.query_row(&format!("SELECT {which}({key}) FROM {table}"), [], |row| {
                row.get(0)
            })
        };
        let (Some(first), Some(last)) = (end("min")?, end("max")?) else {
            return Ok(None);
        };
        // Numbers grow by one, so that they count.
        let counted = last.saturating_sub(rows::figure(most));
        // The first that is young enough: what is before it was written before it.
        let young: Option<i64> = db
            .query_row(
                &format!("SELECT {key} FROM {table} WHERE {time} >= ?1 ORDER BY {key} LIMIT 1"),
                [before.as_microsecond()],
                |row| row.get(0),
            )
            .optional()?;
        let aged = young.map_or(last, |young| young - 1);
        let most = first.saturating_add(i64::from(limit)).saturating_sub(1);
        let to = counted.max(aged).min(most);
        Ok((to >= first).then_some(UpTo(to)))
    };
    read().map_err(sql("find what may be forgotten"))
}

impl Store {
    /// Forgets those of these jobs that have ended, with all that is told of them but events and usage.
    pub fn forget_jobs(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<()> {
            for id in jobs {
                let ended = "SELECT 1 FROM job WHERE id = ?1 AND state = 'ended'";
                let mut ended = self.db.prepare_cached(ended)?;
                if !ended.exists([id.0])? {
                    continue;
                }
                self.remember_bypasses_of(*id)?;
                for table in ["denial", "bypass", "holding"] {
                    self.db
                        .prepare_cached(&format!("DELETE FROM {table} WHERE job = ?1"))?
                        .execute([id.0])?;
                }
                self.db
                    .prepare_cached("DELETE FROM job WHERE id = ?1")?
                    .execute([id.0])?;
            }
            Ok(())
        };
        forget().map_err(sql("forget ended jobs"))
    }

    /// How many bypasses there ever were outlives them.
    fn remember_bypasses_of(&self, job: JobId) -> rusqlite::Result<()> {
        let mut count = self
            .db
            .prepare_cached("SELECT way, count(*) FROM bypass WHERE job = ?1 GROUP BY way")?;
        let counts = count.query_map([job.0], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?))
        })?;
        let add = "INSERT INTO setting (name, value) VALUES (?1, ?2) ON CONFLICT (name) \
                   DO UPDATE SET value = CAST(value AS INTEGER) + CAST(excluded.value AS INTEGER)";
        for count in counts {
            let (way, count) = count?;
            let name = format!("{}{way}", bypasses::FORGOTTEN);
            self.db
                .prepare_cached(add)?
                .execute(params![name, count.to_string()])?;
        }
        Ok(())
    }

    /// Forgets events up to this one.
    pub fn forget_events(&self, UpTo(to): UpTo) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<usize> {
            self.db
                .prepare_cached("DELETE FROM event WHERE seq <= ?1")?
                .execute([to])
        };
        forget().map_err(sql("forget events"))?;
        self.set_setting(FORGOTTEN, &to.to_string())
    }

    /// Forgets what was used, up to this row.
    pub fn forget_usage(&self, UpTo(to): UpTo) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<usize> {
            self.db
                .prepare_cached("DELETE FROM usage WHERE id <= ?1")?
                .execute([to])
        };
        forget().map(drop).map_err(sql("forget what was used"))
    }
}

/// The last event that was forgotten; 0 while none was.
pub fn events_forgotten(database: &Path) -> Result<u64, StoreError> {
    let read = || forgotten(&events::reader(database)?);
    read().map_err(sql("read which events are kept"))
}

fn forgotten(db: &Connection) -> rusqlite::Result<u64> {
    let found: Option<String> = db
        .query_row(
            "SELECT value FROM setting WHERE name = ?1",
            [FORGOTTEN],
            |row| row.get(0),
        )
        .optional()?;
    Ok(found.and_then(|text| text.parse().ok()).unwrap_or(0))
}
