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
use jiff::Timestamp;

use crate::host::clock::{boot_ns, now};
use crate::host::error::error_chain;
use crate::host::live::Live;
use crate::journal::{self, EventCounts, ExpiredEvents, StoreError, UpTo, UserUpTo};
use crate::model::retention::{self, EventLimits, PruneClock, RetentionPolicy, before};
use logs::Logs;

/// Interval of checking the limits. Limits are of days and thousands, so a minute is soon enough; each check is a
/// query.
const EVERY: Duration = Duration::from_secs(60);

/// Jobs and rows that go in one step: each is at most one round of the controller, of a millisecond or two. So calls
/// wait no longer; fewer would fall behind an array's end.
const JOBS: usize = 16;

/// Expired jobs that one query finds. So a query serves 256 steps, and its answer stays small.
const FOUND: usize = 4096;

/// Rows are smaller than jobs, so more of them fit a step.
const ROWS: u32 = 500;

/// The setting with the [`PruneClock`].
pub const PRUNE_CLOCK: &str = "prune_clock";

/// Seconds. An idle daemon writes the setting as often. A day of summer time differs by an hour, which does not matter
/// to a limit of days, so it need not be exact.
const DAY: i64 = 24 * 3600;

/// The rows that the controller is to forget.
#[derive(Clone, Debug)]
pub enum PruneBatch {
    Jobs(Vec<JobId>),
    Events(ExpiredEvents),
    /// The setting [`PRUNE_CLOCK`].
    Clock(String),
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
    events: EventCounts,
    /// Users whose events of less than a day were deleted, which the log has reported.
    lost_events: BTreeSet<Option<u32>>,
    clock: Option<PruneClock>,
    /// The setting that the journal has.
    kept_clock: Option<PruneClock>,
    /// The log has reported that the clock is ahead.
    is_ahead: bool,
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
            events: EventCounts::default(),
            lost_events: BTreeSet::new(),
            clock: None,
            kept_clock: None,
            is_ahead: false,
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
        let now = self.horizon()?;
        let beyond = retention::expired(&policy, now);
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
        self.prune_events(&retention::expired_events(&policy, now))?;
        let used = before(now, policy.usage_for);
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

    /// The time that counts as now: the clock's, unless it is far ahead of the time that has passed.
    fn horizon(&mut self) -> Result<Timestamp, StoreError> {
        if self.clock.is_none() {
            let kept = journal::setting_of(&self.home.database(), PRUNE_CLOCK)?;
            self.kept_clock = kept.and_then(|kept| PruneClock::parse(&kept));
            self.clock = self.kept_clock.clone();
        }
        let (wall, boot) = (now(), divvy_api::home::machine::boot());
        let up = Duration::from_nanos(boot_ns());
        let horizon = PruneClock::horizon(&mut self.clock, wall, &boot, up);
        if (horizon < wall) != self.is_ahead {
            self.is_ahead = horizon < wall;
            match self.is_ahead {
                true => tracing::warn!(
                    clock = %wall,
                    deletes_up_to = %horizon,
                    "the clock is far ahead of the time since the last look: retention follows it by a day an hour; set \
                     the clock if it is wrong"
                ),
                false => tracing::info!(clock = %wall, "retention agrees with the clock again"),
            }
        }
        let day = |clock: &PruneClock| clock.pruned().as_second() / DAY;
        if let Some(clock) = self.clock.clone()
            && self.kept_clock.as_ref().map(day) != Some(day(&clock))
            && self.request_prune(PruneBatch::Clock(clock.to_setting()))
        {
            self.kept_clock = Some(clock);
        }
        Ok(horizon)
    }

    fn prune_events(&mut self, limits: &EventLimits) -> Result<(), StoreError> {
        let database = self.home.database();
        self.events.count(&database)?;
        while let Some(expired) = self.events.expired(&database, limits, ROWS)? {
            if expired.is_young && self.lost_events.insert(expired.pot.uid) {
                tracing::warn!(
                    uid = expired.pot.uid,
                    "the user's jobs have more events within a day than are kept: their oldest are deleted"
                );
            }
            if !self.request_prune(PruneBatch::Events(expired)) {
                break;
            }
            self.events.remove(&expired);
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
