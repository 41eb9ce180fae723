//! Accounting of texts: the bytes of each user's jobs that have not ended, held to a budget.
//!
//! The daemon keeps these texts in the journal, and the commands in memory. Jobs enter and leave the cycle's map
//! here, so that the sums are right.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::{Bytes, JobId};

use super::{Cycle, Living};
use crate::access::Caller;
use crate::intake::budget;
use crate::job::{Job, NewJob};
use crate::store::StoreError;

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// Bytes, by the number of the user.
    held: BTreeMap<u32, u64>,
    /// Users with more ended jobs than are kept, none of which may be forgotten yet.
    full: BTreeSet<u32>,
}

impl Texts {
    fn of(&self, uid: u32) -> u64 {
        self.held.get(&uid).copied().unwrap_or(0)
    }

    fn add(&mut self, uid: u32, bytes: u64) {
        *self.held.entry(uid).or_default() += bytes;
    }

    fn remove(&mut self, uid: u32, bytes: u64) {
        let left = self.of(uid).saturating_sub(bytes);
        match left {
            0 => self.held.remove(&uid),
            left => self.held.insert(uid, left),
        };
    }
}

impl Cycle {
    /// Counts the texts of the jobs that the journal has, once, when the daemon starts.
    pub(super) fn count_texts(&mut self) -> Result<(), StoreError> {
        let environments = self.store.environments()?;
        for (id, living) in &mut self.jobs {
            let job = &living.job;
            let environment = environments.get(id).copied().unwrap_or(0);
            let secrets = match job.ask.secrets.is_empty() {
                true => 0,
                false => self.secrets.size(*id),
            };
            living.texts = budget::of(&job.ask) + environment + secrets;
            self.texts.add(job.ask.by.uid, living.texts);
        }
        Ok(())
    }

    /// Adds a job that was stored just now.
    pub(super) fn enter(&mut self, job: Job, texts: u64) {
        self.texts.add(job.ask.by.uid, texts);
        let mut living = Living::new(job);
        living.texts = texts;
        self.jobs.insert(living.job.id, living);
    }

    /// Lets go of jobs that have ended.
    pub(super) fn leave_ended(&mut self) {
        let texts = &mut self.texts;
        self.jobs.retain(|_, living| {
            let lives = living.job.life.outcome().is_none();
            if !lives {
                texts.remove(living.job.ask.by.uid, living.texts);
            }
            lives
        });
    }

    /// A job's texts are this many bytes from now on.
    pub(super) fn set_texts(&mut self, id: JobId, texts: u64) {
        if let Some(living) = self.jobs.get_mut(&id) {
            let uid = living.job.ask.by.uid;
            self.texts.remove(uid, living.texts);
            self.texts.add(uid, texts);
            living.texts = texts;
        }
    }

    /// Takes the users with more ended jobs than are kept, as the pruner found them.
    pub(super) fn set_full(&mut self, full: BTreeSet<u32>) {
        self.texts.full = full;
    }

    /// Whether this user may have jobs with so many more bytes of texts.
    pub(super) fn check_texts(&self, by: &Caller, more: u64) -> Result<(), Error> {
        let (uid, name) = (by.account.uid, &by.account.name);
        if self.texts.full.contains(&uid) {
            let why = format!(
                "{name} has too many ended jobs of the last day: \
                 the daemon keeps their idempotency keys for 24 hours"
            );
            return Err(Error::new(ErrorCode::NotAllowed, why).hint(
                "submit again later; an array (`divvy submit --array 0-9999`) has one key for all its jobs",
            ));
        }
        self.fits(uid, name, more, "this submission would make it")
    }

    /// Whether a job may have texts of so many bytes in place of its present ones.
    pub(super) fn check_amended(&self, id: JobId, texts: u64) -> Result<(), Error> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let ask = &living.job.ask;
        let more = texts.saturating_sub(living.texts);
        self.fits(
            ask.by.uid,
            &ask.user,
            more,
            "the confirmation would make it",
        )
    }

    /// Whether a job that is changed may have texts of so many bytes in place of its present ones.
    pub(super) fn check_changed(&self, id: JobId, texts: u64) -> Result<(), Error> {
        let Some(living) = self.jobs.get(&id) else {
            return Ok(());
        };
        let ask = &living.job.ask;
        let more = texts.saturating_sub(living.texts);
        self.fits(ask.by.uid, &ask.user, more, "the change would make it")
    }

    fn fits(&self, uid: u32, name: &str, more: u64, would: &str) -> Result<(), Error> {
        let most = self.config.max_texts;
        let held = self.texts.of(uid);
        let sum = held.saturating_add(more);
        if more == 0 || sum <= most {
            return Ok(());
        }
        let human = |bytes| Bytes::new(bytes).human();
        let why = format!(
            "the unfinished jobs of {name} have {} of texts (commands, environments, secrets); {would} {}",
            human(held),
            human(sum)
        );
        Err(Error::new(ErrorCode::NotAllowed, why).hint(format!(
            "the limit is {} (`divvy daemon --max-texts`): wait for some jobs to end, or cancel some",
            human(most)
        )))
    }

    /// Checks in debug builds that the sums equal the jobs' own figures.
    pub(super) fn check_sums(&self) {
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        for living in self.jobs.values() {
            *held.entry(living.job.ask.by.uid).or_default() += living.texts;
        }
        assert_eq!(
            held, self.texts.held,
            "the sums of texts differ from the jobs' own figures"
        );
    }
}

/// Returns the bytes of an array that is about to be stored, by its largest job.
pub(super) fn of_array(largest: &NewJob, first: &NewJob, tasks: usize) -> u64 {
    let each = budget::of_new(largest).max(budget::of_new(first));
    each.saturating_mul(tasks as u64)
}
