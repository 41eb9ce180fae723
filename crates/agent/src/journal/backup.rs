//! Backups of the journal: a thread of the daemon writes one each day, and an administrator restores one.
//!
//! ```text
//! copies/state-20260102T030405Z.db      the newest three; complete, since each is renamed into place
//! copies/state-20260102T030405Z-v17.db  from before the last migration, with the schema that it had
//! state.db.before-20260102T030405Z      what a restore replaced, with its -wal and -shm
//! ```
//! A restored journal is older than the world. Recovery ([`crate::journal::recover`]) takes what has happened since
//! from the records of jobs.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, JournalFile};
use divvy_core::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::journal::{self, Contents, StoreError};

/// How old the newest copy may become. A day's jobs are lost with a disk at most; each copy takes the time and room of
/// the whole journal.
const EVERY: Duration = Duration::from_secs(24 * 3600);

/// How soon after its start a daemon checks whether a copy is due, and how often from then on. So the start itself is
/// over; ten minutes later it is at most that much late.
const FIRST: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(600);

/// So many copies are kept.
const KEPT: usize = 3;

/// A copy is written only where this many times its size is free. So the copy never takes the last of a disk that the
/// journal needs.
const ROOM: u64 = 2;

const FORM: &str = "%Y%m%dT%H%M%SZ";

/// No copy was written.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write {path}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "cannot copy the journal to {path}: the copy needs {}, but {} is free",
        Bytes::new(*size).human_beside(Bytes::new(*free))[0],
        Bytes::new(*free).human_beside(Bytes::new(*size))[0]
    )]
    NoRoom { path: PathBuf, free: u64, size: u64 },
}

/// The copies of one journal.
#[derive(Clone, Debug)]
pub struct Backups {
    journal: PathBuf,
    folder: PathBuf,
}

impl Backups {
    pub fn of(home: &Home) -> Self {
        Self {
            journal: home.database(),
            folder: home.state().join("copies"),
        }
    }

