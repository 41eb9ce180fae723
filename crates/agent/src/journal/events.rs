//! Events in the journal, numbered in its order.

use std::collections::BTreeSet;
use std::path::Path;

use divvy_api::v1::Event;
use divvy_core::JobId;
use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

use super::{BUSY, Store, StoreError, sql};
use crate::model::event::JobEvent;

/// The kind of the event that tells of calls that a job's limiter did not count.
pub const UNCOUNTED: &str = "uncounted_calls";

/// The index has those of this kind, so the kind is no parameter.
const TOLD_UNCOUNTED: &str =
    "SELECT EXISTS (SELECT 1 FROM event WHERE job = ?1 AND kind = 'uncounted_calls')";

/// Events of no job that only an administrator, or the configuration file, can cause.
const ACTS: [&str; 6] = [
    "gpu_mode",
    "project_added",
    "project_changed",
    "project_removed",
    "config_reloaded",
    "config_refused",
];

/// The job's row has its owner, and it is there before the job's first event.
const INSERT: &str = "INSERT INTO event (at, job, kind, text, uid, act) \
                      SELECT ?1, ?2, ?3, ?4, owner, ?5 OR coalesce(?6 <> owner, 0) \
                      FROM (SELECT (SELECT uid FROM job WHERE id = ?2) AS owner) RETURNING seq, uid";

impl Store {
    /// Appends an event that is no administrator's act.
    pub fn append_event(
        &self,
        at: Timestamp,
        job: Option<JobId>,
        kind: &str,
        text: &str,
    ) -> Result<Event, StoreError> {
        Ok(self.append(at, job, kind, text, None)?.event)
    }

