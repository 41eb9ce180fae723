//! Deletion of history in small steps: a separate connection finds the rows, and the writer deletes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use divvy_core::JobId;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

use super::{Store, StoreError, bypasses, events, rows, sql};
use crate::model::policy::{JobPolicy, Of};
use crate::model::retention::RetentionLimits;

/// The setting that says which event was the last to be forgotten.
pub(super) const FORGOTTEN: &str = "events_forgotten";

/// The ended jobs of a user that may go, but for jobs that a key or another job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// `None`: of before there were users.
    uid: Option<u32>,
    /// Microseconds since 1970: they ended before this.
    ended: i64,
}

/// Which of each user's ended jobs may go.
pub fn cuts(database: &Path, beyond: RetentionLimits) -> Result<Vec<Cut>, StoreError> {
    let read = || -> rusqlite::Result<Vec<Cut>> {
        let db = events::reader(database)?;
        let mut cuts = Vec::new();
        for user in users(&db)? {
            let ended = ended_of(&db, user, beyond)?;
            cuts.push(Cut {
                uid: user.uid,
                ended,
            });
        }
        Ok(cuts)
    };
    read().map_err(sql("find entries that are past their retention"))
}

/// Users with more ended jobs than are kept even of the youngest. After a pruning, none of these jobs may be forgotten.
pub fn overfull(database: &Path, beyond: RetentionLimits) -> Result<BTreeSet<u32>, StoreError> {
    let read = || -> rusqlite::Result<BTreeSet<u32>> {
        let users = users(&events::reader(database)?)?.into_iter();
        let full = users.filter(|user| user.is_beyond(beyond));
        Ok(full.filter_map(|user| user.uid).collect())
    };
    read().map_err(sql("find users with more jobs than the retention allows"))
}

/// A user's history, summed up.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: Option<u32>,
    jobs: u32,
    /// Bytes.
    texts: u64,
}

impl User {
    fn is_beyond(&self, beyond: RetentionLimits) -> bool {
        self.jobs > beyond.most_young || self.texts > beyond.texts
    }
}

/// All users with ended jobs. Of the index alone.
fn users(db: &Connection) -> rusqlite::Result<Vec<User>> {
    let mut query = db.prepare(USERS)?;
    let users = query.query_map([], |row| {
        let (uid, jobs, texts) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(User { uid, jobs, texts })
    })?;
    users.collect()
}

pub(super) const USERS: &str = "SELECT uid, count(*), sum(texts) FROM job INDEXED BY job_ended \
                     WHERE state = 'ended' GROUP BY uid";

/// A user's ended jobs, the newest first. Of the index alone.
pub(super) const NEWEST: &str = "SELECT ended_at, texts FROM job INDEXED BY job_ended \
                      WHERE state = 'ended' AND uid IS ?1 ORDER BY ended_at DESC";

/// Returns the time before which jobs of this user ended that may go, in microseconds since 1970.
fn ended_of(db: &Connection, user: User, beyond: RetentionLimits) -> rusqlite::Result<i64> {
    let aged = beyond.ended.as_microsecond();
    if user.jobs <= beyond.most && !user.is_beyond(beyond) {
        return Ok(aged);
    }
    let mut newest = db.prepare_cached(NEWEST)?;
    let mut rows = newest.query([user.uid])?;
    let (mut jobs, mut texts, mut old) = (0_u32, 0_u64, None);
    let mut cut = aged;
    while let Some(row) = rows.next()? {
        let ended: i64 = row.get(0)?;
        jobs += 1;
        texts = texts.saturating_add(row.get(1)?);
        if jobs > beyond.most_young || texts > beyond.texts {
            cut = cut.max(ended.saturating_add(1));
            break;
        }
        if jobs > beyond.most && old.is_none() {
            old = Some(ended.saturating_add(1).min(beyond.young.as_microsecond()));
        }
    }
    Ok(cut.max(old.unwrap_or(i64::MIN)))
}

