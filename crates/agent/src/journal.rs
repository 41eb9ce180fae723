//! The journal: jobs, allocations, projects and events in one SQLite file with one writer; its backups and its
//! retention.
//!
//! May use: `host`, `model`, `job_dir`.
//! Used by: `controller`, `http`, `daemon`, `standalone`.
//!
//! WAL with `synchronous=FULL`: what a commit has returned for is on disk. The controller groups the writes of one
//! round into one transaction, so that a burst of submits costs one sync. Nothing is decided here.

mod arrays;
pub mod backup;
mod bypasses;
mod copy;
mod denials;
mod energy;
mod events;
mod gpus;
mod jobs;
mod listed;
mod migs;
mod past;
mod past_events;
mod projects;
pub mod recover;
mod replica;
mod reserve;
pub mod retention;
mod rows;
mod runtime_stats;
pub mod secrets;
mod usage;
mod wal;

use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::version;
use divvy_core::JobId;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use crate::host::clock::now;
use crate::host::failpoint;

pub use arrays::{ended_of_array, ids_of_array};
pub use copy::{Contents, check, copy};
pub use denials::sufficient;
pub use events::{UNCOUNTED, events_after, first_of_events};
pub use jobs::ended_of;
pub use listed::{Span, listed, listed_keys, listed_of};
pub use past::{
    ReferencedJobs, UpTo, UserUpTo, cuts, ended_jobs, events_forgotten, jobs_beyond, overfull,
    usage_beyond, usages_beyond,
};
pub use past_events::{EventCounts, ExpiredEvents};
pub use runtime_stats::RuntimeHistory;
pub use usage::{usage_between, usage_totals};
pub use wal::torn;

/// Schema changes in order; the file's `user_version` counts how many it has had. Append only.
const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001_jobs.sql"),
    include_str!("../migrations/0002_bypass.sql"),
    include_str!("../migrations/0003_resize_oom.sql"),
    include_str!("../migrations/0004_redivide.sql"),
    include_str!("../migrations/0005_mig.sql"),
    include_str!("../migrations/0006_projects.sql"),
    include_str!("../migrations/0007_containers.sql"),
    include_str!("../migrations/0008_users.sql"),
    include_str!("../migrations/0009_usage.sql"),
    include_str!("../migrations/0010_retention.sql"),
    include_str!("../migrations/0011_name.sql"),
    include_str!("../migrations/0012_uncounted.sql"),
    include_str!("../migrations/0013_owner.sql"),
    include_str!("../migrations/0014_aside.sql"),
    include_str!("../migrations/0015_texts.sql"),
    include_str!("../migrations/0016_reserve.sql"),
    include_str!("../migrations/0017_held.sql"),
    include_str!("../migrations/0018_event_kinds.sql"),
    include_str!("../migrations/0019_usage_total.sql"),
    include_str!("../migrations/0020_event_pots.sql"),
    include_str!("../migrations/0021_gpus.sql"),
    include_str!("../migrations/0022_out_of_service.sql"),
    include_str!("../migrations/0023_enforcement.sql"),
    include_str!("../migrations/0024_energy.sql"),
];

/// The setting with the version of the divvy that opened the journal last.
const WRITER: &str = "written_by";

/// How long a writer waits for a reader that holds the file, which in WAL mode is only while it opens. So five seconds
/// are far more than an opening takes; the controller waits meanwhile, so not longer.
const BUSY: Duration = Duration::from_secs(5);

/// How often a transaction is tried again while another process has one, perhaps an SQLite shell: for a minute. So
/// longer would leave all users without answers for one shell.
const PATIENCE: u32 = 11;

