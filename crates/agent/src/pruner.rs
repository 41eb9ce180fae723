//! Forgets what is beyond what is kept: a thread that looks now and then, takes the folders away, and has the cycle take the
//! rows, a few at a time.
//!
//! Folders go first: a job whose folder is gone and whose row is not is found again, while a folder without a row would belong
//! to nobody. Who runs after whom is looked at twice, here and by the cycle.

mod logs;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_core::JobId;

use crate::clock::now;
use crate::keep::{Keep, before};
use crate::mailbox::{Mailbox, Message};
use crate::store::{self, StoreError, UpTo, UserUpTo};
use crate::supervise::chain;
use logs::Logs;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(60);

/// Jobs and rows that go in one step: each is one round of the cycle at most, of a millisecond or two.
const JOBS: usize = 16;

/// Jobs that are looked for at once.
const FOUND: usize = 4096;

const ROWS: u32 = 500;

/// What the cycle is to forget.
#[derive(Clone, Debug)]
pub enum Past {
    Jobs(Vec<JobId>),
    Events(UpTo),
    Usage(UpTo),
    UsageOf(Vec<UserUpTo>),
    /// Users with more ended jobs than are kept, none of which may be forgotten: they submit nothing more for now.
    Full(BTreeSet<u32>),
}

/// What the thread knows.
pub struct Pruner {
    home: Home,
    keep: Keep,
    mailbox: Mailbox,
    /// Jobs whose folders cannot be removed, which was said.
    stuck: HashSet<JobId>,
    logs: Logs,
    /// As the cycle knows them.
    full: BTreeSet<u32>,
}

impl Pruner {
    pub fn new(home: Home, keep: Keep, mailbox: Mailbox) -> Self {
        Self {
            home,
            keep,
            mailbox,
            stuck: HashSet::new(),
            logs: Logs::default(),
            full: BTreeSet::new(),
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
                        error = chain(&error),
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
        let beyond = self.keep.beyond(now());
        let cuts = store::cuts(&database, beyond)?;
        loop {
            let most = FOUND + self.stuck.len();
            let found = store::jobs_beyond(&database, &cuts, beyond.keys, most)?;
            let mut are_gone = false;
            for some in found.chunks(JOBS) {
                let going = some.iter().copied();
                let going: Vec<JobId> = going.filter(|id| self.removes_folder(*id)).collect();
                are_gone |= !going.is_empty() && self.tell(Past::Jobs(going));
            }
            if !are_gone {
                break;
            }
        }
        let full = store::overfull(&database, beyond)?;
        if full != self.full && self.tell(Past::Full(full.clone())) {
            self.full = full;
        }
        let ended = store::ended_jobs(&database)?;
        self.logs.hold(&self.home, &ended, self.keep.logs);
        let most = self.keep.most_events();
        while let Some(to) = store::events_beyond(&database, beyond.ended, most, ROWS)? {
            if !self.tell(Past::Events(to)) {
                break;
            }
        }
        let used = before(now(), self.keep.usage_for);
        while let Some(to) = store::usage_beyond(&database, used, ROWS)? {
            if !self.tell(Past::Usage(to)) {
                break;
            }
        }
        let most = self.keep.most_usages();
        loop {
            let users = store::usages_beyond(&database, most, ROWS)?;
            if users.is_empty() || !self.tell(Past::UsageOf(users)) {
                break;
            }
        }
        Ok(())
    }

    /// Removes what a job left; false where that cannot be, which is said once.
    fn removes_folder(&mut self, id: JobId) -> bool {
        let folder: PathBuf = self.home.job(&id.to_string());
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                if self.stuck.insert(id) {
                    let folder = folder.display();
                    tracing::warn!(job = %id, %error, %folder, "cannot remove the files of an ended job");
                }
                false
            }
            _ => true,
        }
    }

    /// Has the cycle forget this, and waits until it has; false when there is no cycle any more.
    fn tell(&self, past: Past) -> bool {
        let (done, waits) = channel();
        self.mailbox.post(Message::Forget { past, done });
        waits.recv().is_ok()
    }
}

/// Where the cycle says that it has forgotten what it was told to.
pub type Forgotten = Sender<()>;
