//! Runtime history: the durations of earlier runs, for the start estimate. Read through a connection of its own.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_api::v1::Amount;
use divvy_core::job::Outcome;
use rusqlite::{Connection, OptionalExtension, params};

use super::{StoreError, events, rows, sql};
use crate::model::job::Credentials;
use crate::model::run_signature::{RunName, RunSignature};

/// The most jobs that one question reads, over all of its parts. It bounds the time to some tenths of a second, however
/// long the past is. Each account in the question has an equal part. So more would delay other users' calls.
const MOST_LOOKED: usize = 50_000;

/// An owner's jobs of a name, newest first. The index is named, so that a long past, or one of others with jobs of this
/// name, is never read from one end to the other.
const PLAIN: &str =
    "SELECT id FROM job INDEXED BY job_name WHERE name = ?1 AND uid IS ?2 ORDER BY id DESC";

/// Those with names that begin with `?1`, which ends in `[`. Names are compared byte by byte, and `\` comes after `[`.
/// SQLite sorts all of them before it returns the first, so the statement covers only the newest 200,000 of all jobs.
const ARRAY: &str = "SELECT id FROM job INDEXED BY job_name \
                     WHERE name >= ?1 AND name < substr(?1, 1, length(?1) - 1) || '\\' AND uid IS ?2 \
                     AND id > (SELECT max(id) FROM job) - 200000 ORDER BY id DESC";

/// Earlier runs, for one question.
pub struct RuntimeHistory {
    db: Connection,
    /// The most jobs that are read for each account.
    each: usize,
    looked: BTreeMap<u32, usize>,
}

impl RuntimeHistory {
    /// For a question about jobs of so many accounts.
    pub fn open(database: &Path, accounts: usize) -> Result<Self, StoreError> {
        let db = events::reader(database).map_err(sql("open the database for reading"))?;
        Ok(Self {
            db,
            each: MOST_LOOKED / accounts.clamp(1, MOST_LOOKED),
            looked: BTreeMap::new(),
        })
    }

    /// How long runs took that ended with exit code 0, in seconds to the nearest, the newest first, at most so many.
    /// Fewer, or none, once enough was read for their owner.
    pub fn similar_runs(
        &mut self,
        kin: &RunSignature,
        most: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let looked = self.looked.get(&kin.owner).copied().unwrap_or_default();
        let mut left = self.each.saturating_sub(looked);
        let lengths = self.read(kin, most, &mut left);
        self.looked.insert(kin.owner, self.each - left);
        lengths.map_err(sql("read the run times of jobs"))
    }

    fn read(
        &self,
        kin: &RunSignature,
        most: usize,
        left: &mut usize,
    ) -> rusqlite::Result<Vec<u64>> {
        let mut lengths = Vec::new();
        // What was submitted before there were other users has no owner, and is older than all that has.
        let nobody = (kin.owner == Credentials::current().uid).then_some(None);
        for owner in [Some(kin.owner)].into_iter().chain(nobody) {
            self.read_of(owner, kin, most, left, &mut lengths)?;
        }
        Ok(lengths)
    }

