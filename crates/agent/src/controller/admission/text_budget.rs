//! Text budget: the bytes of texts of each user's jobs that have not ended, held to a limit.
//!
//! The daemon keeps these texts in the journal, and the commands in memory. Only this module adds jobs to the
//! controller's map and removes them, so that the sums stay right.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::{Bytes, JobId};

use crate::auth::Caller;
use crate::controller::io::Io;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::Jobs;
use crate::journal::StoreError;
use crate::model::job::{Job, NewJob};
use crate::model::validate::budget;

/// Counts the texts of the jobs that the journal has, once, when the daemon starts.
pub(in crate::controller) fn count_texts(jobs: &mut Jobs, io: &Io) -> Result<(), StoreError> {
    let environments = io.store.environments()?;
    for (id, active) in &mut jobs.active {
        let job = &active.job;
        let environment = environments.get(id).copied().unwrap_or(0);
        let secrets = match job.spec.secrets.is_empty() {
            true => 0,
            false => io.secrets.size(*id),
        };
        active.texts = budget::ended_job_size(&job.spec) + environment + secrets;
        jobs.texts.add(job.spec.credentials.uid, active.texts);
    }
    Ok(())
}

/// Adds a job that the journal has just stored.
pub(in crate::controller) fn add_job(jobs: &mut Jobs, job: Job, texts: u64) {
    jobs.texts.add(job.spec.credentials.uid, texts);
    let mut active = ActiveJob::new(job);
    active.texts = texts;
    jobs.active.insert(active.job.id, active);
}

/// Removes jobs that have ended.
pub(in crate::controller) fn remove_ended(jobs: &mut Jobs) {
    let texts = &mut jobs.texts;
    jobs.active.retain(|_, active| {
        let lives = active.job.state.outcome().is_none();
        if !lives {
            texts.remove(active.job.spec.credentials.uid, active.texts);
        }
        lives
    });
}

/// Sets the size of a job's texts.
pub(in crate::controller) fn set_texts(jobs: &mut Jobs, id: JobId, texts: u64) {
    if let Some(active) = jobs.active.get_mut(&id) {
        let uid = active.job.spec.credentials.uid;
        jobs.texts.remove(uid, active.texts);
        jobs.texts.add(uid, texts);
        active.texts = texts;
    }
}

/// Sets the users with more ended jobs than retention keeps, as the retention thread found them.
pub(in crate::controller) fn set_users_over_limit(jobs: &mut Jobs, full: BTreeSet<u32>) {
    jobs.texts.users_over_limit = full;
}

/// Whether this user may have jobs with `more` more bytes of texts.
pub(in crate::controller) fn check_texts(
    jobs: &Jobs,
    io: &Io,
    by: &Caller,
    more: u64,
) -> Result<(), Error> {
    let (uid, name) = (by.account.uid, &by.account.name);
    if jobs.texts.users_over_limit.contains(&uid) {
        let why = format!(
            "{name} has too many ended jobs of the last day: \
                 the daemon keeps their idempotency keys for 24 hours"
        );
        return Err(Error::new(ErrorCode::NotAllowed, why).hint(
                "submit again later; an array (`divvy submit --array 0-9999`) has one key for all its jobs",
            ));
    }
    check_budget(jobs, io, uid, name, more, "this submission would make it")
}

/// Whether a job may have texts of this size. `would` begins the refusal: `the change would make it`.
pub(in crate::controller) fn check_job(
    jobs: &Jobs,
    io: &Io,
    id: JobId,
    texts: u64,
    would: &str,
) -> Result<(), Error> {
    let Some(active) = jobs.active.get(&id) else {
        return Ok(());
    };
    let spec = &active.job.spec;
    let more = texts.saturating_sub(active.texts);
    check_budget(jobs, io, spec.credentials.uid, &spec.user, more, would)
}

fn check_budget(
    jobs: &Jobs,
    io: &Io,
    uid: u32,
    name: &str,
    more: u64,
    would: &str,
) -> Result<(), Error> {
    let most = io.config.limits.max_texts;
    let held = jobs.texts.of(uid);
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
        "the limit is {} (the key limits.max-texts): wait for some jobs to end, or cancel some",
        human(most)
    )))
}

/// Checks in debug builds that the sums equal the jobs' own figures.
pub(in crate::controller) fn check_sums(jobs: &Jobs) {
    let mut held: BTreeMap<u32, u64> = BTreeMap::new();
    for active in jobs.active.values() {
        *held.entry(active.job.spec.credentials.uid).or_default() += active.texts;
    }
    assert_eq!(
        held, jobs.texts.bytes_by_user,
        "the sums of texts differ from the jobs' own figures"
    );
}

/// The bytes of an array that is about to be stored, estimated from its largest job.
pub(in crate::controller) fn of_array(largest: &NewJob, first: &NewJob, tasks: usize) -> u64 {
    let each = budget::new_job_size(largest).max(budget::new_job_size(first));
    each.saturating_mul(tasks as u64)
}
