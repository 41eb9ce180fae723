//! Jobs and their allocations in the journal.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use divvy_api::v1::Amount;
use divvy_core::JobId;
use rusqlite::{Connection, OptionalExtension, Params, params};

use super::bypasses::{self, Bypasses};
use super::rows::{self, RawJob};
use super::{Store, StoreError, events, sql};
use crate::host::clock::now;
use crate::model::job::{Allocation, Credentials, Job, NewJob};
use crate::model::policy::RunState;
use crate::model::validate::budget;

impl Store {
    /// Stores a queued job and gives it its number.
    pub fn insert(&self, new: &NewJob) -> Result<Job, StoreError> {
        let insert = || -> rusqlite::Result<i64> {
            let mut insert = self.db.prepare_cached(
                "INSERT INTO job (key, name, user, project, queue, amount, compute, gpus_on, runner, command, cwd, env, \
                 state, submitted_at, isolation, exact, container, terms, secrets, uid, gid, texts, course, gpus_on_uuid) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 'queued', ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, \
                 (SELECT CASE WHEN count(*) > 0 AND count(*) = json_array_length(?8) THEN json_group_array(uuid) END \
                 FROM gpu WHERE number IN (SELECT value FROM json_each(?8))))",
            )?;
            let ask = &new.spec;
            insert.insert(params![
                new.key,
                ask.name,
                ask.user,
                ask.project,
                ask.queue.as_str(),
                rows::json(&Amount::from(ask.request.amount))?,
                ask.request.compute.to_string(),
                rows::json(&ask.request.on)?,
                rows::runner_name(ask.runner),
                rows::json(&ask.command)?,
                ask.cwd,
                rows::json(&new.env)?,
                new.at.as_microsecond(),
                ask.request.isolation.name(),
                ask.request.exact,
                ask.container.as_ref().map(rows::json).transpose()?,
                rows::json(&ask.policy)?,
                rows::json(&ask.secrets)?,
                ask.credentials.uid,
                ask.credentials.gid,
                rows::figure(budget::ended_job_size(ask)),
                rows::json(&RunState::with_hold(new.hold.clone()))?,
            ])
        };
        let id = insert().map_err(sql("store a job"))?;
        Ok(Job::queued(JobId(id.unsigned_abs()), new))
    }

    /// Takes back what was stored in this transaction and is refused after all.
    pub fn take_back(&self, job: JobId) -> Result<(), StoreError> {
        let removed = self.db.execute("DELETE FROM job WHERE id = ?1", [job.0]);
        removed.map(drop).map_err(sql("remove a job"))
    }

    /// Gives no job a number that has a folder already: a journal that was lost or removed must not make new jobs
    /// inherit the records of old ones.
    pub fn number_after(&self, folders: &[PathBuf]) -> Result<(), StoreError> {
        let entries = folders.iter().flat_map(std::fs::read_dir);
        let names = entries.flatten().flatten();
        let numbers = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        match numbers.max() {
            Some(last) => self.number_after_job(JobId(last.into())),
            None => Ok(()),
        }
    }

    /// Gives no job this number or a lower one from now on.
    pub fn number_after_job(&self, JobId(last): JobId) -> Result<(), StoreError> {
        let last = i64::try_from(last).unwrap_or(i64::MAX);
        let raise = || -> rusqlite::Result<()> {
            let given = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'job'";
            if self.db.query_row(given, [], |row| row.get::<_, i64>(0))? < last {
                self.db
                    .execute("DELETE FROM sqlite_sequence WHERE name = 'job'", [])?;
                self.db
                    .execute("INSERT INTO sqlite_sequence VALUES ('job', ?1)", [last])?;
            }
            Ok(())
        };
        raise().map_err(sql("find the next job's number"))
    }

