//! Trimming of a job's log. The file stays one file, and its beginning is given back to the file system (fallocate(2),
//! `FALLOC_FL_PUNCH_HOLE`) once it holds more than it may:
//!
//! ```text
//! 0                        begins                         size
//! ├──── given back ────────┼──── what is kept ────────────┤◄── the program appends
//! ```
//! Programs hold the file open and write to it themselves. So nothing is copied, no process has to keep up with them,
//! and a stopped or killed supervisor stops no output. Of the usual ways, renaming to another file needs a process
//! between the program and the file for all its life. Copying and truncating loses what the program writes between the
//! two. Here the program keeps appending meanwhile, and every byte keeps its offset, by which readers and the
//! supervisors of containers go on.
//!
//! Where the file system has no holes (NFS before 4.2 for one) nothing is given back, which the daemon and `doctor`
//! say.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstat, fstatvfs, seek};
use rustix::io::Errno;

use crate::host::log_times::LogTimes;

/// Holes begin and end between blocks, and no file system in use has larger ones (ZFS: 128 KiB by default, ext4, XFS,
/// Btrfs: 4 KiB).
const BLOCK: u64 = 128 << 10;

/// Below this free disk space a log keeps a sixteenth of its limit: the daemon's journal needs the rest. SQLite writes
/// its own log of 4 MiB (1000 pages) before it starts over; the rest is for other writers until the next check.
const SHORT: u64 = 64 << 20;

/// Interval of checking the size. A program that writes 100 MB in a second exceeds its bound by that; the next check
/// comes sooner. A program that writes 100 MB in a second exceeds its bound by so much; the next check comes sooner.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The same while much is written. So a tenth of what is written in a second; a check is one call of the kernel.
const SOON: Duration = Duration::from_millis(100);

/// Sees to one log that others write.
#[derive(Debug)]
pub struct LogTrimmer {
    max_bytes: u64,
    kept: u64,
    next_check: Instant,
    times: Option<LogTimes>,
}

impl LogTrimmer {
    /// Keeps a log at `most` bytes, plus what the program writes between two checks.
    pub fn new(most: u64) -> Self {
        Self {
            max_bytes: most,
            kept: 0,
            next_check: Instant::now() + CHECK_INTERVAL,
            times: None,
        }
    }

    /// Also writes time marks.
    pub fn with_times(self, times: LogTimes) -> Self {
        Self {
            times: Some(times),
            ..self
        }
    }

    /// How long until the next check.
    pub fn until_next_check(&self) -> Duration {
        self.next_check.saturating_duration_since(Instant::now())
    }

    /// Checks and trims the log if a check is due.
    pub fn trim_if_due(&mut self, log: impl AsFd) {
        if self.until_next_check().is_zero() {
            self.trim(log);
        }
    }

    /// Gives back what is too much. That it fails changes nothing for the job.
    pub fn trim(&mut self, log: impl AsFd) {
        if let Some(times) = &mut self.times {
            times.mark_if_due(|| Ok(u64::try_from(fstat(&log)?.st_size).unwrap_or(0)));
        }
        let held = punch_hole(log, self.max_bytes).unwrap_or(self.kept);
        let grows = held.abs_diff(self.kept) > self.max_bytes / 8;
        self.kept = held;
        self.next_check = Instant::now() + if grows { SOON } else { CHECK_INTERVAL };
    }
}

/// Gives the beginning of a log back if it holds more than `most` bytes, so that three quarters of them are left;
/// answers what it holds then.
fn punch_hole(log: impl AsFd, most: u64) -> io::Result<u64> {
    let log = log.as_fd();
    let found = fstat(log)?;
    let held = u64::try_from(found.st_blocks).unwrap_or(0) * 512;
    let room = fstatvfs(log).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let most = if room < SHORT { most / 16 } else { most };
    if held <= most.max(2 * BLOCK) {
        return Ok(held);
    }
    let size = u64::try_from(found.st_size).unwrap_or(0);
    let keep = most / 4 * 3;
    let upto = size.saturating_sub(keep) / BLOCK * BLOCK;
    if upto > 0 {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(log, hole, 0, upto)?;
    }
    Ok(held.min(size - upto))
}

