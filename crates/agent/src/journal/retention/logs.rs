//! The budget of logs: the folders of each user's ended jobs hold so many bytes, and the oldest logs are removed first.
//!
//! All files count, by their blocks: a log has holes. Each also counts as much as file systems have disk for a file.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use divvy_api::home::Home;
use divvy_core::JobId;

use crate::job_dir::{self, JobDir};

/// Bytes of a block as stat(2) counts them, on every file system.
const BLOCK: u64 = 512;

/// Bytes that a file or folder counts at least. ext4 has one inode for so many bytes of the disk (its default), so a
/// user with many small files uses it up as soon as one with large files.
const INODE: u64 = 16 << 10;

/// What was found of the folders of ended jobs, which grow no more.
#[derive(Debug, Default)]
pub struct Logs {
    sizes: HashMap<JobId, FolderSize>,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Default)]
struct FolderSize {
    all: u64,
    logs: u64,
}

impl Logs {
    /// Removes the oldest logs until each user's folders hold no more than `most` bytes; each user's newest log stays.
    /// `ended`: jobs that have ended with their users, each user's newest first.
    pub fn enforce_budget(&mut self, home: &Home, ended: &[(Option<u32>, JobId)], most: u64) {
        let mut before = std::mem::take(&mut self.sizes);
        for users in ended.chunk_by(|(one, _), (other, _)| one == other) {
            let (mut sum, mut newest, mut is_full) = (0_u64, true, false);
            for (_, job) in users {
                let folder = home.job(&job.to_string());
                let mut size = before.remove(job).unwrap_or_else(|| found(*job, &folder));
                is_full |= sum.saturating_add(size.all) > most;
                if size.logs > 0 && is_full && !std::mem::take(&mut newest) {
                    size = remove(*job, &folder, size);
                }
                newest &= size.logs == 0;
                sum = sum.saturating_add(size.all);
                self.sizes.insert(*job, size);
            }
        }
    }
}

/// Returns the paths of the logs of a job's runs: the first run's lies in the job's folder, the others' in folders
/// below.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let runs = job_dir::later_runs(folder).into_values();
    let runs = std::iter::once(folder.to_owned()).chain(runs);
    runs.map(|run| JobDir::new(run).log()).collect()
}

/// The size of an ended job's folder. A daemon that was killed, or an earlier one, may have left folders of runs there.
fn found(job: JobId, folder: &Path) -> FolderSize {
    if let Err(error) = job_dir::remove_middle_runs(folder) {
        tracing::warn!(%job, %error, "cannot remove the records of an ended job's earlier runs");
    }
    let bytes = |path: &Path| {
        let meta = fs::symlink_metadata(path).ok()?;
        Some(meta.blocks().saturating_mul(BLOCK).max(INODE))
    };
    FolderSize {
        all: files_below(folder, 0).filter_map(|path| bytes(&path)).sum(),
        logs: logs(folder).iter().filter_map(|log| bytes(log)).sum(),
    }
}

/// The folder, and what lies in it and in its folders. The daemon's own are two deep.
fn files_below(folder: &Path, depth: u32) -> Box<dyn Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let below = entries.flat_map(move |entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match is_folder && depth < 4 {
            true => files_below(&entry.path(), depth + 1),
            false => Box::new(std::iter::once(entry.path())),
        }
    });
    Box::new(std::iter::once(folder.to_owned()).chain(below))
}

/// Removes a job's logs; what stays.
fn remove(job: JobId, folder: &Path, size: FolderSize) -> FolderSize {
    for log in logs(folder) {
        match fs::remove_file(&log) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let log = log.display();
                tracing::warn!(%job, %error, %log, "cannot remove the log of an ended job; retrying later");
                return size;
            }
            _ => {}
        }
    }
    FolderSize {
        all: size.all.saturating_sub(size.logs),
        logs: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    const LOG: u64 = 1 << 20;

    fn write(home: &Home, job: u64, run: &str) -> PathBuf {
        let folder = home.job(&job.to_string()).join(run);
        fs::create_dir_all(&folder).unwrap();
        let log = JobDir::new(&folder).log();
        let length = usize::try_from(LOG).unwrap();
        File::create(&log)
            .unwrap()
            .write_all(&vec![1; length])
            .unwrap();
        File::open(&log).unwrap().sync_all().unwrap();
        log
    }

    #[test]
    fn each_users_oldest_logs_are_removed_beyond_the_budget() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path()).unwrap();
        let all: Vec<PathBuf> = (1..=6).map(|job| write(&home, job, "")).collect();
        let again = write(&home, 2, "run-1");
        let record = home.job("1").join("record");
        File::create(&record).unwrap();
        // Job 6 has a log that is as long as the others, and nearly all of it was given back.
        let hole = File::options().write(true).open(&all[5]).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&hole, punch, 0, LOG - 4096).unwrap();
        let ended = [
            (Some(1000), 6),
            (Some(1000), 3),
            (Some(1000), 2),
            (Some(1000), 1),
        ];
        let others = [(Some(1001), 5), (Some(1001), 4)];
        let ended: Vec<_> = ended.into_iter().chain(others).collect();
        let ended: Vec<_> = ended
            .into_iter()
            .map(|(uid, id)| (uid, JobId(id)))
            .collect();
        let there = || -> Vec<bool> { all.iter().map(|log| log.exists()).collect() };
        let mut logs = Logs::default();
        logs.enforce_budget(&home, &ended, 9 * LOG / 2);
        assert_eq!(there(), [true; 6], "holes do not count");
        // Job 2 has two of them.
        logs.enforce_budget(&home, &ended, 3 * LOG);
        assert_eq!(
            there(),
            [false, false, true, true, true, true],
            "oldest first"
        );
        assert!(!again.exists());
        assert!(record.exists(), "the record stays");
        // A daemon that was started anew finds the same.
        Logs::default().enforce_budget(&home, &ended, 9 * LOG / 4);
        assert_eq!(there(), [false, false, true, true, true, true]);
        Logs::default().enforce_budget(&home, &ended, 0);
        assert_eq!(
            there(),
            [false, false, false, false, true, true],
            "the newest of each stay"
        );
    }
    #[test]
    fn folders_of_runs_count_and_the_first_and_last_stay() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path()).unwrap();
        let [old, retried] = [JobId(1), JobId(2)];
        let log = write(&home, 1, "");
        for run in 0..=20 {
            let folder = job_dir::run_folder(&home.job("2"), run);
            fs::create_dir_all(&folder).unwrap();
            File::create(folder.join("record")).unwrap();
        }
        let runs = || -> Vec<u32> { job_dir::later_runs(&home.job("2")).into_keys().collect() };
        assert_eq!(runs().len(), 20);
        let size = found(retried, &home.job("2"));
        assert_eq!(runs(), [20]);
        assert_eq!(
            (size.all, size.logs),
            (4 * INODE, 0),
            "two folders, two records"
        );
        write(&home, 2, "");
        let ended = [(Some(1000), retried), (Some(1000), old)];
        // The logs alone would be within it.
        Logs::default().enforce_budget(&home, &ended, 2 * LOG + INODE);
        assert!(!log.exists(), "oldest first");
        assert!(home.job("2").join("log").exists());
    }
}