    /// Stores where the job is in its life. Ending it forgets its environment.
    pub fn save(&self, job: &Job) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            let mut update = self.db.prepare_cached(
                "UPDATE job SET state = ?2, attempt = ?3, pid = ?4, pid_start = ?5, started_at = ?6, ended_at = ?7, \
                 outcome = ?8, exit_code = ?9, reason = ?10, course = ?11, env = CASE ?2 WHEN 'ended' THEN NULL ELSE env END \
                 WHERE id = ?1 AND state <> 'ended'",
            )?;
            let process = job.state.process();
            update.execute(params![
                job.id.0,
                job.state.state(),
                job.attempt,
                process.map(|process| process.pid),
                process.map(|process| process.start_time),
                job.started_at.map(jiff::Timestamp::as_microsecond),
                job.ended_at.map(jiff::Timestamp::as_microsecond),
                job.state.outcome().map(rows::json).transpose()?,
                job.exit_code,
                job.reason,
                rows::json(&job.run_state)?,
            ])
        };
        match save().map_err(sql("store a job's state"))? {
            1 => Ok(()),
            _ => Err(StoreError::Corrupt {
                job: job.id,
                what: "the job has ended already, or is not in the database".into(),
            }),
        }
    }

    /// Stores what the job runs after all.
    pub fn save_amended(
        &self,
        job: &Job,
        env: &BTreeMap<String, String>,
    ) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            let ask = &job.spec;
            self.db
                .prepare_cached(
                    "UPDATE job SET command = ?2, container = ?3, terms = ?4, env = ?5, texts = ?6 WHERE id = ?1",
                )?
                .execute(params![
                    job.id.0,
                    rows::json(&ask.command)?,
                    ask.container.as_ref().map(rows::json).transpose()?,
                    rows::json(&ask.policy)?,
                    rows::json(env)?,
                    rows::figure(budget::ended_job_size(ask)),
                ])
        };
        save().map(drop).map_err(sql("store a job's command"))
    }

    /// Stores what the job asks for and on what terms it waits, since that was changed.
    pub fn save_changed(&self, job: &Job) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            let ask = &job.spec;
            self.db
                .prepare_cached(
                    "UPDATE job SET name = ?2, queue = ?3, terms = ?4, texts = ?5 WHERE id = ?1",
                )?
                .execute(params![
                    job.id.0,
                    ask.name,
                    ask.queue.as_str(),
                    rows::json(&ask.policy)?,
                    rows::figure(budget::ended_job_size(ask)),
                ])
        };
        save().map(drop).map_err(sql("store a job's request"))?;
        self.save_resized(job)?;
        self.save(job)
    }

    /// Stores what the job was granted, in place of what it held before.
    pub fn save_allocations(&self, job: &Job) -> Result<(), StoreError> {
        let hold = || -> rusqlite::Result<()> {
            let at = now();
            self.name_totals(job)?;
            self.count_up_to(job.id, at)?;
            self.db
                .prepare_cached("DELETE FROM holding WHERE job = ?1")?
                .execute([job.id.0])?;
            let mut insert = self.db.prepare_cached(
                "INSERT INTO holding (job, ordinal, gpu_uuid, gpu_index, memory, share, label, held, goal_memory, goal_share, mig, since, suspended, enforcement) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 1, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?;
            for (ordinal, allocation) in job.allocations.iter().enumerate() {
                let Allocation { grant, goal, .. } = allocation;
                let (memory, share) = (grant.memory.get(), grant.share.thousandths());
                insert.execute(params![
                    job.id.0,
                    ordinal,
                    grant.gpu.as_str(),
                    grant.index,
                    memory,
                    share,
                    grant.label,
                    goal.map(|goal| goal.memory.get()),
                    goal.map(|goal| goal.share.thousandths()),
                    grant.mig.as_ref().map(rows::json).transpose()?,
                    at.as_microsecond(),
                    job.run_state.suspended,
                    allocation.enforcement.name(),
                ])?;
            }
            Ok(())
        };
        hold().map_err(sql("store a job's allocation"))
    }

    /// Stores what a job asks for since it was resized, and how its compute time is divided since that was changed.
    pub fn save_resized(&self, job: &Job) -> Result<(), StoreError> {
        let save = || -> rusqlite::Result<usize> {
            let resized = job.resized.map(|amount| rows::json(&Amount::from(amount)));
            self.db
                .prepare_cached("UPDATE job SET resized = ?2, redivided = ?3 WHERE id = ?1")?
                .execute(params![
                    job.id.0,
                    resized.transpose()?,
                    job.redivided.map(|compute| compute.to_string())
                ])
        };
        save().map(drop).map_err(sql("store a job's new size"))
    }

    /// Stores that the job holds nothing any more, and the statistics of what it held. Its allocation ended with its
    /// program, by its record, if that ran: a user does not pay for the time without a running daemon.
    pub fn release_allocations(&self, job: &Job) -> Result<(), StoreError> {
        let release = || -> rusqlite::Result<()> {
            self.count_up_to(job.id, job.ended_at.unwrap_or_else(now))?;
            let mut update = self.db.prepare_cached(
                "UPDATE holding SET held = 0, goal_memory = NULL, goal_share = NULL, peak = ?3, denied = ?4, last_denied = ?5, mismatch_max = ?6 \
                 WHERE job = ?1 AND ordinal = ?2",
            )?;
            for (ordinal, Allocation { stats: traces, .. }) in job.allocations.iter().enumerate() {
                // A program may ask for any number of bytes, and a job can write any number into its ledger.
                let last = traces.last_denied.map(|bytes| rows::figure(bytes.get()));
                update.execute(params![
                    job.id.0,
                    ordinal,
                    rows::figure(traces.peak.get()),
                    rows::figure(traces.denied),
                    last,
                    rows::figure(traces.mismatch_max.get())
                ])?;
            }
            Ok(())
        };
        release().map_err(sql("store the release of a job's slice"))
    }

    /// The submitted environment; `None` once the job has ended.
    pub fn env(&self, job: JobId) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        let read = || -> rusqlite::Result<Option<String>> {
            let mut query = self
                .db
                .prepare_cached("SELECT env FROM job WHERE id = ?1")?;
            Ok(query
                .query_row([job.0], |row| row.get(0))
                .optional()?
                .flatten())
        };
        let Some(text) = read().map_err(sql("read a job's environment"))? else {
            return Ok(None);
        };
        let corrupt = |error| StoreError::Corrupt {
            job,
            what: format!("cannot read its environment ({error})"),
        };
        serde_json::from_str(&text).map(Some).map_err(corrupt)
    }

    /// Bytes of the environment of each job that has not ended.
    pub fn environments(&self) -> Result<BTreeMap<JobId, u64>, StoreError> {
        let read = || -> rusqlite::Result<BTreeMap<JobId, u64>> {
            let mut query = self.db.prepare(
                "SELECT id, coalesce(octet_length(env), 0) FROM job WHERE state <> 'ended'",
            )?;
            let sizes = query.query_map([], |row| Ok((JobId(row.get(0)?), row.get(1)?)))?;
            sizes.collect()
        };
        read().map_err(sql("read the sizes of environments"))
    }

    /// Every job that has not ended, oldest first.
    pub fn living(&self) -> Result<Vec<Job>, StoreError> {
        jobs(&self.db, "state <> 'ended'", [])
    }

    /// Numbers of the jobs that have ended.
    pub fn ended(&self) -> Result<HashSet<JobId>, StoreError> {
        let read = || -> rusqlite::Result<HashSet<JobId>> {
            let mut query = self
                .db
                .prepare("SELECT id FROM job WHERE state = 'ended'")?;
            query.query_map([], |row| row.get(0).map(JobId))?.collect()
        };
        read().map_err(sql("read the ended jobs"))
    }

    /// The last claims that have ended, at most this many, oldest first.
    pub fn ended_claims(&self, most: usize) -> Result<Vec<Job>, StoreError> {
        let last = "id IN (SELECT id FROM job WHERE state = 'ended' AND runner = 'claim' \
                           ORDER BY id DESC LIMIT ?1)";
        jobs(&self.db, last, [most])
    }

    pub fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        // Any number may be asked for; none beyond the database's integers was ever given.
        match i64::try_from(id.0) {
            Ok(id) => Ok(jobs(&self.db, "id = ?1", [id])?.pop()),
            Err(_) => Ok(None),
        }
    }

    /// The job that was submitted with this idempotency key.
    pub fn with_key(&self, key: &str) -> Result<Option<Job>, StoreError> {
        Ok(jobs(&self.db, "key = ?1", [key])?.pop())
    }

    /// The newest job of this name.
    pub fn newest_named(&self, name: &str) -> Result<Option<JobId>, StoreError> {
        self.newest_where("SELECT max(id) FROM job WHERE name = ?1", [name])
    }

    /// The newest job with an idempotency key of `PREFIX:` and any text behind it.
    pub fn newest_keyed(&self, prefix: &str) -> Result<Option<JobId>, StoreError> {
        // `;` comes after `:`, and keys are compared byte by byte, by their index.
        self.newest_where(
            "SELECT max(id) FROM job WHERE key > ?1 || ':' AND key < ?1 || ';'",
            [prefix],
        )
    }

    /// The newest job of all.
    pub fn newest(&self) -> Result<Option<JobId>, StoreError> {
        self.newest_where("SELECT max(id) FROM job", [])
    }

    /// The last job that was given a number, forgotten or not.
    pub fn last_numbered(&self) -> Result<Option<JobId>, StoreError> {
        self.newest_where(
            "SELECT max(seq) FROM sqlite_sequence WHERE name = 'job'",
            [],
        )
    }

    /// The newest job of this user.
    pub fn newest_of(&self, by: Credentials) -> Result<Option<JobId>, StoreError> {
        let me = Credentials::current().uid;
        self.newest_where(
            "SELECT max(id) FROM job WHERE coalesce(uid, ?2) = ?1",
            [by.uid, me],
        )
    }

    fn newest_where(&self, query: &str, values: impl Params) -> Result<Option<JobId>, StoreError> {
        let read = || -> rusqlite::Result<Option<u64>> {
            self.db
                .prepare_cached(query)?
                .query_row(values, |row| row.get(0))
        };
        Ok(read().map_err(sql("find the newest job"))?.map(JobId))
    }
}