    /// Writes the copies that are due for as long as the process lives.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(self) -> io::Result<()> {
        let run = move || {
            let mut rest = FIRST;
            loop {
                std::thread::sleep(rest);
                rest = LOOK;
                if let Err(error) = self.back_up_if_due(now()) {
                    tracing::warn!(
                        error = error_chain(&error),
                        "cannot write a copy of the journal; retrying later"
                    );
                }
            }
        };
        let thread = std::thread::Builder::new().name("copies".to_owned());
        thread.spawn(run).map(drop)
    }

    /// Writes a copy where the newest is older than a day.
    fn back_up_if_due(&self, at: Timestamp) -> Result<(), BackupError> {
        let newest = self.list().pop();
        let age = newest.map(|(written, _)| Duration::try_from(at.duration_since(written)));
        // A clock that was set back makes the newest copy one of the future.
        match age {
            Some(Ok(age)) if age < EVERY => Ok(()),
            _ => self.write(at).map(drop),
        }
    }

    /// Writes a copy, checks it, and removes all but the newest.
    ///
    /// # Errors
    /// Then the copies that there were are still there.
    pub fn write(&self, at: Timestamp) -> Result<(PathBuf, Contents), BackupError> {
        let written = self.write_as(&format!("state-{}.db", stamp(at)))?;
        let all = self.list();
        for (_, old) in &all[..all.len().saturating_sub(KEPT)] {
            remove(old)?;
        }
        Ok(written)
    }

    /// Writes a copy of a journal that a migration from this schema follows, and removes the copies from before earlier
    /// migrations.
    fn write_before_migration(&self, from: u32, at: Timestamp) -> Result<PathBuf, BackupError> {
        let (path, _) = self.write_as(&format!("state-{}-v{from}.db", stamp(at)))?;
        for old in self.before_migrations() {
            if old != path {
                remove(&old)?;
            }
        }
        Ok(path)
    }

    /// Writes a copy under this name, and checks it.
    fn write_as(&self, name: &str) -> Result<(PathBuf, Contents), BackupError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| BackupError::Io { path, source }
        };
        fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        self.check_room()?;
        let new = self.folder.join("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&new)(error));
            }
            _ => {}
        }
        let written = journal::copy(&self.journal, &new).and_then(|()| journal::check(&new));
        let contents = written.inspect_err(|_| {
            // The next copy would remove it as well.
            let _ = fs::remove_file(&new);
        })?;
        let path = self.folder.join(name);
        let keep = || {
            fs::rename(&new, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        keep().map_err(failed(&path))?;
        Ok((path, contents))
    }

    fn check_room(&self) -> Result<(), BackupError> {
        let wal = self.journal.with_extension("db-wal");
        let size =
            [&self.journal, &wal].map(|path| fs::metadata(path).map_or(0, |meta| meta.len()));
        let size: u64 = size.iter().sum();
        let stat = rustix::fs::statvfs(&self.folder).map_err(|error| BackupError::Io {
            path: self.folder.clone(),
            source: error.into(),
        })?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        match free < size.saturating_mul(ROOM) {
            true => Err(BackupError::NoRoom {
                path: self.folder.clone(),
                free,
                size,
            }),
            false => Ok(()),
        }
    }

    /// The copies with the time of each, oldest first.
    fn list(&self) -> Vec<(Timestamp, PathBuf)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let copy = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let name = name.to_str()?.strip_prefix("state-")?.strip_suffix(".db")?;
            let at = jiff::civil::DateTime::strptime(FORM, name).ok()?;
            let at = at.to_zoned(TimeZone::UTC).ok()?.timestamp();
            Some((at, entry.path()))
        };
        let mut all: Vec<_> = entries.filter_map(copy).collect();
        all.sort();
        all
    }

    /// The copies from before migrations; usually one.
    fn before_migrations(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_copy = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.and_then(|name| name.strip_prefix("state-")?.strip_suffix(".db"));
            name.is_some_and(|name| name.contains("-v"))
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_copy).collect();
        paths.sort();
        paths
    }

    /// The newest copy that this divvy can read.
    pub fn newest(&self) -> Option<PathBuf> {
        let daily = self.list().into_iter().map(|(_, path)| path);
        let mut all: Vec<PathBuf> = daily.chain(self.before_migrations()).collect();
        // The names begin with the time.
        all.sort();
        let is_readable = |path: &PathBuf| {
            journal::schema_of(path).is_some_and(|found| found <= journal::schema())
        };
        all.into_iter().rev().find(is_readable)
    }
}

fn remove(copy: &Path) -> Result<(), BackupError> {
    fs::remove_file(copy).map_err(|source| BackupError::Io {
        path: copy.to_owned(),
        source,
    })
}

/// Writes a copy of the journal if this divvy is about to migrate it. A daemon without room for the copy serves all the
/// same: its jobs matter more than the way back to the earlier version.
pub fn before_migration(home: &Home) {
    let path = home.database();
    let found = journal::schema_of(&path).filter(|found| (1..journal::schema()).contains(found));
    let Some(from) = found else { return };
    let to = journal::schema();
    match Backups::of(home).write_before_migration(from, now()) {
        Ok(copy) => tracing::info!(
            from,
            to,
            copy = %copy.display(),
            "migrating the journal; the copy is for a return to the earlier version"
        ),
        Err(error) => tracing::warn!(
            from,
            to,
            error = error_chain(&error),
            "migrating the journal without a copy: a return to the earlier version needs an older one"
        ),
    }
}

fn stamp(at: Timestamp) -> String {
    at.strftime(FORM).to_string()
}

/// Writes a copy now, whether or not a daemon serves.
///
/// # Errors
/// [`ErrorCode::NotFound`] where there is no journal.
pub fn write(home: &Home) -> Result<JournalFile, Error> {
    let copies = Backups::of(home);
    if !home.database().exists() {
        let why = format!("no journal at {}", home.database().display());
        return Err(Error::new(ErrorCode::NotFound, why).hint("divvy daemon"));
    }
    let (path, contents) = copies.write(now()).map_err(|error| match error {
        BackupError::Store(error) => unusable(home, &error),
        other => Error::new(ErrorCode::Internal, error_chain(&other)),
    })?;
    Ok(to_journal_file(&path, contents, None))
}

