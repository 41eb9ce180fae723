//! Retention of events: which of the oldest events of each user the journal deletes.
//!
//! A pot has the events of one user's jobs, the acts of administrators on them, or those of no job. The thread counts
//! the events that came since its last round, so a round reads as many rows as it finds new or deletes.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::past::FORGOTTEN;
use super::{Store, StoreError, events, rows, sql};
use crate::model::retention::{EventLimits, PotSize};

/// Bytes of an event beside its texts: its row, and its entries in four indexes. It only bounds the bytes that a user
/// may keep, so an estimate is enough.
const ROW: u64 = 100;

/// Whose events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventPot {
    /// Acts of administrators on the machine and on others' jobs.
    pub is_act: bool,
    /// The owner of the jobs; `None`: of no job.
    pub uid: Option<u32>,
}

/// The oldest events of a pot, which may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiredEvents {
    pub pot: EventPot,
    to: i64,
    size: PotSize,
    /// The user's events of the last day alone exceed the bounds.
    pub is_young: bool,
}

/// The size of each pot, as of the last count.
#[derive(Debug, Default)]
pub struct EventCounts {
    pots: BTreeMap<EventPot, PotSize>,
    /// The last event that was counted.
    to: i64,
}

/// The index of pots would save the sorting, and have all of it read.
pub(super) const NEW: &str = "SELECT act, uid, count(*), \
                              sum(length(CAST(kind AS BLOB)) + length(CAST(text AS BLOB))), max(seq) \
                              FROM event NOT INDEXED WHERE seq > ?1 GROUP BY 1, 2";

/// A pot's oldest events. Of the index, and of the rows that it finds.
pub(super) const OLDEST: &str = "SELECT seq, at, length(CAST(kind AS BLOB)) + length(CAST(text AS BLOB)) \
                                 FROM event INDEXED BY event_pot WHERE act = ?1 AND uid IS ?2 ORDER BY seq LIMIT ?3";

impl EventCounts {
    /// Counts the events that came since the last count.
    pub fn count(&mut self, database: &Path) -> Result<(), StoreError> {
        let mut read = || -> rusqlite::Result<()> {
            let db = events::reader(database)?;
            let mut query = db.prepare(NEW)?;
            let mut rows = query.query([self.to])?;
            while let Some(row) = rows.next()? {
                let (is_act, uid) = (row.get(0)?, row.get(1)?);
                let (events, texts): (u64, u64) = (row.get(2)?, row.get(3)?);
                let size = PotSize::of(events, texts + events * ROW);
                self.pots
                    .entry(EventPot { is_act, uid })
                    .or_default()
                    .add(size);
                self.to = self.to.max(row.get(4)?);
            }
            Ok(())
        };
        read().map_err(sql("count events"))
    }

    /// Events that may go, at most `limit` of one pot.
    pub fn expired(
        &self,
        database: &Path,
        limits: &EventLimits,
        limit: u32,
    ) -> Result<Option<ExpiredEvents>, StoreError> {
        let read = || -> rusqlite::Result<Option<ExpiredEvents>> {
            let db = events::reader(database)?;
            for (pot, size) in &self.pots {
                let expired = expired_of(&db, *pot, *size, limits, limit)?;
                if expired.is_some() {
                    return Ok(expired);
                }
            }
            Ok(None)
        };
        read().map_err(sql("find events that are past their retention"))
    }

    /// These events are deleted.
    pub fn remove(&mut self, expired: &ExpiredEvents) {
        if let Some(size) = self.pots.get_mut(&expired.pot) {
            size.remove(expired.size);
            if size.is_empty() {
                self.pots.remove(&expired.pot);
            }
        }
    }
}

fn expired_of(
    db: &Connection,
    pot: EventPot,
    size: PotSize,
    limits: &EventLimits,
    limit: u32,
) -> rusqlite::Result<Option<ExpiredEvents>> {
    let mut query = db.prepare_cached(OLDEST)?;
    let mut rows = query.query(params![pot.is_act, pot.uid, limit])?;
    let mut left = size;
    let mut expired = None;
    while let Some(row) = rows.next()? {
        let at: Timestamp = rows::time(row, 1)?;
        let texts: u64 = row.get(2)?;
        if !limits.is_beyond(pot.is_act, left, at) {
            break;
        }
        let one = PotSize::of(1, texts + ROW);
        left.remove(one);
        let found = expired.get_or_insert(ExpiredEvents {
            pot,
            to: 0,
            size: PotSize::default(),
            is_young: false,
        });
        found.to = row.get(0)?;
        found.size.add(one);
        found.is_young |= at >= limits.young;
    }
    Ok(expired)
}

