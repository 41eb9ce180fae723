//! Recovery of the journal from the folders of jobs, before the daemon observes the running processes.
//!
//! A journal can be lost, cut short or restored from an earlier copy, while jobs go on: their supervisors need no
//! daemon. The record of a job holds a replica of its rows ([`Replica`]). From these the daemon adds every job and run
//! that the journal lacks. It then adopts or ends each job as after any restart.
//!
//! Records are the daemon's own files, in folders that no other user can write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use divvy_api::home::Home;
use divvy_core::{GpuUuid, Grant, JobId, JobState};

use crate::host::clock::now;
use crate::host::error::error_chain;
use crate::job_dir::processes::survivors;
use crate::job_dir::replica::Replica;
use crate::job_dir::{JobDir, LaunchSpec, Record, RecordError, later_runs};
use crate::journal::{Store, StoreError};
use crate::model::job::Job;

/// A GPU's compute time, in thousandths. It must be [`Share`](divvy_core::Share)'s unit.
const WHOLE: u64 = 1000;

/// What the folder of a job has, where the journal is to take it over.
struct RecoverableRun {
    id: JobId,
    replica: Replica,
    spec: LaunchSpec,
    /// A process or a container of it may be there, or it is lent.
    is_alive: bool,
    /// Its program was started, or shall not be any more.
    is_spent: bool,
}

/// Completes the journal, and gives the jobs that it did not know, or not as they are.
///
/// # Errors
/// When the journal fails.
pub fn recover(store: &Store, home: &Home) -> Result<BTreeSet<JobId>, StoreError> {
    let living: BTreeMap<JobId, Job> = store
        .living()?
        .into_iter()
        .map(|job| (job.id, job))
        .collect();
    let ended = store.ended()?;
    let last = store.last_seq()?;
    let mut found: Vec<RecoverableRun> = Vec::new();
    for id in numbers(&home.jobs()) {
        if ended.contains(&id) {
            continue;
        }
        let is_behind = |one: &RecoverableRun| match living.get(&id).map(|job| &job.state) {
            None => true,
            // It waits again after a start that came to nothing.
            Some(JobState::Queued) if !one.is_alive && !one.is_spent => false,
            Some(_) => one.replica.seq() > last,
        };
        match read_last_run(id, &home.job(&id.to_string())) {
            Ok(one) => found.extend(one.filter(is_behind)),
            Err(error) => {
                tracing::warn!(job = %id, error = error_chain(&error), "cannot read the job record");
            }
        }
    }
    if found.is_empty() {
        return Ok(BTreeSet::new());
    }
    store.begin()?;
    let replaced: BTreeSet<JobId> = found.iter().map(|found| found.id).collect();
    let mut shares = Shares::default();
    for job in living.values().filter(|job| !job.state.grants().is_empty()) {
        match replaced.contains(&job.id) || is_over(home, job) {
            // What it held may be another job's by now.
            true => store.release_allocations(job)?,
            false => shares.add(job),
        }
    }
    let mut recovered = BTreeSet::new();
    let newest = found.iter().map(|found| found.replica.seq()).max();
    store.number_events_after(newest.unwrap_or_default())?;
    // A job that has ended held its GPUs before the jobs that live.
    found.sort_by_key(|found| !found.is_alive);
    for RecoverableRun {
        id, replica, spec, ..
    } in found
    {
        let Some(job) = store.restore_job(&replica, &spec, |job| shares.has_room_for(job))? else {
            continue;
        };
        shares.add(&job);
        let text = match living.contains_key(&id) {
            true => "the journal was older than the job record",
            false => "the job was not in the journal, but has a job record",
        };
        store.append_event(now(), Some(id), "recovered", text)?;
        tracing::warn!(job = %id, user = job.spec.user, "recovered a job from its job record: {text}");
        recovered.insert(id);
    }
    store.commit()?;
    Ok(recovered)
}

/// What the folder of a job's last run has; `None` where nothing of it is to be taken over.
fn read_last_run(id: JobId, folder: &Path) -> Result<Option<RecoverableRun>, RecordError> {
    let dir = last_run(folder);
    if !is_ours(dir.path()) {
        return Ok(None);
    }
    let (spec, record) = dir.read_all()?;
    // A claim has no spec, and neither has a job that has ended.
    let is_claim = spec.is_none() && record == Record::default();
    let Some(mut spec) = spec.or_else(|| is_claim.then(LaunchSpec::default)) else {
        return Ok(None);
    };
    let recorded = spec.replica.take();
    // The one beside the record is of a later change, or of an earlier start that came to nothing.
    let replica = recorded
        .into_iter()
        .chain(Replica::read(&dir))
        .max_by_key(Replica::seq);
    let Some(replica) = replica.filter(|replica| replica.id() == Some(id)) else {
        return Ok(None);
    };
    Ok(Some(RecoverableRun {
        id,
        replica,
        spec,
        is_alive: is_claim || (record.exit.is_none() && is_alive(&dir, &record)?),
        is_spent: record.launch.is_some() || record.exit.is_some(),
    }))
}

/// Whether nothing of a job is there any more that the journal has as running.
fn is_over(home: &Home, job: &Job) -> bool {
    if job.state.grants().is_empty() || job.claim().is_some() {
        return false;
    }
    let dir = last_run(&home.job(&job.id.to_string()));
    if !dir.has_record() {
        return true;
    }
    let over = || -> Result<bool, RecordError> {
        let record = dir.record()?;
        Ok(record.exit.is_some() || !is_alive(&dir, &record)?)
    };
    over().unwrap_or_default()
}

/// Whether a supervisor, a process or a container of a job that has a record may be there.
pub fn is_alive(dir: &JobDir, record: &Record) -> Result<bool, RecordError> {
    if dir.lock()?.is_none() {
        return Ok(true);
    }
    let Some(launch) = record.launch else {
        return Ok(false);
    };
    Ok(record.container.is_some() || !survivors(dir, launch.process)?.is_empty())
}

/// The folder of a job's last run.
pub fn last_run(folder: &Path) -> JobDir {
    let last = later_runs(folder).pop_last();
    JobDir::new(last.map_or_else(|| folder.to_owned(), |(_, last)| last))
}

/// Whether a folder is this user's, and no link.
fn is_ours(folder: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(folder).is_ok_and(|meta| meta.is_dir() && meta.uid() == me)
}

/// Numbers of jobs that have a folder here, in order.
pub fn numbers(folders: &Path) -> BTreeSet<JobId> {
    let names = fs::read_dir(folders).into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// What jobs hold of each GPU's compute time, in thousandths.
#[derive(Default)]
struct Shares(BTreeMap<GpuUuid, u64>);

impl Shares {
    fn parts(job: &Job) -> impl Iterator<Item = &Grant> {
        let grants = job.state.grants().iter();
        grants.filter(|grant| grant.mig.is_none() && job.run_state.aside.memory.holds_gpus())
    }

    fn add(&mut self, job: &Job) {
        for grant in Self::parts(job) {
            *self.0.entry(grant.gpu.clone()).or_default() += u64::from(grant.share.thousandths());
        }
    }

    fn has_room_for(&self, job: &Job) -> bool {
        Self::parts(job).all(|grant| {
            let held = self.0.get(&grant.gpu).copied().unwrap_or_default();
            held + u64::from(grant.share.thousandths()) <= WHOLE
        })
    }
}
