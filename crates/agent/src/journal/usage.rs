//! The usage accounts: which user held how much of which GPU, and for how long. They are written in the transaction
//! that allocates or releases, so that a confirmed change is counted after any crash.
//!
//! ```text
//! hold ──► holding.since ──► resize, suspend, a new hour: a row, and since = now ──► release: a row
//! ```
//! A row is one amount of one GPU over one stretch of time by the clock of the day. What is open is counted from its
//! holding. Rows are deleted after a time; totals of users and projects stay.

use std::path::Path;

use divvy_core::JobId;
use jiff::Timestamp;
use rusqlite::{Row, params};

use super::energy::{self, IDLE_COLUMNS};
use super::{Store, StoreError, events, rows, sql};
use crate::host::clock::now;
use crate::model::job::{Credentials, Job};
use crate::model::usage::{
    GpuTime, GpuTimeTotals, MAX_NAMES, Metered, OTHER, Span, SpanOwner, UsageRow,
};

/// Largest total: two of them add up without an overflow, which SQLite answers with a float.
pub(super) const MOST: u64 = 1 << 62;

/// Columns of a row, from a holding `h` and its job `j`, with its end as `?2`.
const FROM_HOLDING: &str = "h.job, j.name, j.uid, j.user, j.project, j.queue, h.gpu_uuid, h.gpu_index, h.share, h.memory, \
                            h.suspended, h.since, ?2, h.measured, h.used, h.loaned, h.energy, h.estimated, h.most, h.lent, \
                            h.mig IS NOT NULL";

/// Columns that [`span`] reads, in its order.
const COLUMNS: &str = "job, name, uid, user, project, queue, gpu_uuid, gpu_index, share, memory, suspended, began, ended, \
                       measured, used, loaned, energy, estimated, most, lent, mig";

impl Store {
    /// Counts what a job holds up to `until`; nothing where it holds nothing. What it holds from there on is the
    /// caller's to write. A clock that was set back, and an end that lies before the beginning, count nothing.
    pub(super) fn count_up_to(&self, job: JobId, until: Timestamp) -> rusqlite::Result<()> {
        let until = until.min(now()).as_microsecond();
        let spans: Vec<Span> = self
            .db
            .prepare_cached(&format!(
                "SELECT {FROM_HOLDING} FROM holding h JOIN job j ON j.id = h.job \
                 WHERE h.job = ?1 AND h.held = 1 AND h.since < ?2"
            ))?
            .query_map(params![job.0, until], span)?
            .collect::<rusqlite::Result<_>>()?;
        for span in spans {
            let time = span.gpu_time();
            self.add_to_total("user", &span.owner.user, time)?;
            self.add_to_total("project", &span.owner.project.unwrap_or_default(), time)?;
        }
        self.db
            .prepare_cached(&format!(
                "INSERT INTO usage ({COLUMNS}) SELECT {FROM_HOLDING} FROM holding h JOIN job j ON j.id = h.job \
                 WHERE h.job = ?1 AND h.held = 1 AND h.since < ?2"
            ))?
            .execute(params![job.0, until])?;
        // What no row can have, as that would end before it begins, is idle.
        let left = "holding one JOIN job j ON j.id = one.job WHERE one.job = ?1 AND one.held = 1 AND one.since >= ?2";
        self.return_energy(job, left, until)?;
        self.db
            .prepare_cached(
                "UPDATE holding SET energy = 0, estimated = 0, lent = 0 WHERE job = ?1 AND held = 1",
            )?
            .execute([job.0])
            .map(drop)
    }

    /// Gives the job's user and project totals of their own, unless there are too many.
    pub(super) fn name_totals(&self, job: &Job) -> rusqlite::Result<()> {
        let mut name = self.db.prepare_cached(
            "INSERT OR IGNORE INTO usage_total (kind, name) \
             SELECT ?1, ?2 WHERE (SELECT count(*) FROM usage_total WHERE kind = ?1 AND name <> ?3) < ?4",
        )?;
        let project = job.spec.project.as_deref().unwrap_or_default();
        for (kind, own) in [("user", &*job.spec.user), ("project", project)] {
            name.execute(params![kind, own, OTHER, MAX_NAMES])?;
        }
        Ok(())
    }