/// The store could not be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot create the database {path}")]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot open the database {path}")]
    Open {
        path: PathBuf,
        source: rusqlite::Error,
    },
    #[error(
        "a newer divvy{} wrote it with schema {found}; this divvy is {} and reads schemas up to {known}",
        writer.as_ref().map_or_else(String::new, |writer| format!(" ({writer})")),
        version::program()
    )]
    Newer {
        found: u32,
        known: u32,
        /// The version of the divvy that wrote it.
        writer: Option<String>,
    },
    #[error("{path} {why}, and the journal decides what starts as which user")]
    Exposed { path: PathBuf, why: String },
    #[error("{path} is damaged: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error("cannot upgrade the database to schema {to}")]
    Migrate { to: u32, source: rusqlite::Error },
    #[error("cannot {verb}")]
    Sql {
        verb: &'static str,
        source: rusqlite::Error,
    },
    #[error("the database has an invalid entry for job {job}: {what}")]
    Corrupt { job: JobId, what: String },
}

impl StoreError {
    /// Whether a row contradicts the schema; the journal itself is well.
    pub fn is_constraint(&self) -> bool {
        matches!(self, Self::Sql { source, .. }
            if source.sqlite_error_code() == Some(ErrorCode::ConstraintViolation))
    }
}

/// Whether no other user can write the journal, or could before. There may be none yet.
///
/// # Errors
/// [`StoreError::Exposed`].
pub fn check_owner(path: &Path) -> Result<(), StoreError> {
    let Ok(meta) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    let why = match (meta.uid(), meta.mode() & 0o7777) {
        (uid, _) if uid != rustix::process::geteuid().as_raw() => format!("belongs to uid {uid}"),
        (_, mode) if mode & 0o022 != 0 => format!("is writable by other users (mode {mode:o})"),
        _ => return Ok(()),
    };
    let path = path.to_owned();
    Err(StoreError::Exposed { path, why })
}

/// The writer's connection.
#[derive(Debug)]
pub struct Store {
    db: Connection,
}