impl Store {
    /// Deletes these events.
    pub fn forget_events(&self, expired: &ExpiredEvents) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<()> {
            let ExpiredEvents { pot, to, .. } = *expired;
            let delete =
                "DELETE FROM event INDEXED BY event_pot WHERE act = ?1 AND uid IS ?2 AND seq <= ?3";
            self.db
                .prepare_cached(delete)?
                .execute(params![pot.is_act, pot.uid, to])?;
            let last = "INSERT INTO setting (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE \
                        SET value = max(CAST(value AS INTEGER), CAST(excluded.value AS INTEGER))";
            self.db
                .prepare_cached(last)?
                .execute(params![FORGOTTEN, to.to_string()])?;
            Ok(())
        };
        forget().map_err(sql("delete events"))
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::JobId;

    use super::*;
    use crate::journal::tests::ended_of;
    use crate::journal::{events_after, events_forgotten};

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const BEFORE: i64 = 10_000;
    const YOUNG: i64 = 20_000;

    fn limits() -> EventLimits {
        EventLimits {
            before: time(BEFORE),
            acts_before: time(5_000),
            young: time(YOUNG),
            most: 10,
            most_young: 50,
            bytes: u64::MAX,
        }
    }

    /// Deletes what may go in batches, as the thread and the controller do together.
    fn prune(counts: &mut EventCounts, store: &Store, path: &Path, limits: &EventLimits) {
        counts.count(path).unwrap();
        while let Some(expired) = counts.expired(path, limits, 30).unwrap() {
            store.forget_events(&expired).unwrap();
            counts.remove(&expired);
        }
    }

    #[test]
    fn one_users_many_events_delete_no_event_of_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        // Each has one event, `ended`.
        let quiet = ended_of(&store, 1001, YOUNG - 1);
        let busy = ended_of(&store, 1002, YOUNG - 1);
        let mut counts = EventCounts::default();
        let tell = |job: JobId, second: i64, by: Option<u32>, kind: &str| {
            store.append(time(second), Some(job), kind, "", by).unwrap()
        };
        let kept = |job: JobId, kind: &str| {
            let events = events_after(&path, 0, 1000, None).unwrap().into_iter();
            let of_job = events.filter(|event| event.event.job == Some(job.to_string()));
            of_job.filter(|event| event.event.kind == kind).count()
        };
        tell(quiet, YOUNG, None, "held");
        tell(busy, YOUNG, Some(0), "cancelled by root");
        store.begin().unwrap();
        for _ in 0..30 {
            tell(busy, YOUNG, None, "held");
        }
        store.commit().unwrap();
        prune(&mut counts, &store, &path, &limits());
        assert_eq!(kept(busy, "held"), 30, "the last day is kept");
        store.begin().unwrap();
        for _ in 0..300 {
            tell(busy, YOUNG + 1, Some(1002), "released");
        }
        store.commit().unwrap();
        prune(&mut counts, &store, &path, &limits());
        assert_eq!((kept(busy, "held"), kept(busy, "released")), (0, 50));
        assert_eq!((kept(quiet, "ended"), kept(quiet, "held")), (1, 1));
        assert_eq!(kept(busy, "cancelled by root"), 1, "an administrator's act");
        assert_eq!(events_forgotten(&path).unwrap(), 334 - 50);
        // A day later the newest ones stay, and a daemon that has started again counts the same.
        let later = EventLimits {
            young: time(YOUNG + 2),
            ..limits()
        };
        prune(&mut EventCounts::default(), &store, &path, &later);
        assert_eq!(kept(busy, "released"), 10);
        let old = EventLimits {
            before: Timestamp::MAX,
            ..later
        };
        counts.count(&path).unwrap();
        prune(&mut EventCounts::default(), &store, &path, &old);
        assert_eq!((kept(quiet, "held"), kept(busy, "released")), (0, 0));
        assert_eq!(kept(busy, "cancelled by root"), 1, "it is kept for longer");
        let texts = EventLimits {
            bytes: 1000,
            most: 1000,
            ..limits()
        };
        for _ in 0..20 {
            store
                .append(time(YOUNG), Some(quiet), "held", &"x".repeat(100), None)
                .unwrap();
        }
        prune(&mut EventCounts::default(), &store, &path, &texts);
        assert_eq!(kept(quiet, "held"), 4, "204 bytes each");
    }

    #[test]
    fn a_round_of_retention_reads_new_and_expired_events_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        for (query, uses) in [
            (NEW, "SEARCH event USING INTEGER PRIMARY KEY (rowid>?)"),
            (
                OLDEST,
                "SEARCH event USING INDEX event_pot (act=? AND uid=?)",
            ),
        ] {
            let explain = format!("EXPLAIN QUERY PLAN {query}");
            let mut plan = store.db.prepare(&explain).unwrap();
            let all = [1, 2, 3];
            let given = rusqlite::params_from_iter(&all[..plan.parameter_count()]);
            let steps = plan.query_map(given, |row| row.get(3)).unwrap();
            let steps: Vec<String> = steps.map(Result::unwrap).collect();
            assert!(steps[0].contains(uses), "{steps:?}");
            let sorts = |step: &String| step.contains("TEMP B-TREE FOR ORDER");
            assert!(!steps.iter().any(sorts), "{steps:?}");
        }
    }
}
