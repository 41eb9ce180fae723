//! Bypasses in the journal: memory held past the limiter.

use std::collections::BTreeMap;

use divvy_core::reconcile::{BypassKind, BypassPolicy, Limiter};
use divvy_core::{Bytes, JobId};
use jiff::Timestamp;
use rusqlite::{Connection, Params, Row, params};
use serde::de::DeserializeOwned;

use super::{Store, StoreError, rows, sql};
use crate::host::process::Process;
use crate::model::bypass::Bypass;

/// Columns that [`read`] reads, in its order.
const COLUMNS: &str = "job, gpu_uuid, gpu_index, pid, pid_start, program, way, limiter, action, used, charged, first_seen, \
                       detected, over";

/// The settings that say how many of each way were forgotten begin like this.
pub(super) const FORGOTTEN: &str = "bypasses_forgotten_";

/// What changes of one that was told.
const ANEW: &str = "ON CONFLICT (job, gpu_uuid, pid, pid_start, detected) DO UPDATE SET program = excluded.program, \
                    way = excluded.way, limiter = excluded.limiter, action = excluded.action, used = excluded.used, \
                    charged = excluded.charged, first_seen = excluded.first_seen, over = excluded.over";

impl Store {
    pub fn add_bypass(&self, job: JobId, bypass: &Bypass) -> Result<(), StoreError> {
        self.write_bypass("", job, bypass)
    }

    /// Stores its figures and its end anew.
    pub fn save_bypass(&self, job: JobId, bypass: &Bypass) -> Result<(), StoreError> {
        self.write_bypass(ANEW, job, bypass)
    }

    fn write_bypass(&self, or: &str, job: JobId, bypass: &Bypass) -> Result<(), StoreError> {
        let write = || -> rusqlite::Result<usize> {
            let mut insert = self.db.prepare_cached(&format!(
                "INSERT INTO bypass ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) {or}"
            ))?;
            insert.execute(params![
                job.0,
                bypass.gpu.as_str(),
                bypass.gpu_index,
                bypass.process.pid,
                rows::figure(bypass.process.start_time),
                bypass.program,
                bypass.way.name(),
                to_json_word(bypass.limiter)?,
                bypass.action.name(),
                bypass.used.map(|used| rows::figure(used.get())),
                rows::figure(bypass.charged.get()),
                bypass.first_seen.as_microsecond(),
                bypass.detected.as_microsecond(),
                bypass.over.map(Timestamp::as_microsecond),
            ])
        };
        write().map(drop).map_err(sql("store a bypass"))
    }

    /// How many there were, in the order of [`BypassKind::ALL`].
    pub fn bypass_counts(&self) -> Result<[u64; BypassKind::ALL.len()], StoreError> {
        let count = |way: BypassKind| {
            let query = "SELECT count(*) + coalesce((SELECT CAST(value AS INTEGER) FROM setting WHERE name = ?2), 0) \
                         FROM bypass WHERE way = ?1";
            let forgotten = format!("{FORGOTTEN}{}", way.name());
            self.db
                .query_row(query, [way.name(), &forgotten], |row| row.get(0))
        };
        let mut counts = [0; BypassKind::ALL.len()];
        for (total, way) in counts.iter_mut().zip(BypassKind::ALL) {
            *total = count(way).map_err(sql("count bypasses"))?;
        }
        Ok(counts)
    }
}

pub type Bypasses = BTreeMap<JobId, Vec<Bypass>>;

/// Those of the jobs that `which` selects, in the order in which they were told.
pub fn of_jobs(db: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Bypasses> {
    let mut query = db.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM bypass WHERE job IN (SELECT id FROM job WHERE {which}) ORDER BY detected, pid"
    ))?;
    let mut found = Bypasses::new();
    for row in query.query_map(values, read)? {
        let (job, bypass) = row?;
        found.entry(job).or_default().push(bypass);
    }
    Ok(found)
}

fn read(row: &Row<'_>) -> rusqlite::Result<(JobId, Bypass)> {
    let bypass = Bypass {
        gpu: parsed(row, 1)?,
        gpu_index: row.get(2)?,
        process: Process {
            pid: row.get(3)?,
            start_time: row.get(4)?,
        },
        program: row.get(5)?,
        way: known(row, 6)?,
        limiter: known(row, 7)?,
        action: known::<BypassPolicy>(row, 8)?,
        used: row.get::<_, Option<u64>>(9)?.map(Bytes::new),
        charged: Bytes::new(row.get(10)?),
        first_seen: rows::time(row, 11)?,
        detected: rows::time(row, 12)?,
        over: row
            .get::<_, Option<i64>>(13)?
            .map(|_| rows::time(row, 13))
            .transpose()?,
    };
    Ok((JobId(row.get(0)?), bypass))
}

/// The word that an enum is in JSON.
fn to_json_word(value: Limiter) -> rusqlite::Result<String> {
    let json = rows::json(&value)?;
    Ok(json.trim_matches('"').to_owned())
}

fn known<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_value(text.into()).map_err(|error| wrong(column, error))
}

fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.get::<_, String>(column)?
        .parse()
        .map_err(|error| wrong(column, error))
}

fn wrong(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}
