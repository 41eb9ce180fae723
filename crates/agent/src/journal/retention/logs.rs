//! The budget of logs: the logs of each user's ended jobs hold so many bytes, and the oldest logs are removed first.
//!
//! A log has holes, so its blocks count and not its length.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use divvy_api::home::Home;
use divvy_core::JobId;

use crate::job_dir::JobDir;

/// Bytes of a block as stat(2) counts them, on every file system.
const BLOCK: u64 = 512;

/// What was found of the logs of ended jobs, which grow no more.
#[derive(Debug, Default)]
pub struct Logs {
    /// Bytes, by job.
    sizes: HashMap<JobId, u64>,
}

impl Logs {
    /// Removes the oldest logs until each user's hold no more than `most` bytes; each user's newest log stays.
    /// `ended`: jobs that have ended with their users, each user's newest first.
    pub fn enforce_budget(&mut self, home: &Home, ended: &[(Option<u32>, JobId)], most: u64) {
        let mut before = std::mem::take(&mut self.sizes);
        for users in ended.chunk_by(|(one, _), (other, _)| one == other) {
            let (mut sum, mut newest, mut is_full) = (0_u64, true, false);
            for (_, job) in users {
                let folder = home.job(&job.to_string());
                let mut size = before.remove(job).unwrap_or_else(|| size(&folder));
                is_full |= sum.saturating_add(size) > most;
                if size > 0 && is_full && !std::mem::take(&mut newest) {
                    size = remove(*job, &folder, size);
                }
                newest &= size == 0;
                sum = sum.saturating_add(size);
                self.sizes.insert(*job, size);
            }
        }
    }
}

/// Returns the paths of the logs of a job's runs: the first run's lies in the job's folder, the others' in folders
/// below.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let runs = fs::read_dir(folder).into_iter().flatten().flatten();
    let runs = runs.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let runs = runs.map(|entry| JobDir::new(entry.path()).log());
    std::iter::once(JobDir::new(folder).log())
        .chain(runs)
        .collect()
}

fn size(folder: &Path) -> u64 {
    let logs = logs(folder).into_iter();
    let blocks = logs.filter_map(|log| Some(fs::symlink_metadata(log).ok()?.blocks()));
    blocks.sum::<u64>().saturating_mul(BLOCK)
}

/// Removes a job's logs; the bytes that stay.
fn remove(job: JobId, folder: &Path, size: u64) -> u64 {
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
    0
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
        Logs::default().enforce_budget(&home, &ended, 2 * LOG);
        assert_eq!(there(), [false, false, true, true, true, true]);
        Logs::default().enforce_budget(&home, &ended, 0);
        assert_eq!(
            there(),
            [false, false, false, false, true, true],
            "the newest of each stay"
        );
    }
}