impl Store {
    /// Opens the file, makes it (mode 0600) or brings it to the present schema.
    ///
    /// # Errors
    /// [`StoreError::Newer`] for a file that a later version wrote; it is left as it is.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|source| StoreError::Create {
                path: path.to_owned(),
                source,
            })?;
        let open = |source| StoreError::Open {
            path: path.to_owned(),
            source,
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut db = Connection::open_with_flags(path, flags).map_err(open)?;
        db.busy_timeout(BUSY).map_err(open)?;
        let found: u32 = db
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(open)?;
        if found > schema() {
            return Err(newer(&db, found));
        }
        // Answers with the mode it has set, hence a query.
        db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))
            .map_err(open)?;
        // What is deleted, environments among it, is overwritten and not only let go of.
        db.execute_batch(
            "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON;",
        )
        .map_err(open)?;
        // Otherwise each new value of a parameter has its statement prepared anew, to see whether another index would
        // be better (sqlite3_db_config, `SQLITE_DBCONFIG_ENABLE_QPSG`).
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
            .map_err(open)?;
        db.set_prepared_statement_cache_capacity(64);
        for (to, sql) in (1..).zip(MIGRATIONS).skip(found as usize) {
            migrate(&mut db, to, sql).map_err(|source| StoreError::Migrate { to, source })?;
        }
        let store = Self { db };
        let program = version::program();
        if store.setting(WRITER)?.as_ref() != Some(&program) {
            store.set_setting(WRITER, &program)?;
        }
        if found == 0 {
            store.set_setting("began", &now().as_second().to_string())?;
        }
        Ok(store)
    }

    /// Starts a group of changes.
    pub fn begin(&self) -> Result<(), StoreError> {
        let begin = || {
            failpoint::write("journal.begin").map_err(full)?;
            self.db.execute_batch("BEGIN IMMEDIATE")
        };
        for _ in 0..PATIENCE {
            match begin() {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                    tracing::warn!("another program has locked the journal; waiting for it");
                }
                begun => return begun.map_err(sql("begin a transaction")),
            }
        }
        begin().map_err(sql("begin a transaction"))
    }

    /// Makes the group durable.
    pub fn commit(&self) -> Result<(), StoreError> {
        let commit = || {
            failpoint::write("journal.commit").map_err(full)?;
            self.db.execute_batch("COMMIT")
        };
        commit().map_err(sql("commit to the journal"))?;
        failpoint::reach("journal.committed");
        Ok(())
    }

    /// Rows that this connection has changed so far.
    pub fn changes(&self) -> u64 {
        self.db.total_changes()
    }

    /// The journal's own name, which no other one in its place has.
    pub fn name(&self) -> Result<Option<String>, StoreError> {
        self.setting("name")
    }

    /// When the journal began, in seconds since 1970. One that is older than this record does not know.
    pub fn began(&self) -> Result<Option<i64>, StoreError> {
        let began = self.setting("began")?;
        Ok(began.and_then(|began| began.parse().ok()))
    }

    pub fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let found = self
            .db
            .query_row("SELECT value FROM setting WHERE name = ?1", [name], |row| {
                row.get(0)
            });
        found.optional().map_err(sql("read a setting"))
    }

    pub fn set_setting(&self, name: &str, value: &str) -> Result<(), StoreError> {
        let statement = "INSERT INTO setting VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.db
            .execute(statement, [name, value])
            .map(drop)
            .map_err(sql("write a setting"))
    }

    /// What a context was measured to cost on GPUs of this model under this driver, in bytes.
    pub fn overhead(&self, model: &str, driver: &str) -> Result<Option<u64>, StoreError> {
        let query = "SELECT bytes FROM overhead WHERE model = ?1 AND driver = ?2";
        self.db
            .query_row(query, [model, driver], |row| row.get(0))
            .optional()
            .map_err(sql("read an overhead"))
    }

    pub fn set_overhead(&self, model: &str, driver: &str, bytes: u64) -> Result<(), StoreError> {
        let statement = "INSERT INTO overhead (model, driver, bytes) VALUES (?1, ?2, ?3) \
                         ON CONFLICT (model, driver) DO UPDATE SET bytes = excluded.bytes";
        self.db
            .execute(statement, params![model, driver, bytes])
            .map(drop)
            .map_err(sql("write an overhead"))
    }
}

/// A setting, through a connection of its own.
pub fn setting_of(database: &Path, name: &str) -> Result<Option<String>, StoreError> {
    let read = || -> rusqlite::Result<Option<String>> {
        let db = events::reader(database)?;
        let query = "SELECT value FROM setting WHERE name = ?1";
        db.query_row(query, [name], |row| row.get(0)).optional()
    };
    read().map_err(sql("read a setting"))
}

/// The number of the present schema.
pub fn schema() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("few migrations")
}

/// The schema of the journal in this file; `None` where there is none that can be read.
pub fn schema_of(path: &Path) -> Option<u32> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    let version = db.query_row("PRAGMA user_version", [], |row| row.get(0));
    version.ok()
}

/// The refusal of a journal of a later schema, which has at least the table of settings.
fn newer(db: &Connection, found: u32) -> StoreError {
    let writer = "SELECT value FROM setting WHERE name = ?1";
    StoreError::Newer {
        found,
        known: schema(),
        writer: db.query_row(writer, [WRITER], |row| row.get(0)).ok(),
    }
}

fn migrate(db: &mut Connection, to: u32, sql: &str) -> rusqlite::Result<()> {
    let transaction = db.transaction()?;
    transaction.execute_batch(sql)?;
    transaction.pragma_update(None, "user_version", to)?;
    transaction.commit()
}

/// What SQLite says of a full disk.
fn full(error: io::Error) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
    rusqlite::Error::SqliteFailure(code, Some(error.to_string()))
}

fn sql(verb: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |source| StoreError::Sql { verb, source }
}

#[cfg(test)]
mod soak;
#[cfg(test)]
pub mod tests;
#[cfg(test)]
mod upgrade;
