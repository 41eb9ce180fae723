//! The write-ahead log of the journal, as the last daemon left it: SQLite ignores what comes after the last whole transaction.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of the header of the log, and of the header of each frame (sqlite.org/fileformat2.html, section 4.1). So
/// SQLite fixes both.
const HEADER: u64 = 32;
const FRAME: u64 = 24;

/// Bytes at the end of the log that are no whole frame; SQLite writes whole frames alone, so the log was cut there, or its writer was
/// killed while it wrote. To be asked before the journal is opened.
pub fn torn(journal: &Path) -> u64 {
    let read = || -> std::io::Result<u64> {
        let log = File::open(journal.with_extension("db-wal"))?;
        let length = log.metadata()?.len();
        if length <= HEADER {
            return Ok(length % HEADER);
        }
        let mut size = [0; 4];
        log.read_exact_at(&mut size, 8)?;
        let frame = FRAME + u64::from(u32::from_be_bytes(size));
        Ok((length - HEADER) % frame)
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Store;
    use crate::journal::tests::new;

    #[test]
    fn a_log_that_was_cut_within_a_frame_is_told_from_a_whole_one() {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("state.db");
        assert_eq!(torn(&journal), 0);
        let store = Store::open(&journal).unwrap();
        store.insert(&new(None)).unwrap();
        assert_eq!(torn(&journal), 0);
        // A copy, as the last connection that closes takes the log away.
        let log = std::fs::read(dir.path().join("state.db-wal")).unwrap();
        let cut = dir.path().join("cut.db");
        std::fs::write(dir.path().join("cut.db-wal"), &log[..log.len() - 37]).unwrap();
        assert_eq!(torn(&cut), 4120 - 37);
    }
}
