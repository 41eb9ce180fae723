//! Unknown jobs: live processes in a slice or under a record that neither the journal nor the record assigns to a job.
//!
//! Recovery ([`crate::journal::recover`]) takes over every job whose record is complete. What remains has a damaged
//! record, or one that an earlier build wrote; or its state was deleted, as by a purge of the package, and it runs on in
//! its control group. The GPUs of an unknown job stay reserved until its last process has ended; its folder and its log
//! stay.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{self};
use divvy_core::gpu::GRANULE;
use divvy_core::{Bytes, Grant, JobId, JobState, Share};

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::lifecycle::{end, finalize, planner_input};
use crate::controller::state::lookup::records;
use crate::controller::state::unjournaled::UnjournaledJob;
use crate::controller::state::{Jobs, State};
use crate::gpu::slice::HeldSlice;
use crate::host::cgroup::{self, Cgroup};
use crate::host::process::proc_path;
use crate::job_dir::processes::survivors;
use crate::journal::StoreError;
use crate::journal::recover::{last_run, numbers};

/// How many of its pids a text shows. A line of a terminal; a longer list hides the text behind it.
const MOST_PIDS: usize = 16;

/// Finds live jobs that the journal does not know to be running. [`reserve_for_unknown`] measures later what they hold.
pub(in crate::controller) fn find_unknown(jobs: &mut Jobs, io: &Io) -> Result<(), StoreError> {
    let home = &io.config.home;
    let ended = io.store.ended()?;
    let mut candidates = numbers(&home.jobs());
    candidates.retain(|id| !ended.contains(id));
    candidates.extend(numbers(home.slices()));
    let known = |id: &JobId| {
        let active = jobs.active.get(id);
        active.is_some_and(|active| active.job.state != JobState::Queued)
    };
    let mut groups = groups_of_jobs(io);
    groups.retain(|id, _| !ended.contains(id));
    candidates.extend(groups.keys());
    candidates.retain(|id| !known(id));
    for id in candidates {
        let group = groups.remove(&id);
        if let Some(pids) = pids_of_unknown(io, id, group.as_ref()) {
            let unknown = UnjournaledJob {
                grants: Vec::new(),
                pids,
                group,
            };
            jobs.unjournaled.insert(id, unknown);
        }
    }
    // A new job of the same number would have to wait for the end of this one.
    match jobs.unjournaled.keys().next_back() {
        Some(last) => io.store.number_after_job(*last),
        None => Ok(()),
    }
}

/// The control groups with processes that are below this daemon's, or its fork server's.
fn groups_of_jobs(io: &Io) -> BTreeMap<JobId, Cgroup> {
    let prefix = io.config.confinement.cgroup_parent.as_ref();
    let found = prefix.map_or_else(|_| Vec::new(), |prefix| cgroup::job_groups(prefix));
    let living = found
        .into_iter()
        .filter(|(_, group)| !group.members().is_empty());
    living.collect()
}

/// The pids of a job that the journal does not know to be running; `None` if none of its processes lives.
fn pids_of_unknown(io: &Io, id: JobId, group: Option<&Cgroup>) -> Option<Vec<u32>> {
    let name = id.to_string();
    let dir = last_run(&io.config.home.job(&name));
    let launch = dir.launch().ok().flatten();
    // The slice of a job that has just ended may be left, while its supervisor is about to exit.
    let is_over = matches!(dir.exit(), Ok(Some(_)));
    let is_attended = dir.has_record() && !is_over && matches!(dir.lock(), Ok(None));
    let mut processes = group.map_or_else(Vec::new, Cgroup::members);
    if let Some(launch) = launch {
        processes.extend(is_attended.then_some(launch.process));
        processes.extend(survivors(&dir, launch.process).unwrap_or_default());
    }
    if let Ok(slice) = HeldSlice::open(&io.config.home.slice(&name))
        && let Ok(ledger) = slice.read()
    {
        processes.extend(slice.live_processes(&ledger));
    }
    let mut pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.truncate(MOST_PIDS);
    (is_attended || !pids.is_empty()).then_some(pids)
}

/// Reserves what unknown jobs hold: their slices' limits, or whole GPUs without a readable slice. Never more than what
/// no journaled job holds.
pub(in crate::controller) fn reserve_for_unknown(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let ids: Vec<JobId> = state.jobs.unjournaled.keys().copied().collect();
    for id in ids {
        let grants = grants_of_unknown(state, io, id);
        let Some(unknown) = state.jobs.unjournaled.get_mut(&id) else {
            continue;
        };
        unknown.grants = grants;
        let text = unknown.describe();
        tracing::error!(job = %id, "the journal lacks a running job: {text}");
        fx.record_event(io, Some(id), "unknown_job", &text)?;
    }
    Ok(())
}

