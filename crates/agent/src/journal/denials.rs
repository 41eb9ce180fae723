//! Out-of-memory reports in the journal, stored when a job ends.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_api::v1::OomRecord;
use divvy_core::{Bytes, JobId};
use rusqlite::params;

use super::{Store, StoreError, events, rows, sql};

impl Store {
    /// Keeps these records of a job, in place of any that were kept before.
    pub fn keep_denials(&self, job: JobId, records: &[OomRecord]) -> Result<(), StoreError> {
        let write = || -> rusqlite::Result<()> {
            let mut insert = self.db.prepare_cached(
                "INSERT INTO denial (job, number, sufficient, record) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (job, number) DO UPDATE SET sufficient = excluded.sufficient, record = excluded.record",
            )?;
            for record in records {
                let sufficient = record.sufficient_limit_bytes.map(rows::figure);
                let number = rows::figure(record.number);
                insert.execute(params![job.0, number, sufficient, rows::json(record)?])?;
            }
            Ok(())
        };
        write().map_err(sql("store refusals"))
    }

    /// The records that are kept of a job, oldest first.
    pub fn denials(&self, job: JobId) -> Result<Vec<OomRecord>, StoreError> {
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut query = self
                .db
                .prepare_cached("SELECT record FROM denial WHERE job = ?1 ORDER BY number")?;
            query.query_map([job.0], |row| row.get(0))?.collect()
        };
        let records = read().map_err(sql("read refusals"))?;
        let record = |text: &String| {
            serde_json::from_str(text).map_err(|error| StoreError::Corrupt {
                job,
                what: format!("cannot read a refusal ({error})"),
            })
        };
        records.iter().map(record).collect()
    }
}

/// The limit under which every recorded refusal of a job would have passed, by job; through a connection of its own.
pub fn sufficient(database: &Path) -> Result<BTreeMap<JobId, Bytes>, StoreError> {
    let read = || -> rusqlite::Result<BTreeMap<JobId, Bytes>> {
        let db = events::reader(database)?;
        let mut query = db.prepare(
            "SELECT job, max(sufficient) FROM denial WHERE sufficient IS NOT NULL GROUP BY job",
        )?;
        let row = |row: &rusqlite::Row<'_>| Ok((JobId(row.get(0)?), Bytes::new(row.get(1)?)));
        query.query_map([], row)?.collect()
    };
    read().map_err(sql("read refusals"))
}