/// The first byte of a log from `offset` on that is still there; `None` where there is none yet.
///
/// # Errors
/// When the file cannot be asked.
pub fn first_kept_offset(log: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(log, SeekFrom::Data(offset)) {
        Ok(at) => Ok(Some(at)),
        // Nothing but a hole until the end, or beyond it.
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether logs in this folder can be held to their bound.
///
/// # Errors
/// The file system's.
pub fn can_punch_holes(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".hole-{}", std::process::id()));
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;
    // There is no use in it but the trial.
    let _ = std::fs::remove_file(&path);
    file.set_len(BLOCK)?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(&file, hole, 0, BLOCK)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn log() -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().unwrap();
        let log = File::options()
            .append(true)
            .read(true)
            .create(true)
            .open(dir.path().join("log"))
            .unwrap();
        (dir, log)
    }

    fn lines(log: &mut File, numbers: std::ops::Range<u32>) {
        let text: String = numbers
            .map(|number| format!("line {number:09}\n"))
            .collect();
        log.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_log_keeps_its_end_and_every_byte_its_place_while_others_write() {
        let (dir, mut log) = log();
        if can_punch_holes(dir.path()).is_err() {
            eprintln!("SKIPPED: no holes on this file system");
            return;
        }
        let mut writer = log.try_clone().unwrap();
        lines(&mut writer, 0..300_000);
        assert_eq!(first_kept_offset(&log, 0).unwrap(), Some(0));
        let held = punch_hole(&log, MIB).unwrap();
        assert!((MIB / 2..=MIB).contains(&held), "{held}");
        let size = log.metadata().unwrap().len();
        assert_eq!(size, 300_000 * 15, "its length stays");
        lines(&mut writer, 300_000..300_001);
        let begin = first_kept_offset(&log, 0).unwrap().unwrap();
        assert_eq!(begin % BLOCK, 0);
        assert!(size - begin <= MIB, "{begin}");
        let mut rest = vec![0; usize::try_from(size + 15 - begin).unwrap()];
        log.read_exact_at(&mut rest, begin).unwrap();
        let text = String::from_utf8(rest).unwrap();
        let mut numbers = text
            .lines()
            .skip(1)
            .map(|line| line[5..].parse::<u32>().unwrap());
        let first = numbers.next().unwrap();
        assert_eq!(u64::from(first), begin / 15 + 1);
        assert!(numbers.eq(first + 1..300_001), "no line is missing");
        assert_eq!(first_kept_offset(&log, size - 1).unwrap(), Some(size - 1));
        assert_eq!(first_kept_offset(&log, size + 15).unwrap(), None);
        log.flush().unwrap();
    }

    #[test]
    fn a_log_within_its_bound_is_left_alone() {
        let (_dir, mut log) = log();
        lines(&mut log, 0..1000);
        let mut bound = LogTrimmer::new(divvy_api::daemon::DEFAULT_LOG_SIZE);
        assert!(bound.until_next_check() > Duration::ZERO);
        bound.trim(&log);
        assert_eq!(first_kept_offset(&log, 0).unwrap(), Some(0));
        assert_eq!(first_kept_offset(&log, 15_000).unwrap(), None, "at its end");
    }

    #[test]
    fn what_cannot_be_cut_is_an_error_and_no_loop() {
        let (read, _write) = io::pipe().unwrap();
        let mut bound = LogTrimmer::new(MIB);
        bound.trim(&read);
        assert!(bound.until_next_check() > Duration::ZERO);
        assert!(can_punch_holes(Path::new("/proc")).is_err());
    }
}