    pub(super) fn add_to_total(
        &self,
        kind: &str,
        name: &str,
        time: GpuTime,
    ) -> rusqlite::Result<()> {
        let figures = [
            time.allocated,
            time.used,
            time.idle,
            time.loaned,
            time.millijoules,
        ];
        let [allocated, used, idle, loaned, energy] =
            figures.map(|figure| rows::figure(figure.min(MOST)));
        let mut add = self.db.prepare_cached(
            "INSERT INTO usage_total AS t (kind, name, allocated, used, idle, loaned, energy) \
             VALUES (?1, iif(EXISTS (SELECT 1 FROM usage_total WHERE kind = ?1 AND name = ?2), ?2, ?3), ?4, ?5, ?6, ?7, ?9) \
             ON CONFLICT (kind, name) DO UPDATE SET \
             allocated = min(t.allocated + excluded.allocated, ?8), used = min(t.used + excluded.used, ?8), \
             idle = min(t.idle + excluded.idle, ?8), loaned = min(t.loaned + excluded.loaned, ?8), \
             energy = min(t.energy + excluded.energy, ?8)",
        )?;
        let most = rows::figure(MOST);
        add.execute(params![
            kind, name, OTHER, allocated, used, idle, loaned, most, energy
        ])
        .map(drop)
    }

    /// Forgets what a job holds, and held: none of it counts.
    pub fn drop_allocations(&self, job: &Job) -> Result<(), StoreError> {
        let drop_rows = || -> rusqlite::Result<()> {
            let since = job.submitted_at.as_microsecond();
            for rows in [
                "holding one JOIN job j ON j.id = one.job WHERE one.job = ?1 AND ?2",
                "usage one JOIN job j ON j.id = one.job WHERE one.ended >= ?2 AND one.job = ?1",
            ] {
                self.return_energy(job.id, rows, since)?;
            }
            self.db
                .prepare_cached("DELETE FROM holding WHERE job = ?1")?
                .execute([job.id.0])?;
            // Its rows ended after it was submitted, and few rows did: there is an index by the end, and none by job.
            self.db
                .prepare_cached("DELETE FROM usage WHERE ended >= ?2 AND job = ?1")?
                .execute(params![job.id.0, since])?;
            Ok(())
        };
        drop_rows().map_err(sql("delete a withdrawn job's allocations"))
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

    /// Adds to what was measured of a job's holdings, by position; and the highest use of memory so far, in bytes.
    pub fn add_metered(
        &self,
        job: JobId,
        metered: &[Metered],
        most: &[Option<u64>],
    ) -> Result<(), StoreError> {
        let add = || -> rusqlite::Result<()> {
            let mut update = self.db.prepare_cached(
                "UPDATE holding SET measured = measured + ?3, used = used + ?4, loaned = loaned + ?5, \
                 lent = lent + ?5 WHERE job = ?1 AND ordinal = ?2 AND held = 1",
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
            let mut raise = self.db.prepare_cached(
                "UPDATE holding SET most = max(coalesce(most, 0), ?3) WHERE job = ?1 AND ordinal = ?2 AND held = 1",
            )?;
            for (ordinal, most) in most.iter().enumerate() {
                if let Some(most) = most {
                    raise.execute(params![job.0, ordinal, rows::figure(*most)])?;
                }
            }
            Ok(())
        };
        add().map_err(sql("store a job's usage"))
    }
}

/// Gives every row that touches the time from `since` to `until` to `take`, those of `uid` alone where one is given,
/// else idle rows as well; through a connection of its own. What is held still ends at `until`.
pub fn usage_between(
    database: &Path,
    (since, until): (Timestamp, Timestamp),
    uid: Option<u32>,
    mut take: impl FnMut(UsageRow),
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
                take(UsageRow::Job(row?));
            }
        }
        if uid.is_none() {
            let query =
                format!("SELECT {IDLE_COLUMNS} FROM idle_energy WHERE ended > ?1 AND began < ?2");
            let mut query = db.prepare(&query)?;
            let window = [since.as_microsecond(), until.as_microsecond()];
            for row in query.query_map(window, energy::idle)? {
                take(UsageRow::Idle(row?));
            }
        }
        Ok(())
    };
    read().map_err(sql("read the usage"))
}