/// Puts a copy in the journal's place. The caller holds the daemon's lock.
///
/// # Errors
/// [`ErrorCode::NotFound`] and [`ErrorCode::Usage`] for a file that is no whole journal; nothing is changed then.
pub fn restore(home: &Home, file: &Path) -> Result<JournalFile, Error> {
    let hint = restore_command(home).unwrap_or_else(|| {
        format!(
            "no copy of the journal in {}",
            Backups::of(home).folder.display()
        )
    });
    if !file.is_file() {
        let why = format!("no file {}", file.display());
        return Err(Error::new(ErrorCode::NotFound, why).hint(hint));
    }
    let contents = journal::check(file).map_err(|error| {
        let why = format!(
            "{} cannot be restored: {}",
            file.display(),
            error_chain(&error)
        );
        Error::new(ErrorCode::Usage, why).hint(hint)
    })?;
    let journal = home.database();
    let new = journal.with_extension("db.new");
    // Of a restore that was cut short.
    let _ = fs::remove_file(&new);
    journal::copy(file, &new)
        .map_err(|error| Error::new(ErrorCode::Internal, error_chain(&error)))?;
    let aside = journal.with_extension(format!("db.before-{}", stamp(now())));
    let replace = || -> io::Result<bool> {
        let is_there = journal.exists();
        // First the write-ahead log: SQLite must not apply it to another journal.
        for kind in ["-wal", "-shm"] {
            let with = |path: &Path| PathBuf::from(format!("{}{kind}", path.display()));
            match fs::rename(with(&journal), with(&aside)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if is_there {
            fs::rename(&journal, &aside)?;
        }
        fs::rename(&new, &journal)?;
        File::open(home.state())?.sync_all()?;
        Ok(is_there)
    };
    let replaced = replace().map_err(|error| {
        let why = format!("cannot move {} into place: {error}", journal.display());
        Error::new(ErrorCode::Internal, why)
    })?;
    Ok(to_journal_file(
        &journal,
        contents,
        replaced.then_some(aside),
    ))
}

fn to_journal_file(path: &Path, contents: Contents, aside: Option<PathBuf>) -> JournalFile {
    JournalFile {
        path: path.display().to_string(),
        jobs_living: contents.living,
        jobs_ended: contents.ended,
        replaced: aside.map(|aside| aside.display().to_string()),
    }
}

/// The error of a journal that a daemon cannot use. It names the file, the cause and the command that helps.
pub fn unusable(home: &Home, cause: &StoreError) -> Error {
    let path = home.database();
    let why = format!(
        "cannot use the journal {}: {}",
        path.display(),
        error_chain(cause)
    );
    let error = Error::new(ErrorCode::Internal, why);
    if let StoreError::Newer { .. } = cause {
        let back = restore_command(home).map(|command| {
            format!("; or go back to the newest copy that this divvy reads: {command}")
        });
        let back = back.unwrap_or_default();
        return error.hint(format!("start the newer version again{back}"));
    }
    if let StoreError::Exposed { .. } = cause {
        let hint = "restore a copy from before that, or check its jobs and run";
        let path = path.display();
        return error.hint(format!("{hint}: chown root: {path} && chmod 600 {path}"));
    }
    error.hint(restore_command(home).unwrap_or_else(|| {
        format!(
            "it has no copy; run `mv {0} {0}.damaged`, and the daemon recovers running jobs from their records",
            path.display()
        )
    }))
}

/// The command that restores the newest copy, if there is one.
fn restore_command(home: &Home) -> Option<String> {
    let copy = Backups::of(home).newest()?;
    let system = if home.is_systems() { " --system" } else { "" };
    Some(format!(
        "divvy admin journal restore{system} {}",
        copy.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Store;
    use crate::journal::tests::new;

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + hour * 3600).unwrap()
    }

    fn home() -> (tempfile::TempDir, Home, Store) {
        let root = tempfile::tempdir().unwrap();
        let home = Home::under(root.path().join("h")).unwrap();
        home.create().unwrap();
        let store = Store::open(&home.database()).unwrap();
        (root, home, store)
    }

    #[test]
    fn a_copy_is_written_once_a_day_and_the_newest_three_stay() {
        let (_root, home, _store) = home();
        let copies = Backups::of(&home);
        let times = || {
            copies
                .list()
                .into_iter()
                .map(|(at, _)| at)
                .collect::<Vec<_>>()
        };
        for hour in [0, 1, 23] {
            copies.back_up_if_due(at(hour)).unwrap();
            assert_eq!(times(), [at(0)]);
        }
        for day in 1..5 {
            copies.back_up_if_due(at(day * 24)).unwrap();
        }
        assert_eq!(times(), [at(48), at(72), at(96)]);
        // The clock was set back.
        copies.back_up_if_due(at(10)).unwrap();
        assert_eq!(times().len(), 3);
    }

    #[test]
    fn a_copy_from_before_a_migration_stays_until_the_next_migration_and_is_the_way_back() {
        let (_root, home, store) = home();
        store.insert(&new(None)).unwrap();
        drop(store);
        let set = |version: u32| {
            let db = rusqlite::Connection::open(home.database()).unwrap();
            db.pragma_update(None, "user_version", version).unwrap();
        };
        let known = journal::schema();
        before_migration(&home);
        let copies = Backups::of(&home);
        assert!(copies.before_migrations().is_empty());
        set(known - 2);
        before_migration(&home);
        let [first] = &copies.before_migrations()[..] else {
            panic!("one copy: {:?}", copies.before_migrations())
        };
        assert!(
            first
                .to_string_lossy()
                .ends_with(&format!("-v{}.db", known - 2))
        );
        for day in 1..6 {
            copies.back_up_if_due(at(day * 24)).unwrap();
        }
        assert!(first.exists() && copies.list().len() == KEPT);
        set(known - 1);
        before_migration(&home);
        let [second] = &copies.before_migrations()[..] else {
            panic!("one copy: {:?}", copies.before_migrations())
        };
        assert!(
            second
                .to_string_lossy()
                .ends_with(&format!("-v{}.db", known - 1))
        );

        // To a divvy of an earlier schema, this journal is one of a newer divvy.
        set(known + 1);
        let error = Store::open(&home.database()).unwrap_err();
        let told = unusable(&home, &error);
        let (ours, later) = (divvy_api::version::program(), known + 1);
        assert!(told.message.contains(&format!(
            "journal {}: a newer divvy ({ours}) wrote it with schema {later}; this divvy is {ours}",
            home.database().display()
        )));
        let hint = told.hint.unwrap();
        let command = format!("divvy admin journal restore {}", second.display());
        assert!(hint.contains(&command), "{hint}");
        restore(&home, second).unwrap();
        assert_eq!(journal::schema_of(&home.database()), Some(known - 1));
    }

    #[test]
    fn a_damaged_journal_replaces_no_copy() {
        let (_root, home, store) = home();
        for _ in 0..200 {
            store.insert(&new(None)).unwrap();
        }
        let copies = Backups::of(&home);
        for day in 0..3 {
            copies.back_up_if_due(at(day * 24)).unwrap();
        }
        let before = copies.list();
        drop(store);
        let mut bytes = fs::read(home.database()).unwrap();
        for page in bytes.chunks_mut(4096).skip(1) {
            page.iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        fs::write(home.database(), bytes).unwrap();
        let error = copies.back_up_if_due(at(72)).unwrap_err();
        assert!(matches!(error, BackupError::Store(_)), "{error}");
        assert_eq!(copies.list(), before);
        assert!(!copies.folder.join("new").exists());
    }
}