/// Jobs that have ended, oldest first: of this user, or of all.
pub fn ended_of(database: &Path, uid: Option<u32>) -> Result<Vec<Job>, StoreError> {
    let db = events::reader(database).map_err(sql("open the database for reading"))?;
    match uid {
        None => jobs(&db, "state = 'ended'", []),
        // What was submitted before there were other users is the daemon's own user's.
        Some(uid) if uid == Credentials::current().uid => {
            jobs(&db, "state = 'ended' AND coalesce(uid, ?1) = ?1", [uid])
        }
        Some(uid) => jobs(&db, "state = 'ended' AND uid = ?1", [uid]),
    }
}

type Holdings = BTreeMap<JobId, Vec<Allocation>>;

/// Jobs with their states, and what belongs to them, as it lies in the tables.
type Raw = (Vec<(RawJob, String)>, Holdings, Bypasses);

pub(super) fn jobs(
    db: &Connection,
    which: &str,
    values: impl Params + Clone,
) -> Result<Vec<Job>, StoreError> {
    let read = || -> rusqlite::Result<Raw> {
        let mut query = db.prepare_cached(&format!(
            "SELECT {} FROM job WHERE {which} ORDER BY id",
            rows::JOB
        ))?;
        let raw = query.query_map(values.clone(), |row| Ok((RawJob::read(row)?, row.get(11)?)))?;
        let raw = raw.collect::<rusqlite::Result<Vec<_>>>()?;
        let mut query = db.prepare_cached(&format!(
            "SELECT {} FROM holding WHERE job IN (SELECT id FROM job WHERE {which}) ORDER BY job, ordinal",
            rows::HOLDING
        ))?;
        let mut holdings = Holdings::new();
        for row in query.query_map(values.clone(), rows::allocation)? {
            let (job, holding) = row?;
            holdings.entry(job).or_default().push(holding);
        }
        Ok((raw, holdings, bypasses::of_jobs(db, which, values.clone())?))
    };
    let (raw, mut holdings, mut bypasses) = read().map_err(sql("read jobs"))?;
    let job = |(raw, state): (RawJob, String)| {
        let holdings = holdings.remove(&raw.id()).unwrap_or_default();
        let bypasses = bypasses.remove(&raw.id()).unwrap_or_default();
        raw.job(&state, holdings, bypasses)
    };
    raw.into_iter().map(job).collect()
}