/// GPU time of every user and project from the first job on; through a connection of its own. What is held still counts
/// up to `until`.
///
/// # Errors
/// When the database cannot be read.
pub fn usage_totals(database: &Path, until: Timestamp) -> Result<GpuTimeTotals, StoreError> {
    let read = || -> rusqlite::Result<GpuTimeTotals> {
        let mut db = events::reader(database)?;
        // One sight of both tables, as above.
        let db = db.transaction()?;
        let mut totals = GpuTimeTotals::default();
        let mut closed = db
            .prepare("SELECT kind, name, allocated, used, idle, loaned, energy FROM usage_total")?;
        let mut closed = closed.query([])?;
        while let Some(row) = closed.next()? {
            let time = GpuTime {
                allocated: row.get(2)?,
                used: row.get(3)?,
                idle: row.get(4)?,
                loaned: row.get(5)?,
                millijoules: row.get(6)?,
            };
            let of_kind = match row.get_ref(0)?.as_str()? {
                "user" => &mut totals.users,
                _ => &mut totals.projects,
            };
            of_kind.insert(row.get(1)?, time);
        }
        let mut open = db.prepare(&format!(
            "SELECT {FROM_HOLDING} FROM holding h JOIN job j ON j.id = h.job \
             WHERE h.held = 1 AND h.since < ?2 AND ?1"
        ))?;
        for span in open.query_map(params![true, until.as_microsecond()], span)? {
            let span = span?;
            let time = span.gpu_time();
            let SpanOwner { user, project, .. } = span.owner;
            let both = [
                (&mut totals.users, user),
                (&mut totals.projects, project.unwrap_or_default()),
            ];
            for (of_kind, name) in both {
                match of_kind.get_mut(&name) {
                    Some(total) => total.add(time),
                    None => of_kind.entry(OTHER.to_owned()).or_default().add(time),
                }
            }
        }
        totals.gpus = energy::gpu_sums(&db)?;
        Ok(totals)
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
        millijoules: row.get(16)?,
        estimated: row.get(17)?,
        most: row.get(18)?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::SignedDuration;
    use rusqlite::Connection;

    use super::super::tests::{new, place};
    use super::super::{MIGRATIONS, migrate, usage_beyond};
    use super::*;

    const ALL: (Timestamp, Timestamp) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);

    fn store() -> (tempfile::TempDir, std::path::PathBuf, Store) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        (dir, path, store)
    }

    /// A job of this user and project that holds something.
    fn holding(store: &Store, user: &str, project: Option<&str>) -> Job {
        let mut new = new(None);
        (new.spec.user, new.spec.project) = (user.into(), project.map(Into::into));
        let mut job = store.insert(&new).unwrap();
        let label = format!("gpu0.052-{}", job.id);
        place(&mut job, &label);
        store.save_allocations(&job).unwrap();
        store.save(&job).unwrap();
        job
    }

    fn release(store: &Store, job: &mut Job) {
        job.ended_at = Some(now());
        store.release_allocations(job).unwrap();
        store.save(job).unwrap();
    }

    /// The sum of the rows that there are.
    fn summed(path: &Path, until: Timestamp) -> GpuTimeTotals {
        let mut totals = GpuTimeTotals::default();
        usage_between(path, (ALL.0, until), None, |span| {
            let span = span.span().unwrap();
            let time = span.gpu_time();
            totals.users.entry(span.owner.user).or_default().add(time);
            let project = span.owner.project.unwrap_or_default();
            totals.projects.entry(project).or_default().add(time);
        })
        .unwrap();
        totals
    }

    #[test]
    fn totals_are_those_of_all_rows_and_of_what_is_held_and_outlive_the_rows() {
        let (_dir, path, store) = store();
        let mut job = holding(&store, "ana", Some("vision"));
        let _held = holding(&store, "kim", None);
        let used = Metered {
            micros: 10,
            used: 7000,
            loaned: 1000,
        };
        store.add_metered(job.id, &[used], &[]).unwrap();
        store.split_usage(&job, now()).unwrap();
        let until = now();
        let totals = usage_totals(&path, until).unwrap();
        assert_eq!(totals, summed(&path, until));
        let ana = totals.users["ana"];
        assert_eq!((ana.used, ana.loaned, ana.idle), (7, 6, 0), "{ana:?}");
        assert!(ana.allocated > 0 && totals.projects[""].allocated > 0);
        release(&store, &mut job);
        let until = now();
        let before = usage_totals(&path, until).unwrap();
        assert_eq!(before, summed(&path, until));
        // As a daemon that was killed finds it, and after the rows were deleted.
        let store = Store::open(&path).unwrap();
        let rows = usage_beyond(&path, Timestamp::MAX, 9).unwrap().unwrap();
        store.forget_usage(rows).unwrap();
        assert!(!summed(&path, until).users.contains_key("ana"));
        assert_eq!(usage_totals(&path, until).unwrap(), before);
        let later = usage_totals(&path, until + SignedDuration::from_secs(1)).unwrap();
        let grown = later.users["kim"].allocated - before.users["kim"].allocated;
        assert!(
            (51_999..=52_001).contains(&grown),
            "52 thousandths of a second: {grown}"
        );
        assert_eq!(later.users["ana"], before.users["ana"]);
    }

    #[test]
    fn a_user_has_a_total_from_the_first_allocation_on() {
        let (_dir, path, store) = store();
        let _job = holding(&store, "ana", None);
        let totals = usage_totals(&path, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(
            totals.users,
            BTreeMap::from([("ana".to_owned(), GpuTime::default())])
        );
    }

    #[test]
    fn names_beyond_the_bound_count_as_one_and_stay_there() {
        let (_dir, path, store) = store();
        let most = usize::try_from(MAX_NAMES).unwrap();
        let mut jobs: Vec<Job> = (0..most + 3)
            .map(|number| holding(&store, "ana", Some(&format!("p{number}"))))
            .collect();
        let open = usage_totals(&path, now()).unwrap();
        assert_eq!((open.users.len(), open.projects.len()), (1, most + 1));
        jobs.iter_mut().for_each(|job| release(&store, job));
        let _again = holding(&store, "ana", Some("p258"));
        let closed = usage_totals(&path, now()).unwrap();
        assert_eq!(closed.projects.len(), most + 1);
        assert!(closed.projects[OTHER].allocated > open.projects[OTHER].allocated);
        let sum = |totals: &GpuTimeTotals| {
            totals
                .projects
                .values()
                .map(|one| one.allocated)
                .sum::<u64>()
        };
        assert!(sum(&closed) >= sum(&summed(&path, now())) - 52_000);
    }

    #[test]
    fn a_total_stops_at_its_largest_value_instead_of_refusing_the_release() {
        let (_dir, path, store) = store();
        let far = GpuTime {
            allocated: u64::MAX,
            used: 1,
            ..GpuTime::default()
        };
        store.add_to_total("user", "ana", far).unwrap();
        store.add_to_total("user", "ana", far).unwrap();
        let totals = usage_totals(&path, now()).unwrap();
        assert_eq!(
            (totals.users[OTHER].allocated, totals.users[OTHER].used),
            (MOST, 2)
        );
    }

    #[test]
    fn an_older_journal_gets_the_totals_of_its_rows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let mut db = Connection::open(&path).unwrap();
        for (to, sql) in (1..).zip(&MIGRATIONS[..18]) {
            migrate(&mut db, to, sql).unwrap();
        }
        let mut insert = db
            .prepare(
                "INSERT INTO usage (job, name, uid, user, project, queue, gpu_uuid, gpu_index, share, memory, suspended, \
                 began, ended, measured, used, loaned) VALUES (?1, 'x', 1, ?2, ?3, 'q', 'GPU-1', 0, ?4, 1, 0, ?5, ?6, ?7, ?8, ?9)",
            )
            .unwrap();
        // Figures of all sizes, those that do not fit their row among them.
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for row in 0..600_u64 {
            let began = random(1_000_000_000);
            let length = 1 + random(3_600_000_000);
            let user = if row < 300 {
                format!("u{row}")
            } else {
                "u7".to_owned()
            };
            let project = (row % 3 > 0).then(|| format!("p{}", row % 3));
            let share = 1 + random(1000);
            let values = [
                share,
                began,
                began + length,
                random(2 * length),
                random(1500 * length),
                random(900 * length),
            ];
            let [share, began, ended, measured, used, loaned] = values.map(rows::figure);
            insert
                .execute(params![
                    rows::figure(row),
                    user,
                    project,
                    share,
                    began,
                    ended,
                    measured,
                    used,
                    loaned
                ])
                .unwrap();
        }
        drop(insert);
        drop(db);
        drop(Store::open(&path).unwrap());
        let mut expected = summed(&path, Timestamp::MAX);
        let mut other = GpuTime::default();
        for late in 256..300 {
            other.add(expected.users.remove(&format!("u{late}")).unwrap());
        }
        expected.users.insert(OTHER.to_owned(), other);
        assert_eq!(usage_totals(&path, now()).unwrap(), expected);
    }
}