    /// Appends an event, and returns it with its owner. It counts as an administrator's act if it is about the
    /// machine's configuration, or if `by` is not the owner of the job.
    pub fn append(
        &self,
        at: Timestamp,
        job: Option<JobId>,
        kind: &str,
        text: &str,
        by: Option<u32>,
    ) -> Result<JobEvent, StoreError> {
        let told = "record an event";
        let mut insert = self.db.prepare_cached(INSERT).map_err(sql(told))?;
        let is_act = job.is_none() && ACTS.contains(&kind);
        let id = job.map(|job| job.0);
        let (seq, owner) = insert
            .query_row(
                params![at.as_microsecond(), id, kind, text, is_act, by],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .map_err(sql(told))?;
        let event = Event {
            seq,
            at,
            job: job.map(|job| job.to_string()),
            kind: kind.to_owned(),
            text: text.to_owned(),
        };
        Ok(JobEvent { event, owner })
    }

    /// The text of the job's last event of this kind, at this time or later.
    pub fn last_text_of_event(
        &self,
        job: JobId,
        kind: &str,
        since: Timestamp,
    ) -> Result<Option<String>, StoreError> {
        let query = "SELECT text FROM event INDEXED BY event_job WHERE job = ?1 AND kind = ?2 AND at >= ?3 \
                     ORDER BY seq DESC LIMIT 1";
        let parameters = params![job.0, kind, since.as_microsecond()];
        let found = self.db.query_row(query, parameters, |row| row.get(0));
        found.optional().map_err(sql("find an event"))
    }

    /// Whether there is an event [`UNCOUNTED`] about a job.
    pub fn has_uncounted_event(&self, job: JobId) -> Result<bool, StoreError> {
        self.db
            .query_row(TOLD_UNCOUNTED, [job.0], |row| row.get(0))
            .map_err(sql("find an event"))
    }
}

/// The events of a list: all, or those of some jobs.
const ALL: &str = "event WHERE ?1 IS NULL";
const OF_JOBS: &str = "event INDEXED BY event_job WHERE job IN (SELECT value FROM json_each(?1))";

/// The source of events, and its parameter.
fn source(jobs: Option<&BTreeSet<JobId>>) -> (&'static str, Option<String>) {
    let ids = jobs.map(|jobs| {
        let ids: Vec<String> = jobs.iter().map(JobId::to_string).collect();
        format!("[{}]", ids.join(","))
    });
    (if ids.is_some() { OF_JOBS } else { ALL }, ids)
}

/// The sequence number after which a list begins: `after` or a later one.
///
/// `since`: after the last event before this time. `tail`: so that no more than so many events are there now. Both read
/// backwards from the newest event, and no further than the list will.
///
/// # Errors
/// When the database cannot be read.
pub fn first_of_events(
    database: &Path,
    after: u64,
    jobs: Option<&BTreeSet<JobId>>,
    (since, tail): (Option<Timestamp>, Option<u32>),
) -> Result<u64, StoreError> {
    let read = || -> rusqlite::Result<u64> {
        let mut db = reader(database)?;
        let db = db.transaction()?;
        let (source, ids) = source(jobs);
        let mut after = after;
        let last = |which: &str, after: u64, value: i64| {
            db.query_row(
                &format!("SELECT seq FROM {source} AND seq > ?2 AND {which}"),
                params![ids, super::rows::figure(after), value],
                |row| row.get(0),
            )
            .optional()
        };
        if let Some(since) = since {
            let before = last(
                "at < ?3 ORDER BY seq DESC LIMIT 1",
                after,
                since.as_microsecond(),
            )?;
            after = before.unwrap_or(after);
        }
        if let Some(tail) = tail {
            let before = last("1 ORDER BY seq DESC LIMIT 1 OFFSET ?3", after, tail.into())?;
            after = before.unwrap_or(after);
        }
        Ok(after)
    };
    read().map_err(sql("read events"))
}

/// Events after `after`, oldest first, at most `limit`, of these jobs alone where some are given; through a connection of
/// its own, so that no reader holds up the writer. Each comes with the owner of its job.
pub fn events_after(
    database: &Path,
    after: u64,
    limit: u32,
    jobs: Option<&BTreeSet<JobId>>,
) -> Result<Vec<JobEvent>, StoreError> {
    let read = || -> rusqlite::Result<Vec<JobEvent>> {
        let db = reader(database)?;
        let (source, ids) = source(jobs);
        let mut query = db.prepare(&format!(
            "SELECT seq, at, job, kind, text, uid FROM {source} AND seq > ?2 ORDER BY seq LIMIT ?3",
        ))?;
        let rows = query.query_map(params![ids, super::rows::figure(after), limit], |row| {
            let event = Event {
                seq: row.get(0)?,
                at: super::rows::time(row, 1)?,
                job: row.get::<_, Option<u64>>(2)?.map(|job| job.to_string()),
                kind: row.get(3)?,
                text: row.get(4)?,
            };
            let owner = row.get(5)?;
            Ok(JobEvent { event, owner })
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

    #[test]
    fn a_list_begins_at_a_job_a_time_or_so_far_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        // Sequence numbers 1 to 90, a second apart; jobs 1 to 3 and no job, in turn.
        for second in 1..=90_u64 {
            let at = Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
            let job = (second % 4 > 0).then_some(JobId(second % 4));
            store.append_event(at, job, "started", "x").unwrap();
        }
        let found = |after, jobs: &[u64], since: Option<i64>, tail| {
            let jobs: BTreeSet<JobId> = jobs.iter().map(|job| JobId(*job)).collect();
            let jobs = (!jobs.is_empty()).then_some(&jobs);
            let since = since.map(|second| Timestamp::from_second(second).unwrap());
            let after = first_of_events(&path, after, jobs, (since, tail)).unwrap();
            let events = events_after(&path, after, 1000, jobs).unwrap();
            events.iter().map(|one| one.event.seq).collect::<Vec<_>>()
        };
        assert_eq!(found(0, &[], None, None).len(), 90);
        assert_eq!(found(87, &[], None, None), [88, 89, 90]);
        assert_eq!(found(0, &[2], None, Some(2)), [86, 90]);
        assert_eq!(found(0, &[1, 2], Some(85), None), [85, 86, 89, 90]);
        assert_eq!(found(0, &[1, 2], Some(85), Some(1)), [90]);
        assert_eq!(found(86, &[1, 2], Some(1), Some(99)), [89, 90]);
        assert_eq!(found(0, &[], Some(89), None), [89, 90]);
        assert_eq!(found(0, &[], Some(91), None), [0_u64; 0]);
        assert_eq!(found(0, &[], None, Some(0)), [0_u64; 0], "only what comes");
        assert_eq!(found(0, &[], None, Some(100)).len(), 90);
        assert_eq!(found(0, &[9], Some(0), Some(5)), [0_u64; 0]);
    }

    #[test]
    fn no_filter_of_events_reads_those_of_other_jobs_or_sorts_all() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        let steps = |sql: &str| -> Vec<String> {
            let mut plan = store
                .db
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let steps = plan
                .query_map(params!["[1]", 0, 5], |row| row.get(3))
                .unwrap();
            steps.map(Result::unwrap).collect()
        };
        for order in [
            "ORDER BY seq LIMIT ?3",
            "ORDER BY seq DESC LIMIT 1 OFFSET ?3",
        ] {
            let job = steps(&format!("SELECT seq FROM {OF_JOBS} AND seq > ?2 {order}"));
            assert!(
                job.iter()
                    .any(|step| step.contains("INDEX event_job (job=?")),
                "{job:?}"
            );
            let all = steps(&format!("SELECT seq FROM {ALL} AND seq > ?2 {order}"));
            assert!(
                all.iter()
                    .any(|step| step.contains("INTEGER PRIMARY KEY (rowid>?)")),
                "{all:?}"
            );
            assert!(
                !all.iter().any(|step| step.contains("TEMP B-TREE")),
                "{all:?}"
            );
        }
    }
}
