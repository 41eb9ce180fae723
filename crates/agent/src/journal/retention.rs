//! The retention thread: deletes the folders of expired jobs, and has the controller delete their rows, a few at a
//! time.
//!
//! Folders go first: a job with a row and no folder is found again, while a folder without a row would be an orphan.
//! Dependencies between jobs are checked twice, here and by the controller.

mod logs;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_core::JobId;

use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::host::live::Live;
use crate::journal::{self, StoreError, UpTo, UserUpTo};
use crate::model::retention::{self, RetentionPolicy, before};
use logs::Logs;

/// Interval of checking the limits.
const EVERY: Duration = Duration::from_secs(60);

/// Jobs and rows that go in one step: each is at most one round of the controller, of a millisecond or two.
const JOBS: usize = 16;

/// Expired jobs that one query finds.
const FOUND: usize = 4096;

const ROWS: u32 = 500;

/// The rows that the controller is to forget.
#[derive(Clone, Debug)]
pub enum PruneBatch {
    Jobs(Vec<JobId>),
    Events(UpTo),
    Usage(UpTo),
    UserUsage(Vec<UserUpTo>),
    /// Users with more ended jobs than are kept, none of which may be forgotten: they submit nothing more for now.
    UsersOverLimit(BTreeSet<u32>),
}

/// Where batches go.
pub type PruneSender = Box<dyn Fn(PruneBatch, PruneDone) + Send>;

/// What the thread knows.
pub struct Pruner {
    home: Home,
    retention: Live<RetentionPolicy>,
    request: PruneSender,
    /// Jobs with folders that cannot be removed, which the log has reported.
    undeletable: HashSet<JobId>,
    logs: Logs,
    /// As the controller knows them.
    users_over_limit: BTreeSet<u32>,
}

impl Pruner {
    pub fn new(home: Home, keep: Live<RetentionPolicy>, request: PruneSender) -> Self {
        Self {
            home,
            retention: keep,
            request,
            undeletable: HashSet::new(),
            logs: Logs::default(),
            users_over_limit: BTreeSet::new(),
        }
    }

    /// Prunes for as long as the process lives.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(mut self) -> io::Result<()> {
        let run = move || {
            loop {
                if let Err(error) = self.prune() {
                    tracing::warn!(
                        error = error_chain(&error),
                        "cannot delete old jobs, logs and events; retrying later"
                    );
                }
                std::thread::sleep(EVERY);
            }
        };
        std::thread::Builder::new()
            .name("prune".to_owned())
            .spawn(run)
            .map(drop)
    }

    /// Forgets all that is beyond what is kept now.
    fn prune(&mut self) -> Result<(), StoreError> {
        let database = self.home.database();
        let policy = *self.retention.get();
        let beyond = retention::expired(&policy, now());
        let cuts = journal::cuts(&database, beyond)?;
        loop {
            let most = FOUND + self.undeletable.len();
            let found = journal::jobs_beyond(&database, &cuts, beyond.keys, most)?;
            let mut are_gone = false;
            for some in found.chunks(JOBS) {
                let going = some.iter().copied();
                let going: Vec<JobId> = going.filter(|id| self.remove_job_folder(*id)).collect();
                are_gone |= !going.is_empty() && self.request_prune(PruneBatch::Jobs(going));
            }
            if !are_gone {
                break;
            }
        }
        let full = journal::overfull(&database, beyond)?;
        if full != self.users_over_limit
            && self.request_prune(PruneBatch::UsersOverLimit(full.clone()))
        {
            self.users_over_limit = full;
        }
        let ended = journal::ended_jobs(&database)?;
        self.logs
            .enforce_budget(&self.home, &ended, policy.max_log_bytes.unwrap_or(u64::MAX));
        let most = retention::max_events(&policy);
        while let Some(to) = journal::events_beyond(&database, beyond.ended, most, ROWS)? {
            if !self.request_prune(PruneBatch::Events(to)) {
                break;
            }
        }
        let used = before(now(), policy.usage_for);
        while let Some(to) = journal::usage_beyond(&database, used, ROWS)? {
            if !self.request_prune(PruneBatch::Usage(to)) {
                break;
            }
        }
        let most = retention::max_usages(&policy);
        loop {
            let users = journal::usages_beyond(&database, most, ROWS)?;
            if users.is_empty() || !self.request_prune(PruneBatch::UserUsage(users)) {
                break;
            }
        }
        Ok(())
    }

    /// Removes a job's folder; false if that fails, which the thread logs once.
    fn remove_job_folder(&mut self, id: JobId) -> bool {
        let folder: PathBuf = self.home.job(&id.to_string());
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if self.undeletable.insert(id) {
                    let folder = folder.display();
                    tracing::warn!(job = %id, %error, %folder, "cannot remove the files of an ended job");
                }
                false
            }
            _ => true,
        }
    }

    /// Has the controller forget this, and waits until it has; false when the controller has ended.
    fn request_prune(&self, past: PruneBatch) -> bool {
        let (done, waits) = channel();
        (self.request)(past, done);
        waits.recv().is_ok()
    }
}

/// The channel on which the controller reports that it has forgotten the rows.
pub type PruneDone = Sender<()>;
