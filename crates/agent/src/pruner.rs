//! Forgets what is beyond what is kept: a thread that looks now and then, takes the folders away, and has the cycle take the
//! rows, a few at a time.
//!
//! Folders go first: a job whose folder is gone and whose row is not is found again, while a folder without a row would belong
//! to nobody. Who runs after whom is looked at twice, here and by the cycle.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use divvy_api::home::Home;
use divvy_core::JobId;
use jiff::{SignedDuration, Timestamp};

use crate::clock::now;
use crate::keep::{KEY, Keep};
use crate::mailbox::{Mailbox, Message};
use crate::store::{self, Beyond, StoreError, UpTo};
use crate::supervise::chain;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(60);

/// Jobs and rows that go in one step: each is one round of the cycle at most, of a millisecond or two.
const JOBS: usize = 16;
const ROWS: u32 = 500;

/// What the cycle is to forget.
#[derive(Clone, Debug)]
pub enum Past {
    Jobs(Vec<JobId>),
    Events(UpTo),
    Usage(UpTo),
}

/// What the thread knows.
pub struct Pruner {
    home: Home,
    keep: Keep,
    mailbox: Mailbox,
    /// Jobs whose folders cannot be removed, which was said.
    stuck: HashSet<JobId>,
}

impl Pruner {
    pub fn new(home: Home, keep: Keep, mailbox: Mailbox) -> Self {
        Self {
            home,
            keep,
            mailbox,
            stuck: HashSet::new(),
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
                    tracing::warn!(error = chain(&error), "the past is not forgotten now");
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
        loop {
            let beyond = Beyond {
                ended: before(self.keep.jobs_for),
                most: self.keep.most_jobs,
                keys: before(KEY),
            };
            let found = store::jobs_beyond(&database, beyond, JOBS + self.stuck.len())?;
            let going: Vec<JobId> = found
                .into_iter()
                .filter(|id| self.removes_folder(*id))
                .collect();
            if going.is_empty() || !self.tell(Past::Jobs(going)) {
                break;
            }
        }
        let most = self.keep.most_events();
        while let Some(to) =
            store::events_beyond(&database, before(self.keep.jobs_for), most, ROWS)?
        {
            if !self.tell(Past::Events(to)) {
                break;
            }
        }
        let most = self.keep.most_usages();
        while let Some(to) =
            store::usage_beyond(&database, before(self.keep.usage_for), most, ROWS)?
        {
            if !self.tell(Past::Usage(to)) {
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
                    tracing::warn!(job = %id, %error, %folder, "what an ended job left cannot be removed, and stays");
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

/// So long ago; the beginning of time where there is no such moment.
fn before(length: Duration) -> Timestamp {
    let length = SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX);
    now().checked_sub(length).unwrap_or(Timestamp::MIN)
}

/// Where the cycle says that it has forgotten what it was told to.
pub type Forgotten = Sender<()>;
