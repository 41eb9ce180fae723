//! The usage accounts: which user held how much of which GPU, and for how long. They are written in the transaction
//! that allocates or releases, so that a confirmed change is counted after any crash.
//!
//! ```text
//! hold ──► holding.since ──► resize, suspend, a new hour: a row, and since = now ──► release: a row
//! ```
//! A row is one amount of one GPU over one stretch of time by the clock of the day. What is open is counted from its
//! holding.

use std::path::Path;

use divvy_core::JobId;
use jiff::Timestamp;
use rusqlite::{Row, params};

use super::{Store, StoreError, events, rows, sql};
use crate::host::clock::now;
use crate::model::job::{Credentials, Job};
use crate::model::usage::{Metered, Span, SpanOwner};

/// Columns of a row, from a holding `h` and its job `j`, with its end as `?2`.
const FROM_HOLDING: &str = "h.job, j.name, j.uid, j.user, j.project, j.queue, h.gpu_uuid, h.gpu_index, h.share, h.memory, \
                            h.suspended, h.since, ?2, h.measured, h.used, h.loaned";

/// Columns that [`span`] reads, in its order.
const COLUMNS: &str = "job, name, uid, user, project, queue, gpu_uuid, gpu_index, share, memory, suspended, began, ended, \
                       measured, used, loaned";

impl Store {
    /// Counts what a job holds up to `until`; nothing where it holds nothing. What it holds from there on is the
    /// caller's to write. A clock that was set back, and an end that lies before the beginning, count nothing.
    pub(super) fn count_up_to(&self, job: JobId, until: Timestamp) -> rusqlite::Result<()> {
        let until = until.min(now()).as_microsecond();
        self.db
            .prepare_cached(&format!(
                "INSERT INTO usage ({COLUMNS}) SELECT {FROM_HOLDING} FROM holding h JOIN job j ON j.id = h.job \
                 WHERE h.job = ?1 AND h.held = 1 AND h.since < ?2"
            ))?
            .execute(params![job.0, until])
            .map(drop)
    }

    /// Counts what a job holds up to `at`, and begins anew from there.
    pub fn split_usage(&self, job: &Job, at: Timestamp) -> Result<(), StoreError> {
        let turn = || -> rusqlite::Result<usize> {
            self.count_up_to(job.id, at)?;
            self.db
                .prepare_cached(
                    "UPDATE holding SET since = ?2, suspended = ?3, measured = 0, used = 0, loaned = 0 \
                     WHERE job = ?1 AND held = 1",
                )?
                .execute(params![
                    job.id.0,
                    at.as_microsecond(),
                    job.run_state.suspended
                ])
        };
        turn()
            .map(drop)
            .map_err(sql("add a job's allocation to the usage"))
    }

    /// Counts what a job holds up to now: from here on it holds nothing, and has it all still to resume with.
    pub fn close_usage_for_offload(&self, job: &Job) -> Result<(), StoreError> {
        let put = || -> rusqlite::Result<usize> {
            self.count_up_to(job.id, now())?;
            self.db
                .prepare_cached("UPDATE holding SET held = 0 WHERE job = ?1")?
                .execute([job.id.0])
        };
        put()
            .map(drop)
            .map_err(sql("store that a job's memory is offloaded"))
    }

    /// Adds to what was measured of a job's holdings, by position.
    pub fn add_metered(&self, job: JobId, metered: &[Metered]) -> Result<(), StoreError> {
        let add = || -> rusqlite::Result<()> {
            let mut update = self.db.prepare_cached(
                "UPDATE holding SET measured = measured + ?3, used = used + ?4, loaned = loaned + ?5 \
                 WHERE job = ?1 AND ordinal = ?2 AND held = 1",
            )?;
            for (ordinal, metered) in metered.iter().enumerate() {
                if !metered.is_nothing() {
                    update.execute(params![
                        job.0,
                        ordinal,
                        rows::figure(metered.micros),
                        rows::figure(metered.used),
                        rows::figure(metered.loaned)
                    ])?;
                }
            }
            Ok(())
        };
        add().map_err(sql("store a job's usage"))
    }
}

/// Gives every row that touches the time from `since` to `until` to `take`, those of `uid` alone where one is given;
/// through a connection of its own. What is held still ends at `until`.
pub fn usage_between(
    database: &Path,
    (since, until): (Timestamp, Timestamp),
    uid: Option<u32>,
    mut take: impl FnMut(Span),
) -> Result<(), StoreError> {
    let mut read = || -> rusqlite::Result<()> {
        let mut db = events::reader(database)?;
        // One sight of both tables: what moves from one to the other meanwhile counts once.
        let db = db.transaction()?;
        let me = Credentials::current().uid;
        let whose = "(?3 IS NULL OR coalesce(uid, ?4) = ?3)";
        let closed =
            format!("SELECT {COLUMNS} FROM usage WHERE ended > ?1 AND began < ?2 AND {whose}");
        let open = format!(
            "SELECT {FROM_HOLDING} FROM holding h JOIN job j ON j.id = h.job \
             WHERE h.held = 1 AND h.since < ?2 AND ?1 < ?2 AND {whose}"
        );
        for query in [closed, open] {
            let mut query = db.prepare(&query)?;
            let (since, until) = (since.as_microsecond(), until.as_microsecond());
            for row in query.query_map(params![since, until, uid, me], span)? {
                take(row?);
            }
        }
        Ok(())
    };
    read().map_err(sql("read the usage"))
}

fn span(row: &Row<'_>) -> rusqlite::Result<Span> {
    Ok(Span {
        owner: SpanOwner {
            job: JobId(row.get(0)?),
            name: row.get(1)?,
            user: row.get(3)?,
            project: row.get(4)?,
            queue: row.get(5)?,
        },
        gpu_uuid: row.get(6)?,
        gpu_index: row.get(7)?,
        share: row.get(8)?,
        memory: row.get(9)?,
        suspended: row.get(10)?,
        began: row.get(11)?,
        ended: row.get(12)?,
        metered: Metered {
            micros: row.get(13)?,
            used: row.get(14)?,
            loaned: row.get(15)?,
        },
    })
}