pub(super) const ENDED: &str = "SELECT uid, id FROM job INDEXED BY job_ended WHERE state = 'ended' \
                                ORDER BY uid DESC, ended_at DESC";

/// Ended jobs with their users, each user's newest first.
pub fn ended_jobs(database: &Path) -> Result<Vec<(Option<u32>, JobId)>, StoreError> {
    let read = || -> rusqlite::Result<Vec<_>> {
        let db = events::reader(database)?;
        let mut query = db.prepare(ENDED)?;
        let jobs = query.query_map([], |row| Ok((row.get(0)?, JobId(row.get(1)?))))?;
        jobs.collect()
    };
    read().map_err(sql("list ended jobs"))
}

/// Ended jobs that may go, each user's oldest first, at most `limit`.
pub fn jobs_beyond(
    database: &Path,
    cuts: &[Cut],
    keys: Timestamp,
    limit: usize,
) -> Result<Vec<JobId>, StoreError> {
    let read = || -> rusqlite::Result<Vec<JobId>> {
        let db = events::reader(database)?;
        let mut found = Vec::new();
        let mut needed = None;
        let mut query = db.prepare(
            "SELECT id FROM job INDEXED BY job_ended WHERE state = 'ended' AND uid IS ?1 AND ended_at < ?2 \
             AND (key IS NULL OR ended_at < ?3) ORDER BY ended_at",
        )?;
        for Cut { uid, ended } in cuts {
            let keys = keys.as_microsecond();
            for id in query.query_map(params![uid, ended, keys], |row| row.get(0))? {
                let id = JobId(id?);
                if needed.is_none() {
                    needed = Some(self::needed(&db)?);
                }
                let needed = needed.as_ref();
                if !needed.is_some_and(|needed: &ReferencedJobs| needed.contains(id)) {
                    found.push(id);
                }
                if found.len() == limit {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    };
    read().map_err(sql("find entries that are past their retention"))
}

/// Ended jobs that living ones need: their dependencies, and the first job of their array, which has the key of the
/// whole array.
#[derive(Debug, Default)]
pub struct ReferencedJobs {
    jobs: BTreeSet<JobId>,
    /// Arrays by their first number, to before the other. They do not overlap.
    arrays: BTreeMap<JobId, JobId>,
}

impl ReferencedJobs {
    /// Adds what a living job needs.
    pub fn add(&mut self, terms: &JobPolicy) {
        for after in &terms.after {
            let Range { start, end } = after.numbers();
            match after.of {
                Of::Array(_) => drop(self.arrays.insert(start, end)),
                Of::Job | Of::First(_) => drop(self.jobs.insert(start)),
            }
        }
        self.jobs.extend(terms.array.and_then(|task| task.array));
    }

    pub fn contains(&self, id: JobId) -> bool {
        let array = self.arrays.range(..=id).next_back();
        self.jobs.contains(&id) || array.is_some_and(|(_, below)| id < *below)
    }
}

/// Jobs that living ones need.
fn needed(db: &Connection) -> rusqlite::Result<ReferencedJobs> {
    let mut query = db.prepare("SELECT terms FROM job WHERE state <> 'ended'")?;
    let mut needed = ReferencedJobs::default();
    for terms in query.query_map([], |row| row.get::<_, String>(0))? {
        // What cannot be read keeps its daemon from starting, and is no matter of this.
        let terms: JobPolicy = serde_json::from_str(&terms?).unwrap_or_default();
        needed.add(&terms);
    }
    Ok(needed)
}

/// What of usage may go: rows up to this one, and idle rows up to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpTo {
    usage: Option<i64>,
    idle: Option<i64>,
}

/// Up to where rows of usage may go by age, at most `limit` of them at once; idle rows likewise. `None`: none of them.
pub fn usage_beyond(
    database: &Path,
    ended: Timestamp,
    limit: u32,
) -> Result<Option<UpTo>, StoreError> {
    let read = || -> rusqlite::Result<Option<UpTo>> {
        let db = events::reader(database)?;
        let up_to = UpTo {
            usage: rows_beyond(&db, "usage", ended, limit)?,
            idle: rows_beyond(&db, "idle_energy", ended, limit)?,
        };
        Ok((up_to != UpTo::default()).then_some(up_to))
    };
    read().map_err(sql("find entries that are past their retention"))
}

fn rows_beyond(
    db: &Connection,
    table: &str,
    ended: Timestamp,
    limit: u32,
) -> rusqlite::Result<Option<i64>> {
    let end = |which: &str| -> rusqlite::Result<Option<i64>> {
        db.query_row(&format!("SELECT {which}(id) FROM {table}"), [], |row| {
            row.get(0)
        })
    };
    let (Some(first), Some(last)) = (end("min")?, end("max")?) else {
        return Ok(None);
    };
    // The first that is young enough: what is before it was written before it.
    let young: Option<i64> = db
        .query_row(
            &format!("SELECT id FROM {table} WHERE ended >= ?1 ORDER BY id LIMIT 1"),
            [ended.as_microsecond()],
            |row| row.get(0),
        )
        .optional()?;
    let aged = young.map_or(last, |young| young - 1);
    let to = aged.min(first.saturating_add(i64::from(limit)).saturating_sub(1));
    Ok((to >= first).then_some(to))
}

/// What of a user's usage may go: rows up to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserUpTo {
    uid: Option<u32>,
    to: i64,
}

pub(super) const USAGES: &str = "SELECT uid, count(*) - ?1 FROM usage INDEXED BY usage_user \
                                 GROUP BY uid HAVING count(*) > ?1";

/// Up to where rows of usage may go of users with more than `most`, at most `limit` of each at once.
pub fn usages_beyond(database: &Path, most: u64, limit: u32) -> Result<Vec<UserUpTo>, StoreError> {
    let read = || -> rusqlite::Result<Vec<UserUpTo>> {
        let db = events::reader(database)?;
        let mut many = db.prepare(USAGES)?;
        let mut oldest = db.prepare(
            "SELECT id FROM usage INDEXED BY usage_user WHERE uid IS ?1 ORDER BY id LIMIT 1 OFFSET ?2",
        )?;
        let many = many.query_map([rows::figure(most)], |row| {
            Ok((row.get::<_, Option<u32>>(0)?, row.get::<_, i64>(1)?))
        })?;
        let mut found = Vec::new();
        for user in many {
            let (uid, more) = user?;
            let last = more.min(i64::from(limit)) - 1;
            let to = oldest.query_row(params![uid, last], |row| row.get(0))?;
            found.push(UserUpTo { uid, to });
        }
        Ok(found)
    };
    read().map_err(sql("find entries that are past their retention"))
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
        forget().map_err(sql("delete ended jobs"))
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

    /// Forgets what a user used, up to this row.
    pub fn forget_usage_of(&self, UserUpTo { uid, to }: UserUpTo) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<usize> {
            self.db
                .prepare_cached(
                    "DELETE FROM usage INDEXED BY usage_user WHERE uid IS ?1 AND id <= ?2",
                )?
                .execute(params![uid, to])
        };
        forget().map(drop).map_err(sql("delete usage entries"))
    }

    /// Forgets what was used, up to this row.
    pub fn forget_usage(&self, UpTo { usage, idle }: UpTo) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<()> {
            for (table, to) in [("usage", usage), ("idle_energy", idle)] {
                self.db
                    .prepare_cached(&format!("DELETE FROM {table} WHERE id <= ?1"))?
                    .execute([to])?;
            }
            Ok(())
        };
        forget().map_err(sql("delete usage entries"))
    }
}

/// The last event that was forgotten; 0 while none was.
pub fn events_forgotten(database: &Path) -> Result<u64, StoreError> {
    let found = super::setting_of(database, FORGOTTEN)?;
    Ok(found.and_then(|text| text.parse().ok()).unwrap_or(0))
}
