//! Room that the journal keeps for itself, so that jobs that end on a full disk are journaled.
//!
//! A commit writes to the write-ahead log, and a checkpoint writes the log's pages into the database. Both take new blocks of the disk
//! only where a file grows. SQLite begins the log again after each checkpoint and never shortens it, and it takes free pages of the
//! database before it appends one. So the reserve is a log that was once long enough, and free pages that have been written before.
//! Other programs cannot take either, as they could take space that a file of ballast gives back.

use rusqlite::{ErrorCode, ffi, params};

use super::{Store, StoreError, full, sql};
use crate::host::failpoint;

/// Bytes of a page (`SQLITE_DEFAULT_PAGE_SIZE`). So it must be SQLite's.
const PAGE: u32 = 4096;

/// Pages of the reserve: the log of 1,000 that SQLite checkpoints at (`SQLITE_DEFAULT_WAL_AUTOCHECKPOINT`), and 280 for
/// commits until then. So five megabytes; fewer could fail while the log grows.
pub const PAGES: u32 = 1280;

/// With fewer free pages the reserve is made anew.
const FEWEST: u32 = PAGES / 2;

impl Store {
    /// Makes the reserve whole: writes [`PAGES`] pages of filler to log and database, and frees them.
    ///
    /// # Errors
    /// [`StoreError::is_full`] where the disk has no room for it; then the reserve is what it was.
    pub fn reserve(&self) -> Result<(), StoreError> {
        failpoint::write("journal.reserve")
            .map_err(|error| sql("reserve disk space for the journal")(full(error)))?;
        // What is deleted here are zeros: to overwrite them would take as many pages of the log again.
        self.set_secure_delete(false)?;
        let filled = self.lengthen();
        self.set_secure_delete(true)?;
        filled
    }

    /// Takes the pages once through the log into the database, which appends those that it has not free.
    fn lengthen(&self) -> Result<(), StoreError> {
        let filled = self.fill(PAGES);
        self.clear().and(filled)?;
        self.checkpoint()
    }

    fn fill(&self, pages: u32) -> Result<(), StoreError> {
        let filler = "INSERT INTO reserve VALUES (zeroblob(?1))";
        let filled = self.db.execute(filler, params![pages * PAGE]);
        filled
            .map(drop)
            .map_err(sql("reserve disk space for the journal"))
    }

    fn clear(&self) -> Result<(), StoreError> {
        let cleared = self.db.execute("DELETE FROM reserve", []);
        cleared
            .map(drop)
            .map_err(sql("free the reserved disk space"))
    }

    fn set_secure_delete(&self, on: bool) -> Result<(), StoreError> {
        self.db
            .pragma_update(None, "secure_delete", on)
            .map_err(sql("set the journal's deletion mode"))
    }

    /// Whether it has been used so far that it is to be made anew.
    pub fn reserve_is_low(&self) -> Result<bool, StoreError> {
        Ok(self.free_pages()? < FEWEST)
    }

    fn free_pages(&self) -> Result<u32, StoreError> {
        self.db
            .query_row("PRAGMA freelist_count", [], |row| row.get(0))
            .map_err(sql("count the free pages of the journal"))
    }

    /// Writes the log's pages into the database, as far as no reader holds them, so that the log begins again.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.db
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            .map_err(sql("checkpoint the journal"))
    }
}

impl StoreError {
    /// Whether the journal cannot grow now. What was committed is safe, and nothing else of the transaction is left.
    pub fn is_full(&self) -> bool {
        let Self::Sql { source, .. } = self else {
            return false;
        };
        // A quota (EDQUOT) and a limit on the size of files (EFBIG) come as a failed write.
        let growth = [ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE];
        source.sqlite_error_code() == Some(ErrorCode::DiskFull)
            || (source.sqlite_error()).is_some_and(|error| growth.contains(&error.extended_code))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn pages(store: &Store) -> (u32, u32) {
        let ask = |pragma: &str| store.db.query_row(pragma, [], |row| row.get(0)).unwrap();
        (ask("PRAGMA page_count"), ask("PRAGMA freelist_count"))
    }

    #[test]
    fn commits_within_the_reserve_make_no_file_grow() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        store.reserve().unwrap();
        let size = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
        let sizes = || (size("state.db"), size("state.db-wal"), size("state.db-shm"));
        let before = sizes();
        assert!(!store.reserve_is_low().unwrap());
        // What the ends of 4,000 jobs write, and more pages than the log is checkpointed at.
        for number in 0..400 {
            store.begin().unwrap();
            for event in 0..10 {
                let text = format!("{number}.{event}: {}", "x".repeat(200));
                store
                    .append_event(crate::host::clock::now(), None, "ended", &text)
                    .unwrap();
            }
            store.commit().unwrap();
        }
        assert_eq!(sizes(), before);
        assert!(pages(&store).1 < PAGES - 200, "{:?}", pages(&store));
    }

    #[test]
    fn a_reserve_that_was_used_is_made_anew_and_takes_no_more_room_than_that() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state.db")).unwrap();
        assert!(store.reserve_is_low().unwrap());
        for _ in 0..3 {
            store.reserve().unwrap();
        }
        let (all, free) = pages(&store);
        assert!(free >= PAGES && all < PAGES + 200, "{free} of {all}");
        assert!(!store.reserve_is_low().unwrap());
        let filler = "SELECT count(*) FROM reserve";
        let rows: u32 = store.db.query_row(filler, [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0);
        // What other tables delete is overwritten as before.
        let secure: u32 = store
            .db
            .query_row("PRAGMA secure_delete", [], |row| row.get(0))
            .unwrap();
        assert_eq!(secure, 1);
    }

    #[test]
    fn only_an_error_of_growth_is_a_full_disk() {
        let of = |code| StoreError::Sql {
            verb: "commit",
            source: rusqlite::Error::SqliteFailure(ffi::Error::new(code), None),
        };
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR_WRITE,
            ffi::SQLITE_IOERR_SHMSIZE,
        ] {
            assert!(of(code).is_full(), "{code}");
        }
        // After a failed fsync the file's content is unknown.
        for code in [
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_CORRUPT,
            ffi::SQLITE_BUSY,
        ] {
            assert!(!of(code).is_full(), "{code}");
        }
        let missing = Connection::open("/nowhere/state.db").unwrap_err();
        let missing = StoreError::Open {
            path: "/nowhere".into(),
            source: missing,
        };
        assert!(!missing.is_full());
    }
}