fn grants_of_unknown(state: &State, io: &Io, id: JobId) -> Vec<Grant> {
    let folder = io.config.home.slice(&id.to_string());
    let limits = HeldSlice::open(&folder).map(|slice| slice.ledger().granted());
    let pids = state.jobs.unjournaled.get(&id).map(|one| &one.pids);
    let named: BTreeSet<String> = pids.into_iter().flatten().flat_map(gpus_of).collect();
    let snapshot = planner_input::snapshot(state, io);
    let gpus = snapshot.gpus.iter().filter(|gpu| gpu.mig.is_none());
    let reserve = |gpu: &divvy_core::Gpu| {
        let wanted = match &limits {
            Ok(spec) => {
                let mut parts = spec.gpus.iter();
                let part = parts.find(|part| part.uuid == gpu.uuid.to_bytes())?;
                Bytes::new(part.limit).round_up(GRANULE).min(gpu.usable())
            }
            Err(_) if !named.is_empty() && !named.contains(gpu.uuid.as_str()) => return None,
            Err(_) => gpu.usable(),
        };
        let held = snapshot.held.iter().flat_map(|held| &held.grants);
        let held: Vec<&Grant> = held.filter(|grant| grant.gpu == gpu.uuid).collect();
        let memory: Bytes = held.iter().map(|grant| grant.memory).sum();
        let share: u16 = held.iter().map(|grant| grant.share.thousandths()).sum();
        let share = gpu
            .share_of(wanted)?
            .thousandths()
            .min(1000_u16.saturating_sub(share));
        let memory = wanted
            .min(gpu.usable().saturating_sub(memory))
            .round_down(GRANULE);
        let share = Share::from_thousandths(share).filter(|_| memory > Bytes::ZERO)?;
        Some(Grant {
            gpu: gpu.uuid.clone(),
            index: gpu.index,
            memory,
            share,
            label: format!("gpu{}-unknown{id}", gpu.index),
            mig: None,
        })
    };
    gpus.filter_map(reserve).collect()
}

/// The GPUs that a process was started with: without its slice nothing else tells.
fn gpus_of(pid: &u32) -> Vec<String> {
    let environment = std::fs::read(proc_path(*pid, "environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|one| one.strip_prefix(b"NVIDIA_VISIBLE_DEVICES="));
    let value = String::from_utf8_lossy(value.unwrap_or_default());
    let uuids = value.split(',').filter(|one| one.starts_with("GPU-"));
    uuids.map(str::to_owned).collect()
}

/// Forgets unknown jobs that have ended since the last check.
pub(in crate::controller) fn check_unknown(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
) -> Result<(), StoreError> {
    let ids: Vec<JobId> = state.jobs.unjournaled.keys().copied().collect();
    for id in ids {
        let group = state.jobs.unjournaled.get(&id);
        let group = group.and_then(|one| one.group.as_ref());
        if let Some(pids) = pids_of_unknown(io, id, group) {
            if let Some(unknown) = state.jobs.unjournaled.get_mut(&id) {
                unknown.pids = pids;
            }
            continue;
        }
        state.jobs.unjournaled.remove(&id);
        fx.replan = true;
        let log = io.config.home.job(&id.to_string());
        end::free_slice(&mut state.jobs, fx, id);
        let text = format!(
            "its last process has ended; the daemon keeps its folder: {}",
            log.display()
        );
        tracing::warn!(job = %id, "unknown job: {text}");
        fx.record_event(io, Some(id), "unknown_job", &text)?;
        end_spent(state, fx, io, id)?;
    }
    Ok(())
}

/// Ends a job that is pending in the journal although its record shows a start: it must not start again.
pub(in crate::controller) fn end_spent(
    state: &mut State,
    fx: &mut Effects,
    io: &Io,
    id: JobId,
) -> Result<(), StoreError> {
    let waits = |job_state: &JobState| *job_state == JobState::Queued;
    let Some(active) = state
        .jobs
        .active
        .get_mut(&id)
        .filter(|active| waits(&active.job.state))
    else {
        return Ok(());
    };
    if state.jobs.unjournaled.contains_key(&id) {
        return Ok(());
    }
    let record = records(&io.config.home, id, &active.job).record();
    let Ok(record) = record else {
        return Ok(());
    };
    if record.launch.is_none() && record.exit.is_none() {
        return Ok(());
    }
    active.job.place(Vec::new());
    fx.record_event(
        io,
        Some(id),
        "recovered",
        "its job record shows that it was started, but the journal does not",
    )?;
    finalize::finalize(state, fx, io, id, record.exit.as_ref())
}

/// The slices of unknown jobs on a GPU.
pub(in crate::controller) fn slices_of_unknown(
    jobs: &Jobs,
    gpu: &divvy_core::GpuUuid,
) -> Vec<v1::GpuSlice> {
    let grants = |(id, unknown): (&JobId, &UnjournaledJob)| {
        let here = unknown.grants.iter().filter(|grant| grant.gpu == *gpu);
        here.map(|grant| (*id, grant.clone())).collect::<Vec<_>>()
    };
    let shown = jobs
        .unjournaled
        .iter()
        .flat_map(grants)
        .map(|(id, grant)| v1::GpuSlice {
            job: id.to_string(),
            user: String::new(),
            label: grant.label.clone(),
            memory_limit_bytes: grant.memory.get(),
            memory_used_bytes: 0,
            share: grant.share.thousandths(),
            memory_driver_bytes: None,
            memory_mismatch_bytes: None,
            compute_time: None,
            enforcement: divvy_core::Enforcement::Limiter.name().to_owned(),
            mig: None,
            unknown: true,
        });
    shown.collect()
}