    fn read_of(
        &self,
        owner: Option<u32>,
        kin: &RunSignature,
        most: usize,
        left: &mut usize,
        lengths: &mut Vec<u64>,
    ) -> rusqlite::Result<()> {
        if *left == 0 {
            return Ok(());
        }
        let (named, name) = match &kin.name {
            RunName::Plain(name) => (PLAIN, name.clone()),
            RunName::Array(name) => (ARRAY, format!("{name}[")),
        };
        let mut named = self.db.prepare_cached(named)?;
        let mut look = self.db.prepare_cached(
            "SELECT (ended_at - started_at + 500000) / 1000000, command FROM job \
             WHERE id = ?1 AND outcome = ?2 AND amount = ?3 AND user = ?4 AND started_at <= ended_at",
        )?;
        let (well, amount) = (
            rows::json(&Outcome::Exited(0))?,
            rows::json(&Amount::from(kin.amount))?,
        );
        for id in named.query_map(params![name, owner], |row| row.get::<_, i64>(0))? {
            if lengths.len() == most || *left == 0 {
                break;
            }
            *left -= 1;
            let ran = look.query_row(params![id?, well, amount, kin.user], |row| {
                Ok((row.get::<_, u64>(0)?, row.get::<_, String>(1)?))
            });
            let Some((length, command)) = ran.optional()? else {
                continue;
            };
            // What cannot be read keeps its daemon from starting, and is no matter of this.
            let command: Vec<String> = serde_json::from_str(&command).unwrap_or_default();
            if kin.matches_command(&command) {
                lengths.push(length);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::job::{Event, Process, ProgramExit};
    use jiff::SignedDuration;

    use super::*;
    use crate::journal::Store;
    use crate::journal::tests::{new, place};
    use crate::model::job::NewJob;
    use crate::model::policy::ArrayTask;

    struct Past {
        dir: tempfile::TempDir,
        store: Store,
    }

    impl Past {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(&dir.path().join("state.db")).unwrap();
            Self { dir, store }
        }

        /// Stores a run that took so long and ended so.
        fn ran(&self, new: &NewJob, took: SignedDuration, gone: ProgramExit) {
            let mut job = self.store.insert(new).unwrap();
            place(&mut job, "gpu0.052a");
            self.store.save_allocations(&job).unwrap();
            let process = Process {
                pid: 7,
                start_time: 42,
            };
            job.state = job.state.on(Event::Spawned(process)).unwrap();
            job.state = job.state.on(Event::Exited(gone)).unwrap();
            job.started_at = Some(job.submitted_at);
            job.ended_at = Some(job.submitted_at + took);
            self.store.release_allocations(&job).unwrap();
            self.store.save(&job).unwrap();
        }

        fn well(&self, new: &NewJob, seconds: i64) {
            self.ran(
                new,
                SignedDuration::from_secs(seconds),
                ProgramExit::Exited(0),
            );
        }

        fn lengths(&self) -> RuntimeHistory {
            RuntimeHistory::open(&self.dir.path().join("state.db"), 1).unwrap()
        }

        fn like(&self, new: &NewJob) -> Vec<u64> {
            let kin = RunSignature::of(&new.spec, true).unwrap();
            self.lengths().similar_runs(&kin, 3).unwrap()
        }
    }

    fn named(name: &str) -> NewJob {
        let mut new = new(None);
        new.spec.name = name.to_owned();
        new
    }

    fn task(name: &str, index: u32) -> NewJob {
        let mut new = named(&format!("{name}[{index}]"));
        new.spec.policy.array = Some(ArrayTask {
            array: None,
            index,
            most: None,
            count: None,
        });
        new
    }

    #[test]
    fn the_newest_runs_that_ended_well_are_found() {
        let past = Past::new();
        assert!(past.like(&named("train")).is_empty());
        for seconds in [10, 20, 30, 40] {
            past.well(&named("train"), seconds);
            for gone in [ProgramExit::Exited(1), ProgramExit::Signaled(9)] {
                past.ran(&named("train"), SignedDuration::from_secs(7), gone);
            }
            past.well(&named("training"), 7);
            past.store.insert(&named("train")).unwrap();
        }
        assert_eq!(past.like(&named("train")), [40, 30, 20]);
    }

    #[test]
    fn runs_of_others_of_other_sizes_and_of_other_programs_are_none() {
        let past = Past::new();
        let python = |script: &str| {
            let mut new = named("python");
            new.spec.command = vec!["python".to_owned(), script.to_owned()];
            new
        };
        past.well(&python("train.py"), 10);
        past.well(&python("eval.py"), 20);
        let mut anothers = python("train.py");
        anothers.spec.credentials.uid += 1;
        past.well(&anothers, 30);
        let mut on_behalf = python("train.py");
        on_behalf.spec.user = "Bob Example".to_owned();
        past.well(&on_behalf, 50);
        let mut bigger = python("train.py");
        bigger.spec.request = divvy_core::Amount::ONE_GPU.into();
        past.well(&bigger, 40);
        assert_eq!(past.like(&python("train.py")), [10]);
        assert_eq!(past.like(&python("eval.py")), [20]);
        assert_eq!(past.like(&anothers), [30]);
        assert_eq!(past.like(&on_behalf), [50]);
        assert_eq!(past.like(&bigger), [40]);
        // A caller that may not see commands gets both counts.
        let seen = RunSignature::of(&python("train.py").spec, false).unwrap();
        assert_eq!(past.lengths().similar_runs(&seen, 3).unwrap(), [20, 10]);
    }

    #[test]
    fn jobs_of_an_array_are_found_by_what_is_before_the_index() {
        let past = Past::new();
        for (index, seconds) in [(0, 10), (10, 20), (2, 30)] {
            past.well(&task("sweep", index), seconds);
        }
        for other in ["sweep", "sweeper[0]", "sweep\\0", "sweepZ", "sweep]"] {
            past.well(&named(other), 7);
        }
        assert_eq!(past.like(&task("sweep", 11)), [30, 20, 10]);
        assert!(past.like(&task("größe%_", 11)).is_empty());
    }

    #[test]
    fn jobs_of_an_array_are_sought_among_the_newest() {
        let past = Past::new();
        let folders = past.dir.path().join("jobs");
        past.well(&task("sweep", 0), 10);
        past.well(&named("train"), 10);
        past.well(&task("sweep", 1), 20);
        // Jobs are numbered after the folders that are there.
        std::fs::create_dir_all(folders.join("200001")).unwrap();
        past.store.number_after(&[folders]).unwrap();
        past.well(&named("other"), 7);
        assert_eq!(past.like(&task("sweep", 2)), [20]);
        assert_eq!(past.like(&named("train")), [10]);
    }

    #[test]
    fn what_took_nearly_a_second_took_one() {
        let past = Past::new();
        for millis in [999, 1499, 1500] {
            let took = SignedDuration::from_millis(millis);
            past.ran(&named("train"), took, ProgramExit::Exited(0));
        }
        assert_eq!(past.like(&named("train")), [2, 1, 1]);
    }

    #[test]
    fn a_clock_that_was_set_back_meanwhile_makes_no_length() {
        let past = Past::new();
        past.well(&named("train"), -5);
        past.well(&named("train"), 0);
        assert_eq!(past.like(&named("train")), [0]);
    }

    #[test]
    fn no_more_is_looked_at_than_was_said() {
        let past = Past::new();
        for seconds in [10, 20, 30] {
            past.well(&named("train"), seconds);
        }
        let kin = RunSignature::of(&named("train").spec, true).unwrap();
        let mut lengths = past.lengths();
        lengths.each = 4;
        assert_eq!(lengths.similar_runs(&kin, 3).unwrap(), [30, 20, 10]);
        assert_eq!(lengths.similar_runs(&kin, 3).unwrap(), [30]);
        assert!(lengths.similar_runs(&kin, 3).unwrap().is_empty());
    }

    fn anothers(name: &str) -> NewJob {
        let mut new = named(name);
        new.spec.credentials.uid += 1;
        new
    }

    #[test]
    fn an_account_with_many_runs_takes_nothing_of_other_accounts_budgets() {
        let past = Past::new();
        past.well(&named("train"), 10);
        past.well(&task("sweep", 0), 20);
        // Of the same name, newer, and more than the budget.
        for index in 0..20 {
            past.well(&anothers("train"), 30);
            let mut theirs = task("sweep", index);
            theirs.spec.credentials.uid += 1;
            past.well(&theirs, 40);
        }
        let kin = |new: &NewJob| RunSignature::of(&new.spec, true).unwrap();
        let mut lengths = past.lengths();
        lengths.each = 5;
        for _ in 0..2 {
            let theirs = lengths.similar_runs(&kin(&anothers("train")), 3).unwrap();
            assert!(theirs.iter().all(|length| *length == 30), "{theirs:?}");
        }
        assert!(
            lengths
                .similar_runs(&kin(&anothers("train")), 3)
                .unwrap()
                .is_empty()
        );
        assert_eq!(
            lengths.similar_runs(&kin(&named("train")), 3).unwrap(),
            [10]
        );
        assert_eq!(
            lengths.similar_runs(&kin(&task("sweep", 1)), 3).unwrap(),
            [20]
        );
    }

    #[test]
    fn what_is_looked_at_is_divided_among_the_accounts() {
        let past = Past::new();
        let each = |accounts| {
            let database = past.dir.path().join("state.db");
            RuntimeHistory::open(&database, accounts).unwrap().each
        };
        assert_eq!([0, 1, 2, 20].map(each), [50_000, 50_000, 25_000, 2_500]);
        assert_eq!(each(1_000_000), 1, "nobody goes without");
    }

    #[test]
    fn what_has_no_owner_is_the_daemons_own_and_older_than_the_rest() {
        let past = Past::new();
        let mut mine = named("train");
        mine.spec.credentials = Credentials::current();
        past.well(&mine, 10);
        let old = "UPDATE job SET uid = NULL, gid = NULL";
        let path = past.dir.path().join("state.db");
        Connection::open(path).unwrap().execute(old, []).unwrap();
        past.well(&mine, 20);
        assert_eq!(past.like(&mine), [20, 10]);
        let mut others = mine.clone();
        others.spec.credentials.uid += 1;
        assert!(past.like(&others).is_empty());
    }

    #[test]
    fn jobs_of_others_are_passed_over_by_the_index() {
        let past = Past::new();
        let lengths = past.lengths();
        for (query, used) in [
            (PLAIN, "(uid=? AND name=?)"),
            (ARRAY, "(uid=? AND name>? AND name<?)"),
        ] {
            let mut plan = lengths
                .db
                .prepare(&format!("EXPLAIN QUERY PLAN {query}"))
                .unwrap();
            let steps = plan.query_map(params!["x[", 7], |row| row.get::<_, String>(3));
            let steps: Vec<String> = steps.unwrap().map(Result::unwrap).collect();
            let covered = format!("SEARCH job USING COVERING INDEX job_name {used}");
            assert!(steps.contains(&covered), "{steps:?}");
        }
    }

    #[test]
    fn a_past_that_cannot_be_read_is_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        assert!(matches!(
            RuntimeHistory::open(&path, 1),
            Err(StoreError::Sql { .. })
        ));
        // A file without the tables.
        Connection::open(&path)
            .unwrap()
            .execute_batch("CREATE TABLE other (a INTEGER)")
            .unwrap();
        let kin = RunSignature::of(&named("train").spec, true).unwrap();
        let read = RuntimeHistory::open(&path, 1)
            .unwrap()
            .similar_runs(&kin, 3);
        assert!(matches!(read, Err(StoreError::Sql { .. })), "{read:?}");
        // With no budget left, nothing is read.
        let mut lengths = RuntimeHistory::open(&path, 1).unwrap();
        lengths.each = 0;
        assert!(lengths.similar_runs(&kin, 3).unwrap().is_empty());
    }
}
