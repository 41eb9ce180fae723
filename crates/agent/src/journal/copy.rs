//! Copies of the journal: one file, without a write-ahead log, that another journal can be restored from.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::events::reader;
use super::{StoreError, newer, schema, sql};

/// What a journal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Jobs that have not ended.
    pub living: u64,
    pub ended: u64,
}

/// Writes a copy of a journal, which a daemon may be writing to, into a file that is not there yet. On disk when this returns.
///
/// # Errors
/// Also when the journal is damaged. What was written of the copy stays.
pub fn copy(journal: &Path, to: &Path) -> Result<(), StoreError> {
    let create = |source| StoreError::Create {
        path: to.to_owned(),
        source,
    };
    // VACUUM INTO takes an empty file, and would make one that others can read.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(to).map_err(create)?;
    let vacuum = || -> rusqlite::Result<()> {
        let into = to.to_string_lossy();
        reader(journal)?.execute("VACUUM INTO ?1", [into]).map(drop)
    };
    vacuum().map_err(sql("copy the journal"))?;
    File::open(to)
        .and_then(|copy| copy.sync_all())
        .map_err(create)
}

/// Checks that a file is a whole journal of this version or an earlier one, and says what it has.
///
/// # Errors
/// [`StoreError::Damaged`] and [`StoreError::Newer`] for one that no daemon should use.
pub fn check(path: &Path) -> Result<Contents, StoreError> {
    let damaged = |why: String| StoreError::Damaged {
        path: path.to_owned(),
        why,
    };
    let open = |source| StoreError::Open {
        path: path.to_owned(),
        source,
    };
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(open)?;
    let ask = |query: &str| db.query_row(query, [], |row| row.get::<_, u64>(0));
    let found = ask("PRAGMA user_version").map_err(open)?;
    if found > schema().into() {
        return Err(newer(&db, u32::try_from(found).unwrap_or(u32::MAX)));
    }
    let verdict: String = db
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| damaged(error.to_string()))?;
    if verdict != "ok" {
        return Err(damaged(verdict));
    }
    let count = |state: &str| {
        ask(&format!(
            "SELECT count(*) FROM job WHERE state {state} 'ended'"
        ))
    };
    let counted = || {
        Ok(Contents {
            living: count("<>")?,
            ended: count("=")?,
        })
    };
    counted().map_err(|error: rusqlite::Error| {
        damaged(format!("it is not a journal of Divvy ({error})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Store;
    use crate::journal::tests::new;

    #[test]
    fn a_copy_has_what_was_committed_while_the_daemon_writes() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("state.db");
        let store = Store::open(&journal).unwrap();
        store.insert(&new(None)).unwrap();
        store.begin().unwrap();
        store.insert(&new(None)).unwrap();
        let to = dir.path().join("copy.db");
        copy(&journal, &to).unwrap();
        store.commit().unwrap();
        let contents = check(&to).unwrap();
        assert_eq!((contents.living, contents.ended), (1, 0));
        assert_eq!(check(&journal).unwrap().living, 2);
        assert!(copy(&journal, &to).is_err(), "no copy replaces another");
    }

    #[test]
    fn a_damaged_file_a_foreign_one_and_a_newer_one_are_no_journals() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let store = Store::open(&path).unwrap();
        for _ in 0..64 {
            store.insert(&new(None)).unwrap();
        }
        let whole = dir.path().join("whole.db");
        copy(&path, &whole).unwrap();
        let mut bytes = std::fs::read(&whole).unwrap();
        for byte in &mut bytes[8192..12288] {
            *byte ^= 0x5a;
        }
        let flipped = dir.path().join("flipped.db");
        std::fs::write(&flipped, &bytes).unwrap();
        assert!(matches!(check(&flipped), Err(StoreError::Damaged { .. })));
        let text = dir.path().join("text");
        std::fs::write(&text, "no journal").unwrap();
        assert!(check(&text).is_err());
        let foreign = dir.path().join("foreign.db");
        let db = Connection::open(&foreign).unwrap();
        db.execute_batch("CREATE TABLE t (x)").unwrap();
        assert!(matches!(check(&foreign), Err(StoreError::Damaged { .. })));
        let newer = Connection::open(&whole).unwrap();
        newer.pragma_update(None, "user_version", 9999).unwrap();
        assert!(matches!(check(&whole), Err(StoreError::Newer { .. })));
    }
}
