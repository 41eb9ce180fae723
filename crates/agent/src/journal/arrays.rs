//! Array jobs in the journal: the jobs of an array, and their results.
//!
//! The jobs of an array are stored one after the other in one transaction, so they have numbers in a row and the array
//! has the first of them. A journal that was lost may have given some of these numbers to other jobs, so each is read.

use std::collections::BTreeSet;
use std::path::Path;

use divvy_core::JobId;
use divvy_core::job::Outcome;
use rusqlite::{OptionalExtension, params};

use super::{Store, StoreError, events, jobs, rows, sql};
use crate::model::job::Job;
use crate::model::policy::ArrayTask;
use crate::model::validate::limits::MOST_TASKS;

/// Jobs of array ?1 with numbers below ?2.
const OF_ARRAY: &str = "id >= ?1 AND id < ?2 AND CASE WHEN id = ?1 \
     THEN json_extract(terms, '$.array.index') IS NOT NULL AND json_extract(terms, '$.array.array') IS NULL \
     ELSE json_extract(terms, '$.array.array') = ?1 END";

/// How the jobs of an array ended that have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    pub ended: u32,
    /// The first of them that did not exit with code 0.
    pub badly: Option<JobId>,
}

/// The numbers that jobs of an array may have, as the database has integers; `None` beyond them.
fn numbers(array: JobId) -> Option<(i64, i64)> {
    let first = i64::try_from(array.0).ok()?;
    let most = i64::try_from(MOST_TASKS).ok()?;
    Some((first, first.checked_add(most)?))
}

/// Numbers of the jobs of an array that are kept; through a connection of its own.
///
/// # Errors
/// When the database cannot be read.
pub fn ids_of_array(database: &Path, array: JobId) -> Result<BTreeSet<JobId>, StoreError> {
    let Some((first, below)) = numbers(array) else {
        return Ok(BTreeSet::new());
    };
    let read = || -> rusqlite::Result<BTreeSet<JobId>> {
        let db = events::reader(database)?;
        let mut query = db.prepare(&format!("SELECT id FROM job WHERE {OF_ARRAY}"))?;
        let ids = query.query_map([first, below], |row| Ok(JobId(row.get(0)?)))?;
        ids.collect()
    };
    read().map_err(sql("list the jobs of an array"))
}

impl Store {
    /// The first job of an array that is kept.
    pub fn first_of_array(&self, array: JobId) -> Result<Option<(Job, ArrayTask)>, StoreError> {
        let Some((first, _)) = numbers(array) else {
            return Ok(None);
        };
        let next = "id = (SELECT min(id) FROM job WHERE id >= ?1)";
        let next = jobs::jobs(&self.db, next, [first])?.pop();
        Ok(next.and_then(|job| {
            let task = job.spec.policy.array?;
            (task.array_of(job.id) == array).then_some((job, task))
        }))
    }

    /// The job of an array with this index.
    pub fn task_of_array(&self, array: JobId, index: u32) -> Result<Option<JobId>, StoreError> {
        let Some((first, below)) = numbers(array) else {
            return Ok(None);
        };
        let which = format!(
            "SELECT id FROM job WHERE {OF_ARRAY} AND json_extract(terms, '$.array.index') = ?3"
        );
        let read = || -> rusqlite::Result<Option<u64>> {
            let mut query = self.db.prepare_cached(&which)?;
            query
                .query_row(params![first, below, index], |row| row.get(0))
                .optional()
        };
        Ok(read().map_err(sql("find a job of an array"))?.map(JobId))
    }

    /// The lowest and the highest index, and the highest number, of an array's jobs that are kept.
    pub fn extent_of_array(&self, array: JobId) -> Result<Option<(u32, u32, JobId)>, StoreError> {
        let Some((first, below)) = numbers(array) else {
            return Ok(None);
        };
        let index = "json_extract(terms, '$.array.index')";
        let which = format!("SELECT min({index}), max({index}), max(id) FROM job WHERE {OF_ARRAY}");
        let read = || -> rusqlite::Result<Option<(u32, u32, JobId)>> {
            let mut query = self.db.prepare_cached(&which)?;
            query.query_row(params![first, below], |row| {
                let low: Option<u32> = row.get(0)?;
                let Some(low) = low else { return Ok(None) };
                Ok(Some((low, row.get(1)?, JobId(row.get(2)?))))
            })
        };
        read().map_err(sql("find the jobs of an array"))
    }

    /// The array that was submitted last of those with this name.
    pub fn newest_array_named(&self, name: &str) -> Result<Option<JobId>, StoreError> {
        // `[` is followed by `\`.
        let (from, to) = (format!("{name}["), format!("{name}\\"));
        let read = || -> rusqlite::Result<Option<(u64, Option<u64>)>> {
            let mut query = self.db.prepare_cached(
                "SELECT id, json_extract(terms, '$.array.array') FROM job WHERE name >= ?1 AND name < ?2 \
                 AND name = ?1 || json_extract(terms, '$.array.index') || ']' ORDER BY id DESC LIMIT 1",
            )?;
            query
                .query_row([from, to], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        };
        let found = read().map_err(sql("find the newest array"))?;
        Ok(found.map(|(id, array)| JobId(array.unwrap_or(id))))
    }

    /// How those of an array's jobs ended that have.
    pub fn ends_of_array(&self, array: JobId) -> Result<Ends, StoreError> {
        let Some((first, below)) = numbers(array) else {
            return Ok(Ends::default());
        };
        let which = format!(
            "SELECT count(*), min(CASE WHEN outcome = ?3 THEN NULL ELSE id END) FROM job WHERE {OF_ARRAY} \
             AND state = 'ended'"
        );
        let read = || -> rusqlite::Result<Ends> {
            let well = rows::json(&Outcome::Exited(0))?;
            let mut query = self.db.prepare_cached(&which)?;
            query.query_row(params![first, below, well], |row| {
                let badly: Option<u64> = row.get(1)?;
                Ok(Ends {
                    ended: row.get(0)?,
                    badly: badly.map(JobId),
                })
            })
        };
        read().map_err(sql("read the outcome of a task of an array"))
    }

    /// Of an array's jobs that have ended, the one with the lowest index that has no exit code 0; where all have, the
    /// one with the lowest index.
    pub fn verdict_of_array(&self, array: JobId) -> Result<Option<JobId>, StoreError> {
        let Some((first, below)) = numbers(array) else {
            return Ok(None);
        };
        let which = format!(
            "SELECT id FROM job WHERE {OF_ARRAY} AND state = 'ended' \
             ORDER BY exit_code IS 0, json_extract(terms, '$.array.index') LIMIT 1"
        );
        let read = || -> rusqlite::Result<Option<u64>> {
            let mut query = self.db.prepare_cached(&which)?;
            query
                .query_row(params![first, below], |row| row.get(0))
                .optional()
        };
        Ok(read()
            .map_err(sql("read the outcome of a task of an array"))?
            .map(JobId))
    }
}

/// Jobs of an array that have ended, oldest first; through a connection of its own.
pub fn ended_of_array(database: &Path, array: JobId) -> Result<Vec<Job>, StoreError> {
    let db = events::reader(database).map_err(sql("open the database for reading"))?;
    match numbers(array) {
        Some((first, below)) => jobs::jobs(
            &db,
            &format!("{OF_ARRAY} AND state = 'ended'"),
            [first, below],
        ),
        None => Ok(Vec::new()),
    }
}
